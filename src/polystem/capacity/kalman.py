"""Five coefficients that are never negative, their covariance, and how a measurement moves them.

Knows no steps and no seconds: plain numbers of order one. Written out in floats, because at this size numpy spends its
time on calls: an engine may make a thousand steps a second, and each is learned from.
Invariant: value >= 0, and no deviation is more than the part itself or half of the whole, whichever is more.
"""

from __future__ import annotations

from math import sqrt

__all__ = ["Covariance", "Kalman", "Vector", "times_vector"]

Vector = tuple[float, float, float, float, float]

Covariance = tuple[
    float, float, float, float, float, float, float, float, float, float, float, float, float, float, float
]  # fmt: skip
"""The upper triangle of a symmetric matrix, row by row: 00 01 02 03 04 11 12 13 14 22 23 24 33 34 44."""

_TRIANGLE = tuple((i, j) for i in range(5) for j in range(i, 5))
_DIAGONAL = (0, 5, 9, 12, 14)
_LEAST_VARIANCE = 1e-12
_LEAST_PART = 0.05
_MOST_DEVIATION = 0.5


def times_vector(p: Covariance, x: Vector) -> Vector:
    """The product of a covariance with a vector."""
    p00, p01, p02, p03, p04, p11, p12, p13, p14, p22, p23, p24, p33, p34, p44 = p
    x0, x1, x2, x3, x4 = x
    return (
        p00 * x0 + p01 * x1 + p02 * x2 + p03 * x3 + p04 * x4,
        p01 * x0 + p11 * x1 + p12 * x2 + p13 * x3 + p14 * x4,
        p02 * x0 + p12 * x1 + p22 * x2 + p23 * x3 + p24 * x4,
        p03 * x0 + p13 * x1 + p23 * x2 + p33 * x3 + p34 * x4,
        p04 * x0 + p14 * x1 + p24 * x2 + p34 * x3 + p44 * x4,
    )


class Kalman:
    """A random walk seen through scalar measurements.

    The covariance is capped because a scheduler holds the load constant for long: directions that no measurement
    touches would else widen without end, and the first new load would throw the coefficients about. The cap goes with
    the whole (all parts but the fourth, which few measurements see), so that a first guess that was wrong by orders of
    magnitude leaves no doubt of its own size behind.
    """

    __slots__ = ("_last_score", "covariance", "value")

    def __init__(self, value: Vector, covariance: Covariance) -> None:
        self.value = value
        self.covariance = covariance
        self._last_score = 0.0

    def variances(self) -> Vector:
        p = self.covariance
        return p[0], p[5], p[9], p[12], p[14]

    def measure(self, features: Vector, innovation: float, noise: float, clip_sigma: float) -> float:
        """Learns that the measured value was off by `innovation`; `noise` is its variance.

        Beyond `clip_sigma` standard deviations it counts as one at that bound if the measurement before was beyond it
        on the same side, and not at all if it stands alone. It makes nothing surer: it contradicts what was believed.
        Returns the innovation in standard deviations, unclipped.
        """
        h0, h1, h2, h3, h4 = features
        p00, p01, p02, p03, p04, p11, p12, p13, p14, p22, p23, p24, p33, p34, p44 = self.covariance
        g0 = p00 * h0 + p01 * h1 + p02 * h2 + p03 * h3 + p04 * h4
        g1 = p01 * h0 + p11 * h1 + p12 * h2 + p13 * h3 + p14 * h4
        g2 = p02 * h0 + p12 * h1 + p22 * h2 + p23 * h3 + p24 * h4
        g3 = p03 * h0 + p13 * h1 + p23 * h2 + p33 * h3 + p34 * h4
        g4 = p04 * h0 + p14 * h1 + p24 * h2 + p34 * h3 + p44 * h4
        variance = h0 * g0 + h1 * g1 + h2 * g2 + h3 * g3 + h4 * g4 + noise
        score = innovation / sqrt(variance)
        before, self._last_score = self._last_score, score
        odd = score > clip_sigma or score < -clip_sigma
        if odd:
            if not (before > clip_sigma if score > 0 else before < -clip_sigma):
                return score
            innovation *= clip_sigma / abs(score)
        pull = innovation / variance
        v0, v1, v2, v3, v4 = self.value
        v0, v1, v2, v3, v4 = v0 + g0 * pull, v1 + g1 * pull, v2 + g2 * pull, v3 + g3 * pull, v4 + g4 * pull
        self.value = (v0, v1, v2, v3, v4)
        if not odd:
            k0, k1, k2, k3, k4 = g0 / variance, g1 / variance, g2 / variance, g3 / variance, g4 / variance
            self.covariance = (
                p00 - k0 * g0, p01 - k0 * g1, p02 - k0 * g2, p03 - k0 * g3, p04 - k0 * g4,
                p11 - k1 * g1, p12 - k1 * g2, p13 - k1 * g3, p14 - k1 * g4,
                p22 - k2 * g2, p23 - k2 * g3, p24 - k2 * g4,
                p33 - k3 * g3, p34 - k3 * g4,
                p44 - k4 * g4,
            )  # fmt: skip
        if v0 < 0 or v1 < 0 or v2 < 0 or v3 < 0 or v4 < 0:
            self._lift()
        return score

    def calm(self) -> None:
        """What was far off so far has been accounted for; the next outlier stands alone."""
        self._last_score = 0.0

    def _lift(self) -> None:
        """Moves to a likely value without a negative part.

        A part that is lifted to 0 takes the others along as far as they are correlated. Set to 0 by itself it would
        undo what was measured of the sum, at every step again, and its partner would never come down. Where a second
        one follows, the first is known to be 0: else its lift would move the sum as well.
        """
        value, p = list(self.value), self.covariance
        for _ in range(5):
            lowest = min(range(5), key=value.__getitem__)
            if value[lowest] >= 0:
                break
            column = _column(p, lowest)
            up = -value[lowest] / max(column[lowest], _LEAST_VARIANCE)
            value = [each + up * along for each, along in zip(value, column, strict=True)]
            value[lowest] = 0.0
            p = _believed(p, lowest, 0.0)
        v0, v1, v2, v3, v4 = (max(each, 0.0) for each in value)
        self.value = (v0, v1, v2, v3, v4)

    def widen(self, together: float, each: Vector) -> None:
        """Adds the variance of a walk: `together` of all coefficients by one factor, `each` of every one by itself.

        Both are squares of relative deviations. A part below `_LEAST_PART` of the whole walks as if it were that large,
        so that one at 0 can come back.
        """
        v0, v1, v2, v3, v4 = self.value
        e0, e1, e2, e3, e4 = each
        t0, t1, t2, t3, t4 = together * v0, together * v1, together * v2, together * v3, together * v4
        least = _LEAST_PART * (v0 + v1 + v2 + v4)
        w0, w1, w2, w3, w4 = max(v0, least), max(v1, least), max(v2, least), max(v3, least), max(v4, least)
        p00, p01, p02, p03, p04, p11, p12, p13, p14, p22, p23, p24, p33, p34, p44 = self.covariance
        self.covariance = (
            p00 + t0 * v0 + e0 * w0 * w0, p01 + t0 * v1, p02 + t0 * v2, p03 + t0 * v3, p04 + t0 * v4,
            p11 + t1 * v1 + e1 * w1 * w1, p12 + t1 * v2, p13 + t1 * v3, p14 + t1 * v4,
            p22 + t2 * v2 + e2 * w2 * w2, p23 + t2 * v3, p24 + t2 * v4,
            p33 + t3 * v3 + e3 * w3 * w3, p34 + t3 * v4,
            p44 + t4 * v4 + e4 * w4 * w4,
        )  # fmt: skip
        self._keep_to_cap()

    def _keep_to_cap(self) -> None:
        v0, v1, v2, v3, v4 = self.value
        most = _MOST_DEVIATION * (v0 + v1 + v2 + v4)
        c0, c1, c2, c3, c4 = (
            max(v0, most) ** 2, max(v1, most) ** 2, max(v2, most) ** 2, max(v3, most) ** 2, max(v4, most) ** 2
        )  # fmt: skip
        p = self.covariance
        if p[0] > c0 or p[5] > c1 or p[9] > c2 or p[12] > c3 or p[14] > c4:
            for at, cap in enumerate((c0, c1, c2, c3, c4)):
                if p[_DIAGONAL[at]] > cap:
                    p = _believed(p, at, cap)
            self.covariance = p


def _column(p: Covariance, at: int) -> Vector:
    unit = [0.0, 0.0, 0.0, 0.0, 0.0]
    unit[at] = 1.0
    return times_vector(p, (unit[0], unit[1], unit[2], unit[3], unit[4]))


def _believed(p: Covariance, at: int, cap: float) -> Covariance:
    """As if the part had been measured where it is, so well that `cap` is left of its variance.

    That only adds knowledge: a sum that is well known stays so. To scale rows and columns down would turn the known
    direction into another one, and the filter would be sure of what nobody measured.
    """
    own = max(p[_DIAGONAL[at]], _LEAST_VARIANCE)
    column = _column(p, at)
    less = (1.0 - cap / own) / own
    p00, p01, p02, p03, p04, p11, p12, p13, p14, p22, p23, p24, p33, p34, p44 = (
        each - less * column[i] * column[j] for each, (i, j) in zip(p, _TRIANGLE, strict=True)
    )
    return p00, p01, p02, p03, p04, p11, p12, p13, p14, p22, p23, p24, p33, p34, p44
