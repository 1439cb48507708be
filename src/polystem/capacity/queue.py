"""The queue of new workers: first come, first served within a tenant, fair in tokens between tenants.

Knows no floor and no engine. Each tenant has a counter of the tokens it was served; the tenant with the least goes
next, and one that comes back after a while is lifted to the least of those that wait, so that idling saves up nothing
(the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).

A place is *present* while a request waits on it. An absent one is passed over, except that the first whose promised
moment has come keeps one seat for a short while. Invariant: places = present + absent, and a place that is joined
again after an absence is where it was.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import count
from math import inf

__all__ = ["FairQueue", "Place"]

UNKNOWN_COST_TOKENS = 256
"""What a worker is taken to be served before any has ended."""

LINES_REMEMBERED = 1024
"""Tenants without a place whose counters are kept before those that a lift would level anyway are forgotten."""


@dataclass(slots=True, eq=False)
class Place:
    """Where a worker stands. `order` grows with arrival.

    While absent: `promised_at` is when it was told to come back (None: nothing was promised), after `missed_at` nobody
    is expected on it any more, and the place is kept until `kept_until`.
    """

    worker: str
    tenant: str
    order: int
    present: bool = True
    promised_at: float | None = None
    missed_at: float = 0.0
    kept_until: float = 0.0


@dataclass(slots=True, eq=False)
class _Line:
    """One tenant's places by order, and the tokens it was served."""

    tenant: str
    counter_tokens: int = 0
    orders: list[int] = field(default_factory=list[int])
    present: list[int] = field(default_factory=list[int])

    @property
    def rank(self) -> tuple[int, int]:
        """The line with the least rank goes next; only lines with somebody present have one."""
        return self.counter_tokens, self.present[0]


class FairQueue:
    """Places of workers that wait for their first turn. Each act costs O(log n) comparisons in n places.

    `cost_tokens` is what a worker is expected to be served in all: it tells how lines will interleave.
    """

    def __init__(self, *, place_kept_s: float, due_grace_s: float) -> None:
        self.cost_tokens = UNKNOWN_COST_TOKENS
        self._place_kept_s = place_kept_s
        self._due_grace_s = due_grace_s
        self._order = count()
        self._places: dict[str, Place] = {}
        self._by_order: dict[int, Place] = {}
        self._lines: dict[str, _Line] = {}
        self._ranks: list[tuple[int, int, str]] = []
        self._last_left_tokens = 0
        self._promises: list[tuple[float, int]] = []
        self._due: dict[int, Place] = {}
        self._lapses: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, worker: str) -> bool:
        return worker in self._places

    @property
    def present(self) -> int:
        """Places with a request waiting on them."""
        return sum(len(line.present) for line in self._lines.values())

    # --- coming and going -----------------------------------------------------------------------------------------

    def join(self, worker: str, tenant: str) -> None:
        """A new worker takes the last place of its tenant's line."""
        assert worker not in self._places
        line = self._lines.get(tenant) or self._open(tenant)
        if not line.orders:
            line.counter_tokens = max(line.counter_tokens, self._least_waiting_tokens())
        place = Place(worker, tenant, next(self._order))
        self._places[worker] = self._by_order[place.order] = place
        line.orders.append(place.order)
        self._show(line, place)

    def leave(self, worker: str) -> None:
        """The worker gives up its place, to run or to go."""
        place = self._places.pop(worker)
        line = self._lines[place.tenant]
        if place.present:
            self._hide(line, place)
        del self._by_order[place.order], line.orders[bisect_left(line.orders, place.order)]
        self._due.pop(place.order, None)
        if not line.orders:
            self._last_left_tokens = line.counter_tokens

    def go_absent(
        self, worker: str, now_s: float, *, promised_at: float | None, missed_at: float | None = None
    ) -> None:
        """The request that waited is gone; the place stays. Without `missed_at` it is missed when its seat goes."""
        place = self._places[worker]
        if place.present:
            self._hide(self._lines[place.tenant], place)
        place.present, place.promised_at, place.kept_until = False, promised_at, now_s + self._place_kept_s
        seat_until = -inf if promised_at is None else promised_at + self._due_grace_s
        place.missed_at = seat_until if missed_at is None else missed_at
        self._due.pop(place.order, None)
        heapq.heappush(self._lapses, (place.kept_until, place.order))
        if promised_at is not None:
            heapq.heappush(self._promises, (promised_at, place.order))

    def come_back(self, worker: str) -> Place:
        """A request waits on the place again."""
        place = self._places[worker]
        if not place.present:
            self._show(self._lines[place.tenant], place)
        place.present = True
        self._due.pop(place.order, None)
        return place

    def charge(self, tenant: str, tokens: int) -> None:
        """The tenant was served so many tokens; a negative number gives back what was charged beforehand."""
        line = self._lines.get(tenant) or self._open(tenant)
        ranked = bool(line.present)
        if ranked:
            self._unrank(line)
        line.counter_tokens += tokens
        if ranked:
            self._rank(line)

    def lapsed(self, now_s: float) -> list[str]:
        """Workers that have been absent for too long, in the order in which their time ran out."""
        found: list[str] = []
        while self._lapses and self._lapses[0][0] <= now_s:
            kept_until, order = heapq.heappop(self._lapses)
            place = self._by_order.get(order)
            if place is not None and not place.present and place.kept_until == kept_until:
                place.kept_until = inf  # told once, however often it went away at this moment
                found.append(place.worker)
        return found

    def keep_longer(self, worker: str, now_s: float) -> None:
        """An absent place that has just lapsed is kept for as long once more."""
        place = self._places[worker]
        place.kept_until = now_s + self._place_kept_s
        heapq.heappush(self._lapses, (place.kept_until, place.order))

    def spare(self, tenant: str, now_s: float, coming: Collection[str] = ()) -> str | None:
        """Whose place goes for that of a newcomer of this tenant, where there are too many; None where nobody's does.

        Only an absent one's, whose request is not `coming` either: first the longest absent of those who were promised
        nothing, or did not come when told to; else the last of a tenant more of whose places are absent than this one
        has in all. Tenants with most absent places come first. Looks at every place.
        """
        absent = [place for place in self._places.values() if not place.present and place.worker not in coming]
        number = Counter(place.tenant for place in absent)
        missed = [place for place in absent if place.missed_at < now_s]
        if missed:
            return min(missed, key=lambda place: (-number[place.tenant], place.kept_until)).worker
        most = max(number, key=number.__getitem__, default=tenant)
        if number[most] <= len(self._lines[tenant].orders):
            return None
        return max((place for place in absent if place.tenant == most), key=lambda place: place.order).worker

    # --- who is next ----------------------------------------------------------------------------------------------

    def first(self) -> Place | None:
        """The present place that is served next."""
        return self._by_order[self._ranks[0][1]] if self._ranks else None

    def due_ahead_of(self, place: Place, now_s: float) -> Place | None:
        """An absent place that would be served before this one and whose promised moment is near, or just over."""
        self._look_for_due(now_s)
        rank = (self._lines[place.tenant].counter_tokens, place.order)
        ahead = [due for due in self._due.values() if (self._lines[due.tenant].counter_tokens, due.order) < rank]
        return min(ahead, key=lambda due: due.order, default=None)

    def place_of(self, worker: str) -> int:
        """How many places are served before this one, absent ones included, as far as the counters of now tell."""
        place = self._places[worker]
        line = self._lines[place.tenant]
        index = bisect_left(line.orders, place.order)
        level_tokens = line.counter_tokens + index * self.cost_tokens
        others = (other for other in self._lines.values() if other.orders and other is not line)
        return index + sum(self._before(other, level_tokens, place.order) for other in others)

    def length_for(self, tenant: str) -> int:
        """How many places would be served before a newcomer of this tenant."""
        line = self._lines.get(tenant)
        own = len(line.orders) if line else 0
        counter_tokens = line.counter_tokens if line else 0
        if not own:
            counter_tokens = max(counter_tokens, self._least_waiting_tokens())
        level_tokens = counter_tokens + own * self.cost_tokens
        others = (other for other in self._lines.values() if other.orders and other is not line)
        return own + sum(self._before(other, level_tokens, None) for other in others)

    def in_order(self) -> Iterator[Place]:
        """All places, absent ones included, in the order in which they would be served."""
        heads = [(line.counter_tokens, line.orders[0], 0, line.tenant) for line in self._lines.values() if line.orders]
        heapq.heapify(heads)
        while heads:
            counter_tokens, order, index, tenant = heapq.heappop(heads)
            yield self._by_order[order]
            orders = self._lines[tenant].orders
            if index + 1 < len(orders):
                heapq.heappush(heads, (counter_tokens + self.cost_tokens, orders[index + 1], index + 1, tenant))

    def check_integrity(self) -> None:
        """Fails where the queue contradicts itself."""
        assert len(self._places) == len(self._by_order) == sum(len(line.orders) for line in self._lines.values())
        for line in self._lines.values():
            assert line.orders == sorted(set(line.orders))
            places = [self._by_order[order] for order in line.orders]
            assert all(place.tenant == line.tenant and self._places[place.worker] is place for place in places)
            assert line.present == [place.order for place in places if place.present]
        assert self._ranks == sorted((*line.rank, line.tenant) for line in self._lines.values() if line.present)
        assert all(not place.present for place in self._due.values())

    # --- inside ---------------------------------------------------------------------------------------------------

    def _before(self, line: _Line, level_tokens: int, order: int | None) -> int:
        """Places of another line that are served before the counter stands at `level_tokens`; `order` breaks ties."""
        ahead = -(-(level_tokens - line.counter_tokens) // self.cost_tokens)
        ahead = min(len(line.orders), max(0, ahead))
        tied = line.counter_tokens + ahead * self.cost_tokens == level_tokens and ahead < len(line.orders)
        return ahead + int(tied and (order is None or line.orders[ahead] < order))

    def _open(self, tenant: str) -> _Line:
        if len(self._lines) >= LINES_REMEMBERED:
            level = self._least_waiting_tokens()
            self._lines = {
                name: line for name, line in self._lines.items() if line.orders or line.counter_tokens > level
            }
        line = self._lines[tenant] = _Line(tenant)
        return line

    def _least_waiting_tokens(self) -> int:
        waiting = (line.counter_tokens for line in self._lines.values() if line.orders)
        return min(waiting, default=self._last_left_tokens)

    def _show(self, line: _Line, place: Place) -> None:
        if line.present:
            self._unrank(line)
        insort(line.present, place.order)
        self._rank(line)

    def _hide(self, line: _Line, place: Place) -> None:
        self._unrank(line)
        del line.present[bisect_left(line.present, place.order)]
        if line.present:
            self._rank(line)

    def _rank(self, line: _Line) -> None:
        insort(self._ranks, (*line.rank, line.tenant))

    def _unrank(self, line: _Line) -> None:
        del self._ranks[bisect_left(self._ranks, (*line.rank, line.tenant))]

    def _look_for_due(self, now_s: float) -> None:
        """Finds whose promised moment has come near since the last look, and lets go of those who have missed it.

        Near, not here: whoever asks all the time would be let in just before one that comes when it was told to.
        """
        while self._promises and self._promises[0][0] - self._due_grace_s <= now_s:
            promised_at, order = heapq.heappop(self._promises)
            place = self._by_order.get(order)
            if place is not None and not place.present and place.promised_at == promised_at:
                self._due[order] = place
        late_s = now_s - self._due_grace_s
        for order in [order for order, place in self._due.items() if (place.promised_at or 0.0) < late_s]:
            del self._due[order]
