"""Health, props and the list of models, in every state of the engine."""

from __future__ import annotations

import pytest

from polystem.engine.scripted import ScriptedSettings
from polystem.serve import ServeSettings
from tests.serve.served import serving

pytestmark = pytest.mark.anyio


async def test_health_is_open_and_never_changes_its_boot() -> None:
    async with serving() as served:
        first, second = [(await served.client.get("/health")).json() for _ in range(2)]
        props = (await served.client.get("/props")).json()
    assert first == second
    assert first["status"] == "ok"
    assert (props["boot_id"], props["started_at"]) == (first["boot_id"], first["started_at"])
    assert props["opencoti"]["boot_id"] == first["boot_id"]


async def test_an_engine_that_is_loading_is_503_everywhere() -> None:
    async with serving(started=False) as served:
        for path in ("/health", "/props", "/v1/models", "/kv", "/slots"):
            response = await served.client.get(path)
            assert response.status_code == 503, path
            assert response.json()["reason"] == "engine_starting"
            assert int(response.headers["retry-after"]) >= 1
        chat = await served.chat()
        assert (chat.status_code, chat.json()["reason"]) == (503, "engine_starting")
        assert (await served.client.get("/metrics")).status_code == 200


async def test_an_engine_that_restarts_is_503_with_a_reason_until_it_is_back() -> None:
    async with serving(engine=ScriptedSettings(restart_s=None)) as served:
        boot = (await served.client.get("/props")).json()["boot"]
        served.engine.die()
        down = await served.client.get("/health")
        assert (down.status_code, down.json()["reason"]) == (503, "engine_restarting")
        served.engine.restart()
        assert (await served.client.get("/health")).status_code == 200
        assert (await served.client.get("/props")).json()["boot"] == boot + 1


async def test_an_engine_that_has_given_up_says_so() -> None:
    async with serving(engine=ScriptedSettings(restart_s=None)) as served:
        served.engine.give_up("no build")
        for response in (await served.client.get("/health"), await served.chat()):
            assert (response.status_code, response.json()["reason"]) == (503, "engine_failed")


async def test_a_drained_server_takes_no_work_and_says_why() -> None:
    async with serving() as served:
        await served.fleet.drain(1.0)
        for response in (await served.client.get("/health"), await served.chat()):
            assert (response.status_code, response.json()["reason"]) == (503, "draining")


async def test_props_name_the_model_and_the_template() -> None:
    async with serving(settings=ServeSettings(model_aliases=("courier",))) as served:
        props = (await served.client.get("/props")).json()
    assert props["model"] == "scripted"
    assert props["model_aliases"] == ["courier"]
    assert props["n_ctx"] == served.engine.settings.context_tokens
    assert "<|im_start|>" in props["chat_template"]
    assert props["opencoti"]["polykv"] == {"pools_enabled": True, "max_pools": 256}
    assert props["default_generation_settings"]["params"]["temperature"] == 1.0


async def test_the_served_model_is_listed_and_found_by_name_and_alias() -> None:
    async with serving(settings=ServeSettings(model_aliases=("org/courier",))) as served:
        [model] = (await served.client.get("/v1/models")).json()["data"]
        by_name = (await served.client.get("/v1/models/scripted")).json()
        by_alias = (await served.client.get("/v1/models/org/courier")).json()
        missing = await served.client.get("/v1/models/other")
    assert model == by_name == by_alias
    assert model["id"] == "scripted"
    assert missing.status_code == 404
