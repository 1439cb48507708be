"""A server that answers at once: what a courier run costs on it is what the harness costs.

Speaks just enough HTTP for a replay: models, tokenize, completions streamed token by token, cells, sessions. Run as a
process of its own (`python -m bench.instant_server PORT`), so that its processor time is not the harness's.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from typing import Any

__all__ = ["serve"]

CELLS = {"cells_total": 10**6, "cells_used": 10, "cells_pool": 0, "cells_private": 10, "naive_cells": 10}


async def serve(port: int) -> None:
    """Serves until it is ended."""
    server = await asyncio.start_server(_connection, "127.0.0.1", port, backlog=1024)
    print("listening", flush=True)
    await server.serve_forever()


async def _connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:  # the client's end of the connection ends it
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = next(
                (int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")), 0
            )
            data = await reader.readexactly(length)
            path = head.split(" ", 2)[1]
            writer.write(_response(path, json.loads(data) if data else {}))
            await writer.drain()
    writer.close()


def _response(path: str, body: dict[str, Any]) -> bytes:
    if path == "/v1/completions":
        return _http(b"text/event-stream", _stream(body))
    if path == "/tokenize":
        return _json({"tokens": list(body["content"].encode())})
    if path == "/v1/models":
        return _json({"data": [{"id": "instant"}]})
    if path == "/kv":
        return _json(CELLS)
    if path.startswith("/sessions/"):
        return _json({"found": True})
    return _http(b"application/json", b'{"error": {"message": "no such path"}}', b"404 Not Found")


def _stream(body: dict[str, Any]) -> bytes:
    """One event for each token, then the usage: as a server streams, but without its pauses."""
    count = int(body["max_tokens"])
    piece = b'data: {"choices": [{"index": 0, "text": "x", "token_ids": [65], "finish_reason": null}]}\n\n'
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}
    timings = {"queued_ms": 0.0, "prompt_ms": 0.0, "predicted_ms": 0.1}
    end = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": usage, "timings": timings}
    return piece * count + b"data: " + json.dumps(end).encode() + b"\n\ndata: [DONE]\n\n"


def _json(body: dict[str, Any]) -> bytes:
    return _http(b"application/json", json.dumps(body).encode())


def _http(kind: bytes, data: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (status, kind, len(data))
    return head + data


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
