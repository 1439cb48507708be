"""Rates of streams, from turn rows: in windows of decode time, and in bins of wall time.

Knows no arm and no outcome. A stream is what one agent decodes; its decode time runs from the first token of each turn
to the last and stands still between turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from polystem.harness.rows import BUCKET_S, TurnRow

__all__ = ["Window", "aggregate_rate", "decode_windows", "share_below", "stream_windows", "strict_tps"]

WINDOW_S = 2.0


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of one stream's decode time: `duration_s` of it, begun at `at_s` of the run, at `rate_tps`."""

    at_s: float
    duration_s: float
    rate_tps: float


@dataclass(frozen=True, slots=True)
class _Piece:
    """Part of a turn's decode time with the tokens that came in it."""

    at_s: float
    duration_s: float
    tokens: float


def decode_windows(turns: Sequence[TurnRow], *, window_s: float = WINDOW_S) -> tuple[Window, ...]:
    """The rate r of one stream: tokens over decode time, in windows of `window_s` that follow each other.

    The last window holds what is left; where that is less than half a window it is added to the one before.
    """
    windows: list[Window] = []
    tokens, filled_s, begun_at_s = 0.0, 0.0, 0.0
    for piece in (piece for turn in turns for piece in _pieces(turn)):
        at_s, left_s, left_tokens = piece.at_s, piece.duration_s, piece.tokens
        while left_s > 0:
            if filled_s == 0:
                begun_at_s = at_s
            part_s = min(left_s, window_s - filled_s)
            part_tokens = left_tokens * part_s / left_s
            filled_s, tokens = filled_s + part_s, tokens + part_tokens
            at_s, left_s, left_tokens = at_s + part_s, left_s - part_s, left_tokens - part_tokens
            if filled_s >= window_s - 1e-9:
                windows.append(Window(begun_at_s, filled_s, tokens / filled_s))
                tokens, filled_s = 0.0, 0.0
    return _with_rest(windows, Window(begun_at_s, filled_s, tokens / filled_s) if filled_s > 1e-9 else None, window_s)


def _with_rest(windows: list[Window], rest: Window | None, window_s: float) -> tuple[Window, ...]:
    if rest is None:
        return tuple(windows)
    if rest.duration_s >= window_s / 2 or not windows:
        return (*windows, rest)
    last = windows.pop()
    whole_s = last.duration_s + rest.duration_s
    rate_tps = (last.rate_tps * last.duration_s + rest.rate_tps * rest.duration_s) / whole_s
    return (*windows, Window(last.at_s, whole_s, rate_tps))


def _pieces(turn: TurnRow) -> Iterable[_Piece]:
    """A turn's decode time in buckets, by arrivals. Its first token opens the time and takes none of it."""
    decode_s = turn.last_token_s - turn.first_token_s
    if decode_s <= 0 or turn.output_tokens < 2:
        return
    tokens = [0] * ceil(decode_s / BUCKET_S - 1e-9)
    for offset_s, count in turn.arrivals or ((0.0, turn.output_tokens),):
        tokens[min(round(offset_s / BUCKET_S), len(tokens) - 1)] += count
    tokens[next(index for index, count in enumerate(tokens) if count)] -= 1
    for index, count in enumerate(tokens):
        offset_s = index * BUCKET_S
        yield _Piece(turn.first_token_s + offset_s, min(BUCKET_S, decode_s - offset_s), count)


def stream_windows(turns: Iterable[TurnRow]) -> tuple[Window, ...]:
    """The windows of every stream of an arm; a stream is one package."""
    streams: dict[int, list[TurnRow]] = {}
    for turn in turns:
        streams.setdefault(turn.package, []).append(turn)
    return tuple(window for stream in streams.values() for window in decode_windows(stream))


def share_below(windows: Iterable[Window], tps: float) -> float:
    """Share of the decode time whose rate was below `tps`; 0 where nothing was decoded."""
    spans = [(window.duration_s, window.rate_tps < tps) for window in windows]
    whole_s = sum(duration_s for duration_s, _ in spans)
    return sum(duration_s for duration_s, below in spans if below) / whole_s if whole_s else 0.0


def strict_tps(turns: Sequence[TurnRow]) -> float | None:
    """Tokens over turn time without tools, with queueing, retries and prefill: holding turns back cannot better it."""
    turn_s = sum(turn.last_token_s - turn.submitted_s for turn in turns)
    return sum(turn.output_tokens for turn in turns) / turn_s if turn_s > 0 else None


def aggregate_rate(turns: Sequence[TurnRow], *, bin_s: float = 1.0) -> tuple[tuple[float, float], ...]:
    """All streams together: (start of the bin, tokens per second); a turn's tokens are spread over its decoding."""
    if not turns:
        return ()
    end_s = max(turn.last_token_s for turn in turns)
    bins = [0.0] * (int(end_s / bin_s) + 1)
    for turn in turns:
        _spread(turn, bins, bin_s)
    return tuple((index * bin_s, tokens / bin_s) for index, tokens in enumerate(bins))


def _spread(turn: TurnRow, bins: list[float], bin_s: float) -> None:
    decode_s = turn.last_token_s - turn.first_token_s
    first, last = int(turn.first_token_s / bin_s), int(turn.last_token_s / bin_s)
    if decode_s <= 0:
        bins[last] += turn.output_tokens
        return
    for index in range(first, last + 1):
        inside_s = min(turn.last_token_s, (index + 1) * bin_s) - max(turn.first_token_s, index * bin_s)
        bins[index] += turn.output_tokens * inside_s / decode_s
