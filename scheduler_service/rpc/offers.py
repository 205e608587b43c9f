"""What workers say they can take: checks, and keeping count between two statements."""

from collections.abc import Iterable

import msgspec

from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.limits import ENUMS_MAX, LABELS_MAX, TOKENS_MAX
from scheduler_service.core import decisions as d
from scheduler_service.core.policy import PredictedClass
from scheduler_service.core.request import Request
from scheduler_service.rpc import convert
from scheduler_service.rpc.validate import Checks

_CLASSES = frozenset(int(value) for value in PredictedClass)
_MAX_LEASES = 10**9


def check_offer(message: decision_pb2.Offer, checks: Checks, field: str = "offer") -> None:
    """Checks what a worker says it can take."""
    if message.HasField("free_tokens"):
        checks.number(f"{field}.free_tokens", message.free_tokens, 0, TOKENS_MAX)
    if message.HasField("total_tokens"):
        checks.number(f"{field}.total_tokens", message.total_tokens, 0, TOKENS_MAX)
    checks.enums(f"{field}.accepted_classes", message.accepted_classes, _CLASSES, ENUMS_MAX)
    checks.ids(f"{field}.labels", message.labels, LABELS_MAX)
    if message.max_leases:
        checks.number(f"{field}.max_leases", message.max_leases, 0, _MAX_LEASES)


class RunningOffer:
    """What a worker can take from one of its statements to the next.

    What it is given in between takes tokens, and what it completes gives them back.

    Attributes:
        now: What it can take now.
    """

    def __init__(self, offer: d.Offer = convert.ANY_OFFER) -> None:
        self.now = offer
        self._taken: dict[str, int] = {}

    def state(self, message: decision_pb2.Offer) -> None:
        """Takes what the worker says anew; what it does not say stays."""
        if message.HasField("free_tokens"):
            self._taken.clear()
        self.now = convert.offer_from(message, self.now)

    def take(self, granted: Iterable[Request]) -> None:
        """Takes note of what it was given."""
        if self.now.free_tokens < 0:
            return
        for request in granted:
            tokens = request.kv_tokens
            self._taken[request.held_lease.lease_id] = tokens
            self._set_free(max(self.now.free_tokens - tokens, 0))

    def give(self, completions: Iterable[pb.CompleteRequest]) -> None:
        """Takes note of what it has completed."""
        if not self._taken:
            return
        for item in completions:
            tokens = self._taken.pop(item.lease_id, 0)
            if tokens:
                self._set_free(self.now.free_tokens + tokens)

    def _set_free(self, tokens: int) -> None:
        self.now = msgspec.structs.replace(self.now, free_tokens=tokens)
