"""`RegisterWorker`, `DrainWorker`, `ListWorkers`."""

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from bisect import bisect_right

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.application import Application
from scheduler_service.app.limits import (
    ENDPOINT_BYTES_MAX,
    PAGE_DEFAULT,
    PAGE_MAX,
    POOLS_PER_CALL_MAX,
)
from scheduler_service.app.workers import SESSION_PREFIX
from scheduler_service.core import commands as c
from scheduler_service.core.errors import Unknown
from scheduler_service.core.state import State, Worker
from scheduler_service.rpc import convert
from scheduler_service.rpc.identity import Identity
from scheduler_service.rpc.offers import check_offer
from scheduler_service.rpc.pulling import require_pull
from scheduler_service.rpc.validate import Checks

_SESSION_BYTES = 16
_SEPARATOR = "\n"
"""No id holds a control character, so this one parts the two halves of a page token."""


class Fleet:
    """Keeps the list of workers."""

    def __init__(self, app: Application) -> None:
        self._app = app

    def register(
        self, x: pb.RegisterWorkerRequest, caller: Identity, *, path: str = ""
    ) -> pb.RegisterWorkerResponse:
        """Opens a session and returns the answer, to be told when it is durable.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED, ENDPOINT_DENIED.
            Unknown: POOL_UNKNOWN.
            WrongState: POOL_MODE.
            LimitReached: WORKERS_FULL.
        """
        checks = Checks(path)
        checks.id("worker_id", x.worker_id)
        if x.worker_id.startswith(SESSION_PREFIX):
            checks.bad("worker_id", f"must not begin with {SESSION_PREFIX!r}")
        pools = checks.ids("pools", x.pools, POOLS_PER_CALL_MAX)
        if not pools:
            checks.bad("pools", "is required")
        if len(set(pools)) != len(pools):
            checks.bad("pools", "must not name a pool twice")
        check_offer(x.offer, checks)
        if x.endpoint:
            checks.text("endpoint", x.endpoint, ENDPOINT_BYTES_MAX)
            if not x.endpoint.isprintable():
                checks.bad("endpoint", "must not contain control characters")
        checks.done()
        for pool in pools:
            caller.require_pool(pool)
        caller.require_endpoint(x.endpoint)
        require_pull(self._app, pools)
        engine = self._app.engine
        session_id = SESSION_PREFIX + secrets.token_hex(_SESSION_BYTES)
        superseded = self._app.workers.register(
            c.RegisterWorker(
                now_ns=engine.now_ns(),
                nonce=engine.nonce(),
                peer=caller.name,
                worker=session_id,
                worker_name=x.worker_id,
                pools=pools,
                offer=convert.offer_from(x.offer),
                endpoint=x.endpoint,
            )
        )
        return self._session(session_id, pools, superseded=superseded)

    def resumed(self, worker: Worker) -> pb.RegisterWorkerResponse:
        """Returns the answer about a session that goes on."""
        return self._session(worker.worker, worker.pools)

    def _session(
        self, session_id: str, pools: tuple[str, ...], *, superseded: bool = False
    ) -> pb.RegisterWorkerResponse:
        return pb.RegisterWorkerResponse(
            session_id=session_id,
            worker_ttl=convert.duration(ttl_ns(self._app.engine.state, pools)),
            superseded=superseded,
        )

    def drain(self, x: pb.DrainWorkerRequest, caller: Identity) -> pb.DrainWorkerResponse:
        """Stops new work for a worker and returns the answer, to be told when it is durable.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED.
            Unknown: WORKER_UNKNOWN.
        """
        checks = Checks()
        checks.id("worker_id", x.worker_id)
        checks.done()
        state = self._app.engine.state
        keys = self._app.workers.keys_of(x.worker_id)
        if not keys:
            raise Unknown(
                "WORKER_UNKNOWN", f"There is no worker {x.worker_id!r}.", worker=x.worker_id
            )
        for key in keys:
            for pool in state.workers[key].pools:
                caller.require_pool(pool)
        self._app.workers.drain(keys, caller.name)
        return pb.DrainWorkerResponse(worker=self._message(state.workers[keys[0]]))

    def list_workers(self, x: pb.ListWorkersRequest, caller: Identity) -> pb.ListWorkersResponse:
        """Returns one page of workers, to be told when it is durable.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED.
        """
        checks = Checks()
        checks.id("pool", x.pool, required=False)
        size = checks.count("page_size", x.page_size, PAGE_MAX, PAGE_DEFAULT)
        after = _place_of(x.page_token)
        if after is None:
            checks.bad("page_token", "is not one of this service")
        checks.done()
        if x.pool:
            caller.require_pool(x.pool)
        places = sorted(
            (worker.name, key)
            for key, worker in self._app.engine.state.workers.items()
            if (not x.pool or x.pool in worker.pools)
            and all(caller.sees_pool(pool) for pool in worker.pools)
        )
        start = bisect_right(places, after) if after is not None else 0
        page = places[start : start + size]
        reply = pb.ListWorkersResponse()
        for _, key in page:
            reply.workers.append(self._message(self._app.engine.state.workers[key]))
        if start + size < len(places):
            reply.next_page_token = _token_of(page[-1])
        return reply

    def _message(self, worker: Worker) -> pb.Worker:
        presence = self._app.presence
        return convert.worker_message(
            worker, presence.last_sign_ns(worker), silent=presence.is_silent(worker)
        )


def ttl_ns(state: State, pools: tuple[str, ...]) -> int:
    """Returns the silence after which a worker of these pools is no longer live, nanoseconds."""
    known = [state.pools[name].policy.worker_ttl_ns for name in pools if name in state.pools]
    return max(known, default=0)


def _token_of(place: tuple[str, str]) -> str:
    return urlsafe_b64encode(_SEPARATOR.join(place).encode()).decode()


def _place_of(token: str) -> tuple[str, str] | None:
    """Returns the place that a page token stands for; None if it is none."""
    if not token:
        return ("", "")
    try:
        name, found, key = urlsafe_b64decode(token.encode()).decode().partition(_SEPARATOR)
    except (Base64Error, UnicodeError, ValueError):
        return None
    return (name, key) if found else None
