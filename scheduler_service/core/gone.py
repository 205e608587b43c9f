"""What is remembered of a request that has ended.

In a module of its own since it is never compiled: the compiler would make a class of it that the
garbage collector tracks.
"""

import msgspec

from scheduler_service.core.decisions import RequestState
from scheduler_service.core.policy import PredictedClass


class Gone(msgspec.Struct, array_like=True, gc=False):
    """What is remembered of a request that has ended, for the retention time.

    It stands in snapshots as an array: fields are added at the end only, with a default.

    Attributes:
        reason: Why it ended; for SUCCEEDED and FAILED the text its worker gave.
        lease_id: The lease it ended under, or empty.
        end_ns: When it ended.
        given_back: Leases of it that their holder gave back.
    """

    request_id: str
    user_id: str
    sequence: int
    cost: int
    predicted_class: PredictedClass
    content_digest: bytes
    state: RequestState
    reason: str
    lease_id: str
    enqueue_ns: int
    first_dispatch_ns: int
    end_ns: int
    attempts: int
    given_back: tuple[str, ...] = ()
