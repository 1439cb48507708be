"""What every test may ask for: the event loop, a free port, the bundled model.

The suite needs no network and no GPU. Tests that run the real llama.cpp are marked `native` and use courier-nano.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import polystem

BUNDLED_MODEL = Path(polystem.__file__).parent / "models" / "courier-nano-f16.gguf"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio: the servers and clients of the package need it."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def user_without_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Engines use what `polystem tune` and earlier servers kept for this user; tests must not depend on that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def free_port() -> int:
    """A loopback port that nothing listens on at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def bundled_model() -> Path:
    """The courier-nano file that ships in the package."""
    assert BUNDLED_MODEL.is_file(), f"{BUNDLED_MODEL} is part of the package and must exist"
    return BUNDLED_MODEL


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout that these tests belong to."""
    return Path(__file__).resolve().parent.parent
