"""Runs llama-server from the xllamacpp wheel until it is told to end: `python -m bench.llama_server MODEL SLOTS`.

All settings are the defaults but model, slots and port. Prints its URL once it listens.
"""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from typing import Any, cast

# By name: a compiled module without types, which `make test` does not install.
_xlc = cast("Any", import_module("xllamacpp"))


def main(model: str, slots: int) -> None:
    params = _xlc.CommonParams()
    params.model.path = model
    params.n_parallel = slots
    server = _xlc.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
