"""The streams of a foreign load: requests without session and pool, from clients that know of no courier.

Invariant: a request that was begun leaves one row, also where it is cut off when the arm ends.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

from polystem.clock import Clock
from polystem.engine.remote import RemoteClient
from polystem.errors import PolystemError, Saturated
from polystem.harness.foreign_load import ForeignLoad
from polystem.harness.handbook import system_text
from polystem.harness.record import RecordWriter
from polystem.harness.rows import ForeignRow

__all__ = ["ForeignStreams"]

PROMPT_CHARACTERS = 600
OUTPUT_TOKENS = 64
TRY_AGAIN_S = 1.0


class ForeignStreams:
    """The streams of one arm. `decodes_on` is whether the server takes `ignore_eos`."""

    def __init__(
        self,
        load: ForeignLoad,
        *,
        arm: str,
        client: RemoteClient,
        model: str,
        decodes_on: bool,
        clock: Clock,
        began_s: float,
        record: RecordWriter,
    ) -> None:
        self._load = load
        self._arm = arm
        self._client = client
        self._clock = clock
        self._began_s = began_s
        self._record = record
        self._body: dict[str, Any] = {"model": model, "max_tokens": OUTPUT_TOKENS, "temperature": 0, "stream": True}
        self._body["stream_options"] = {"include_usage": True}
        if decodes_on:
            self._body["ignore_eos"] = True

    async def run(self) -> None:
        """Until its time is over or it is cancelled."""
        if not self._load.streams:
            return
        await self._clock.sleep(self._load.from_s)
        until_s = self._clock.now_s() + self._load.for_s
        async with asyncio.TaskGroup() as streams:
            for stream in range(self._load.streams):
                streams.create_task(self._stream(stream, until_s))

    async def _stream(self, stream: int, until_s: float) -> None:
        for number in count():
            if self._clock.now_s() >= until_s:
                return
            await self._request(stream, number)

    async def _request(self, stream: int, number: int) -> None:
        started_s, tokens, error, wait_s = self._clock.now_s(), 0, "cut off", 0.0
        prompt = system_text(PROMPT_CHARACTERS, len, stream * 1_000_003 + number)
        try:
            answer = await self._client.complete(self._body | {"prompt": prompt})
            tokens, error = answer.usage.output_tokens if answer.usage else len(answer.arrivals), ""
        except Saturated as refusal:
            error, wait_s = refusal.message, max(refusal.retry_after_s, TRY_AGAIN_S)
        except PolystemError as refusal:
            error, wait_s = refusal.message, TRY_AGAIN_S
        finally:
            ended_s = self._clock.now_s()
            row = ForeignRow(self._arm, stream, self._since(started_s), self._since(ended_s), tokens, error)
            self._record.write(row)
        if wait_s:
            await self._clock.sleep(wait_s)

    def _since(self, at_s: float) -> float:
        return round(at_s - self._began_s, 6)
