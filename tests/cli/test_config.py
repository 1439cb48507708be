"""Flags over environment over file over defaults, under one name."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from polystem.capacity.measured_mean import MeasuredMean
from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.cli.config import SETTINGS, ServeCommand, read_serve_command
from polystem.cli.model_file import model_path
from polystem.engine.llama import LlamaSettings
from polystem.errors import ConfigError
from polystem.fleet import FleetSettings, FloorSettings
from polystem.serve import ServeSettings

UNITS: dict[str, Any] = {
    "engine": LlamaSettings,
    "fleet": FleetSettings,
    "floor": FloorSettings,
    "gate": GateSettings,
    "policy": FloorPolicy,
    "serve": ServeSettings,
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    return str(file)


def read(
    flags: dict[str, Any] | None = None, environment: dict[str, str] | None = None, file: Path | None = None
) -> ServeCommand:
    return read_serve_command(flags or {}, environment=environment or {}, file=file)


def toml(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "polystem.toml"
    file.write_text(text)
    return file


def test_without_anything_the_units_own_defaults_hold(model: str) -> None:
    command = read({"model": model})
    assert command.serve == ServeSettings()
    assert command.fleet == FleetSettings()
    assert command.engine == LlamaSettings(model_path=Path(model))
    assert command.floor == FloorSettings()


def test_the_floor_the_queue_and_the_limits_reach_the_gate(model: str, tmp_path: Path) -> None:
    file = toml(tmp_path, "floor_tps = 12\nqueue_limit = 9\nunder_share = 0.1\nadmit_wait_s = 0\n")
    environment = {"POLYSTEM_FLOOR_TPS": "15.5", "POLYSTEM_ON_SATURATION": "warn", "POLYSTEM_SESSION_TTL_S": "60"}
    floor = read({"model": model, "floor_mode": "advisory", "max_workers": 7}, environment, file).floor
    assert floor.gate.policy == FloorPolicy(floor_tps=15.5, mode="advisory", on_saturation="warn")
    gate = floor.gate
    assert (gate.queue_limit, gate.under_share, gate.session_ttl_s, gate.max_workers) == (9, 0.1, 60.0, 7)
    assert floor.admit_wait_s == 0


def test_a_floor_is_enforced_unless_something_else_is_said(model: str) -> None:
    policy = read({"model": model, "floor_tps": 15.0}).floor.gate.policy
    assert (policy.mode, policy.on_saturation) == ("enforced", "reject")


def test_a_short_time_limit_shortens_the_wait_that_nobody_asked_for(model: str) -> None:
    assert read({"model": model, "request_timeout_s": 20.0}).floor.admit_wait_s == 10.0


def test_a_wait_that_the_time_limit_would_cut_is_refused(model: str) -> None:
    with pytest.raises(ConfigError, match="admit_wait_s 600 is not below request_timeout_s 600") as caught:
        read({"model": model, "admit_wait_s": 600.0})
    assert "--admit-wait-s" in (caught.value.hint or "")


def test_a_server_on_a_fixed_port_has_a_store_of_its_own_and_one_on_a_free_port_has_none(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert read({"model": model}).store == tmp_path / "polystem" / "fleet-8080.db"
    assert read({"model": model, "port": 9000}).store == tmp_path / "polystem" / "fleet-9000.db"
    assert read({"model": model, "port": 0}).store is None


def test_a_store_may_be_named_anywhere_or_refused(model: str, tmp_path: Path) -> None:
    assert read({"model": model, "store": "none"}).store is None
    assert read({"model": model, "port": 0, "store": str(tmp_path / "a.db")}).store == tmp_path / "a.db"
    assert read({"model": model, "store": "~/a.db"}).store == Path("~/a.db").expanduser()
    with pytest.raises(ConfigError, match="store is empty"):
        read({"model": model, "store": ""})


def test_flags_win_over_the_environment_and_that_over_the_file(model: str, tmp_path: Path) -> None:
    file = toml(tmp_path, "cells = 1000\nport = 1000\nthreads = 1\n")
    command = read({"model": model, "cells": 3000}, {"POLYSTEM_CELLS": "2000", "POLYSTEM_PORT": "2000"}, file)
    assert (command.engine.cells, command.serve.port, command.engine.threads) == (3000, 2000, 1)


def test_a_flag_that_was_not_given_hides_nothing(model: str) -> None:
    assert read({"model": model, "cells": None}, {"POLYSTEM_CELLS": "2000"}).engine.cells == 2000


def test_the_environment_may_name_the_file(model: str, tmp_path: Path) -> None:
    file = toml(tmp_path, "cells = 1000\n")
    assert read({"model": model}, {"POLYSTEM_CONFIG": str(file)}).engine.cells == 1000


def test_every_kind_of_value_is_read_from_the_environment(model: str) -> None:
    environment = {
        "POLYSTEM_MODEL": model,
        "POLYSTEM_AUTO_POOL": "Yes",
        "POLYSTEM_FLASH_ATTENTION": "off",
        "POLYSTEM_REQUEST_TIMEOUT_S": "2.5",
        "POLYSTEM_API_KEY": "one, two",
        "POLYSTEM_HOST": "0.0.0.0",
        "PATH": "/bin",
    }
    command = read(environment=environment)
    assert command.fleet.auto_pool is True
    assert command.engine.flash_attention is False
    assert command.serve == ServeSettings(host="0.0.0.0", api_keys=("one", "two"), request_timeout_s=2.5)


def test_keys_come_from_flags_and_from_a_file_one_a_line(model: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first\n\n  second \n")
    command = read({"model": model, "api_key": ["zero"], "api_key_file": str(keys)})
    assert command.serve.api_keys == ("zero", "first", "second")


@pytest.mark.parametrize(
    ("text", "told", "near"),
    [
        ("cels = 1", "cels", "cells"),
        ("max-body-bytes = 1", "max-body-bytes", "max_body_bytes"),
        ("[serve]\nport = 1", "serve", ""),
    ],
)
def test_an_unknown_key_of_the_file_is_named_with_its_neighbours(
    model: str, tmp_path: Path, text: str, told: str, near: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read({"model": model}, file=toml(tmp_path, text))
    assert f"polystem.toml: '{told}'" in caught.value.message
    assert near in (caught.value.hint or "")


def test_an_unknown_variable_is_named_with_its_neighbours(model: str) -> None:
    with pytest.raises(ConfigError, match="POLYSTEM_THREAD") as caught:
        read({"model": model}, {"POLYSTEM_THREAD": "1"})
    assert "threads" in (caught.value.hint or "")


def test_a_variable_of_another_command_is_left_to_it(model: str) -> None:
    assert read({"model": model}, {"POLYSTEM_COURIER_API_KEY": "key"}).serve == ServeSettings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cells = '9'", "'cells' must be a whole number, but is '9'"),
        ("cells = true", "'cells' must be a whole number, but is True"),
        ("cells = 1.5", "'cells' must be a whole number, but is 1.5"),
        ("auto_pool = 1", "'auto_pool' must be true or false, but is 1"),
        ("api_key = 'a'", "'api_key' must be a list of texts, but is 'a'"),
        ("host = 1", "'host' must be text, but is 1"),
        ("request_timeout_s = 'x'", "'request_timeout_s' must be a number of seconds, but is 'x'"),
        ("cells = ", "is not TOML"),
        ("log_level = 'loud'", "log_level 'loud' is unknown"),
        ("cells = 1", "must be between"),
        ("tool_format = 'xml'", "tool_format 'xml' is unknown; give one of hermes"),
        ("port = 70000", "port 70000 is out of range"),
        ("floor_tps = '15'", "'floor_tps' must be a number, but is '15'"),
        ("floor_tps = 0", "floor_tps is 0, it must be from 0.001"),
        ("floor_tps = nan", "floor_tps is nan, it must be from 0.001"),
        ("floor_mode = 'strict'", "'strict', it must be one of advisory, enforced"),
        ("on_saturation = 'queue'", "'queue', it must be one of reject, warn"),
        ("max_workers = 0", "max_workers is 0, it must be from 1"),
        ("admit_wait_s = -1", "admit_wait_s is -1, the least is 0"),
        ("admit_wait_s = nan", "admit_wait_s is nan, the least is 0"),
        ("session_ttl_s = 0", "session_ttl_s is 0, it must be from 1"),
    ],
)
def test_a_value_that_does_not_fit_is_named(model: str, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read({"model": model}, file=toml(tmp_path, text))
    assert message in caught.value.message


def test_a_chat_template_is_read_from_its_file(model: str, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages }}")
    command = read({"model": model, "chat_template_file": str(template), "tool_format": "hermes"})
    assert (command.engine.chat_template, command.engine.tool_format) == ("{{ messages }}", "hermes")


def test_a_name_in_another_order_of_words_is_known_again(model: str) -> None:
    with pytest.raises(ConfigError, match="unknown setting POLYSTEM_TPS_FLOOR") as caught:
        read({"model": model}, {"POLYSTEM_TPS_FLOOR": "15"})
    assert caught.value.hint == "did you mean floor_tps?"


def test_a_word_that_is_no_number_is_refused_from_the_environment(model: str) -> None:
    with pytest.raises(ConfigError, match="POLYSTEM_CELLS must be a whole number, but is 'many'"):
        read({"model": model}, {"POLYSTEM_CELLS": "many"})


@pytest.mark.parametrize("flags", [{"model": "/nowhere/model.gguf"}, {"api_key_file": "/nowhere/keys"}])
def test_a_file_that_does_not_exist_is_named(model: str, flags: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="/nowhere/"):
        read({"model": model} | flags)


def test_a_missing_configuration_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        read(file=tmp_path / "nowhere.toml")


def test_the_bundled_model_is_a_file_of_the_package(bundled_model: Path) -> None:
    assert model_path("bundled") == bundled_model


def test_every_setting_fills_a_field_that_its_unit_has() -> None:
    for setting in SETTINGS:
        if setting.unit != "command":
            assert setting.field in {field.name for field in fields(UNITS[setting.unit])}, setting


def test_the_page_shows_every_setting_and_no_other(repository: Path) -> None:
    page = (repository / "docs" / "configuration.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == {setting.name for setting in SETTINGS}


def test_the_page_shows_the_defaults_that_hold(repository: Path) -> None:
    page = (repository / "docs" / "configuration.md").read_text()
    told = dict(re.findall(r"^\| `(\w+)` \| .*? \| (.*?) \|", page, re.MULTILINE))
    for setting in SETTINGS:
        if setting.unit != "command":
            default = next(each.default for each in fields(UNITS[setting.unit]) if each.name == setting.field)
            if isinstance(default, str | int | float) and not isinstance(default, bool):
                assert told[setting.name] == f"{default:g}" if isinstance(default, float) else str(default)


def test_another_rule_for_newcomers_is_named_and_needs_a_floor() -> None:
    command = read_serve_command({"admission_rule": "measured-mean", "floor_tps": 9.0}, environment={})
    assert isinstance(command.floor.rule, MeasuredMean)
    assert read_serve_command({"floor_tps": 9.0}, environment={}).floor.rule is None
    with pytest.raises(ConfigError, match="goes by a floor, but there is none"):
        read_serve_command({"admission_rule": "measured-mean"}, environment={})
    with pytest.raises(ConfigError, match="admission_rule 'mean' is unknown; give floor or measured-mean"):
        read_serve_command({"admission_rule": "mean", "floor_tps": 9.0}, environment={})
