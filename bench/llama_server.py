"""Runs llama-server from the xllamacpp wheel until it is told to end: `python -m bench.llama_server MODEL SLOTS`.

All settings are the defaults but model, slots and port, and what the options name. Prints its URL once it listens.
"""

from __future__ import annotations

import argparse
import signal
from importlib import import_module
from typing import Any, cast

# By name: a compiled module without types, which `make test` does not install.
_xlc = cast("Any", import_module("xllamacpp"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("slots", type=int)
    parser.add_argument("--cells", type=int, help="KV cells of all slots together")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--kv-unified", action="store_true", help="one cache for all slots, not a piece for each")
    asked = parser.parse_args()
    params = _xlc.CommonParams()
    params.model.path = asked.model
    params.n_parallel = asked.slots
    if asked.cells is not None:
        params.n_ctx = asked.cells
    if asked.threads is not None:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = asked.threads
    if asked.kv_unified:
        params.kv_unified = True
    server = _xlc.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
