"""One serving-aware inference engine: decode-priority batches with chunked prefill.

At each batch boundary: every active decode gets min(q, remaining) tokens, in admission order,
while they fit the budget B; then the unfinished prompt (the continuation), then what the method
dispatches, each with a chunk of min(prompt left, budget left), until the budget is used or the KV
check refuses one.  The batch takes c0 + a max(0, b - b0).  A finished request frees its KV
space; a finished prompt decodes from the next batch.

How it is fast without losing a token: between two boundaries at which something can change, all
batches are alike, so they are run as one step (`_repeats`).  A decode that gets a full block in
every batch needs no attention until its last one: the batch number of the last block is known
when decoding starts, and kept in a heap.  Requests whose block does not fit wait in `parked`, in
admission order; this is rare, since a batch without room for prefill admits nobody.

Source:
    QBA §II-A.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, cast

from scheduler_service.sim.method import ANY_SIZE, STALLED
from scheduler_service.sim.model import FAR, EngineTotals

if TYPE_CHECKING:
    from scheduler_service.sim.method import MeteredMethod, Method
    from scheduler_service.sim.model import EngineShape, Outside, RunLog, Workload

_SHIFT: Final = 32  # room for request numbers below the batch number in a heap key
_MASK: Final = (1 << _SHIFT) - 1
IDLE: Final = -1
NORMAL_SPEED: Final = 1000  # `slowdown_milli` of a healthy engine


class Engine:
    """State of one engine.

    Invariants:
        `live` is the sum of tokens held; `kv` is `live` or the sum of reservations, as the rule
        of the shape says.  Every request of `_parked` was admitted after every one of `_last`.
    """

    def __init__(
        self,
        number: int,
        shape: EngineShape,
        workload: Workload,
        needs: list[int],
        method: Method,
        log: RunLog,
        outside: Outside,
    ) -> None:
        self.number = number
        self.totals = EngineTotals()
        self.slowdown_milli = NORMAL_SPEED
        self._shape = shape
        self._limit = shape.kv_limit
        self._by_reservation = shape.kv_rule == "reserve"
        self._prompt = workload.prompt
        self._response = workload.response
        self._needs = needs
        self._method = method
        self._metered = cast("MeteredMethod", method) if method.metered else None
        self._log = log
        self._outside = outside
        self.clear()

    def clear(self) -> None:
        """Forgets all work, as a worker that died does."""
        self.live = self.kv = 0  # tokens held; tokens counted against the limit
        self.working_until_ns = IDLE
        self._batch = 0  # number of the last batch that ended
        self._decoding = 0  # requests that get a block in every batch
        self._last: list[int] = []  # heap of last batch << _SHIFT | request
        self._short: dict[int, int] = {}  # last batch -> budget its last blocks leave unused
        self._parked: deque[tuple[int, int]] = deque()  # (request, response tokens left)
        self._fresh: list[int] = []  # decodes that have produced nothing yet
        self._left: tuple[int, int] | None = None  # continuation: request, prompt tokens left
        self._chunks: list[tuple[int, int]] = []  # chunks of the batch under way
        self._prefilled: list[int] = []  # prompts that the batch under way finishes
        self._partial: list[tuple[int, int]] = []  # blocks of parked requests in it
        self._given: dict[int, int] = {}  # tokens that requests got while parked
        self._iterations = 0  # alike batches under way
        self._load = 0  # tokens of each
        self._batch_ns = 0  # time of each
        self._refused = 0

    def in_flight(self) -> list[int]:
        """Returns the requests that the engine holds, in order of their number."""
        held = {key & _MASK for key in self._last}
        held.update(request for request, _ in self._parked)
        held.update(self._prefilled)
        if self._left is not None:
            held.add(self._left[0])
        return sorted(held)

    def wake(self, now_ns: int) -> int:
        """Ends the batches under way and starts the next ones.

        Args:
            now_ns: The time that the last call returned, or of an arrival for an idle engine.

        Returns:
            When the engine must be woken again, or `IDLE`.
        """
        if self._iterations:
            self._end(now_ns)
        return self._plan(now_ns)

    def _end(self, now_ns: int) -> None:
        """Books the batches that end now: tokens, finished requests, finished prompts."""
        count, load = self._iterations, self._load
        self._iterations = 0
        batch = self._batch = self._batch + count
        live = self.live = self.live + count * load
        totals = self.totals
        totals.batches += count
        totals.tokens += count * load
        totals.busy_ns += count * self._batch_ns
        capacity = self._shape.kv_capacity
        totals.peak_kv = max(totals.peak_kv, live)
        if live > capacity:
            totals.overflow_batches += min(count, -((capacity - live) // load))
        if self._metered is not None:
            self._meter(self._metered, count)
        self._end_requests(batch, now_ns)
        if not self._by_reservation:
            self.kv = self.live

    def _end_requests(self, batch: int, now_ns: int) -> None:
        """Lets requests go whose last block is done, and prompts that are done decode."""
        last = self._last
        while last and last[0] >> _SHIFT == batch:
            self._decoding -= 1
            self._finish(heappop(last) & _MASK, now_ns)
        self._short.pop(batch, None)
        if self._partial:
            self._end_partial(now_ns)
        if self._prefilled:
            for request in self._prefilled:
                self._method.prefill_complete(request, now_ns)
                self._parked.append((request, self._response[request]))
                self._fresh.append(request)
            self._prefilled = []

    def _finish(self, request: int, now_ns: int) -> None:
        """Lets a finished request go."""
        self.live -= self._prompt[request] + self._response[request]
        if self._by_reservation:
            self.kv -= self._needs[request]
        self._log.finish_ns[request] = now_ns
        self._method.complete(request, now_ns)

    def _end_partial(self, now_ns: int) -> None:
        """Books the blocks of requests that are still parked."""
        left = dict(self._partial)
        self._partial = []
        for request, tokens in left.items():
            self._given[request] = self._given.get(request, 0) + tokens
        for _ in range(len(self._parked)):
            request, remaining = self._parked.popleft()
            remaining -= left.get(request, 0)
            if remaining:
                self._parked.append((request, remaining))
            else:
                self._finish(request, now_ns)

    def _meter(self, metered: MeteredMethod, count: int) -> None:
        """Tells a method that charges as served what the batches that end now served."""
        for request, tokens in self._chunks:
            metered.served_prompt(request, tokens * count)
        metered.decoded(count * self._shape.decode_block)
        for request, tokens in self._partial:
            metered.served_output(request, tokens)
        last, block = self._last, self._shape.decode_block
        for key in last:
            if key >> _SHIFT == self._batch:
                request = key & _MASK
                given = self._given.get(request, 0)
                metered.served_output(request, -((given - self._response[request]) % block))
                metered.decoding(request, -1)

    def _plan(self, now_ns: int) -> int:
        """Forms the next batch and returns when it, or the last one like it, ends."""
        shape = self._shape
        load = self._decode_load()
        budget = shape.token_budget - load
        self._refused = 0
        self._chunks = []
        if budget and (self._left is not None or self._method.waiting):
            load = self._admit(now_ns, load, budget)
        if not load:
            return IDLE
        batch_ns = shape.launch_ns
        if load > shape.knee_tokens:
            batch_ns += shape.token_ns * (load - shape.knee_tokens)
        if self.slowdown_milli != NORMAL_SPEED:
            batch_ns = batch_ns * self.slowdown_milli // NORMAL_SPEED
        if self._fresh:
            self._first_tokens(now_ns + batch_ns)
        self._load = load
        count = self._iterations = self._repeats(now_ns, load, batch_ns)
        self._batch_ns = batch_ns
        self.working_until_ns = now_ns + count * batch_ns
        return self.working_until_ns

    def _decode_load(self) -> int:
        """Returns the tokens that active decodes take of the next batch."""
        if self._parked:
            self._unpark()
        load = self._shape.decode_block * self._decoding
        unused = self._short.get(self._batch + 1, 0)
        if unused:
            load -= unused
            if self._parked:
                load = self._serve_parked(load)
        return load

    def _unpark(self) -> None:
        """Lets parked requests decode while a block of each fits the budget."""
        block, slots, parked = self._shape.decode_block, self._shape.slots, self._parked
        while parked and self._decoding < slots:
            request, remaining = parked.popleft()
            blocks = -(-remaining // block)
            last = self._batch + blocks
            heappush(self._last, last << _SHIFT | request)
            unused = blocks * block - remaining
            if unused:
                self._short[last] = self._short.get(last, 0) + unused
            self._decoding += 1
            if self._metered is not None:
                self._metered.decoding(request, 1)

    def _serve_parked(self, load: int) -> int:
        """Gives what last blocks leave unused to parked requests, in order, while they fit."""
        for request, remaining in self._parked:
            block = min(self._shape.decode_block, remaining)
            if load + block > self._shape.token_budget:
                break
            self._partial.append((request, block))
            load += block
        return load

    def _first_tokens(self, end_ns: int) -> None:
        """Notes the first response token of requests that decode for the first time."""
        if self._parked:
            idle = {request for request, _ in self._parked} - dict(self._partial).keys()
            served = [request for request in self._fresh if request not in idle]
            self._fresh = [request for request in self._fresh if request in idle]
        else:
            served, self._fresh = self._fresh, []
        for request in served:
            self._log.first_token_ns[request] = end_ns

    def _admit(self, now_ns: int, load: int, budget: int) -> int:
        """Fills the budget with chunks: the continuation, then what the method dispatches.

        Returns:
            Tokens of the batch.
        """
        room = self._limit - self.kv
        reserving = self._by_reservation
        left, self._left = self._left, None
        while budget:
            if left is None:
                request = self._ask(now_ns, budget, room)
                if request < 0:
                    break
                remaining = self._prompt[request]
                if reserving:
                    room -= self._needs[request]
                    self.kv += self._needs[request]
            else:
                request, remaining = left
            chunk = min(remaining, budget)
            if not reserving:
                if chunk > room:
                    self._left, self._refused = left, STALLED
                    self.totals.kv_refusals += 1
                    break
                room -= chunk
            load += chunk
            budget -= chunk
            self._chunks.append((request, chunk))
            if chunk == remaining:
                self._prefilled.append(request)
            else:
                self._left = (request, remaining - chunk)
            left = None
        return load

    def _ask(self, now_ns: int, budget: int, room: int) -> int:
        """Asks the method for a request that fits, and notes why there is none."""
        if room <= 0:
            if self._method.waiting:
                self._refused = STALLED
                self.totals.kv_refusals += 1
            return STALLED
        if not self._method.waiting:
            return STALLED
        free = room if self._by_reservation or budget > room else ANY_SIZE
        request = self._method.dispatch(self.number, now_ns, free)
        if request < 0:
            self._refused = request
            if request == STALLED:
                self.totals.kv_refusals += 1
        return request

    def _repeats(self, now_ns: int, load: int, batch_ns: int) -> int:
        """Returns how many batches from now on are alike, at least 1.

        They are while no decode ends, no prompt ends, the continuation takes the same chunk and
        passes the KV check, and nobody new could be admitted.
        """
        if self._prefilled or self._partial:
            return 1
        count = (self._last[0] >> _SHIFT) - self._batch - 1 if self._last else FAR
        if self._metered is not None:  # counters must be up to date when others look at them
            seen_ns = min(self._outside.horizon_ns, self._outside.others_ns)
            count = min(count, (seen_ns - now_ns) // batch_ns)
        if self._chunks:  # all of the budget for the continuation, or what finished returned above
            return self._repeat_chunk(max(1, count), load)
        if load < self._shape.token_budget and self._left is None:
            count = min(count, self._until_others(now_ns, batch_ns))
        return max(1, count)

    def _until_others(self, now_ns: int, batch_ns: int) -> int:
        """Returns in how many batches somebody else may change what could be admitted."""
        until_ns = self._outside.horizon_ns
        if self._method.waiting:
            if self._limit - self.kv <= 0:
                return FAR  # only this engine's own decodes can free space
            if self._refused != STALLED or not self._by_reservation:
                return 1
            until_ns = min(until_ns, self._outside.others_ns)
        return -((now_ns - until_ns) // batch_ns)

    def _repeat_chunk(self, count: int, load: int) -> int:
        """Returns how often the continuation's chunk can be repeated, the first time included."""
        request, remaining = self._left or (0, 0)
        chunk = self._chunks[0][1]
        count = min(count, 1 + (remaining - 1) // chunk)
        if not self._by_reservation:
            count = min(count, 1 + max(0, self._limit - self.kv - chunk) // load)
        if count > 1:
            self._left = (request, remaining - (count - 1) * chunk)
        return count
