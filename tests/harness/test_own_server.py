"""A server that the harness starts is set by the run's arguments alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from polystem.clock import SystemClock
from polystem.engine.remote import RemoteClient
from polystem.harness.own_server import own_server, serve_arguments

pytestmark = [pytest.mark.anyio, pytest.mark.native]


async def test_settings_of_another_server_do_not_reach_it(
    tmp_path: Path, bundled_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYSTEM_API_KEY", "the key of a client")
    monkeypatch.setenv("POLYSTEM_CONTEXT", "64")
    arguments = serve_arguments(model=str(bundled_model), cells=512, agents=1, threads=1)
    async with (
        own_server(arguments, log=tmp_path / "server.log", clock=SystemClock()) as url,
        RemoteClient(url) as client,
    ):
        props = await client.get_json("/props")
    assert (props["cells_total"], props["n_ctx"]) == (512, 512)
