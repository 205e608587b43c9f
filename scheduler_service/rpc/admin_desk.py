"""What all of the admin service shares: finding pools and users, and who may touch them."""

from collections.abc import Callable
from typing import TypedDict, TypeVar

from scheduler_service.app.application import Application
from scheduler_service.app.observation import Observation
from scheduler_service.core.admission import pool_named
from scheduler_service.core.errors import Denied, InvalidCommand, Unknown
from scheduler_service.core.state import Pool
from scheduler_service.rpc.identity import Identity
from scheduler_service.rpc.user_ids import UserIds
from scheduler_service.rpc.validate import Checks

_T = TypeVar("_T")


class Stamp(TypedDict):
    """What every command carries."""

    now_ns: int
    nonce: str
    peer: str


class AdminDesk:
    """Base of the parts of the admin service.

    Args:
        app: The use cases.
        seen: What happened, for answers that show counts.
        user_ids: Turns stated user ids into those the core sees.
    """

    def __init__(self, app: Application, seen: Observation, user_ids: UserIds) -> None:
        self.app = app
        self.engine = app.engine
        self.seen = seen
        self.user_ids = user_ids

    def known_pool(self, name: str, caller: Identity, checks: Checks) -> Pool:
        """Ends the checks and returns the pool.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED.
            Unknown: POOL_UNKNOWN.
        """
        checks.id("pool", name)
        checks.done()
        caller.require_pool(name)
        return pool_named(self.engine.state, name)

    def user_in(self, pool: Pool, stated: str, caller: Identity) -> str:
        """Returns what the core calls a stated user.

        With pseudonyms, operators may also state one as they found it in a list.

        Raises:
            Denied: USER_DENIED.
        """
        if stated in pool.flows or stated in pool.settings:
            if not self.user_ids.sees(caller, stated):
                raise _user_denied(stated)
            return stated
        caller.require_user(stated)
        return self.user_ids.inside(stated)

    def stamp(self, caller: Identity) -> Stamp:
        """Returns what every command carries: time, nonce and who asks."""
        engine = self.engine
        return Stamp(now_ns=engine.now_ns(), nonce=engine.nonce(), peer=caller.name)


def require_all_users(caller: Identity) -> None:
    """Checks that a caller may change what concerns every user of a pool.

    Raises:
        Denied: USER_DENIED.
    """
    if caller.user_prefixes:
        raise Denied("USER_DENIED", "Not allowed for all users of a pool.")


def require_known(pool: Pool, user_id: str) -> None:
    """Checks that a user has state or settings.

    Raises:
        Unknown: USER_UNKNOWN.
    """
    if user_id not in pool.flows and user_id not in pool.settings:
        raise Unknown(
            "USER_UNKNOWN",
            f"There is no user {user_id!r} in pool {pool.name!r}.",
            pool=pool.name,
            userId=user_id,
        )


def checked(checks: Checks, make: Callable[[], _T]) -> _T:
    """Returns what `make` gives, and ends the checks with its violations and those before.

    Raises:
        InvalidCommand: Names every bad field.
    """
    try:
        made = make()
    except InvalidCommand as error:
        checks.violations += error.violations
        raise InvalidCommand(checks.violations) from error
    checks.done()
    return made


def _user_denied(user_id: str) -> Denied:
    return Denied("USER_DENIED", f"Not allowed for user {user_id!r}.", userId=user_id)
