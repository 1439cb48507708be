"""The processes of a server that a test has started; other tests may have servers of their own meanwhile."""

from __future__ import annotations

import psutil


def server_at(url: str) -> psutil.Process:
    """The child of this process that listens at a URL."""
    port = int(url.rsplit(":", 1)[1])
    return next(child for child in psutil.Process().children() if port in _listened_at(child))


def engines_of(url: str) -> list[psutil.Process]:
    """The engines of the server at a URL."""
    return server_at(url).children()


def _listened_at(process: psutil.Process) -> set[int]:
    found = process.net_connections("tcp")
    return {each.laddr.port for each in found if each.laddr and each.status == psutil.CONN_LISTEN}
