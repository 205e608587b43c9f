"""`Complete`, one of the commands there are most of: a plain class, compiled with its readers.

The others stand in `commands`: records, whose attributes compiled code must look up by name.
"""

from typing import Final, final

from mypy_extensions import mypyc_attr

from scheduler_service.core.decisions import Outcome

_FIELDS: Final = (
    "now_ns",
    "nonce",
    "peer",
    "lease_id",
    "outcome",
    "worker",
    "prompt_tokens",
    "output_tokens",
    "error",
    "undelivered",
)


@final
@mypyc_attr(acyclic=True)
class Complete:
    """Ends a lease.  Nobody changes one once it is made.

    Attributes:
        now_ns, nonce, peer: As of every command (`commands`).
        lease_id: The lease.
        outcome: How it went.
        worker: Session of the caller if known; checked against the lease's when both are stated.
        output_tokens: Real output length, for the estimator; -1 if unknown.
        prompt_tokens: Real prompt length; -1 if unknown.
        error: Text kept with a failure, at most 256 bytes.
        undelivered: With GIVEN_BACK: the lease never reached its worker, so nothing is held against
            either, as if it had not been confirmed in time.
    """

    __slots__ = _FIELDS

    def __init__(
        self,
        *,
        now_ns: int,
        lease_id: str,
        outcome: Outcome,
        nonce: str = "",
        peer: str = "",
        worker: str = "",
        prompt_tokens: int = -1,
        output_tokens: int = -1,
        error: str = "",
        undelivered: bool = False,
    ) -> None:
        self.now_ns = now_ns
        self.nonce = nonce
        self.peer = peer
        self.lease_id = lease_id
        self.outcome = outcome
        self.worker = worker
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.error = error
        self.undelivered = undelivered

    def __repr__(self) -> str:
        stated = ", ".join(f"{name}={getattr(self, name)!r}" for name in _FIELDS)
        return f"Complete({stated})"
