"""Gate: sixteen packages that arrive at once under a floor; the floor gate against no gate, fixed limits and another.

    python -m bench.gate [--model nano | --model smollm2] [--quick | --full] [--check]

A replay in this process: the same token work in every arm, tool gaps included, on a fresh fleet whose prefix is stored
before the packages arrive. The engine decodes in a child process, as it does when it serves. Ours begins with what one
run of the same packages has taught it, as a server does that was up before; "cold" knows nothing of the machine. A
fixed limit is that alone: prompts come in chunks of 512 beside streams, no turn is held. The floor is 1.5 times
what one stream gets when all sixteen decode at once, measured first in the same run, so sixteen are past the knee. A
stream is under the floor in a window of 2 s of its decode time whose rate is below it.

 1. Every fixed limit, once (SmolLM2: from 3 to 12; a quick run: one). The fastest that keep the floor, or nearly, are
    candidates.
 2. No gate, the candidates and ours, in an order that turns round: those of a round are pairs. The candidate to beat is
    the fastest whose mean share over its rounds keeps the floor. Then ours cold, and the measured-mean gate.
 3. Three disturbances: foreign load, a context that grows fivefold, tools that become fast. For how long the floor
    stays broken at most, and whether any of eight fixed limits does as well as ours on all three, in most of its
    rounds; one that fails on one runs no further.
 4. A prompt of 6,000 tokens that arrives while eight decode, with the prefill budget and without.

Each model has a record of its own; without --model both are measured. 3 and 4 are measured on courier-nano alone. A
full run begins with `polystem tune` where this machine holds no result of it. A quick one measures courier-nano, unless
told otherwise, with a part of all that.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench import gate_front
from bench.gate_contest import COLD, MEASURED_MEAN, NO_GATE, OURS, Contest, Disturbed, Rival, static
from bench.gate_disturbed import KINDS
from bench.gate_figures import Outcome, best_at_floor, candidates, finite, front, mean_point
from bench.gate_load import Machine, draw_load
from bench.gate_prompt import CHUNK_TOKENS, PROMPT_TOKENS, WORKERS, Gap, floor_for_prompt, worst_gap
from bench.models import NANO, SMOLLM2, model_path
from bench.record import Arguments, Figure, Goal, Model, hand_in, read_arguments, tell
from bench.servers import tune_model
from polystem.capacity.fits import FitStore
from polystem.harness.intervals import abba, log_ratio
from polystem.harness.prefix import Prefix
from polystem.harness.settings import CourierSettings

MODELS = {"nano": NANO, "smollm2": SMOLLM2}
FLOOR_OVER_CROWD = 1.5
PACKAGES = 16
PREFIX_TOKENS = 875
CROWD_TOKENS = 64
WORK = {
    SMOLLM2: CourierSettings(
        packages=PACKAGES, concurrency=PACKAGES, prefix_tokens=PREFIX_TOKENS, mode="replay", steps=6
    ),
    NANO: CourierSettings(
        packages=PACKAGES, concurrency=PACKAGES, prefix_tokens=PREFIX_TOKENS, mode="replay", steps=12,
        turn_tokens=(48, 112), tool_delay_s=(0.01, 0.05),
    ),
}  # fmt: skip
"""What each model is given. The faster one has longer turns and faster tools, so that both decode for like shares."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything is run.

    So many `candidates`, the fastest limits of the sweep that keep the floor, are in the rounds; ours cold and the
    measured-mean gate have `others` rounds.
    """

    crowd_rounds: int
    limits: tuple[int, ...]
    candidates: int
    pairs: int
    others: int
    kinds: tuple[str, ...] = ()
    disturbed_rounds: int = 0
    rival_limits: tuple[int, ...] = ()
    prompt_rounds: int = 0


EACH_LIMIT = tuple(range(1, PACKAGES))
FULL = {
    SMOLLM2: Size(crowd_rounds=3, limits=tuple(range(3, 13)), candidates=2, pairs=5, others=2),
    NANO: Size(
        crowd_rounds=3, limits=EACH_LIMIT, candidates=2, pairs=5, others=2, kinds=tuple(KINDS), disturbed_rounds=3,
        rival_limits=(2, 3, 4, 5, 6, 8, 10, 12), prompt_rounds=3,
    ),
}  # fmt: skip
QUICK = Size(crowd_rounds=1, limits=(8,), candidates=1, pairs=1, others=1, prompt_rounds=1)
QUICK_STEPS = 4


@dataclass(frozen=True, slots=True)
class Results:
    """All that was measured on one model."""

    model: str
    floor_tps: float
    contest: Contest
    rival: str
    rival_keeps: bool
    rounds: Mapping[str, Sequence[Outcome]]
    disturbed: Mapping[str, Sequence[Disturbed]]
    rivals: Sequence[Rival]
    alone_tps: float | None
    prompt_floor_tps: float | None
    gaps: Mapping[str, Sequence[Gap]]


async def measure(model: str, size: Size, work: CourierSettings, fits: FitStore) -> tuple[Results, dict[str, Any]]:
    """Everything on one model."""
    machine = Machine(model)
    prefix, settings = await machine.prefix(work.prefix_tokens)
    load = draw_load(work, prefix)
    crowd_tps = await machine.crowd_tps(load, output_tokens=CROWD_TOKENS, rounds=size.crowd_rounds)
    floor_tps = FLOOR_OVER_CROWD * crowd_tps
    tell(f"{model}: {crowd_tps:.4g} tokens/s each when all {PACKAGES} decode; the floor is {floor_tps:.4g}")
    contest = Contest(machine, load, floor_tps, fits)
    await contest.teach()
    await contest.sweep(size.limits)
    in_rounds = candidates(contest.points(), size.candidates)
    rounds = await contest.rounds((NO_GATE, *in_rounds, OURS), size.pairs)
    rival, keeps = best_at_floor({name: mean_point(rounds[name]) for name in in_rounds})
    rounds |= await contest.rounds((COLD, MEASURED_MEAN), size.others)
    alone_tps = await contest.alone_tps(size.kinds[0]) if size.kinds else None
    disturbed = await contest.disturbed(size.kinds, size.disturbed_rounds)
    rivals = await contest.rivals(size.rival_limits, disturbed)
    prompt_floor_tps, gaps = await prompted(machine, prefix, size.prompt_rounds)
    return Results(
        model, floor_tps, contest, rival, keeps, rounds, disturbed, rivals, alone_tps, prompt_floor_tps, gaps
    ), settings  # fmt: skip


async def prompted(machine: Machine, prefix: Prefix, rounds: int) -> tuple[float | None, dict[str, list[Gap]]]:
    """The floor under which a long prompt arrives, and the gaps with the budget and without."""
    if not rounds:
        return None, {}
    floor_tps = await floor_for_prompt(machine, prefix, rounds)
    tell(f"{machine.model}, prompt of {PROMPT_TOKENS} tokens: the floor is {floor_tps:.4g}")
    gaps: dict[str, list[Gap]] = {"with": [], "without": []}
    for names in abba(tuple(gaps), rounds):
        for name in names:
            chunk = CHUNK_TOKENS if name == "without" else None
            gaps[name].append(await worst_gap(machine, prefix, floor_tps, chunk))
            tell(f"{machine.model}, prompt of {PROMPT_TOKENS} tokens, {name} the budget: {gaps[name][-1]}")
    return floor_tps, gaps


# --- figures --------------------------------------------------------------------------------------------------------


def figures_of(results: Results) -> list[Figure]:
    """Everything that has a name."""
    return [
        Figure(f"floor, {results.model}", results.floor_tps, "tokens/s"),
        *_ours(results),
        *_compared(results),
        *_each_arm(results),
        *_of_disturbances(results),
        *_of_prompt(results),
    ]


def _ours(results: Results) -> Iterator[Figure]:
    """What ours is asked for by itself."""
    model, ours, contest = results.model, results.rounds[OURS], results.contest
    for what, attribute, most in (("the floor", "share_under", 0.05), ("half the floor", "share_deep", 0.005)):
        shares = _values(ours, attribute)
        yield Figure(f"share under {what}, mean, {OURS}, {model}", statistics.fmean(shares), "share", len(shares),
                     (min(shares), max(shares)), Goal("<=", most))  # fmt: skip
    yield Figure(f"packages delivered, least of any run, {OURS}, {model}", min(_values(ours, "delivered")),
                 f"of {PACKAGES}", len(ours), goal=Goal("==", PACKAGES))  # fmt: skip
    yield Figure(f"packages lost, {OURS}, {model}", sum(_values(ours, "lost")), "packages", len(ours),
                 goal=Goal("==", 0))  # fmt: skip
    yield Figure(f"looks at the gate in which its counts did not add up, {model}", contest.out_of_balance, "looks",
                 contest.looks, goal=Goal("==", 0))  # fmt: skip


def _compared(results: Results) -> Iterator[Figure]:
    """Ours over the others, pair by pair."""
    rival = f"{results.rival}, the fastest that keeps the floor"
    if not results.rival_keeps:
        rival = f"{results.rival}, the least under the floor"
    yield from _ratio(results, "wall", "wall_s", results.rival, rival, Goal("<=", 1.05))
    p50 = "p50 of delivery from submission"
    yield from _ratio(results, p50, "p50_from_submission_s", NO_GATE, NO_GATE, Goal("<=", 0.70))
    yield Figure(f"{p50}, fixed limit with the least over {NO_GATE}, {results.model}", _least_p50(results), "ratio")
    yield from _ratio(results, "wall", "wall_s", NO_GATE, NO_GATE, None)
    yield from _ratio(results, "strict rate", "strict_tps", NO_GATE, NO_GATE, None)


def _least_p50(results: Results) -> float:
    """What the best fixed limit gets of it, whatever its share under the floor: how far the machine lets anybody go."""
    fixed = [runs for name, runs in results.contest.outcomes.items() if name.startswith("static")]
    least_s = min(statistics.median(_values(runs, "p50_from_submission_s")) for runs in fixed)
    return least_s / statistics.median(_values(results.contest.outcomes[NO_GATE], "p50_from_submission_s"))


def _ratio(results: Results, what: str, attribute: str, other: str, called: str, goal: Goal | None) -> Iterator[Figure]:
    ours, theirs = _values(results.rounds[OURS], attribute), _values(results.rounds[other], attribute)
    name = f"{what}, {OURS} over {called}, {results.model}"
    ratios = [one / another for one, another in zip(ours, theirs, strict=True)]
    yield Figure.of(name, ratios, "ratio", goal)
    interval = log_ratio(ours, theirs)
    if interval.low is not None and interval.high is not None:
        yield Figure(f"{name}: mean, with its 95 % interval as the range", interval.ratio, "ratio", interval.pairs,
                     (interval.low, interval.high))  # fmt: skip


def _each_arm(results: Results) -> Iterator[Figure]:
    """The front, and what else tells the arms apart."""
    points = results.contest.points()
    best = front(points)
    for name, outcomes in results.contest.outcomes.items():
        where = f"{name}, {results.model}{' (on the front)' if name in best else ''}"
        yield Figure.of(f"wall, {where}", _values(outcomes, "wall_s"), "s")
        if name != OURS:  # its mean has a goal, and stands above
            yield Figure.of(f"share under the floor, {where}", _values(outcomes, "share_under"), "share")
    for name, outcomes in results.rounds.items():
        where = f"{name}, {results.model}"
        yield Figure.of(f"p50 of delivery from submission, {where}", _values(outcomes, "p50_from_submission_s"), "s")
        yield Figure.of(f"p50 of delivery from admission, {where}", _values(outcomes, "p50_from_admission_s"), "s")
        yield Figure.of(f"workers, mean over time, {where}", _values(outcomes, "workers_mean"), "workers")
        yield Figure.of(f"strict rate, {where}", _values(outcomes, "strict_tps"), "tokens/s")
        yield Figure.of(f"held, {where}", _values(outcomes, "held_s"), "s of workers")
        yield Figure(f"refused, {where}", sum(_values(outcomes, "refused")), "turns", len(outcomes))


def _of_disturbances(results: Results) -> Iterator[Figure]:
    for kind, runs in results.disturbed.items():
        again = [run.found_again_s for run in runs]
        name = f"until the floor holds again, {kind}, {OURS}, {results.model}"
        yield Figure.of(name, again, "s", Goal("<=", 10))
        yield Figure.of(f"share under the floor, {kind}, {OURS}, {results.model}",
                        [run.outcome.share_under for run in runs], "share")  # fmt: skip
        yield Figure.of(f"wall, {kind}, {OURS}, {results.model}", [run.outcome.wall_s for run in runs], "s")
        delivered = [run.outcome.delivered for run in runs]
        yield Figure(f"packages delivered, least of any run, {kind}, {OURS}, {results.model}", min(delivered),
                     f"of {PACKAGES}", len(runs), goal=Goal("==", PACKAGES))  # fmt: skip
    if results.alone_tps is not None:
        yield Figure(f"rate of one worker alone over the floor, {next(iter(results.disturbed))}, {results.model}",
                     results.alone_tps / results.floor_tps, "ratio")  # fmt: skip
    if results.rivals:
        as_good = sum(rival.failed_on is None for rival in results.rivals)
        yield Figure(f"fixed limits that do as well on all {len(results.disturbed)} disturbances, {results.model}",
                     as_good, "limits", len(results.rivals), goal=Goal("==", 0))  # fmt: skip


def _of_prompt(results: Results) -> Iterator[Figure]:
    if results.prompt_floor_tps is None:
        return
    limit_s, where = 2 / results.prompt_floor_tps, f"{WORKERS} decode, prompt of {PROMPT_TOKENS}, {results.model}"
    goals = {"with": Goal("<=", 1), "without": Goal(">=", 1)}
    for name, gaps in results.gaps.items():
        shares = [gap.worst_s / limit_s for gap in gaps]
        yield Figure.of(f"worst gap between tokens over 2/X, {name} the budget, {where}", shares, "ratio", goals[name])
        yield Figure.of(f"until the prompt's first token, {name} the budget, {where}", _values(gaps, "prompt_s"), "s")


def _values(rows: Sequence[Any], what: str) -> list[float]:
    return [float(getattr(row, what)) for row in rows]


def told(results: Results) -> dict[str, Any]:
    """Every run, for the record."""
    return {
        "floor_tps": results.floor_tps,
        "prompt_floor_tps": results.prompt_floor_tps,
        "front": front(results.contest.points()),
        "runs": {name: [each.told() for each in outcomes] for name, outcomes in results.contest.outcomes.items()},
        "disturbed": {
            kind: [run.outcome.told() | {"found_again_s": finite(run.found_again_s)} for run in runs]
            for kind, runs in results.disturbed.items()
        },
        "fixed limits disturbed": {
            static(rival.limit): {"passed": rival.passed, "failed_on": rival.failed_on} | rival.outcome.told()
            for rival in results.rivals
        },
    }


# --- the command ----------------------------------------------------------------------------------------------------


async def measure_and_hand_in(model: str, arguments: Arguments) -> int:
    """One model, its record and its closing lines."""
    work = WORK[model]
    if arguments.quick:
        work = replace(work, steps=QUICK_STEPS)
    else:
        await tune_model(model_path(model))
    with tempfile.TemporaryDirectory() as name:
        fits = FitStore(Path(name) / "fits.json")
        results, settings = await measure(model, QUICK if arguments.quick else FULL[model], work, fits)
    record = told(results)
    tell(gate_front.text(record["runs"]))
    short = next(name for name, full in MODELS.items() if full == model)
    return hand_in(
        f"gate --model {short}",
        arguments,
        figures_of(results),
        settings={"engine": settings, "work": asdict(work), **record},
        models=[Model.of(model, model_path(model))],
    )


def read_models(words: Sequence[str]) -> tuple[list[str], Arguments]:
    """The models that are asked for, and the rest of the command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--model", choices=MODELS)
    found, rest = parser.parse_known_args(words)
    arguments = read_arguments(__doc__ or "", rest)
    if found.model is not None:
        return [MODELS[found.model]], arguments
    return ([NANO] if arguments.quick else list(MODELS.values())), arguments


async def main() -> int:
    models, arguments = read_models(sys.argv[1:])
    return max([await measure_and_hand_in(model, arguments) for model in models])


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
