"""Client of the Fairsched scheduling service.

`AsyncFairsched` (asyncio) and `Fairsched` (threads) are the way in; `fairsched.v1` holds the
generated messages.  Start with `clients/python/README.md`.
"""

from fairsched.async_client import AsyncFairsched
from fairsched.async_jobs import Job as AsyncJob
from fairsched.async_turn import AsyncTurn
from fairsched.async_worker import AsyncWorker
from fairsched.availability import Closed, Open
from fairsched.connection import Tls
from fairsched.errors import (
    CallError,
    ConflictError,
    DeadlineError,
    DeniedError,
    FairschedError,
    InvalidRequestError,
    LimitReachedError,
    MisuseError,
    NotFoundError,
    NotGrantedError,
    SupersededError,
    TrimmedError,
    UnauthenticatedError,
    UnavailableError,
    WrongStateError,
)
from fairsched.jobs import GiveBack
from fairsched.requests import new_offer, new_request, new_usage
from fairsched.sync_client import Fairsched
from fairsched.sync_turn import Turn
from fairsched.sync_worker import Job, Worker

__all__ = [
    "AsyncFairsched",
    "AsyncJob",
    "AsyncTurn",
    "AsyncWorker",
    "CallError",
    "Closed",
    "ConflictError",
    "DeadlineError",
    "DeniedError",
    "Fairsched",
    "FairschedError",
    "GiveBack",
    "InvalidRequestError",
    "Job",
    "LimitReachedError",
    "MisuseError",
    "NotFoundError",
    "NotGrantedError",
    "Open",
    "SupersededError",
    "Tls",
    "TrimmedError",
    "Turn",
    "UnauthenticatedError",
    "UnavailableError",
    "Worker",
    "WrongStateError",
    "new_offer",
    "new_request",
    "new_usage",
]
