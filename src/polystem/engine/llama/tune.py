"""Finds out which engine settings this machine prefers for a model, one question after the other.

Each question puts the settings found so far against others, in short runs whose order alternates from round to round,
and compares them by the median of the ratios within a round: what slows the whole machine for a while cancels out.
Knows no llama.cpp: a `Bench` measures.
Invariant: settings change only for a median gain above `margin` that three rounds in four agree with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal, Protocol, TypeAlias

from polystem.engine.settings import TunedSettings
from polystem.errors import ConfigError, EngineBuildError

__all__ = [
    "Answer", "Bench", "Measure", "Option", "Progress", "Ratio", "Trial", "TrialFailed", "Workload", "tune",
]  # fmt: skip

Measure: TypeAlias = Literal["decode", "alone", "prefill"]

_MICRO_BATCHES = (128, 256, 512)
_AGREEING_SHARE = 0.75


class TrialFailed(Exception):
    """A set of settings cannot be used here; the text says why. Stays inside tuning."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One set of engine settings to be measured."""

    threads: int
    threads_batch: int
    flash_attention: bool = True
    micro_batch_tokens: int = 512
    repack: bool = True
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"


@dataclass(frozen=True, slots=True)
class Workload:
    """What is measured: steps of `workers` rows over `prefix_tokens` shared cells, and a prompt of `prefill_tokens`.

    The score of settings is decode time and prefill time, weighted as exponents. `lossy_cache` lets a KV type win that
    changes the output. `margin` is the gain, as a share, under which nothing changes.
    """

    prefix_tokens: int = 1216
    workers: int = 8
    steps: int = 6
    prefill_tokens: int = 512
    rounds: int = 5
    decode_weight: float = 1.0
    prefill_weight: float = 0.0
    lossy_cache: bool = False
    margin: float = 0.02

    def __post_init__(self) -> None:
        limits = {
            "prefix_tokens": (16, 1 << 17), "workers": (1, 250), "steps": (1, 256), "prefill_tokens": (16, 8192),
            "rounds": (1, 100),
        }  # fmt: skip
        for name, (low, high) in limits.items():
            value: int = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"'{name}' is {value}; it must be between {low} and {high}", param=name)
        weights = (self.decode_weight, self.prefill_weight)
        if not all(0 <= weight < float("inf") for weight in weights) or not any(weights):
            raise ConfigError(
                f"the weights of decode and prefill are {weights[0]:g} and {weights[1]:g}; "
                "they must be finite, none below 0 and one above it"
            )


class Bench(Protocol):
    """Measures settings."""

    def measure(self, trial: Trial, what: Measure) -> float:
        """Seconds: of one decode step of all workers, or of one worker alone, over the shared prefix; or of one prompt.

        Raises TrialFailed.
        """
        ...

    def keep_only(self, trial: Trial) -> None:
        """Frees what other trials hold."""
        ...


@dataclass(frozen=True, slots=True)
class Ratio:
    """Time against the settings in force before: the median over the rounds, with the extremes."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Option:
    """One answer to a question and how it fared; seconds are medians, None where not measured.

    A step of one worker alone, where that is what is asked, counts as decode. `failed` says why it cannot be used. The
    ratios are None for the settings in force and for an option that failed. `gains`: faster than those in force, beyond
    doubt. `lossy`: changes the output.
    """

    label: str
    trial: Trial
    decode_s: float | None = None
    prefill_s: float | None = None
    decode: Ratio | None = None
    prefill: Ratio | None = None
    score: Ratio | None = None
    gains: bool = False
    lossy: bool = False
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A question with its options, the one in force first, and what was chosen."""

    question: str
    options: tuple[Option, ...]
    chosen: Option
    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Runs done and expected, and what is being measured."""

    done: int
    total: int
    text: str


@dataclass(frozen=True, slots=True)
class _Question:
    """`options` gives labelled settings, those in force first. What has a weight is measured, even one of 0."""

    name: str
    options: Callable[[Trial], Mapping[str, Trial]]
    weights: Mapping[Measure, float]


def tune(
    bench: Bench, cores: int, workload: Workload, on_progress: Callable[[Progress], None] = lambda _progress: None
) -> tuple[TunedSettings, tuple[Answer, ...]]:
    """Asks every question in turn. Raises EngineBuildError where no settings work at all."""
    trial = Trial(threads=cores, threads_batch=cores)
    questions = _questions(cores, workload)
    counter = _Counter(on_progress, total=sum(_runs(question, trial, workload) for question in questions))
    answers: list[Answer] = []
    for question in questions:
        answer = _ask(question, trial, bench, workload, counter)
        trial = answer.chosen.trial
        bench.keep_only(trial)
        answers.append(answer)
    return _settings(trial), tuple(answers)


def _settings(trial: Trial) -> TunedSettings:
    return TunedSettings(
        threads=trial.threads,
        threads_batch=trial.threads_batch,
        flash_attention=trial.flash_attention,
        micro_batch_tokens=trial.micro_batch_tokens,
        repack=trial.repack,
        cache_type_k=trial.cache_type_k,
        cache_type_v=trial.cache_type_v,
    )


def _questions(cores: int, workload: Workload) -> tuple[_Question, ...]:
    both: Mapping[Measure, float] = {"decode": workload.decode_weight, "prefill": workload.prefill_weight}
    return (
        _Question("weight repacking", _repackings, both),
        _Question("flash attention", _attentions, both),
        _Question("threads, alone", lambda trial: _threads(trial, cores), {"alone": 1.0}),
        _Question("KV cache", _cache_types, both),
        _Question("threads, batches", lambda trial: _batch_threads(trial, cores), {"decode": 1.0, "prefill": 1.0}),
        _Question("micro-batch", _micro_batches, {"prefill": 1.0}),
    )


def _repackings(trial: Trial) -> Mapping[str, Trial]:
    return {"on": replace(trial, repack=True), "off": replace(trial, repack=False)}


def _attentions(trial: Trial) -> Mapping[str, Trial]:
    return {"on": replace(trial, flash_attention=True), "off": replace(trial, flash_attention=False)}


def _threads(trial: Trial, cores: int) -> Mapping[str, Trial]:
    """Of a pass over one token: a stream that decodes alone."""
    return {str(count): replace(trial, threads=count) for count in _counts(trial.threads, cores)}


def _batch_threads(trial: Trial, cores: int) -> Mapping[str, Trial]:
    """Of a pass over several tokens: streams that decode together, and prompts."""
    return {str(count): replace(trial, threads_batch=count) for count in _counts(trial.threads_batch, cores)}


def _counts(in_force: int, cores: int) -> Iterable[int]:
    others = {1, 2, cores // 4, cores // 2, cores - 1, cores}
    return (in_force, *sorted(count for count in others if 1 <= count <= cores and count != in_force))


def _micro_batches(trial: Trial) -> Mapping[str, Trial]:
    sizes = (trial.micro_batch_tokens, *(size for size in _MICRO_BATCHES if size != trial.micro_batch_tokens))
    return {str(size): replace(trial, micro_batch_tokens=size) for size in sizes}


def _cache_types(trial: Trial) -> Mapping[str, Trial]:
    """Values can be quantised with flash attention only."""
    values = "q8_0" if trial.flash_attention else trial.cache_type_v
    return {
        "f16": replace(trial, cache_type_k="f16", cache_type_v="f16"),
        "f32": replace(trial, cache_type_k="f32", cache_type_v="f32"),
        f"q8_0/{values}": replace(trial, cache_type_k="q8_0", cache_type_v=values),
    }


def _lossy(trial: Trial) -> bool:
    return not {trial.cache_type_k, trial.cache_type_v} <= {"f16", "f32"}


class _Counter:
    """Tells how far tuning is."""

    def __init__(self, tell: Callable[[Progress], None], *, total: int) -> None:
        self._tell = tell
        self._done = 0
        self._total = total

    def tell(self, text: str, *, runs: int = 0) -> None:
        self._done += runs
        self._tell(Progress(self._done, max(self._total, self._done), text))


def _runs(question: _Question, trial: Trial, workload: Workload) -> int:
    options = len(question.options(trial))
    return options * len(question.weights) * workload.rounds if options > 1 else 0


def _ask(question: _Question, trial: Trial, bench: Bench, workload: Workload, counter: _Counter) -> Answer:
    trials = question.options(trial)
    if len(trials) == 1:
        only = Option(next(iter(trials)), trial)
        return Answer(question.name, (only,), only, "there is no other")
    seconds: dict[str, dict[Measure, list[float]]] = {
        label: {what: [] for what in question.weights} for label in trials
    }
    failed: dict[str, str] = {}
    for number in range(workload.rounds):
        for label in _order(list(trials), number):
            counter.tell(f"{question.name}: {label}")
            if label not in failed:
                reason = _run(bench, trials[label], seconds[label])
                failed |= {label: reason} if reason else {}
            counter.tell(f"{question.name}: {label}", runs=len(question.weights))
    in_force = next((label for label in trials if label not in failed), None)
    if in_force is None:
        raise EngineBuildError(
            f"no setting of {question.name} works on this machine: {failed[next(iter(trials))]}",
            hint="rebuild llama-cpp-python on this machine (make engine), then try again",
        )
    options = tuple(
        Option(label, trials[label], failed=failed[label])
        if label in failed
        else _option(label, trials[label], seconds, in_force, question.weights, workload.margin)
        for label in trials
    )
    return _answer(question, options, options[list(trials).index(in_force)], workload)


def _order(labels: list[str], number: int) -> list[str]:
    """Forwards and backwards in turn, so that none always runs first."""
    return labels if number % 2 == 0 else labels[::-1]


def _run(bench: Bench, trial: Trial, seconds: Mapping[Measure, list[float]]) -> str:
    """Measures once; returns why that failed, or nothing."""
    try:
        for what, values in seconds.items():
            values.append(bench.measure(trial, what))
    except TrialFailed as exc:
        return str(exc)
    return ""


def _option(
    label: str,
    trial: Trial,
    seconds: Mapping[str, Mapping[Measure, Sequence[float]]],
    in_force: str,
    weights: Mapping[Measure, float],
    margin: float,
) -> Option:
    own, other = seconds[label], seconds[in_force]
    ratios: dict[Measure, list[float]] = {
        what: [mine / theirs for mine, theirs in zip(own[what], other[what], strict=True)] for what in own
    }
    scores = _scores(ratios, weights)
    agreeing = sum(score < 1 for score in scores) / len(scores)
    compared = label != in_force
    return Option(
        label,
        trial,
        decode_s=_median_of(own, "decode", "alone"),
        prefill_s=_median_of(own, "prefill"),
        decode=_ratio(ratios.get("decode", ratios.get("alone"))) if compared else None,
        prefill=_ratio(ratios.get("prefill")) if compared else None,
        score=_ratio(scores) if compared else None,
        gains=compared and median(scores) < 1 - margin and agreeing >= _AGREEING_SHARE,
        lossy=_lossy(trial),
    )


def _median_of(seconds: Mapping[Measure, Sequence[float]], *names: Measure) -> float | None:
    """Of the first of these that was measured."""
    return next((median(seconds[name]) for name in names if name in seconds), None)


def _scores(ratios: Mapping[Measure, Sequence[float]], weights: Mapping[Measure, float]) -> list[float]:
    """One figure a round: the weighted geometric mean of the ratios."""
    total = sum(weights.values())
    logarithms = [[weights[what] / total * math.log(ratio) for ratio in values] for what, values in ratios.items()]
    return [math.exp(sum(parts)) for parts in zip(*logarithms, strict=True)]


def _ratio(values: Sequence[float] | None) -> Ratio | None:
    return Ratio(median(values), min(values), max(values)) if values else None


def _answer(question: _Question, options: tuple[Option, ...], in_force: Option, workload: Workload) -> Answer:
    gaining = [option for option in options if option.gains and (workload.lossy_cache or not option.lossy)]
    chosen = min(gaining, key=lambda option: option.score.median if option.score else 1.0, default=in_force)
    return Answer(question.name, options, chosen, _reason(options, chosen, in_force, workload))


def _reason(options: tuple[Option, ...], chosen: Option, in_force: Option, workload: Workload) -> str:
    if chosen is not in_force and chosen.score is not None:
        median_, slowest, fastest = (1 / time for time in (chosen.score.median, chosen.score.high, chosen.score.low))
        return f"{median_:.2f} times as fast as {in_force.label} ({slowest:.2f} to {fastest:.2f})"
    if in_force is not options[0]:
        return f"{options[0].label} cannot be used: {options[0].failed}"
    held_back = next((option.label for option in options if option.gains and option.lossy), None)
    if held_back is not None:
        return f"{held_back} is faster but changes the output; --lossy-cache lets it win"
    return f"no other is faster by {workload.margin:.0%} in most rounds"
