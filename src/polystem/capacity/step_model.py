"""How long a decode step takes: tau = a + b*B + c*K + d*F + e*(B+F)*K, fitted while the engine runs.

B sequences decode, K cells are read, F prompt tokens are prefilled in the same step; a to e are seconds. c is for cells
that all rows of a step read at once, e for those that each row (a stream or a prompt token) reads for itself, as
attention over one buffer does where arithmetic is scarcer than memory. Which of them it is depends on the engine, so
both are fitted. Knows no engine and no floor. Only `StepModel.learn` teaches it.
Invariant: every coefficient >= 0; `upper_s` >= `mean_s`, and neither falls when one more sequence decodes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from statistics import median

from polystem.capacity.kalman import Covariance, Kalman, Vector, times_vector
from polystem.capacity.noise import BlockSpread, StepNoise
from polystem.capacity.tempo import TempoWatch
from polystem.errors import ConfigError

__all__ = ["Fit", "FitTimes", "StepLoad", "StepModel", "StepModelSettings"]

_STREAMS, _CELLS, _PROMPTS, _READS = 8.0, 4096.0, 128.0, 8.0 * 4096.0
_UNITS: Vector = (1.0, _STREAMS, _CELLS, _PROMPTS, _READS)
"""What one step, B, K, F and (B+F)*K are counted in, so that features are of order one."""

_TRIANGLE = tuple((i, j) for i in range(5) for j in range(i, 5))
_LEAST_TEMPO_S = 1e-6
_PROMPT_DOUBT = 0.5
_RECENT = 16
_FIRST = 40
"""Steps of a boot in which a change of tempo is believed at once: the fit may be of another machine."""
_ANCHORS = 5
"""Steps without prompts that set the tempo of a boot."""


_Step = tuple[Vector, float]
"""The features of a step, and how long it took."""

Correlations = tuple[float, float, float, float, float, float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one step works on: sequences that decode, cells that are read, prompt tokens that are prefilled."""

    decoding: int
    cells_read: int
    prefill_tokens: int = 0

    @property
    def reads(self) -> int:
        """Cells that are read if each row reads all of them."""
        return (self.decoding + self.prefill_tokens) * self.cells_read


@dataclass(frozen=True, slots=True)
class Fit:
    """The coefficients in seconds, and how sure they are.

    Args:
        base_s: a, of every step.
        per_stream_s: b, of each sequence that decodes.
        per_cell_s: c, of each cell read.
        per_prefill_token_s: d, of each prompt token.
        deviations: the standard deviation of each of these four.
        samples: steps that taught it, in all boots.
        noise_s: the standard deviation of one step of one stream that reads nothing; it grows in proportion to the
            step.
        per_read_s: e, of each cell for each row that reads it.
        read_deviation_s: its standard deviation.
        correlations: between the coefficients: ab ac ad ae bc bd be cd ce de. Without them a sum that is well known
            would look as unsure as its parts.
    """

    base_s: float
    per_stream_s: float
    per_cell_s: float
    per_prefill_token_s: float
    deviations: tuple[float, float, float, float]
    samples: int
    noise_s: float
    per_read_s: float = 0.0
    read_deviation_s: float = 0.0
    correlations: Correlations = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        if len(self.deviations) != 4 or len(self.correlations) != 10:
            raise ConfigError("a fit has 4 deviations and 10 correlations; delete the damaged entry")
        for name, value in self._by_name():
            if not (isfinite(value) and value >= 0):
                raise ConfigError(
                    f"{name} of a fit is {value!r}, the least is 0; delete the entry, it is measured anew"
                )
        if not all(abs(value) <= 1 for value in self.correlations):
            raise ConfigError(f"correlations of a fit are {self.correlations}, beyond -1 to 1; delete the entry")

    @classmethod
    def pessimistic(cls, *, weight_bytes: float, kv_bytes_per_cell: float, bandwidth_bytes_s: float) -> Fit:
        """What to believe before the first step: memory traffic alone, and more of it than there should be.

        The weights are read once a step, half as slowly again as the bandwidth says; the KV of a cell once for all and
        once more for each row. That a stream more costs a quarter of the weights, and a prompt token as much, is a
        guess for processors that run out of arithmetic before bandwidth; the deviations say how little it is worth.
        """
        for name, value in (
            ("weight_bytes", weight_bytes),
            ("kv_bytes_per_cell", kv_bytes_per_cell),
            ("bandwidth_bytes_s", bandwidth_bytes_s),
        ):
            if not (isfinite(value) and value > 0):
                raise ConfigError(f"{name} is {value!r}, it must be above 0")
        base_s = 1.5 * weight_bytes / bandwidth_bytes_s
        per_cell_s = kv_bytes_per_cell / bandwidth_bytes_s
        guess = (base_s, base_s / 4, per_cell_s, base_s / 4, per_cell_s)
        a, b, c, d, e = (max(value, base_s / 4 / unit) for value, unit in zip(guess, _UNITS, strict=True))
        return cls(
            *guess[:4],
            deviations=(a, b, c, d),
            samples=0,
            noise_s=0.1 * base_s,
            per_read_s=guess[4],
            read_deviation_s=e,
        )

    @property
    def coefficients(self) -> Vector:
        """a, b, c, d, e."""
        return self.base_s, self.per_stream_s, self.per_cell_s, self.per_prefill_token_s, self.per_read_s

    @property
    def noise(self) -> float:
        """The deviation of one step relative to its length."""
        alone_s = self.base_s + self.per_stream_s
        return self.noise_s / alone_s if alone_s > 0 else 0.0

    def mean_s(self, load: StepLoad) -> float:
        streams, cells, tokens = load.decoding, load.cells_read, load.prefill_tokens
        return self.streams_s(streams, cells, streams * cells) + self.prompts_s(tokens, tokens * cells)

    def streams_s(self, streams: float, cells_read: float, reads: float) -> float:
        """A step without its prompts; `reads` are the cells that streams read each for itself. Means may be given."""
        return self.base_s + self.per_stream_s * streams + self.per_cell_s * cells_read + self.per_read_s * reads

    def prompts_s(self, tokens: float, reads: float) -> float:
        """What the prompts of a step take; `reads` are the cells that its prompt tokens read each for itself."""
        return self.per_prefill_token_s * tokens + self.per_read_s * reads

    def prompt_token_s(self, cells_read: int) -> float:
        """What one prompt token adds to a step that reads so many cells."""
        return self.per_prefill_token_s + self.per_read_s * cells_read

    def covariance(self) -> Covariance:
        """Of the coefficients, in seconds squared."""
        a, b, c, d = self.deviations
        e = self.read_deviation_s
        ab, ac, ad, ae, bc, bd, be, cd, ce, de = self.correlations
        return (
            a * a, ab * a * b, ac * a * c, ad * a * d, ae * a * e,
            b * b, bc * b * c, bd * b * d, be * b * e,
            c * c, cd * c * d, ce * c * e,
            d * d, de * d * e,
            e * e,
        )  # fmt: skip

    def _by_name(self) -> tuple[tuple[str, float], ...]:
        names = ("base_s", "per_stream_s", "per_cell_s", "per_prefill_token_s", "per_read_s")
        deviations = (("a deviation", each) for each in self.deviations)
        others = (("noise_s", self.noise_s), ("read_deviation_s", self.read_deviation_s))
        return (*zip(names, self.coefficients, strict=True), *deviations, *others)


@dataclass(frozen=True, slots=True)
class StepModelSettings:
    """How the model learns and how sure it wants to be.

    Args:
        upper_z: standard deviations between `mean_s` and `upper_s`; 1.64 is exceeded by one in twenty.
        rate_over_s: a rate is judged over so long, but over rate_over_steps at least; the upper bound holds for the
            mean step of that time.
        walk_together: relative deviation by which all coefficients drift together in a second (tempo of the machine).
        walk_each: the same for each by itself (fragmented cells, other kernels).
        walk_prompts: the same for d, which depends on how long the prompts are that are just being read.
        clip_sigma: an innovation beyond this many deviations counts as one at this bound.
        change_least_s: a new tempo is believed after so many seconds of steps.
        start_together: relative deviation of the tempo at the start of a boot, beyond what the fit says of itself.
        start_each: the same for each coefficient by itself.
        floor_margin: the part of the step time allowed by the floor that a prefill budget may fill.
    """

    upper_z: float = 1.64
    rate_over_s: float = 1.0
    rate_over_steps: int = 16
    walk_together: float = 0.01
    walk_each: float = 0.003
    walk_prompts: float = 0.03
    clip_sigma: float = 5.0
    change_least_s: float = 0.25
    start_together: float = 0.3
    start_each: float = 0.1
    floor_margin: float = 0.97

    def __post_init__(self) -> None:
        for name in (
            *("upper_z", "rate_over_s", "rate_over_steps", "walk_together", "walk_each", "walk_prompts", "clip_sigma"),
            *("change_least_s", "start_together", "start_each", "floor_margin"),
        ):
            value: float = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                raise ConfigError(f"{name} is {value!r}, the least is 0", hint=f"raise {name}")
        for name in ("rate_over_s", "rate_over_steps", "clip_sigma", "floor_margin"):
            if getattr(self, name) == 0:
                raise ConfigError(f"{name} is 0, it must be above", hint=f"raise {name}")
        if self.floor_margin > 1:
            raise ConfigError(f"floor_margin is {self.floor_margin:g}, the most is 1", hint="lower floor_margin")


class StepModel:
    """A Kalman filter over the coefficients, in units that make them of order one.

    It looks at ratios of measured to predicted time, so noise is relative and long steps count no more than short
    ones. The coefficients walk (no forgetting factor: at a constant load that would inflate what it cannot see). A
    change of the machine's tempo multiplies them all at once, through `_tempo_s`, the time that one unit stands for.
    """

    def __init__(self, fit: Fit, settings: StepModelSettings | None = None) -> None:
        self._settings = settings or StepModelSettings()
        self._start(fit)

    def _start(self, fit: Fit) -> None:
        settings = self._settings
        self._before = fit
        self._tempo_s = max(fit.mean_s(StepLoad(8, 4096)), _LEAST_TEMPO_S)
        self._kalman = _filter_from(fit, self._tempo_s, settings)
        self._first_tempo_s = self._tempo_s
        self._unlearned = (self._kalman.value, self._kalman.covariance)
        self._noise = StepNoise(fit.noise or 0.1)
        self._spread = BlockSpread(settings.rate_over_s, settings.rate_over_steps, 0.03)
        self._watch = TempoWatch()
        self._recent: deque[_Step] = deque(maxlen=_RECENT)
        self._anchors: list[_Step] | None = []
        self._samples = 0
        self._last_at: float | None = None

    @property
    def samples(self) -> int:
        """Steps learned from since the engine started."""
        return self._samples

    @property
    def fit(self) -> Fit:
        """The model as it stands, to be shown or stored."""
        scale = [self._tempo_s / unit for unit in _UNITS]
        a, b, c, d, e = (value * by for value, by in zip(self._kalman.value, scale, strict=True))
        parts = [sqrt(variance) for variance in self._kalman.variances()]
        sa, sb, sc, sd, se = (part * by for part, by in zip(parts, scale, strict=True))
        ab, ac, ad, ae, bc, bd, be, cd, ce, de = (
            min(max(each / (parts[i] * parts[j]), -1.0), 1.0)
            for each, (i, j) in zip(self._kalman.covariance, _TRIANGLE, strict=True)
            if i != j
        )
        return Fit(
            a, b, c, d,
            deviations=(sa, sb, sc, sd),
            samples=self._before.samples + self._samples,
            noise_s=self._noise.deviation * (a + b),
            per_read_s=e,
            read_deviation_s=se,
            correlations=(ab, ac, ad, ae, bc, bd, be, cd, ce, de),
        )  # fmt: skip

    def age_s(self, now_s: float) -> float:
        """Seconds since the last step that taught something; infinite before the first of this boot."""
        return inf if self._last_at is None else max(0.0, now_s - self._last_at)

    def restarted(self) -> None:
        """The engine started anew: what was learned stays the best guess, and is doubted as at any start."""
        self._start(self.fit)

    def mean_s(self, load: StepLoad) -> float:
        """tau: the predicted length of a step."""
        return self._units(_features(load)) * self._tempo_s

    def upper_s(self, load: StepLoad) -> float:
        """tau+: what the mean step of a second stays under, with the certainty that `upper_z` stands for.

        Its deviation is made of what the filter does not know and of how far means over a second have strayed.
        """
        features = _features(load)
        kalman, z = self._kalman, self._settings.upper_z
        stream = (1 / _STREAMS, load.cells_read / _READS)
        bound = _upper(kalman.value, kalman.covariance, features, stream, self._spread.variance, z)
        return max(bound * self._tempo_s, self.mean_s(load))

    def learn(self, load: StepLoad, duration_s: float, at_s: float) -> None:
        """Takes one step in. A length that is not a positive number (an engine that keeps no time) teaches nothing."""
        if not 0 < duration_s < inf:
            return
        settings = self._settings
        self._walk(at_s)
        features = _features(load)
        self._recent.append((features, duration_s))
        self._samples += 1
        mean_s = self._units(features) * self._tempo_s
        ratio = duration_s / mean_s
        self._noise.learn(ratio)
        score = self._measure(features, duration_s, mean_s)
        clip = settings.clip_sigma * self._noise.deviation
        self._spread.learn(mean_s, mean_s * min(max(ratio - 1.0, -clip), clip))
        run = self._watch.changed(score, duration_s, settings.change_least_s if self._samples > _FIRST else 0.0)
        if run:
            self._account_for(run)
        if self._anchors is not None and not load.prefill_tokens:
            self._anchor((features, duration_s))

    def _upper_prompt_token_s(self, cells_read: int) -> float:
        """What a prompt token adds to a step at most, with the certainty of `upper_s`.

        The first chunks of a long prompt come when few were seen beside streams.
        """
        features = (0.0, 0.0, 0.0, 1 / _PROMPTS, cells_read / _READS)
        along = times_vector(self._kalman.covariance, features)
        variance = max(0.0, _times(along, features))
        return (self._units(features) + self._settings.upper_z * sqrt(variance)) * self._tempo_s

    def least_prefill_tokens(self, cells_read: int, floor_tps: float, *, share: float, least: int) -> int:
        """`least`, or where so many prompt tokens take more than a share of a step at the floor, as many as take that.

        One token at least: prompts never starve.
        """
        per_token_s = self.fit.prompt_token_s(cells_read)
        return least if per_token_s <= 0 else max(1, int(min(least, share / floor_tps / per_token_s)))

    def prefill_budget_tokens(self, load: StepLoad, floor_tps: float, *, least: int, most: int) -> int:
        """Prompt tokens that fit into the next step beside the streams of `load` without breaking their floor.

        F <= (margin/X - tau without prompts) / (d + e*K), between `least` (prompts never starve) and `most`.
        """
        if load.decoding == 0:
            return most
        alone = StepLoad(load.decoding, load.cells_read)
        per_token_s = self._upper_prompt_token_s(load.cells_read)
        left_s = self._settings.floor_margin / floor_tps - self.mean_s(alone)
        if left_s >= per_token_s * most:
            return most
        return max(least, int(left_s / per_token_s)) if left_s > 0 else least

    def _units(self, features: Vector) -> float:
        return max(_times(self._kalman.value, features), _LEAST_TEMPO_S / self._tempo_s)

    def _measure(self, features: Vector, took_s: float, mean_s: float) -> float:
        per_mean = self._tempo_s / mean_s
        x0, x1, x2, x3, x4 = features
        return self._kalman.measure(
            (x0 * per_mean, x1 * per_mean, x2 * per_mean, x3 * per_mean, x4 * per_mean),
            took_s / mean_s - 1.0, self._noise.variance, self._settings.clip_sigma,
        )  # fmt: skip

    def _anchor(self, step: _Step) -> None:
        """Sets the tempo by the first steps of streams alone where they show that the fit is of another machine.

        The filter by itself would take what is too much from the least certain part until that is 0, and would then
        believe the rest.
        """
        assert self._anchors is not None
        self._anchors.append(step)
        if len(self._anchors) < _ANCHORS:
            return
        anchors, self._anchors = self._anchors, None
        before = Kalman(*self._unlearned)
        factor = median(took_s / (_times(before.value, features) * self._first_tempo_s) for features, took_s in anchors)
        if not 0.5 < factor < 2.0:
            self._begin_again(self._first_tempo_s * factor)

    def _begin_again(self, tempo_s: float) -> None:
        """From the start of the boot at another tempo, with the steps that are remembered."""
        self._kalman = Kalman(*self._unlearned)
        self._tempo_s = max(tempo_s, _LEAST_TEMPO_S)
        for features, took_s in self._recent:
            self._measure(features, took_s, self._units(features) * self._tempo_s)

    def _walk(self, at_s: float) -> None:
        last_at, self._last_at = self._last_at, at_s
        if last_at is None or at_s <= last_at:
            return
        passed_s = min(at_s - last_at, 60.0)
        settings = self._settings
        apart = settings.walk_each * settings.walk_each * passed_s
        prompts = settings.walk_prompts * settings.walk_prompts * passed_s
        together = settings.walk_together * settings.walk_together * passed_s
        self._kalman.widen(together, (apart, apart, apart, prompts, apart))

    def _account_for(self, run: int) -> None:
        """The last `run` steps were off on one side for good.

        Where they are mostly prompts it is d that is in doubt: long prompts attend to more, and are no reason to think
        otherwise of streams. Else the machine has another tempo.
        """
        recent = list(self._recent)[-run:]
        if 2 * sum(self._prompt_units(features) for features, _ in recent) > sum(
            self._units(features) for features, _ in recent
        ):
            self._kalman.widen(0.0, (0.0, 0.0, 0.0, _PROMPT_DOUBT**2, 0.0))
        else:
            self._change_tempo(recent)
        self._kalman.calm()
        self._watch.reset()

    def _change_tempo(self, recent: list[_Step]) -> None:
        """All coefficients take the multiple that these steps had at the median."""
        factor = median(took_s / (self._units(features) * self._tempo_s) for features, took_s in recent)
        self._tempo_s = max(self._tempo_s * factor, _LEAST_TEMPO_S)
        doubt = min(abs(factor - 1.0), 1.0)
        apart = (0.2 * doubt) ** 2
        self._kalman.widen((0.2 * doubt + 0.05) ** 2, (apart, apart, apart, apart, apart))

    def _prompt_units(self, features: Vector) -> float:
        """The part of a step that its prompts take."""
        _, _, cells, prompts, _ = features
        value = self._kalman.value
        return value[3] * prompts + value[4] * prompts * cells * (_PROMPTS * _CELLS / _READS)


class FitTimes:
    """Step times from a fit that is not being taught: for planning, without an engine."""

    def __init__(self, fit: Fit, settings: StepModelSettings | None = None) -> None:
        self._fit = fit
        self._covariance = fit.covariance()
        self._settings = settings or StepModelSettings()

    def mean_s(self, load: StepLoad) -> float:
        return max(self._fit.mean_s(load), _LEAST_TEMPO_S)

    def upper_s(self, load: StepLoad) -> float:
        """The bound for the mean over which a rate is judged, steps taken as independent of each other."""
        mean_s = self.mean_s(load)
        settings = self._settings
        spread = self._fit.noise**2 * min(mean_s / settings.rate_over_s, 1 / settings.rate_over_steps)
        features = (
            *(1.0, float(load.decoding), float(load.cells_read), float(load.prefill_tokens)), float(load.reads)
        )  # fmt: skip
        stream = (1.0, float(load.cells_read))
        bound = _upper(self._fit.coefficients, self._covariance, features, stream, spread, settings.upper_z)
        return max(bound, mean_s)


def _times(value: Vector, features: Vector) -> float:
    v0, v1, v2, v3, v4 = value
    x0, x1, x2, x3, x4 = features
    return v0 * x0 + v1 * x1 + v2 * x2 + v3 * x3 + v4 * x4


def _features(load: StepLoad) -> Vector:
    streams, cells, prompts = load.decoding, load.cells_read, load.prefill_tokens
    return 1.0, streams / _STREAMS, cells / _CELLS, prompts / _PROMPTS, (streams + prompts) * cells / _READS


def _filter_from(fit: Fit, tempo_s: float, settings: StepModelSettings) -> Kalman:
    """The filter at the start of a boot: the fit, plus doubt about this machine's tempo today and about each part."""
    scale = [unit / tempo_s for unit in _UNITS]
    v0, v1, v2, v3, v4 = (each * by for each, by in zip(fit.coefficients, scale, strict=True))
    p00, p01, p02, p03, p04, p11, p12, p13, p14, p22, p23, p24, p33, p34, p44 = (
        each * scale[i] * scale[j] for each, (i, j) in zip(fit.covariance(), _TRIANGLE, strict=True)
    )
    kalman = Kalman((v0, v1, v2, v3, v4), (p00, p01, p02, p03, p04, p11, p12, p13, p14, p22, p23, p24, p33, p34, p44))
    apart = settings.start_each**2
    kalman.widen(settings.start_together**2, (apart, apart, apart, apart, apart))
    return kalman


def _upper(
    value: Vector, covariance: Covariance, features: Vector, stream: tuple[float, float], spread: float, z: float
) -> float:
    """mean + z * deviation of a linear prediction; `spread` is a relative variance that comes on top.

    `stream` is what one more stream adds to the second feature and to the fifth. As a function of the number of streams
    this is convex, and where the fit knows large batches better than small ones it falls at first. But a step of fewer
    streams is no longer than one of more, so the least bound of all larger batches holds as well: that makes it
    monotone.
    """
    v0, v1, v2, v3, v4 = value
    x0, x1, x2, x3, x4 = features
    s1, s4 = stream
    mean = v0 * x0 + v1 * x1 + v2 * x2 + v3 * x3 + v4 * x4
    slope = v1 * s1 + v4 * s4
    g0, g1, g2, g3, g4 = times_vector(covariance, features)
    variance = max(x0 * g0 + x1 * g1 + x2 * g2 + x3 * g3 + x4 * g4, 0.0) + spread * mean * mean
    deviation = sqrt(variance)
    bend = s1 * g1 + s4 * g4 + spread * mean * slope
    if slope * deviation + z * bend >= 0:
        return mean + z * deviation
    curve = s1 * s1 * covariance[5] + 2 * s1 * s4 * covariance[8] + s4 * s4 * covariance[14] + spread * slope * slope
    steep = z * z * curve - slope * slope
    if steep <= 0:
        return mean + z * deviation
    rest = max(variance - bend * bend / curve, 0.0)
    more = max(0.0, -slope * sqrt(rest / (curve * steep)) - bend / curve)
    there = max(variance + 2 * bend * more + curve * more * more, 0.0)
    return min(mean + z * deviation, mean + slope * more + z * sqrt(there))
