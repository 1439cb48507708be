"""The HTTP side's own knobs."""

from __future__ import annotations

from typing import Any

import pytest

from polystem.errors import ConfigError
from polystem.serve import ServeSettings
from polystem.serve.settings import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    assert is_loopback(host)
    assert ServeSettings(host=host).api_keys == ()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org", "localhost.example.org", ""])
def test_anything_else_needs_one(host: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServeSettings(host=host)
    assert caught.value.hint is not None
    assert "--api-key" in caught.value.hint
    assert ServeSettings(host=host, api_keys=("key",)).host == host


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"port": -1}, "port"),
        ({"port": 65536}, "port"),
        ({"max_body_bytes": 0}, "max_body_bytes"),
        ({"request_timeout_s": 0}, "request_timeout_s"),
        ({"request_timeout_s": float("nan")}, "request_timeout_s"),
        ({"drain_grace_s": float("inf")}, "drain_grace_s"),
        ({"ping_interval_s": -1}, "ping_interval_s"),
        ({"ping_interval_s": 3601}, "ping_interval_s"),
        ({"ping_interval_s": float("nan")}, "ping_interval_s"),
        ({"api_keys": ("",)}, "api_key"),
        ({"api_keys": (" a",)}, "api_key"),
        ({"api_keys": ("a\n",)}, "api_key"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServeSettings(**fields)
    assert caught.value.param == param


def test_keys_are_not_shown() -> None:
    assert "hush" not in repr(ServeSettings(api_keys=("hush",)))
