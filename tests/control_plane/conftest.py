"""One real server for all tests that only need the model."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.control_plane.stage import real_server

CELLS = 32768


@pytest.fixture(scope="package")
async def nano_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[str, None]:
    """`polystem serve` with courier-nano; whoever uses it closes its sessions and releases its pools."""
    folder: Path = tmp_path_factory.mktemp("server")
    async with real_server(folder, "--cells", str(CELLS), "--sequences", "64") as url:
        yield url
