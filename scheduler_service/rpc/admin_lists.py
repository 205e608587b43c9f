"""What operators look at: pools, users, requests, dead letters, statistics, dumps.

Every answer is made in one turn, so it is exact at one sequence, and is told when that is durable.
"""

from fairsched.v1 import admin_service_pb2 as pb
from fairsched.v1 import scheduler_service_pb2 as scheduler_pb
from scheduler_service.app.application import Application
from scheduler_service.app.limits import ENUMS_MAX
from scheduler_service.app.listing import Listings
from scheduler_service.app.observation import Observation
from scheduler_service.core import snapshot
from scheduler_service.core.decisions import RequestState
from scheduler_service.core.flows import remembered
from scheduler_service.core.gone import Gone
from scheduler_service.core.request import Request
from scheduler_service.core.state import Pool
from scheduler_service.rpc import convert
from scheduler_service.rpc.admin_desk import AdminDesk, require_known
from scheduler_service.rpc.convert_admin import (
    pool_message,
    pool_stats,
    service_stats,
    user_message,
)
from scheduler_service.rpc.identity import Identity
from scheduler_service.rpc.paging import NUMBER_DIGITS_MAX, page_size, place_of, token_of
from scheduler_service.rpc.user_ids import UserIds
from scheduler_service.rpc.validate import Checks

SCAN_MAX = 20_000
"""Entries looked at for one page; then the page is short."""

DIGEST_ENTRIES_MAX = 20_000
"""Requests, users and remembered ids up to which a dump shows the digest of the whole state: it is
made in one go, and nothing is decided meanwhile."""

_ALIVE = {RequestState.WAITING, RequestState.LEASED, RequestState.REDELIVERY}
_STATES = frozenset(int(state) for state in RequestState)

_Place = tuple[int, str]


class AdminLists(AdminDesk):
    """Shows what there is."""

    def __init__(self, app: Application, seen: Observation, user_ids: UserIds) -> None:
        super().__init__(app, seen, user_ids)
        self._users: Listings[str] = Listings()
        self._requests: Listings[_Place] = Listings()

    # -- pools --------------------------------------------------------------------------------

    def get_pool(self, x: pb.GetPoolRequest, caller: Identity) -> pb.GetPoolResponse:
        """Shows a pool's policy.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED.
            Unknown: POOL_UNKNOWN.
        """
        return pb.GetPoolResponse(pool=pool_message(self.known_pool(x.pool, caller, Checks())))

    def list_pools(self, x: pb.ListPoolsRequest, caller: Identity) -> pb.ListPoolsResponse:
        """Lists the pools that the caller may name, by name."""
        checks = Checks()
        size = page_size(x.page_size, checks)
        after = place_of(x.page_token, "pools", checks)
        checks.done()
        names, token = self._pool_names(caller, "pools", after, size)
        pools = [pool_message(self.engine.state.pools[name]) for name in names]
        return pb.ListPoolsResponse(pools=pools, next_page_token=token)

    def get_stats(self, x: pb.GetStatsRequest, caller: Identity) -> pb.GetStatsResponse:
        """Shows counts and meters of the service and its pools."""
        checks = Checks()
        size = page_size(x.page_size, checks)
        after = place_of(x.page_token, "stats", checks)
        if x.pool:
            names, token = [self.known_pool(x.pool, caller, checks).name], ""
        else:
            checks.done()
            names, token = self._pool_names(caller, "stats", after, size)
        now_ns = self.engine.now_ns()
        pools = self.engine.state.pools
        return pb.GetStatsResponse(
            service=service_stats(self.app, self.seen),
            pools=[pool_stats(pools[name], now_ns, self.seen) for name in names],
            next_page_token=token,
            sequence=self.engine.state.sequence,
        )

    def _pool_names(
        self, caller: Identity, listed: str, after: str, size: int
    ) -> tuple[list[str], str]:
        names = sorted(
            name for name in self.engine.state.pools if name > after and caller.sees_pool(name)
        )
        page = names[:size]
        return page, token_of(listed, page[-1]) if len(names) > size else ""

    # -- users --------------------------------------------------------------------------------

    def get_user(self, x: pb.GetUserRequest, caller: Identity) -> pb.GetUserResponse:
        """Shows a user of a pool.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED, USER_DENIED.
            Unknown: POOL_UNKNOWN, USER_UNKNOWN.
        """
        checks = Checks()
        checks.id("user_id", x.user_id)
        pool = self.known_pool(x.pool, caller, checks)
        user_id = self.user_in(pool, x.user_id, caller)
        require_known(pool, user_id)
        now_ns = self.engine.now_ns()
        return pb.GetUserResponse(user=user_message(pool, user_id, now_ns, self.seen))

    async def list_users(self, x: pb.ListUsersRequest, caller: Identity) -> pb.ListUsersResponse:
        """Lists the users of a pool that have state or settings, by id."""
        checks = Checks()
        size = page_size(x.page_size, checks)
        listed = f"users of {x.pool}"
        after = place_of(x.page_token, listed, checks)
        pool = self.known_pool(x.pool, caller, checks)
        users, place = await self._user_page(pool, caller, after, size, only_busy=x.only_busy)
        token = token_of(listed, place) if place else ""
        return pb.ListUsersResponse(users=users, next_page_token=token)

    async def _user_page(
        self, pool: Pool, caller: Identity, after: str, size: int, *, only_busy: bool
    ) -> tuple[list[pb.User], str]:
        """Returns a page of users, and the place it ends at; empty at the end."""

        def rows() -> list[str]:
            return [*pool.flows, *(name for name in pool.settings if name not in pool.flows)]

        table = await self._users.of((pool.name,), rows, str, fresh=not after)
        now_ns = self.engine.now_ns()
        users: list[pb.User] = []
        for scanned, user_id in enumerate(table.behind(after)):
            if len(users) == size or scanned == SCAN_MAX:
                return users, after
            after = user_id
            flow = pool.flows.get(user_id)
            if flow is None and user_id not in pool.settings:
                continue
            busy = flow is not None and (flow.waiting > 0 or flow.in_flight > 0)
            if (busy or not only_busy) and self.user_ids.sees(caller, user_id):
                users.append(user_message(pool, user_id, now_ns, self.seen))
        return users, ""

    # -- requests -----------------------------------------------------------------------------

    async def list_requests(
        self, x: pb.ListRequestsRequest, caller: Identity
    ) -> pb.ListRequestsResponse:
        """Lists the requests of a pool that are alive or remembered, by accept sequence."""
        checks = Checks()
        size = page_size(x.page_size, checks)
        checks.id("user_id", x.user_id, required=False)
        checks.enums("states", x.states, _STATES, ENUMS_MAX)
        listed = f"requests of {x.pool}"
        after = self._request_place(x.page_token, listed, checks)
        pool = self.known_pool(x.pool, caller, checks)
        user_id = self.user_in(pool, x.user_id, caller) if x.user_id else ""
        states = {RequestState(state) for state in x.states} or _ALIVE
        requests, place = await self._request_page(pool, caller, after, size, user_id, states)
        token = token_of(listed, f"{place[0]} {place[1]}") if place else ""
        return pb.ListRequestsResponse(requests=requests, next_page_token=token)

    async def list_dead_letters(
        self, x: pb.ListDeadLettersRequest, caller: Identity
    ) -> pb.ListDeadLettersResponse:
        """Lists the dead-lettered requests of a pool, by accept sequence."""
        checks = Checks()
        size = page_size(x.page_size, checks)
        checks.id("user_id", x.user_id, required=False)
        listed = f"dead letters of {x.pool}"
        after = self._request_place(x.page_token, listed, checks)
        pool = self.known_pool(x.pool, caller, checks)
        user_id = self.user_in(pool, x.user_id, caller) if x.user_id else ""
        states = {RequestState.DEAD_LETTERED}
        requests, place = await self._request_page(pool, caller, after, size, user_id, states)
        token = token_of(listed, f"{place[0]} {place[1]}") if place else ""
        return pb.ListDeadLettersResponse(requests=requests, next_page_token=token)

    def _request_place(self, token: str, listed: str, checks: Checks) -> _Place:
        number, _, request_id = place_of(token, listed, checks).partition(" ")
        if number.isascii() and number.isdecimal() and len(number) <= NUMBER_DIGITS_MAX:
            return int(number), request_id
        if number:
            checks.bad("page_token", "is not one that this list gave")
        return 0, ""

    async def _request_page(
        self,
        pool: Pool,
        caller: Identity,
        after: _Place,
        size: int,
        user_id: str,
        states: set[RequestState],
    ) -> tuple[list[scheduler_pb.RequestInfo], _Place | None]:
        """Returns a page of requests, and the place it ends at; None at the end."""
        tables = _tables_for(pool, states)

        def rows() -> list[Request | Gone]:
            return [known for table in tables for known in table.values()]

        name = (pool.name, *sorted(state.name for state in states))
        listing = await self._requests.of(name, rows, _place, fresh=after == (0, ""))
        now_ns = self.engine.now_ns()
        found: list[scheduler_pb.RequestInfo] = []
        for scanned, place in enumerate(listing.behind(after)):
            if len(found) == size or scanned == SCAN_MAX:
                return found, after
            after = place
            known = _request_of(pool, place[1], now_ns)
            if (
                known is not None
                and known.sequence == place[0]
                and _state_of(pool, known) in states
                and (not user_id or known.user_id == user_id)
                and self.user_ids.sees(caller, known.user_id)
            ):
                found.append(self._request_message(pool, known))
        return found, None

    def _request_message(self, pool: Pool, known: Request | Gone) -> scheduler_pb.RequestInfo:
        if isinstance(known, Gone):
            return convert.gone_message(pool, known)
        return convert.request_message(self.engine.state, pool, known)

    # -- dumps --------------------------------------------------------------------------------

    async def dump_state(self, x: pb.DumpStateRequest, caller: Identity) -> pb.DumpStateResponse:
        """Dumps the state of a pool, page by page."""
        checks = Checks()
        checks.enum("level", x.level, pb.DumpLevel.values())
        size = page_size(x.page_size, checks)
        level = x.level or pb.DUMP_LEVEL_USER
        listed = f"dump {int(level)} of {x.pool}"
        place = place_of(x.page_token, listed, checks)
        pool = self.known_pool(x.pool, caller, checks)
        reply = pb.DumpStateResponse()
        if level == pb.DUMP_LEVEL_USER:
            users, end = await self._user_page(pool, caller, place, size, only_busy=False)
            reply.users.extend(users)
            reply.next_page_token = token_of(listed, end) if end else ""
        elif level == pb.DUMP_LEVEL_REQUEST:
            after = self._request_place(x.page_token, listed, checks)
            checks.done()
            found, end_place = await self._request_page(pool, caller, after, size, "", _ALIVE)
            reply.requests.extend(found)
            if end_place is not None:
                reply.next_page_token = token_of(listed, f"{end_place[0]} {end_place[1]}")
        state = self.engine.state
        reply.pool.CopyFrom(pool_stats(pool, self.engine.now_ns(), self.seen))
        reply.sequence = state.sequence
        if not x.page_token and sum(map(_entries, state.pools.values())) <= DIGEST_ENTRIES_MAX:
            reply.state_digest = snapshot.digest(state)
        return reply


def _place(known: Request | Gone) -> _Place:
    return known.sequence, known.request_id


def _entries(pool: Pool) -> int:
    return len(pool.requests) + len(pool.flows) + len(pool.gone) + len(pool.settings)


def _tables_for(
    pool: Pool, states: set[RequestState]
) -> list[dict[str, Request] | dict[str, Gone]]:
    tables: list[dict[str, Request] | dict[str, Gone]] = []
    if states & _ALIVE:
        tables.append(pool.requests)
    if RequestState.DEAD_LETTERED in states:
        tables.append(pool.dead)
    if states - _ALIVE - {RequestState.DEAD_LETTERED}:
        tables.append(pool.gone)
    return tables


def _request_of(pool: Pool, request_id: str, now_ns: int) -> Request | Gone | None:
    return (
        pool.requests.get(request_id)
        or pool.dead.get(request_id)
        or remembered(pool, request_id, now_ns)
    )


def _state_of(pool: Pool, known: Request | Gone) -> RequestState:
    return RequestState.DEAD_LETTERED if known.request_id in pool.dead else known.state
