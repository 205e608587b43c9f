"""Who calls, and what it may do: roles, and how far they reach.

A caller has a name, roles, and optionally limits: the pools it may name, the prefixes of the user
ids it may name, the endpoints a worker may register.  `ROLES_BY_RPC` is the one table of who may
call what; `tests/integration` walks it against a real server.

Without any credentials configured everybody is `EVERYBODY`: a nameless caller with every role.
That is for a trusted network only, and the server binds to loopback unless told otherwise.

A caller without rights to a user learns nothing about its requests: whoever looks one up asks
`sees_user` and answers as if there were no such request.
"""

import enum
from dataclasses import dataclass, field

from scheduler_service.core.errors import Denied


class Role(enum.StrEnum):
    """What a caller is.

    GATEWAY enqueues and cancels; WORKER takes and completes; AUDITOR reads the decision log;
    ADMIN configures, and may read whatever the others may.
    """

    GATEWAY = "gateway"
    WORKER = "worker"
    AUDITOR = "auditor"
    ADMIN = "admin"


_G, _W, _U, _A = Role.GATEWAY, Role.WORKER, Role.AUDITOR, Role.ADMIN

ROLES_BY_RPC: dict[str, frozenset[Role]] = {
    "Enqueue": frozenset({_G}),
    "BatchEnqueue": frozenset({_G}),
    "NextDispatch": frozenset({_W}),
    "Complete": frozenset({_G, _W}),
    "BatchComplete": frozenset({_G, _W}),
    "RenewLease": frozenset({_G, _W}),
    "Cancel": frozenset({_G, _A}),
    "GetRequest": frozenset({_G, _U, _A}),
    "Acquire": frozenset({_G}),
    "GatewaySession": frozenset({_G}),
    "WorkerSession": frozenset({_W}),
    "RegisterWorker": frozenset({_W}),
    "DrainWorker": frozenset({_W, _A}),
    "ListWorkers": frozenset({_G, _W, _U, _A}),
    "ListDecisions": frozenset({_U, _A}),
    "WatchDecisions": frozenset({_U, _A}),
    "ExplainDecision": frozenset({_U, _A}),
    "CreatePool": frozenset({_A}),
    "UpdatePool": frozenset({_A}),
    "GetPool": frozenset({_A}),
    "ListPools": frozenset({_A}),
    "DeletePool": frozenset({_A}),
    "SetUser": frozenset({_A}),
    "GetUser": frozenset({_A}),
    "ListUsers": frozenset({_A}),
    "ForgetUser": frozenset({_A}),
    "Pause": frozenset({_A}),
    "Resume": frozenset({_A}),
    "GetStats": frozenset({_U, _A}),
    "DumpState": frozenset({_A}),
    "ListRequests": frozenset({_A}),
    "ListDeadLetters": frozenset({_A}),
    "RequeueDeadLetter": frozenset({_A}),
    "DiscardDeadLetter": frozenset({_A}),
}
"""Who may call what.  Health and reflection are open to everybody: they show no data."""


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated caller.

    Attributes:
        name: Kept with every decision it causes (`peer`); empty without authentication.
        roles: What it is.
        pools: Pools it may name; empty is all.
        user_prefixes: Starts of the user ids it may name; empty is all.
        endpoints: Starts of the endpoints it may register; empty is all.
        states_cost: Whether it is trusted to state costs where a pool takes them from callers.
    """

    name: str
    roles: frozenset[Role]
    pools: frozenset[str] = field(default_factory=frozenset)
    user_prefixes: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    states_cost: bool = False

    def require_role(self, rpc: str) -> None:
        """Checks that it may call `rpc`.

        Raises:
            Denied: ROLE_MISSING.
        """
        allowed = ROLES_BY_RPC[rpc]
        if self.roles.isdisjoint(allowed):
            wanted = ", ".join(sorted(allowed))
            raise Denied(
                "ROLE_MISSING",
                f"{rpc} needs one of the roles: {wanted}.",
                rpc=rpc,
                roles=wanted,
            )

    def sees_pool(self, pool: str) -> bool:
        """Whether it may name this pool."""
        return not self.pools or pool in self.pools

    def sees_user(self, user_id: str) -> bool:
        """Whether it may name this user."""
        return not self.user_prefixes or user_id.startswith(self.user_prefixes)

    def require_pool(self, pool: str) -> None:
        """Checks that it may name this pool.

        Raises:
            Denied: POOL_DENIED.
        """
        if self.pools and pool not in self.pools:
            raise Denied("POOL_DENIED", f"Not allowed in pool {pool!r}.", pool=pool)

    def require_user(self, user_id: str) -> None:
        """Checks that it may name this user.

        Raises:
            Denied: USER_DENIED.
        """
        if self.user_prefixes and not user_id.startswith(self.user_prefixes):
            raise Denied("USER_DENIED", f"Not allowed for user {user_id!r}.", userId=user_id)

    def require_endpoint(self, endpoint: str) -> None:
        """Checks that it may register this endpoint.

        Raises:
            Denied: ENDPOINT_DENIED.
        """
        if endpoint and self.endpoints and not endpoint.startswith(self.endpoints):
            raise Denied(
                "ENDPOINT_DENIED", f"Not allowed to serve at {endpoint!r}.", endpoint=endpoint
            )


EVERYBODY = Identity("", frozenset(Role), states_cost=True)
"""The caller when nobody is asked who it is."""
