"""`Complete`, the command there are most of: a plain class, which compiled code reads by place."""

from typing import final

from mypy_extensions import mypyc_attr

from scheduler_service.core.decisions import Outcome


@final
@mypyc_attr(acyclic=True)
class Complete:
    """Ends a lease; see `commands`.

    Attributes:
        now_ns, nonce, peer: As of every command.
        lease_id: The lease.
        outcome: How it went.
        worker: Session of the caller if known; checked against the lease's when both are stated.
        output_tokens: Real output length, for the estimator; -1 if unknown.
        prompt_tokens: Real prompt length; -1 if unknown.
        error: Text kept with a failure, at most 256 bytes.
        undelivered: With GIVEN_BACK: the lease never reached its worker, so nothing is held against
            either, as if it had not been confirmed in time.
    """

    __slots__ = (
        "error",
        "lease_id",
        "nonce",
        "now_ns",
        "outcome",
        "output_tokens",
        "peer",
        "prompt_tokens",
        "undelivered",
        "worker",
    )

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
        stated = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"Complete({stated})"
