"""Tuning: what is chosen from measured times, and what a failing option does. No llama.cpp here."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from polystem.engine.llama.tune import Measure, Progress, Trial, TrialFailed, Workload, tune
from polystem.errors import ConfigError, EngineBuildError

WORKLOAD = Workload(rounds=4)
Times = Callable[[Trial, Measure], float]


class TimedBench:
    """A bench whose times come from a function; it notes what was measured."""

    def __init__(self, times: Times) -> None:
        self._times = times
        self.kept = Trial(threads=0, threads_batch=0)
        self.runs: list[tuple[Trial, Measure]] = []

    def measure(self, trial: Trial, what: Measure) -> float:
        self.runs.append((trial, what))
        return self._times(trial, what)

    def keep_only(self, trial: Trial) -> None:
        self.kept = trial


def alike(_trial: Trial, _what: Measure) -> float:
    return 0.1


def test_the_faster_attention_over_a_shared_prefix_wins_though_its_prompts_are_slower() -> None:
    def times(trial: Trial, what: Measure) -> float:
        if what == "decode":
            return 0.19 if trial.flash_attention else 0.07
        return 1.0 if trial.flash_attention else 1.2

    settings, answers = tune(TimedBench(times), 2, WORKLOAD)
    assert settings.flash_attention is False
    attention = answers[1]
    assert attention.question == "flash attention"
    assert attention.reason == "2.71 times as fast as on (2.71 to 2.71)"
    assert attention.chosen.prefill is not None
    assert attention.chosen.prefill.median == pytest.approx(1.2)


def test_a_weight_on_prompts_changes_the_choice() -> None:
    def times(trial: Trial, what: Measure) -> float:
        if what == "prefill":
            return 1.0 if trial.flash_attention else 1.5
        return 1.0 if trial.flash_attention else 0.9

    assert tune(TimedBench(times), 2, WORKLOAD)[0].flash_attention is False
    weighed = Workload(rounds=4, decode_weight=1.0, prefill_weight=1.0)
    assert tune(TimedBench(times), 2, weighed)[0].flash_attention is True


def test_what_makes_no_difference_stays_as_it_was() -> None:
    settings, answers = tune(TimedBench(alike), 4, WORKLOAD)
    assert settings.told() == {
        "threads": 4,
        "threads_batch": 4,
        "flash_attention": True,
        "micro_batch_tokens": 512,
        "repack": True,
        "cache_type_k": "f16",
        "cache_type_v": "f16",
    }
    assert {answer.reason for answer in answers} == {"no other is faster by 2% in most rounds"}


def test_a_gain_that_half_of_the_rounds_deny_changes_nothing() -> None:
    count = 0

    def times(trial: Trial, what: Measure) -> float:
        nonlocal count
        if trial.flash_attention or what == "prefill":
            return 1.0
        count += 1
        return 0.5 if count % 2 else 1.1

    settings, answers = tune(TimedBench(times), 2, WORKLOAD)
    assert settings.flash_attention is True
    assert answers[1].options[1].score is not None
    assert answers[1].options[1].score.median < 0.98


def test_a_machine_that_slows_down_for_a_while_does_not_change_the_choice() -> None:
    runs = 0

    def times(trial: Trial, what: Measure) -> float:
        nonlocal runs
        runs += 1
        slow = 3.0 if runs > 6 else 1.0
        return slow * (0.9 if trial.threads == 1 and what == "alone" else 1.0)

    assert tune(TimedBench(times), 2, WORKLOAD)[0].threads == 1


def test_threads_of_a_lone_stream_and_of_batches_are_asked_for_apart() -> None:
    def times(trial: Trial, what: Measure) -> float:
        threads = trial.threads if what == "alone" else trial.threads_batch
        best = 1 if what == "alone" else 4
        return 1.0 + abs(threads - best)

    settings, answers = tune(TimedBench(times), 8, WORKLOAD)
    assert (settings.threads, settings.threads_batch) == (1, 4)
    assert [answer.chosen.label for answer in answers if answer.question.startswith("threads")] == ["1", "4"]


def test_the_order_alternates_from_round_to_round() -> None:
    bench = TimedBench(alike)
    tune(bench, 2, WORKLOAD)
    decodes = [trial.repack for trial, what in bench.runs if what == "decode"][: 2 * WORKLOAD.rounds]
    assert decodes == [True, False, False, True, True, False, False, True]


def test_settings_that_end_their_process_are_not_chosen_and_not_tried_again() -> None:
    def times(trial: Trial, what: Measure) -> float:
        if trial.repack:
            raise TrialFailed("the process ended with SIGSEGV")
        return 0.1

    bench = TimedBench(times)
    settings, answers = tune(bench, 2, WORKLOAD)
    assert settings.repack is False
    assert answers[0].reason == "on cannot be used: the process ended with SIGSEGV"
    assert answers[0].options[0].failed == "the process ended with SIGSEGV"
    assert sum(trial.repack for trial, _ in bench.runs) == 1


def test_an_option_that_fails_later_on_is_not_chosen_however_fast() -> None:
    runs = 0

    def times(trial: Trial, what: Measure) -> float:
        nonlocal runs
        if trial.flash_attention:
            return 1.0
        runs += 1
        if runs == 5:
            raise TrialFailed("the process ended with SIGABRT")
        return 0.1

    settings, answers = tune(TimedBench(times), 2, WORKLOAD)
    assert settings.flash_attention is True
    assert answers[1].options[1].failed == "the process ended with SIGABRT"


def test_no_working_option_is_a_fault_of_the_build() -> None:
    def times(trial: Trial, what: Measure) -> float:
        raise TrialFailed("the process ended with SIGILL")

    with pytest.raises(EngineBuildError, match="weight repacking works on this machine: the process ended with SIGILL"):
        tune(TimedBench(times), 2, WORKLOAD)


def test_a_cache_type_that_changes_the_output_wins_only_when_asked_for() -> None:
    def times(trial: Trial, what: Measure) -> float:
        return 0.5 if trial.cache_type_k == "q8_0" else 1.0

    settings, answers = tune(TimedBench(times), 2, WORKLOAD)
    assert (settings.cache_type_k, settings.cache_type_v) == ("f16", "f16")
    assert answers[3].reason == "q8_0/q8_0 is faster but changes the output; --lossy-cache lets it win"
    lossy, _ = tune(TimedBench(times), 2, Workload(rounds=4, lossy_cache=True))
    assert (lossy.cache_type_k, lossy.cache_type_v) == ("q8_0", "q8_0")


def test_values_are_not_quantised_without_flash_attention() -> None:
    def times(trial: Trial, what: Measure) -> float:
        return 0.5 if trial.cache_type_k == "q8_0" or not trial.flash_attention else 1.0

    bench = TimedBench(times)
    tune(bench, 2, Workload(rounds=4, lossy_cache=True))
    assert not any(trial.cache_type_v == "q8_0" and not trial.flash_attention for trial, _ in bench.runs)


def test_one_core_leaves_no_question_about_threads() -> None:
    bench = TimedBench(alike)
    settings, answers = tune(bench, 1, WORKLOAD)
    assert (settings.threads, settings.threads_batch) == (1, 1)
    assert answers[2].reason == answers[4].reason == "there is no other"
    assert len(bench.runs) == (2 + 2 + 3) * 2 * WORKLOAD.rounds + 3 * WORKLOAD.rounds


@pytest.mark.parametrize(("cores", "counts"), [(2, {1, 2}), (8, {1, 2, 4, 7, 8}), (3, {1, 2, 3})])
def test_thread_counts_fit_the_cores(cores: int, counts: set[int]) -> None:
    bench = TimedBench(alike)
    tune(bench, cores, WORKLOAD)
    assert {trial.threads for trial, _ in bench.runs} == counts
    assert {trial.threads_batch for trial, _ in bench.runs} == counts


def test_later_questions_build_on_earlier_answers() -> None:
    def times(trial: Trial, what: Measure) -> float:
        return 1.0 + trial.flash_attention + trial.threads + trial.micro_batch_tokens / 512

    bench = TimedBench(times)
    settings, _ = tune(bench, 2, WORKLOAD)
    assert settings.threads == 1
    assert settings.micro_batch_tokens == 128
    assert bench.runs[-1][0].flash_attention is False
    assert bench.kept.micro_batch_tokens == 128


def test_progress_ends_where_it_said_it_would() -> None:
    told: list[Progress] = []
    tune(TimedBench(alike), 2, WORKLOAD, told.append)
    assert told[0].done == 0
    assert told[-1].done == told[-1].total == told[0].total
    assert all(earlier.done <= later.done for earlier, later in pairwise(told))


@pytest.mark.parametrize(
    "values",
    [
        {"prefix_tokens": 3},
        {"workers": 0},
        {"workers": 300},
        {"rounds": 0},
        {"decode_weight": -1.0},
        {"decode_weight": 0.0},
        {"decode_weight": float("nan")},
        {"prefill_weight": float("inf")},
    ],
)
def test_a_workload_out_of_range_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Workload(**values)  # pyright: ignore[reportArgumentType]  wrong on purpose
