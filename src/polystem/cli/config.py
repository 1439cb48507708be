"""Where settings come from: flags over environment over file over each unit's own defaults.

One name everywhere: flag `--max-body-bytes`, environment `POLYSTEM_MAX_BODY_BYTES`, file key `max_body_bytes`. This
module alone reads the environment and TOML; the units own their settings and check their ranges. A name that nobody
knows is an error.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

from platformdirs import user_state_path

from polystem.capacity.measured_mean import MeasuredMean
from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.cli.model_file import BUNDLED_MODEL, model_path
from polystem.engine.llama import LlamaSettings
from polystem.engine.tools import TOOL_FORMATS
from polystem.errors import ConfigError, near_names
from polystem.fleet import FleetSettings, FloorSettings
from polystem.serve import ServeSettings

Unit: TypeAlias = Literal["engine", "fleet", "floor", "gate", "policy", "serve", "command"]
Value: TypeAlias = str | int | float | bool | list[Any]
PREFIX = "POLYSTEM_"
CONFIG_VARIABLE = "POLYSTEM_CONFIG"
OTHER_COMMANDS = tuple(f"{PREFIX}{command}_" for command in ("CAPACITY", "COURIER", "DOCTOR", "PLAN", "REPORT", "TUNE"))
NO_STORE = "none"
FLOOR_RULE, MEASURED_MEAN = "floor", "measured-mean"
WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name for users, and which field of which unit it fills."""

    name: str
    unit: Unit
    field: str
    kind: Literal["whole", "number", "seconds", "switch", "text", "texts"]


SETTINGS: tuple[Setting, ...] = (
    Setting("model", "command", "model", "text"),
    Setting("api_key_file", "command", "api_key_file", "text"),
    Setting("chat_template_file", "command", "chat_template_file", "text"),
    Setting("log_level", "command", "log_level", "text"),
    Setting("model_name", "engine", "model_name", "text"),
    Setting("cells", "engine", "cells", "whole"),
    Setting("sequences", "engine", "sequences", "whole"),
    Setting("context", "engine", "context_tokens", "whole"),
    Setting("threads", "engine", "threads", "whole"),
    Setting("threads_batch", "engine", "threads_batch", "whole"),
    Setting("flash_attention", "engine", "flash_attention", "switch"),
    Setting("micro_batch_tokens", "engine", "micro_batch_tokens", "whole"),
    Setting("prefill_chunk_tokens", "engine", "prefill_chunk_tokens", "whole"),
    Setting("repack", "engine", "repack", "switch"),
    Setting("cache_type_k", "engine", "cache_type_k", "text"),
    Setting("cache_type_v", "engine", "cache_type_v", "text"),
    Setting("gpu_layers", "engine", "gpu_layers", "whole"),
    Setting("tool_format", "engine", "tool_format", "text"),
    Setting("auto_pool", "fleet", "auto_pool", "switch"),
    Setting("pools_max", "fleet", "pools_max", "whole"),
    Setting("pools_per_owner", "fleet", "pools_per_owner", "whole"),
    Setting("window_ttl_s", "fleet", "window_ttl_s", "seconds"),
    Setting("auto_pool_min_tokens", "fleet", "auto_pool_min_tokens", "whole"),
    Setting("growth_reserve_tokens", "fleet", "growth_reserve_tokens", "whole"),
    Setting("prefill_budget_tokens", "fleet", "prefill_budget_tokens", "whole"),
    Setting("floor_tps", "policy", "floor_tps", "number"),
    Setting("floor_mode", "policy", "mode", "text"),
    Setting("on_saturation", "policy", "on_saturation", "text"),
    Setting("guarantee_min_sessions", "policy", "guarantee_min_sessions", "whole"),
    Setting("under_share", "gate", "under_share", "number"),
    Setting("cell_line", "gate", "cell_line", "number"),
    Setting("max_workers", "gate", "max_workers", "whole"),
    Setting("queue_limit", "gate", "queue_limit", "whole"),
    Setting("place_kept_s", "gate", "place_kept_s", "seconds"),
    Setting("session_ttl_s", "gate", "session_ttl_s", "seconds"),
    Setting("admit_wait_s", "floor", "admit_wait_s", "seconds"),
    Setting("admission_rule", "floor", "rule", "text"),
    Setting("store", "command", "store", "text"),
    Setting("host", "serve", "host", "text"),
    Setting("port", "serve", "port", "whole"),
    Setting("api_key", "serve", "api_keys", "texts"),
    Setting("model_alias", "serve", "model_aliases", "texts"),
    Setting("session_header", "serve", "session_headers", "texts"),
    Setting("move_lines", "serve", "move_lines", "texts"),
    Setting("max_body_bytes", "serve", "max_body_bytes", "whole"),
    Setting("request_timeout_s", "serve", "request_timeout_s", "seconds"),
    Setting("drain_grace_s", "serve", "drain_grace_s", "seconds"),
    Setting("sse_ping_interval_s", "serve", "ping_interval_s", "seconds"),
)
BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """All that `polystem serve` needs. `store` is the file that outlives the server, None for none."""

    engine: LlamaSettings
    fleet: FleetSettings
    floor: FloorSettings
    serve: ServeSettings
    store: Path | None
    log_level: str = "warning"


def read_serve_command(
    flags: Mapping[str, Any], *, environment: Mapping[str, str] | None = None, file: Path | None = None
) -> ServeCommand:
    """The settings of `polystem serve`; a flag that is None was not given. Raises ConfigError, ModelFileError."""
    environment = os.environ if environment is None else environment
    file = file or (Path(environment[CONFIG_VARIABLE]) if environment.get(CONFIG_VARIABLE) else None)
    found: dict[str, Value] = {}
    if file is not None:
        found |= _checked(_file_values(file), lambda name: f"{file}: '{name}'")
    found |= _checked(_environment_values(environment), _variable_of)
    found |= _checked({name: flag for name, flag in flags.items() if flag is not None}, _flag_of)
    return _command_of(found)


def _command_of(found: Mapping[str, Value]) -> ServeCommand:
    by_unit: dict[Unit, dict[str, Any]] = {unit: {} for unit in get_args(Unit)}
    for name, value in found.items():
        setting = BY_NAME[name]
        by_unit[setting.unit][setting.field] = tuple(value) if isinstance(value, list) else value
    command, engine, serve = by_unit["command"], by_unit["engine"], by_unit["serve"]
    if "api_key_file" in command:
        serve["api_keys"] = (*serve.get("api_keys", ()), *_keys_in(Path(command["api_key_file"])))
    if "chat_template_file" in command:
        engine["chat_template"] = _text_of(Path(command["chat_template_file"]), "chat template file")
    _check_tool_format(engine.get("tool_format"))
    serving = ServeSettings(**serve)
    return ServeCommand(
        engine=LlamaSettings(model_path=model_path(command.get("model", BUNDLED_MODEL)), **engine),
        fleet=FleetSettings(**by_unit["fleet"]),
        floor=_floor_of(by_unit, serving.request_timeout_s),
        serve=serving,
        store=store_path(command.get("store"), serving.port),
        log_level=_log_level(command.get("log_level", "warning")),
    )


def _floor_of(by_unit: Mapping[Unit, Mapping[str, Any]], request_timeout_s: float) -> FloorSettings:
    """The gate's settings; a wait that nobody asked for gives way to a short time limit of requests."""
    gate = GateSettings(policy=FloorPolicy(**by_unit["policy"]), **by_unit["gate"])
    plain = FloorSettings().admit_wait_s
    assert plain is not None
    admit_wait_s: float = by_unit["floor"].get("admit_wait_s", min(plain, request_timeout_s / 2))
    if admit_wait_s >= request_timeout_s:
        raise ConfigError(
            f"admit_wait_s {admit_wait_s:g} is not below request_timeout_s {request_timeout_s:g}: "
            "who waits to be let in would be cut off before it is told when to come again",
            hint="lower --admit-wait-s or raise --request-timeout-s",
            param="admit_wait_s",
        )
    rule = _rule(by_unit["floor"].get("rule", FLOOR_RULE), gate.policy.floor_tps)
    return FloorSettings(gate=gate, admit_wait_s=admit_wait_s, rule=rule)


def _rule(name: str, floor_tps: float | None) -> MeasuredMean | None:
    """What decides about newcomers; None is the floor gate's own. Raises ConfigError."""
    if name not in (FLOOR_RULE, MEASURED_MEAN):
        raise ConfigError(
            f"admission_rule '{name}' is unknown; give {FLOOR_RULE} or {MEASURED_MEAN}", param="admission_rule"
        )
    if name == FLOOR_RULE:
        return None
    if floor_tps is None:
        raise ConfigError(
            f"admission_rule {name} goes by a floor, but there is none", hint="add --floor-tps", param="admission_rule"
        )
    return MeasuredMean()


def store_path(store: str | None, port: int) -> Path | None:
    """The file that keeps queue, sessions and pools; None for none.

    Without a word of the user it goes by the port: a server on a fixed port comes back as the one that its clients
    know, a server on a free port is nobody's.
    """
    if store is None:
        return user_state_path("polystem") / f"fleet-{port}.db" if port else None
    if not store.strip():
        raise ConfigError("store is empty", hint=f"give a file, or '{NO_STORE}'", param="store")
    return None if store == NO_STORE else Path(store).expanduser()


def _check_tool_format(tool_format: str | None) -> None:
    if tool_format is not None and tool_format not in TOOL_FORMATS:
        raise ConfigError(
            f"tool_format '{tool_format}' is unknown; give one of {', '.join(TOOL_FORMATS)}", param="tool_format"
        )


def _log_level(level: str) -> str:
    levels = ("debug", "info", "warning", "error")
    if level.lower() not in levels:
        raise ConfigError(f"log_level '{level}' is unknown; give one of {', '.join(levels)}", param="log_level")
    return level.lower()


def _keys_in(file: Path) -> Iterator[str]:
    text = _text_of(file, "API key file")
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if not keys:
        raise ConfigError(f"API key file '{file}' holds no key", hint="write one key a line", param="api_key_file")
    yield from keys


def _text_of(file: Path, what: str) -> str:
    try:
        return file.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot read {what} '{file}': {reason}") from exc


def _file_values(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_text_of(file, "configuration file"))
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"configuration file '{file}' is not TOML: {exc}") from exc


def _environment_values(environment: Mapping[str, str]) -> dict[str, Any]:
    ours = {name: text for name, text in environment.items() if name.startswith(PREFIX) and _is_for_serve(name)}
    return {name.removeprefix(PREFIX).lower(): _from_text(name, text) for name, text in ours.items()}


def _is_for_serve(variable: str) -> bool:
    return variable != CONFIG_VARIABLE and not variable.startswith(OTHER_COMMANDS)


def _from_text(variable: str, text: str) -> Value:
    """The value that a variable's text stands for.

    Text that does not fit stays text, and is refused with all others.
    """
    setting = BY_NAME.get(variable.removeprefix(PREFIX).lower())
    if setting is None or setting.kind == "text":
        return text
    if setting.kind == "texts":
        return [part.strip() for part in text.split(",")]
    if setting.kind == "switch":
        return WORDS.get(text.strip().lower(), text)
    try:
        return int(text) if setting.kind == "whole" else float(text)
    except ValueError:
        return text


def _checked(values: Mapping[str, Any], called: Callable[[str], str]) -> dict[str, Value]:
    """The values, each of a known name and of the right type. Raises ConfigError."""
    for name, value in values.items():
        if name not in BY_NAME:
            near = near_names(name, list(BY_NAME), most=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(sorted(BY_NAME))}"
            raise ConfigError(f"unknown setting {called(name)}", hint=hint, param=name)
        if not _fits(value, BY_NAME[name].kind):
            wanted = WANTED[BY_NAME[name].kind]
            raise ConfigError(f"setting {called(name)} must be {wanted}, but is {value!r}", param=name)
    return dict(values)


WANTED = {
    "whole": "a whole number",
    "number": "a number",
    "seconds": "a number of seconds",
    "switch": "true or false",
    "text": "text",
    "texts": "a list of texts",
}


def _fits(value: Any, kind: str) -> bool:
    match kind:
        case "whole":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number" | "seconds":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "switch":
            return isinstance(value, bool)
        case "texts":
            return isinstance(value, list) and all(isinstance(each, str) for each in cast("list[Any]", value))
        case _:
            return isinstance(value, str)


def _variable_of(name: str) -> str:
    return PREFIX + name.upper()


def _flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")
