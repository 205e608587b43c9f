"""`ExplainDecision`: one decision, or where one request stands, in words and numbers."""

import msgspec

from fairsched.v1 import audit_service_pb2 as pb
from scheduler_service.app import chain, codec
from scheduler_service.app.application import Application
from scheduler_service.app.history import Entry, history_of
from scheduler_service.app.observation import Observation
from scheduler_service.app.worker_names import WorkerNames
from scheduler_service.core import decisions as d
from scheduler_service.core.admission import pool_named
from scheduler_service.core.errors import InvalidCommand, Unknown
from scheduler_service.core.explain import explain
from scheduler_service.core.gone import Gone
from scheduler_service.core.outlook import Outlook, why_waiting
from scheduler_service.core.phrases import Explanation, Fact, seconds_value, time_text
from scheduler_service.core.request import Request
from scheduler_service.core.state import Pool
from scheduler_service.rpc.convert_decision import decision_message
from scheduler_service.rpc.identity import Identity
from scheduler_service.rpc.user_ids import UserIds
from scheduler_service.rpc.validate import Checks

_MICROS = "micro cost units"
_SEQUENCE_MAX = 2**63 - 1
_WAITS = {d.RequestState.WAITING, d.RequestState.REDELIVERY}


class Explaining:
    """Explains from the log, and what still waits from the state.

    Args:
        app: The use cases.
        seen: The decision log.
        user_ids: Knows which users a caller may look at.
    """

    def __init__(self, app: Application, seen: Observation, user_ids: UserIds) -> None:
        self._app = app
        self._seen = seen
        self._user_ids = user_ids
        self._names = WorkerNames(app.engine, seen.log)

    async def explain(
        self, x: pb.ExplainDecisionRequest, caller: Identity
    ) -> pb.ExplainDecisionResponse:
        """Returns the explanation of what is asked for.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED.
            Unknown: SEQUENCE_UNKNOWN, POOL_UNKNOWN, REQUEST_UNKNOWN.
            Trimmed: SEQUENCE_TRIMMED.
        """
        checks = Checks()
        target = x.WhichOneof("target")
        if target == "sequence":
            checks.number("sequence", x.sequence, 1, _SEQUENCE_MAX)
            checks.done()
            return await self._by_sequence(x.sequence, caller)
        if target is None:
            raise InvalidCommand([("target", "is required")])
        checks.id("request.pool", x.request.pool)
        checks.id("request.request_id", x.request.request_id)
        checks.done()
        caller.require_pool(x.request.pool)
        return await self._by_request(x.request.pool, x.request.request_id, caller)

    async def _by_sequence(self, sequence: int, caller: Identity) -> pb.ExplainDecisionResponse:
        record, _ = await self._seen.log.record(sequence)
        decision = codec.decode(record)
        pool = getattr(decision, "pool", "")
        if not self._sees(caller, getattr(decision, "user_id", "")) or not caller.sees_pool(pool):
            raise Unknown(
                "SEQUENCE_UNKNOWN", f"There is no decision {sequence}.", sequence=sequence
            )
        return await self._explained(sequence, caller)

    async def _by_request(
        self, pool_name: str, request_id: str, caller: Identity
    ) -> pb.ExplainDecisionResponse:
        pool = pool_named(self._app.engine.state, pool_name)
        found = pool.requests.get(request_id) or pool.dead.get(request_id)
        if found is not None and found.state in _WAITS and self._sees(caller, found.user_id):
            reply = self._waiting(pool, found)
            await self._app.engine.durable()
            return reply
        known: Request | Gone | None = found or pool.gone.get(request_id)
        if known is not None and not self._sees(caller, known.user_id):
            raise _request_unknown(pool_name, request_id)
        if isinstance(known, Request) and known.lease is not None:
            sequence = known.lease.dispatch_sequence
            await self._app.engine.durable()
            return await self._explained(sequence, caller)
        return await self._by_history(pool_name, request_id, known, caller)

    async def _by_history(
        self, pool_name: str, request_id: str, known: Request | Gone | None, caller: Identity
    ) -> pb.ExplainDecisionResponse:
        """Explains a request that is over by what the log holds about it."""
        await self._app.engine.durable()
        entries = await history_of(
            self._seen.log,
            pool_name,
            request_id,
            from_sequence=known.sequence if known is not None else 0,
            until_ns=known.end_ns if isinstance(known, Gone) else 0,
        )
        if not entries or not self._sees(caller, getattr(entries[-1].decision, "user_id", "")):
            raise _request_unknown(pool_name, request_id)
        return await self._over(entries, caller)

    async def _over(self, entries: list[Entry], caller: Identity) -> pb.ExplainDecisionResponse:
        dispatches = [entry for entry in entries if isinstance(entry.decision, d.Dispatched)]
        last = entries[-1]
        told = dispatches[-1] if dispatches else last
        reply = await self._explained(told.sequence, caller)
        if told is not last:
            name = await self._names.of(last.decision, last.sequence)
            reply.text += f" {explain(last.decision, name).text}"
        del reply.related_sequences[:]
        reply.related_sequences.extend(
            entry.sequence for entry in entries if entry.sequence != told.sequence
        )
        return reply

    async def _explained(self, sequence: int, caller: Identity) -> pb.ExplainDecisionResponse:
        record, hash_before = await self._seen.log.record(sequence)
        decision = codec.decode(record)
        confined = bool(caller.pools or caller.user_prefixes)
        if confined and isinstance(decision, d.Dispatched):
            decision = _without_others(decision)
        explanation = explain(decision, await self._names.of(decision, sequence))
        reply = _reply(explanation)
        hashes = (hash_before, chain.extend(hash_before, [record]))
        reply.decision.CopyFrom(decision_message(sequence, decision, hashes=hashes))
        return reply

    # -- what still waits ---------------------------------------------------------------------

    def _waiting(self, pool: Pool, request: Request) -> pb.ExplainDecisionResponse:
        app = self._app
        now_ns = app.engine.now_ns()
        asking = app.waiters.offers(pool.name)
        outlook = why_waiting(app.engine.state, pool, request, now_ns, asking)
        sentences = [
            f"Request {request.request_id!r} of user {request.user_id!r} still waits.",
            outlook.description,
        ]
        for cause, blocked_ns in app.blocked.of(pool, request, now_ns).items():
            held_by = cause.name.lower().replace("_", " ")
            sentences.append(f"So far it was held back for {time_text(blocked_ns)} by: {held_by}.")
        facts = _outlook_facts(outlook)
        return _reply(Explanation(tuple(sentences), facts, (request.sequence,)))

    def _sees(self, caller: Identity, user_id: str) -> bool:
        return self._user_ids.sees(caller, user_id)


def _reply(explanation: Explanation) -> pb.ExplainDecisionResponse:
    return pb.ExplainDecisionResponse(
        text=explanation.text,
        facts=[
            pb.ExplainedFact(name=fact.name, value=fact.value, unit=fact.unit)
            for fact in explanation.facts
        ],
        related_sequences=explanation.related,
    )


def _outlook_facts(x: Outlook) -> tuple[Fact, ...]:
    facts = [
        Fact("cause", x.cause.name),
        Fact("requests_ahead", str(x.ahead.requests)),
        Fact("users_ahead", str(x.ahead.users)),
        Fact("meter_micros", str(x.meter), _MICROS),
        Fact("virtual_time_micros", str(x.virtual_time), _MICROS),
        Fact("smallest_meter_micros", str(x.smallest_meter), _MICROS),
        Fact("aged", str(x.aged).lower()),
        Fact("short_admission_count", str(x.short_admission_count)),
        Fact("promotion_debt", str(x.promotion_debt).lower()),
    ]
    if x.slack >= 0:
        facts.append(Fact("slack_micros", str(x.slack), _MICROS))
    if x.threshold_ns >= 0:
        facts.append(Fact("aging_threshold", seconds_value(x.threshold_ns), "s"))
    if x.blocked_by:
        facts.append(Fact("blocked_by", x.blocked_by))
    return tuple(facts)


def _without_others(x: d.Dispatched) -> d.Dispatched:
    """Returns a dispatch without the names of other users and requests."""
    return msgspec.structs.replace(x, runner_up="", runner_up_meter=0, overtook=())


def _request_unknown(pool: str, request_id: str) -> Unknown:
    return Unknown(
        "REQUEST_UNKNOWN",
        f"There is no request {request_id!r} in pool {pool!r}.",
        pool=pool,
        requestId=request_id,
    )
