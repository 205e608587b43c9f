"""From an `EnqueueRequest` to an accepted request: checks, estimate, digest, answer.

Shared by `Enqueue`, `BatchEnqueue`, `Acquire` and `GatewaySession`, so that all of them mean the
same.
"""

import struct
from collections.abc import Mapping
from hashlib import blake2b, sha256
from typing import Final, final

import msgspec
from mypy_extensions import mypyc_attr

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.application import Application
from scheduler_service.app.estimate import estimate
from scheduler_service.app.limits import (
    DAY_NS,
    ID_BYTES_MAX,
    LABELS_MAX,
    MAX_WAIT_NS_MIN,
    METADATA_BYTES_MAX,
    METADATA_PAIRS_MAX,
    TOKENS_MAX,
)
from scheduler_service.app.ports import Payload
from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core.admission import pool_named
from scheduler_service.core.decisions import RequestState
from scheduler_service.core.errors import Denied, InvalidCommand
from scheduler_service.core.policy import COST_MAX, CostSource, PredictedClass
from scheduler_service.core.state import Pool
from scheduler_service.estimator.cost import Tokens
from scheduler_service.rpc import convert
from scheduler_service.rpc.identity import Identity
from scheduler_service.rpc.user_ids import UserIdMode, UserIds
from scheduler_service.rpc.validate import Checks

_REPEATED: Final = a.Existing.REPEATED
_WAITING: Final = RequestState.WAITING
_BY_CALLER: Final = CostSource.CALLER
_SHORT: Final = PredictedClass.SHORT
_LONG: Final = PredictedClass.LONG

_DIGEST_BYTES: Final = 16
_CLASSES: Final = frozenset(int(value) for value in PredictedClass)
_pack_numbers: Final = struct.Struct("<7q").pack
_pack_length: Final = struct.Struct("<I").pack

_KEY_OF_METADATA: Final = "metadata"


@final
@mypyc_attr(acyclic=True)
class Fields:
    """What a good request states, in plain values.

    Attributes:
        user_id: As the core sees it.
        max_wait_ns: Stated waiting limit; 0 takes the pool's.
        predicted_class: Stated class; 0 if none was.
    """

    __slots__ = (
        "cost",
        "kv_tokens",
        "labels",
        "max_wait_ns",
        "metadata",
        "payload",
        "pool",
        "predicted_class",
        "request_id",
        "tokens",
        "user_id",
    )

    def __init__(
        self,
        pool: str,
        request_id: str,
        user_id: str,
        cost: int,
        tokens: Tokens,
        kv_tokens: int,
        predicted_class: int,
        max_wait_ns: int,
        labels: tuple[str, ...],
        payload: bytes,
        metadata: bytes,
    ) -> None:
        self.pool = pool
        self.request_id = request_id
        self.user_id = user_id
        self.cost = cost
        self.tokens = tokens
        self.kv_tokens = kv_tokens
        self.predicted_class = predicted_class
        self.max_wait_ns = max_wait_ns
        self.labels = labels
        self.payload = payload
        self.metadata = metadata


class Intake:
    """Accepts requests.

    Args:
        app: The use cases.
        user_ids: Turns stated user ids into those the core sees.
    """

    def __init__(self, app: Application, user_ids: UserIds) -> None:
        self._app = app
        self._user_ids = user_ids
        self._hides_users = user_ids.mode is not UserIdMode.PLAIN

    def accept(
        self,
        request: pb.EnqueueRequest,
        caller: Identity,
        message: pb.EnqueueResponse,
        *,
        path: str = "",
        caller_bound: bool = False,
        wait_limit_ns: int = 0,
        outlook: bool = True,
    ) -> None:
        """Decides about one request and writes the answer, to be told when it is durable.

        Args:
            request: As stated.
            caller: Who states it.
            message: Where the answer goes; untouched if there is none.
            path: Where the message stands in its call, with a dot at the end.
            caller_bound: Whether the request ends with the call that waits for it.
            wait_limit_ns: How long its caller waits at most; 0 is as long as it takes.
            outlook: Whether to tell its place and its expected wait, too.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED, USER_DENIED, COST_DENIED.
            Unknown: POOL_UNKNOWN.
            Conflict: REQUEST_ID_REUSED.
            LimitReached: QUEUE_FULL, USER_QUEUE_FULL, USERS_FULL, LOG_SPACE_LOW.
        """
        checks = Checks(path)
        fields = self._fields(request, caller, checks)
        engine = self._app.engine
        pool = engine.state.pools.get(fields.pool)
        if pool is None:
            checks.done()
            pool_named(engine.state, fields.pool)
        else:
            self._check_cost(pool, fields, caller, checks)
            checks.done()
        assert pool is not None  # noqa: S101 - pool_named has raised
        if self._app.space_low and not _is_known(pool, fields.request_id):
            self._app.require_space()
        command = self._command(pool, fields, caller, path)
        if caller_bound:
            command = msgspec.structs.replace(
                command,
                caller_bound=True,
                max_wait_ns=_shorter(command.max_wait_ns, wait_limit_ns),
            )
        payload = None
        if fields.payload or fields.metadata:
            payload = Payload(fields.payload, fields.metadata)
        answer: a.Accepted = engine.apply(command, payload)
        self._answer(pool, fields.request_id, answer, message, outlook=outlook)

    def _fields(self, x: pb.EnqueueRequest, caller: Identity, checks: Checks) -> Fields:
        """Checks every field that can be judged without the pool."""
        pool = checks.id("pool", x.pool)
        user_id = checks.id("user_id", x.user_id)
        request_id = checks.id("request_id", x.request_id)
        cost, kv_tokens = x.cost, x.kv_tokens
        tokens = Tokens(x.prompt_tokens, x.max_output_tokens, x.predicted_output_tokens)
        if cost:
            checks.number("cost", cost, 1, COST_MAX)
        checks.number("prompt_tokens", tokens.prompt, 0, TOKENS_MAX)
        checks.number("max_output_tokens", tokens.output_cap, 0, TOKENS_MAX)
        checks.number("predicted_output_tokens", tokens.predicted_output, 0, TOKENS_MAX)
        checks.number("kv_tokens", kv_tokens, 0, TOKENS_MAX)
        predicted_class = checks.enum("predicted_class", x.predicted_class, _CLASSES)
        max_wait_ns = 0
        if x.HasField("max_wait"):
            max_wait_ns = checks.duration("max_wait", x.max_wait, MAX_WAIT_NS_MIN, DAY_NS)
        labels: tuple[str, ...] = ()
        stated_labels = x.required_labels
        if stated_labels:
            stated = checks.ids("required_labels", stated_labels, LABELS_MAX)
            labels = tuple(sorted(set(stated)))
        payload = x.payload
        if len(payload) > self._app.limits.payload_bytes:
            limit = self._app.limits.payload_bytes
            checks.bad("payload", f"must be at most {limit} bytes, is {len(payload)}")
        metadata = b""
        stated_metadata = x.metadata
        if stated_metadata:
            _check_metadata(stated_metadata, checks)
            metadata = convert.pack_metadata(stated_metadata)
        if not checks.violations and (caller.pools or caller.user_prefixes):
            caller.require_pool(pool)
            caller.require_user(user_id)
        return Fields(
            pool,
            request_id,
            self._user_ids.inside(user_id) if self._hides_users else user_id,
            cost,
            tokens,
            kv_tokens,
            predicted_class,
            max_wait_ns,
            labels,
            payload,
            metadata,
        )

    def _check_cost(self, pool: Pool, x: Fields, caller: Identity, checks: Checks) -> None:
        """Checks who may say what the request costs; nobody rides free."""
        if x.cost == 0:
            if not x.tokens.stated:
                checks.bad("cost", "is required, or one of the token fields")
        elif pool.policy.cost_source is not _BY_CALLER:
            checks.bad("cost", f"must be left out: pool {pool.name!r} computes it from the tokens")
        elif not caller.states_cost and not checks.violations:
            raise Denied(
                "COST_DENIED",
                "Not trusted to state costs; state the token fields instead.",
                pool=pool.name,
            )

    def _command(self, pool: Pool, x: Fields, caller: Identity, path: str) -> c.Enqueue:
        expected, cost, short = estimate(pool, x.user_id, x.tokens, x.cost, x.predicted_class)
        if cost > COST_MAX:
            raise InvalidCommand([(f"{path}cost", f"must be at most {COST_MAX}, comes to {cost}")])
        predicted = _SHORT if short else _LONG
        engine = self._app.engine
        tokens = x.tokens
        return c.Enqueue(
            now_ns=engine.now_ns(),
            nonce=engine.gate_nonce(),
            peer=caller.name,
            pool=x.pool,
            request_id=x.request_id,
            user_id=x.user_id,
            cost=cost,
            predicted_class=predicted,
            kv_tokens=x.kv_tokens or tokens.prompt + (tokens.output_cap or tokens.predicted_output),
            max_wait_ns=x.max_wait_ns or pool.policy.max_wait_ns,
            labels=x.labels,
            content_digest=content_digest(x),
            payload_digest=sha256(x.payload).digest() if x.payload else b"",
            payload_bytes=len(x.payload),
            prompt_tokens=tokens.prompt,
            output_cap_tokens=tokens.output_cap,
            expected_output_tokens=expected,
        )

    def _answer(
        self,
        pool: Pool,
        request_id: str,
        answer: a.Accepted,
        message: pb.EnqueueResponse,
        *,
        outlook: bool,
    ) -> None:
        """Writes the answer about a request, if asked for with the outlook of now."""
        message.sequence = answer.sequence
        message.cost = answer.cost
        message.predicted_class = convert.number(answer.predicted_class)
        message.state = convert.number(answer.state)
        if answer.existing is _REPEATED:
            message.duplicate = True
        request = pool.requests.get(request_id) if answer.state is _WAITING else None
        if request is None:
            return
        if request.state is not _WAITING:
            message.state = convert.number(request.state)
        elif outlook:
            now_ns = self._app.engine.now_ns()
            forecast = self._app.forecast
            if answer.existing is _REPEATED:
                ahead, wait_ns = forecast.outlook(pool, request, now_ns)
            else:
                ahead, wait_ns = forecast.at_once(pool, request, now_ns)
            message.requests_ahead = ahead
            if wait_ns >= 0:
                convert.set_duration(message.expected_wait, wait_ns)


def _is_known(pool: Pool, request_id: str) -> bool:
    return request_id in pool.requests or request_id in pool.gone or request_id in pool.dead


def _shorter(max_wait_ns: int, limit_ns: int) -> int:
    """Returns the shorter of two waiting limits; 0 is none."""
    if max_wait_ns and limit_ns:
        return min(max_wait_ns, limit_ns)
    return max_wait_ns or limit_ns


def _check_metadata(metadata: Mapping[str, str], checks: Checks) -> None:
    if len(metadata) > METADATA_PAIRS_MAX:
        count = len(metadata)
        checks.bad(_KEY_OF_METADATA, f"must have at most {METADATA_PAIRS_MAX} pairs, has {count}")
        return
    size = 0
    for key, value in metadata.items():
        size += len(key.encode()) + len(value.encode())
        if not 1 <= len(key.encode()) <= ID_BYTES_MAX:
            checks.bad(_KEY_OF_METADATA, f"a key must be 1 to {ID_BYTES_MAX} bytes")
    if size > METADATA_BYTES_MAX:
        checks.bad(_KEY_OF_METADATA, f"must be at most {METADATA_BYTES_MAX} bytes, is {size}")


def content_digest(x: Fields) -> bytes:
    """Returns the digest of what "same content" means: 16 bytes.

    User, cost and token fields, class, waiting limit, labels and payload, as stated.  Each text is
    preceded by its length, so no two contents run into each other.
    """
    tokens = x.tokens
    numbers = _pack_numbers(
        x.cost,
        tokens.prompt,
        tokens.output_cap,
        tokens.predicted_output,
        x.kv_tokens,
        x.predicted_class,
        x.max_wait_ns,
    )
    encoded = x.user_id.encode()
    stated = numbers + _pack_length(len(encoded)) + encoded
    for text in x.labels:
        encoded = text.encode()
        stated += _pack_length(len(encoded)) + encoded
    digest = blake2b(stated, digest_size=_DIGEST_BYTES)
    if x.payload:
        digest.update(x.payload)
    return digest.digest()
