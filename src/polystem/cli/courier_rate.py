"""How fast a fleet decodes, from the samples of a run."""

from __future__ import annotations

from polystem.harness.board import Board

__all__ = ["RateOfLate"]

RATE_WINDOW_S = 3.0


class RateOfLate:
    """Output tokens per second over the last few seconds, from samples of their count."""

    def __init__(self) -> None:
        self._board: Board | None = None
        self._samples: list[tuple[float, int]] = []

    def of(self, board: Board) -> float:
        if board is not self._board:  # a sweep runs arms of one name one after the other
            self._board, self._samples = board, []
        self._samples.append((board.at_s, board.output_tokens))
        self._samples = [each for each in self._samples if each[0] >= board.at_s - RATE_WINDOW_S]
        (start_s, start), (end_s, end) = self._samples[0], self._samples[-1]
        return (end - start) / (end_s - start_s) if end_s > start_s else 0.0
