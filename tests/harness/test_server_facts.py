"""The first question to a server: a wrong address or key is told with what to do about it."""

from __future__ import annotations

import pytest

from polystem.engine.remote import RemoteClient
from polystem.errors import NotFound, PolystemError, Unauthorized, Unavailable
from polystem.harness.server_facts import ControlPlane
from tests.engine.remote.raw_server import raw_server
from tests.harness.courier_server import refused

pytestmark = pytest.mark.anyio


async def trouble_with(url: str) -> PolystemError:
    """What the first question to a server runs into."""
    async with RemoteClient(url) as client:
        with pytest.raises(PolystemError) as caught:
            await ControlPlane(client).facts(None)
    return caught.value


async def test_where_nobody_listens_the_hint_is_about_the_address(free_port: int) -> None:
    trouble = await trouble_with(f"http://127.0.0.1:{free_port}")
    assert isinstance(trouble, Unavailable)
    assert "--base-url" in (trouble.hint or "")


@pytest.mark.parametrize(("status", "kind", "hint"), [(401, Unauthorized, "--api-key"), (404, NotFound, "--base-url")])
async def test_a_refusal_keeps_its_kind_and_gets_a_hint(status: int, kind: type[PolystemError], hint: str) -> None:
    async with raw_server(lambda _request, _body: refused(status)) as url:
        trouble = await trouble_with(url)
    assert type(trouble) is kind
    assert hint in (trouble.hint or "")
