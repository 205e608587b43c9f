"""Clients of a service that is killed, and what they were told: the only witness of the truth.

Every call is written down before it is made (`Call.told` is None) and again when it is answered.
After a crash the same calls are repeated with the same ids and keys; `Record` says what the answers
have to be.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb

SUCCEEDED = decision_pb2.OUTCOME_SUCCEEDED
GIVEN_BACK = decision_pb2.OUTCOME_GIVEN_BACK
POOL = "default"


@dataclass
class Call:
    """One call: what was asked, and the answer if there was one."""

    request: Any
    told: Any = None


@dataclass
class Record:
    """Everything that clients know.

    Attributes:
        enqueues: By request id.
        polls: By (worker, key).
        completes: By lease id; at most one outcome is stated for a lease.
        cancels: By request id.
        live: Request id -> lease that a worker holds and has not ended.
        problems: What contradicts what was told before.
    """

    enqueues: dict[str, Call] = field(default_factory=dict)
    polls: dict[tuple[str, str], Call] = field(default_factory=dict)
    completes: dict[str, Call] = field(default_factory=dict)
    cancels: dict[str, Call] = field(default_factory=dict)
    live: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def granted(self, dispatches: Any) -> None:
        """Takes note of leases; a request never has two that are alive."""
        for dispatch in dispatches:
            request_id, lease_id = dispatch.request_id, dispatch.lease_id
            if lease_id in self.completes:
                continue
            held = self.live.get(request_id)
            if held is not None and held != lease_id and held not in self.completes:
                self.problems.append(f"{request_id} under {held} and {lease_id}")
            self.live[request_id] = lease_id

    def ended(self, lease_id: str) -> None:
        """Takes note that a lease is over."""
        for request_id, held in list(self.live.items()):
            if held == lease_id:
                del self.live[request_id]

    @property
    def acknowledged(self) -> dict[str, Any]:
        """Requests that were acknowledged, with the answers."""
        return {name: call.told for name, call in self.enqueues.items() if call.told is not None}


class Gateway:
    """Enqueues without pause, and now and then cancels what it has enqueued."""

    def __init__(self, name: str, record: Record, rng: random.Random) -> None:
        self._name, self._record, self._rng = name, record, rng
        self._number = 0

    async def step(self, stub: Any) -> None:
        """Makes one call."""
        rng, record = self._rng, self._record
        if self._number and rng.random() < 0.1:
            request_id = f"{self._name}-{rng.randrange(self._number)}"
            call = Call(pb.CancelRequest(pool=POOL, request_id=request_id))
            if request_id in record.acknowledged and request_id not in record.cancels:
                record.cancels[request_id] = call
                call.told = await stub.Cancel(call.request)
            return
        request_id = f"{self._name}-{self._number}"
        self._number += 1
        request = pb.EnqueueRequest(
            pool=POOL,
            user_id=f"user-{rng.randrange(10)}",
            request_id=request_id,
            cost=rng.randrange(1, 100),
            predicted_class=rng.choice([1, 2]),
            payload=rng.randbytes(rng.choice([0, 0, 50])),
        )
        call = record.enqueues[request_id] = Call(request)
        call.told = await stub.Enqueue(request)


class Worker:
    """Takes requests and ends most of them."""

    def __init__(self, name: str, record: Record, rng: random.Random) -> None:
        self._name, self._record, self._rng = name, record, rng
        self._number = 0
        self._held: list[str] = []

    async def step(self, stub: Any) -> None:
        """Makes one call."""
        rng, record = self._rng, self._record
        if self._held and rng.random() < 0.6:
            lease_id = self._held.pop(rng.randrange(len(self._held)))
            outcome = GIVEN_BACK if rng.random() < 0.1 else SUCCEEDED
            request = pb.CompleteRequest(lease_id=lease_id, outcome=outcome)
            call = record.completes[lease_id] = Call(request)
            call.told = await stub.Complete(request)
            record.ended(lease_id)
            return
        key = f"{self._name}-{self._number}"
        self._number += 1
        request = pb.NextDispatchRequest(
            pools=[POOL],
            worker_id=self._name,
            max_dispatches=rng.randrange(1, 4),
            wait_duration={"nanos": 50_000_000},
            lease_duration={"seconds": 3600},
            idempotency_key=key,
        )
        call = record.polls[self._name, key] = Call(request)
        call.told = await stub.NextDispatch(request)
        record.granted(call.told.dispatches)
        self._held += [dispatch.lease_id for dispatch in call.told.dispatches]
