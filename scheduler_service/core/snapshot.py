"""The whole state as canonical bytes, and back.

Two states that will decide alike from here on have the same bytes: what is derived (heaps, the
window, timers) is left out and made anew, tables are written in a stated order.  Images are arrays:
fields are added at the end only, with a default.

The digest of these bytes is how live state, replay and snapshot are compared.
"""

import hashlib
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeVar

import msgspec

from scheduler_service.core import flows as fl
from scheduler_service.core import timers
from scheduler_service.core.decisions import Offer, RequestState, Rule, Turn
from scheduler_service.core.gone import Gone
from scheduler_service.core.policy import PoolMode, PoolPolicy, PredictedClass, UserSettings
from scheduler_service.core.request import Lease, Past, Request, sequence_of
from scheduler_service.core.state import Flow, Pool, State, Worker

VERSION: Final = 1

_Image = TypeVar("_Image", bound=msgspec.Struct)

_SCALARS: Final = (
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


class FlowImage(msgspec.Struct, array_like=True):
    """A user; its queue follows from the requests."""

    user_id: str
    meter: int
    weight_milli: int
    max_in_flight: int
    paused: bool
    in_flight: int
    short_admission_count: int
    promotion_debt: bool
    promotion_under_way: bool


class LeaseImage(msgspec.Struct, array_like=True):
    """A lease."""

    lease_id: str
    worker: str
    granted_ns: int
    expire_ns: int
    hand_over_ns: int
    dispatch_sequence: int
    turn: Turn


class RequestImage(msgspec.Struct, array_like=True):
    """A request; its neighbours follow from the order of acceptance.

    The fields before `caller_bound` are those a request is made with, by position.
    """

    request_id: str
    user_id: str
    sequence: int
    cost: int
    predicted_class: PredictedClass
    kv_tokens: int
    labels: tuple[str, ...]
    enqueue_ns: int
    expire_ns: int
    content_digest: bytes
    payload_digest: bytes
    payload_bytes: int
    prompt_tokens: int
    output_cap_tokens: int
    expected_output_tokens: int
    caller_bound: bool
    state: RequestState
    lease: LeaseImage | None
    attempts: int
    failures: int
    overtakes: int
    promoted: bool
    promoted_by_pool: bool
    counted: bool
    rule: Rule
    cancel_reason: str
    first_dispatch_ns: int
    givers: tuple[tuple[str, int], ...]
    last_error: str
    old_leases: tuple[str, ...]
    given_back: tuple[str, ...] = ()


class WorkerImage(msgspec.Struct, array_like=True):
    """A worker; the timer that looks at it is set anew."""

    worker: str
    name: str
    pools: tuple[str, ...]
    offer: Offer
    endpoint: str
    registered: bool
    last_seen_ns: int
    draining: bool
    leases: int


_OF_REQUEST: Final = RequestImage.__struct_fields__
_BY_NAME: Final = _OF_REQUEST.index("caller_bound")
_SET_LATER: Final = tuple(name for name in _OF_REQUEST[_BY_NAME + 1 :] if name != "lease")
_made_with: Final = attrgetter(*_OF_REQUEST[:_BY_NAME])

_FIELDS: Final["dict[type[msgspec.Struct], attrgetter[tuple[Any, ...]]]"] = {
    kind: attrgetter(*kind.__struct_fields__)
    for kind in (FlowImage, LeaseImage, RequestImage, WorkerImage)
}


class PoolImage(msgspec.Struct, array_like=True):
    """One pool; requests in order of acceptance, users in order of their ids."""

    name: str
    policy: PoolPolicy
    policy_digest: str
    scalars: tuple[int, ...]
    recent_costs: list[tuple[int, int]]
    recent_charges: list[tuple[int, int]]
    sample: list[int]
    flows: list[FlowImage]
    settings: list[tuple[str, UserSettings]]
    requests: list[RequestImage]
    gone: list[Gone]
    forget_queue: list[tuple[int, str, tuple[str, ...]]]
    dead: list[RequestImage]
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
    workers: list[tuple[WorkerImage, tuple[str, ...]]]
    keys: list[tuple[int, tuple[str, str], tuple[tuple[str, str, str], ...]]]
    config_digest: str


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(StateImage)


def dump(state: State) -> bytes:
    """Returns the canonical bytes of `state`."""
    image = StateImage(
        VERSION,
        state.sequence,
        state.now_ns,
        state.algorithm_version,
        state.durability,
        [_pool_image(state.pools[name]) for name in sorted(state.pools)],
        [
            (_image(WorkerImage, worker), tuple(sorted(worker.provisional)))
            for _, worker in sorted(state.workers.items())
        ],
        [(time_ns, key, state.keys[key]) for time_ns, key in state.key_queue],
        state.config_digest,
    )
    return _ENCODER.encode(image)


def digest(state: State) -> str:
    """Returns the SHA-256 of the canonical bytes, in hexadecimal."""
    return digest_of(dump(state))


def digest_of(body: bytes) -> str:
    """Returns the `digest` of the state whose canonical bytes these are."""
    return hashlib.sha256(body).hexdigest()


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
    for worker_image, _ in image.workers:
        state.workers[worker_image.worker] = _worker(worker_image)
    for pool_image in image.pools:
        _restore_pool(state, pool_image)
    for worker_image, lease_ids in image.workers:
        provisional = {lease_id: state.leases[lease_id] for lease_id in lease_ids}
        state.workers[worker_image.worker].provisional = provisional
    for time_ns, key, granted in image.keys:
        state.key_queue.append((time_ns, key))
        state.keys[key] = granted
    timers.rearm_all(state)
    return state


def _pool_image(pool: Pool) -> PoolImage:
    return PoolImage(
        pool.name,
        pool.policy,
        pool.policy_digest,
        tuple(int(getattr(pool, name)) for name in _SCALARS),
        pool.recent_costs.dump(),
        pool.recent_charges.dump(),
        pool.sample.dump(),
        [_image(FlowImage, pool.flows[user_id]) for user_id in sorted(pool.flows)],
        sorted(pool.settings.items(), key=itemgetter(0)),
        [_request_image(r) for r in sorted(pool.requests.values(), key=_sequence)],
        sorted(pool.gone.values(), key=_sequence),
        [(x.end_ns, x.request_id, x.lease_ids()) for x in pool.forget_queue],
        [_request_image(request) for request in pool.dead.values()],
        sorted(pool.reservations.items()),
        sorted(pool.ratios.items()),
    )


def _sequence(request: Request | Gone) -> int:
    return request.sequence


def _image(kind: type[_Image], thing: object) -> _Image:
    """Returns the image of something that has all fields of its image."""
    return kind(*_FIELDS[kind](thing))


def _request_image(request: Request) -> RequestImage:
    image = _image(RequestImage, request)
    if request.lease is not None:
        image.lease = _image(LeaseImage, request.lease)
    return image


def _request(image: RequestImage, pool: str) -> Request:
    request = Request(*_made_with(image), caller_bound=image.caller_bound)
    for name in _SET_LATER:
        setattr(request, name, getattr(image, name))
    if image.lease is not None:
        request.lease = Lease(*msgspec.structs.astuple(image.lease), pool=pool)
    return request


def _flow(image: FlowImage) -> Flow:
    flow = Flow(
        image.user_id, image.meter, image.weight_milli, image.max_in_flight, paused=image.paused
    )
    flow.in_flight = image.in_flight
    flow.short_admission_count = image.short_admission_count
    flow.promotion_debt = image.promotion_debt
    flow.promotion_under_way = image.promotion_under_way
    return flow


def _worker(image: WorkerImage) -> Worker:
    worker = Worker(
        image.worker,
        image.name,
        image.pools,
        image.offer,
        image.endpoint,
        image.last_seen_ns,
        registered=image.registered,
    )
    worker.draining, worker.leases = image.draining, image.leases
    return worker


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
    pool.flows.update((flow.user_id, _flow(flow)) for flow in image.flows)
    scalars = dict(zip(_SCALARS, image.scalars, strict=True))
    pool.virtual_time = scalars["virtual_time"]
    _restore_requests(state, pool, [_request(x, pool.name) for x in image.requests])
    for name, value in scalars.items():
        setattr(pool, name, bool(value) if isinstance(getattr(pool, name), bool) else value)
    pool.gone = {gone.request_id: gone for gone in image.gone}
    for end_ns, request_id, lease_ids in image.forget_queue:
        last = lease_ids[-1] if lease_ids else ""
        past = Past(pool.name, request_id, end_ns, last, lease_ids[:-1])
        pool.forget_queue.append(past)
        for lease_id in lease_ids:
            state.old_leases[sequence_of(lease_id)] = past
    pool.dead = {x.request_id: _request(x, pool.name) for x in image.dead}
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
            pool.leased += 1
            state.leases[request.lease.lease_id] = request
        for lease_id in request.old_leases:
            past = Past(pool.name, request.request_id, 0, lease_id)
            state.old_leases[sequence_of(lease_id)] = past
