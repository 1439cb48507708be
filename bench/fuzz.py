"""Fuzz: 50,000 requests, right, mistaken and hostile, to the whole app; none may break it.

    python -m bench.fuzz [--quick | --full] [--check]

 1. What schemathesis makes of the OpenAPI description: data that fits it, and data that does not.
 2. Sequences of control calls and turns as clients send them, several under way at a time, with clients that leave in
    mid-stream and engines that die; after each step the cells of /kv, the ledger and the engine are compared.
 3. Bodies that are no JSON or far too much of it, ids and methods that are none, numbers without end.
 4. The second kind again, over sockets, to `polystem serve` with courier-nano.

The first three run on the scripted engine and a virtual clock, so that a wait of minutes takes none. A fault is a 500,
a status that the contract does not know, an answer of a megabyte or more, an answer that does not come (700 s of the
virtual clock, 120 s on the real server), or a cell that is left when everybody has closed. A quick run makes 3,000.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from bench.fuzz_parts import ENGINE, Tally, against_llama, described, hostile, sequences
from bench.models import NANO, model_path
from bench.record import Arguments, Figure, Goal, Model, hand_in, read_arguments, tell

FULL = {"described": 9_000, "sequences": 32_000, "hostile": 6_000, "llama": 3_000}
QUICK = {"described": 800, "sequences": 1_500, "hostile": 400, "llama": 300}
SHOWN_FAULTS = 40
NONE = Goal("==", 0)


def figures_of(tally: Tally, asked: int) -> list[Figure]:
    counts = [
        Figure(f"answers with status {status}", count, "answers") for status, count in sorted(tally.statuses.items())
    ]
    parts = [Figure(f"requests, {part}", count, "requests") for part, count in tally.requests_of.items()]
    return [
        Figure("requests", tally.requests, "requests", goal=Goal(">=", asked)),
        Figure("answers with status 500", tally.statuses[500], "answers", goal=NONE),
        Figure("answers that did not come", tally.hangs, "answers", goal=NONE),
        Figure("leaks of cells", tally.leaks, "leaks", goal=NONE),
        Figure(
            "faults of any kind", sum(not fault.startswith("after:") for fault in tally.faults), "faults", goal=NONE
        ),
        Figure("largest answer", tally.answer_bytes, "bytes", goal=Goal("<=", 1_000_000)),
        *parts,
        *(each for each in counts if each.name != "answers with status 500"),
    ]


def main(arguments: Arguments) -> int:
    sizes = QUICK if arguments.quick else FULL
    tally = Tally()
    in_process = sum(sizes.values()) - sizes["llama"]
    for part, run in (("described", described), ("sequences", sequences), ("hostile", hostile)):
        run(tally, sizes[part] if run is not hostile else in_process - tally.requests)  # what the others left over too
        tell(f"{part}: {tally.requests} requests so far, {len(tally.faults)} faults")
    with tempfile.TemporaryDirectory() as folder:
        against_llama(tally, sizes["llama"], Path(folder))
    for fault in tally.faults[:SHOWN_FAULTS]:
        tell(fault)
    figures = figures_of(tally, sum(sizes.values()))
    return hand_in(
        "fuzz", arguments, figures, settings=asdict(ENGINE) | sizes, models=[Model.of(NANO, model_path(NANO))]
    )


if __name__ == "__main__":
    sys.exit(main(read_arguments(__doc__ or "")))
