"""The knobs of the HTTP side, checked when they are made.

Knows no model and no cells; those belong to the engine and the fleet.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from polystem.errors import ConfigError
from polystem.serve.moved_lines import LineRule
from polystem.serve.session_ids import SessionNames

PORT_MAX = 65535
BODY_BYTES_MIN = 1024
PING_S_MAX = 3600


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How the server listens and what it lets in.

    `api_keys` empty lets everybody in, which is allowed on loopback only. `model_aliases` are names a client may send
    besides the engine's own. `request_timeout_s` bounds one request, from its body being read to its last byte;
    `drain_grace_s` is how long running turns may go on after SIGTERM. `ping_interval_s` is the longest silence of a
    stream whose client asked to be kept alive and named no interval of its own; 0 leaves such streams silent.
    `session_headers` are read for a session's id before the known ones, "none" alone reads none; `move_lines` are
    patterns of lines that are moved out of the system prompt. Raises ConfigError.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    model_aliases: tuple[str, ...] = ()
    max_body_bytes: int = 8 * 1024 * 1024
    request_timeout_s: float = 600.0
    drain_grace_s: float = 30.0
    ping_interval_s: float = 10.0
    session_headers: tuple[str, ...] = ()
    move_lines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.port <= PORT_MAX:
            raise ConfigError(f"port {self.port} is out of range; give 0 (any free port) to {PORT_MAX}", param="port")
        if self.max_body_bytes < BODY_BYTES_MIN:
            raise ConfigError(
                f"max_body_bytes {self.max_body_bytes} is too small for a request; give {BODY_BYTES_MIN} or more",
                param="max_body_bytes",
            )
        self._check_seconds("request_timeout_s", self.request_timeout_s)
        self._check_seconds("drain_grace_s", self.drain_grace_s)
        if not 0 <= self.ping_interval_s <= PING_S_MAX:
            raise ConfigError(
                f"ping_interval_s {self.ping_interval_s:g} is out of range; give 0 (off) to {PING_S_MAX} seconds",
                param="ping_interval_s",
            )
        SessionNames(self.session_headers)
        LineRule(self.move_lines)
        self._check_keys()

    def _check_seconds(self, name: str, value_s: float) -> None:
        if not 0 < value_s < float("inf"):
            raise ConfigError(f"{name} {value_s:g} is out of range; give a number of seconds above 0", param=name)

    def _check_keys(self) -> None:
        if any(not key or key != key.strip() or not key.isprintable() for key in self.api_keys):
            raise ConfigError("an API key is empty, or holds blanks at its ends or control characters", param="api_key")
        if not self.api_keys and not is_loopback(self.host):
            raise ConfigError(
                f"listening on '{self.host}' without an API key would serve everybody who can reach this machine",
                hint="give --api-key KEY or --api-key-file FILE, or listen on 127.0.0.1",
                param="host",
            )


def is_loopback(host: str) -> bool:
    """True where only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
