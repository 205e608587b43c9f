"""The whole state as canonical bytes, and back.

Two states that will decide alike from here on have the same bytes: what is derived (heaps, the
window, timers) is left out and made anew, tables are written in a stated order.

The digest of these bytes is how live state, replay and snapshot are compared.
"""

import hashlib
from typing import Any

import msgspec

from scheduler_service.core import flows as fl
from scheduler_service.core import timers
from scheduler_service.core.backlog import OUT
from scheduler_service.core.decisions import RequestState
from scheduler_service.core.policy import PoolMode, PoolPolicy
from scheduler_service.core.state import Flow, Gone, Pool, Request, State, UserSettings, Worker

VERSION = 1

_SCALARS = (
    "virtual_time",
    "largest_meter",
    "busy",
    "slack_max",
    "charge_max",
    "passes",
    "short_admission_count",
    "promotion_debt",
    "promotion_under_way",
    "paused",
    "pause_until_ns",
    "in_flight_cost",
    "short_cutoff",
)


class PoolImage(msgspec.Struct, array_like=True):
    """One pool; requests in order of acceptance, users in order of their ids."""

    name: str
    policy: PoolPolicy
    policy_digest: str
    scalars: tuple[int, ...]
    recent_costs: list[tuple[int, int]]
    recent_charges: list[tuple[int, int]]
    sample: list[int]
    flows: list[Flow]
    settings: list[tuple[str, UserSettings]]
    requests: list[Request]
    gone: list[Gone]
    forget_queue: list[tuple[int, str, tuple[str, ...]]]
    dead: list[Request]
    reservations: list[tuple[str, str]]
    ratios: list[tuple[str, tuple[int, int]]]


class StateImage(msgspec.Struct, array_like=True):
    """Everything."""

    version: int
    sequence: int
    now_ns: int
    algorithm_version: int
    durability: str
    pools: list[PoolImage]
    workers: list[tuple[Worker, tuple[str, ...]]]
    keys: list[tuple[int, tuple[str, str], tuple[tuple[str, str, str], ...]]]
    config_digest: str


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(StateImage)


def dump(state: State) -> bytes:
    """Returns the canonical bytes of `state`."""
    image = StateImage(
        VERSION,
        state.sequence,
        state.now_ns,
        state.algorithm_version,
        state.durability,
        [_pool_image(state.pools[name]) for name in sorted(state.pools)],
        [_worker_image(state.workers[name]) for name in sorted(state.workers)],
        [(time_ns, key, state.keys[key]) for time_ns, key in state.key_queue],
        state.config_digest,
    )
    return _ENCODER.encode(image)


def digest(state: State) -> str:
    """Returns the SHA-256 of the canonical bytes, in hexadecimal."""
    return hashlib.sha256(dump(state)).hexdigest()


def restore(data: bytes) -> State:
    """Returns the state that `dump` gave `data` for.

    Raises:
        ValueError: The bytes are no snapshot, or of an unknown version.
    """
    try:
        image = _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a snapshot: {error}") from error
    if image.version != VERSION:
        raise ValueError(f"snapshot version {image.version} is not {VERSION}")
    state = State()
    state.sequence, state.now_ns = image.sequence, image.now_ns
    state.algorithm_version, state.durability = image.algorithm_version, image.durability
    state.config_digest = image.config_digest
    for worker, _ in image.workers:
        state.workers[worker.worker] = worker
    for pool_image in image.pools:
        _restore_pool(state, pool_image)
    for worker, lease_ids in image.workers:
        worker.provisional = {lease_id: state.leases[lease_id][1] for lease_id in lease_ids}
    for time_ns, key, granted in image.keys:
        state.key_queue.append((time_ns, key))
        state.keys[key] = granted
    timers.rearm_all(state)
    return state


def _pool_image(pool: Pool) -> PoolImage:
    flows = []
    for user_id in sorted(pool.flows):
        flow = pool.flows[user_id]
        flows.append(
            msgspec.structs.replace(
                flow,
                waiting=0,
                oldest_short=None,
                newest_short=None,
                oldest_long=None,
                newest_long=None,
                place=OUT,
                key=None,
            )
        )
    return PoolImage(
        pool.name,
        pool.policy,
        pool.policy_digest,
        tuple(int(getattr(pool, name)) for name in _SCALARS),
        pool.recent_costs.dump(),
        pool.recent_charges.dump(),
        pool.sample.dump(),
        flows,
        sorted(pool.settings.items(), key=_first),
        [_bare(r) for r in sorted(pool.requests.values(), key=_sequence)],
        sorted(pool.gone.values(), key=_sequence),
        list(pool.forget_queue),
        [_bare(request) for request in pool.dead.values()],
        sorted(pool.reservations.items()),
        sorted(pool.ratios.items()),
    )


def _first(item: tuple[str, Any]) -> str:
    return item[0]


def _sequence(request: Request | Gone) -> int:
    return request.sequence


def _bare(request: Request) -> Request:
    return msgspec.structs.replace(request, newer=None, older=None)


def _worker_image(worker: Worker) -> tuple[Worker, tuple[str, ...]]:
    return msgspec.structs.replace(worker, provisional={}, armed=False), tuple(
        sorted(worker.provisional)
    )


def _restore_pool(state: State, image: PoolImage) -> None:
    pool = Pool(image.name, image.policy, image.policy_digest)
    state.pools[image.name] = pool
    if image.policy.mode is PoolMode.GATE:
        state.gates[image.name] = None
    pool.settings = dict(image.settings)
    pool.ratios = dict(image.ratios)
    pool.recent_costs.restore(image.recent_costs)
    pool.recent_charges.restore(image.recent_charges)
    for wait_ns in image.sample:
        pool.sample.push(wait_ns)
    pool.flows.update((flow.user_id, flow) for flow in image.flows)
    scalars = dict(zip(_SCALARS, image.scalars, strict=True))
    pool.virtual_time = scalars["virtual_time"]
    _restore_requests(state, pool, image.requests)
    for name, value in scalars.items():
        setattr(pool, name, bool(value) if isinstance(getattr(pool, name), bool) else value)
    pool.gone = {gone.request_id: gone for gone in image.gone}
    pool.forget_queue.extend(image.forget_queue)
    for _, request_id, lease_ids in image.forget_queue:
        for lease_id in lease_ids:
            state.old_leases[lease_id] = (pool.name, request_id)
    pool.dead = {request.request_id: request for request in image.dead}
    pool.reservations = dict(image.reservations)
    pool.reserved_for = {request: worker for worker, request in image.reservations}
    for flow in list(pool.flows.values()):
        fl.rest(pool, flow)


def _restore_requests(state: State, pool: Pool, requests: list[Request]) -> None:
    for request in requests:
        pool.requests[request.request_id] = request
        request.user_id = pool.flows[request.user_id].user_id
        if request.state is RequestState.WAITING:
            fl.link(pool, pool.flows[request.user_id], request)
        elif request.state is RequestState.REDELIVERY:
            pool.redelivery.append((request.sequence, request.request_id))
        else:
            assert request.lease is not None
            pool.leased[request.request_id] = request
            state.leases[request.lease.lease_id] = (pool.name, request)
        for lease_id in request.old_leases:
            state.old_leases[lease_id] = (pool.name, request.request_id)
