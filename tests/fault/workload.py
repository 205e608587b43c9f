"""A reproducible stream of real decisions with payloads, made by the real core.

The same seed gives the same stream, so a test can compare what a killed process left on disk with
what it must have been writing, and go on from there.
"""

import random
from dataclasses import dataclass
from hashlib import sha256

from scheduler_service.app.chain import GroupBuilder
from scheduler_service.app.ports import Group, Payload, Position
from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.completion import Complete
from scheduler_service.core.errors import SchedulerError
from scheduler_service.core.policy import PRESETS, PredictedClass
from scheduler_service.core.scheduler import apply
from scheduler_service.core.state import State

POOL = "pool"
SECOND_NS = 1_000_000_000
START_NS = 1_700_000_000 * SECOND_NS


@dataclass(frozen=True)
class Step:
    """What one command decided, and what it does to the payloads."""

    decisions: list[d.Decision]
    puts: list[tuple[int, Payload]]
    deletes: list[int]

    def add_to(self, builder: GroupBuilder) -> None:
        if self.decisions:
            builder.add(self.decisions)
        for key, payload in self.puts:
            builder.put_payload(key, payload)
        for key in self.deletes:
            builder.delete_payload(key)


class Workload:
    """Commands drawn from a seed, applied to a state of its own.

    `payloads` is what a store must hold after every step so far.
    """

    def __init__(self, seed: int, *, payload_bytes: int = 300) -> None:
        self.rng = random.Random(seed)
        self.state = State()
        self.now_ns = START_NS
        self.payloads: dict[int, Payload] = {}
        self._payload_bytes = payload_bytes
        self._count = 0
        self._leases: list[str] = []
        self._opening: list[c.Command] = [
            c.ConfigurePool(
                now_ns=self.now_ns,
                pool=POOL,
                policy=PRESETS["fair_qba"],
                policy_digest="digest",
                create=True,
            )
        ]

    def step(self) -> Step:
        """Applies commands until one has decided something."""
        while True:
            self._count += 1
            self.now_ns += self.rng.randrange(1, 20_000_000)
            command, payload = self._command()
            log: list[d.Decision] = []
            before = self.state.sequence
            try:
                answer = apply(self.state, command, log)
            except SchedulerError:
                answer = None
            if isinstance(answer, a.Dispatches):
                self._leases += [request.held_lease.lease_id for request in answer.granted]
            if log:
                return self._step(before, log, payload)

    def _command(self) -> tuple[c.Command, Payload | None]:
        if self._opening:
            return self._opening.pop(), None
        rng, nonce = self.rng, f"n{self._count}"
        draw = rng.random()
        if draw < 0.4:
            payload = Payload(rng.randbytes(rng.randrange(self._payload_bytes + 1)), b"m")
            request_id = f"r{self._count}"
            return c.Enqueue(
                now_ns=self.now_ns,
                pool=POOL,
                request_id=request_id,
                user_id=rng.choice("abcdefgh"),
                cost=rng.randrange(1, 100),
                predicted_class=rng.choice(list(PredictedClass)),
                content_digest=request_id.encode(),
                payload_digest=sha256(payload.payload).digest(),
                payload_bytes=len(payload.payload),
            ), payload
        if draw < 0.75:
            return c.NextDispatch(
                now_ns=self.now_ns,
                nonce=nonce,
                pools=(POOL,),
                worker=rng.choice("xyz"),
                max_dispatches=rng.randrange(1, 4),
            ), None
        if draw < 0.95 and self._leases:
            lease_id = self._leases.pop(rng.randrange(len(self._leases)))
            outcome = rng.choice([d.Outcome.SUCCEEDED, d.Outcome.SUCCEEDED, d.Outcome.GIVEN_BACK])
            return Complete(now_ns=self.now_ns, lease_id=lease_id, outcome=outcome), None
        return c.Cancel(
            now_ns=self.now_ns, pool=POOL, request_id=f"r{rng.randrange(1, self._count + 1)}"
        ), None

    def _step(self, before: int, log: list[d.Decision], payload: Payload | None) -> Step:
        puts: list[tuple[int, Payload]] = []
        deletes: list[int] = []
        for sequence, decision in enumerate(log, before + 1):
            if isinstance(decision, d.Accepted):
                assert payload is not None
                puts.append((sequence, payload))
            elif isinstance(decision, d.Completed) or (
                isinstance(decision, d.Ended) and decision.state is not d.RequestState.DEAD_LETTERED
            ):
                deletes.append(decision.request_sequence)
        self.payloads.update(puts)
        for key in deletes:
            self.payloads.pop(key, None)
        return Step(log, puts, deletes)

    def advance_to(self, sequence: int) -> None:
        """Repeats the stream up to a sequence at which a step ends."""
        while self.state.sequence < sequence:
            self.step()
        assert self.state.sequence == sequence, "a group was kept in part"


def next_group(workload: Workload, end: Position, steps: int = 1) -> Group:
    """Returns the next `steps` steps as one group."""
    builder = GroupBuilder(end)
    for _ in range(steps):
        workload.step().add_to(builder)
    return builder.take()
