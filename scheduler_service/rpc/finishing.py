"""Completions and cancels: checks, the decision, the answer.

Shared by the unary calls, the batches, `NextDispatch` and the sessions.  Functions named `…_result`
never raise an error of the core: it becomes the result of that item, and spoils no other.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import mypyc_attr

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.application import Application
from scheduler_service.app.limits import (
    ERROR_BYTES_MAX,
    REASON_BYTES_MAX,
    TOKENS_MAX,
)
from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core.completion import Complete
from scheduler_service.core.decisions import Outcome, RequestState
from scheduler_service.core.errors import InvalidCommand, SchedulerError, Unknown
from scheduler_service.core.flows import old_lease
from scheduler_service.rpc import status
from scheduler_service.rpc.calls import Runtime
from scheduler_service.rpc.convert import number
from scheduler_service.rpc.identity import Identity
from scheduler_service.rpc.validate import Checks, is_id

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

_NEW: Final = a.Existing.NEW
_REPEATED: Final = a.Existing.REPEATED
_SUCCEEDED: Final = RequestState.SUCCEEDED

_EMPTY_RESULT: Final = {
    kind: kind(completion_results=[pb.CompleteResult()]).SerializeToString()
    for kind in (pb.WorkerSessionResponse, pb.GatewaySessionResponse)
}
"""An empty result, encoded: merging many of these in takes less than adding one."""

_OUTCOMES: Final = {int(value): value for value in Outcome}
_NOT_STATED: Final = -1


@final
@mypyc_attr(acyclic=True)
class Completions:
    """The completions of one message.

    Args:
        results: Where their results go.
        items: As stated.
        caller: Who states them.
        session_id: Session of the stream they came over, or empty; an item may state its own.
        brief: The session's message that the results stand in, if they are to be brief.

    Attributes:
        count: How many they are; known once they are taken.
    """

    __slots__ = ("brief", "caller", "count", "items", "results", "session_id")

    def __init__(
        self,
        results: "RepeatedCompositeFieldContainer[pb.CompleteResult]",
        items: Iterable[pb.CompleteRequest],
        caller: Identity,
        session_id: str,
        brief: "pb.WorkerSessionResponse | pb.GatewaySessionResponse | None" = None,
    ) -> None:
        self.brief = brief
        self.results = results
        self.items = items
        self.caller = caller
        self.session_id = session_id
        self.count = 0


class Finishing:
    """Ends and cancels what was given out.

    Args:
        app: The use cases.
        runtime: What all servicers share.
    """

    def __init__(self, app: Application, runtime: Runtime) -> None:
        self._engine = app.engine
        self._runtime = runtime

    # -- completions --------------------------------------------------------------------------

    def complete(self, x: pb.CompleteRequest, caller: Identity) -> pb.CompleteResponse:
        """Ends a lease and returns the answer, to be told when it is durable.

        Raises:
            InvalidCommand: Names every bad field.
            Unknown: LEASE_UNKNOWN.
            Superseded: LEASE_SUPERSEDED.
            WrongState: LEASE_EXPIRED.
            Denied: LEASE_OF_OTHER_WORKER.
        """
        engine = self._engine
        command = self._command(x, caller, "", engine.now_ns(), None)
        self.require_lease(caller, command.lease_id)
        done = engine.apply(command)
        answer = pb.CompleteResponse()
        _tell_finished(done, answer)
        return answer

    def complete_into(
        self,
        results: "RepeatedCompositeFieldContainer[pb.CompleteResult]",
        items: Iterable[pb.CompleteRequest],
        caller: Identity,
        *,
        session_id: str = "",
    ) -> None:
        """Ends leases, each by itself, and adds a result for each.

        Args:
            results: Where the results go.
            items: As stated.
            caller: Who states them.
            session_id: Session of the stream they came over; an item may state its own.
        """
        self.complete_all([Completions(results, items, caller, session_id)])

    def complete_all(self, messages: "list[Completions]") -> None:
        """Ends the leases of several messages, in one go, each by itself."""
        engine = self._engine
        now_ns = engine.now_ns()
        commands: list[Complete] = []
        bad: dict[int, SchedulerError] = {}
        place = 0
        for message in messages:
            caller, session_id = message.caller, message.session_id
            limited = bool(caller.pools or caller.user_prefixes)
            index = 0
            for x in message.items:
                try:
                    command = self._command(x, caller, session_id, now_ns, index)
                    if limited:
                        self.require_lease(caller, command.lease_id)
                    commands.append(command)
                except SchedulerError as error:
                    bad[place] = error
                index += 1
                place += 1
            message.count = index
        answers = engine.apply_all(commands) if commands else []
        for at, refused in bad.items():
            answers.insert(at, refused)
        start = 0
        for message in messages:
            self._tell(message, answers[start : start + message.count])
            start += message.count

    def _tell(self, message: Completions, answers: "list[a.Finished | SchedulerError]") -> None:
        """Adds the results of one message."""
        brief = message.brief
        if brief is not None and all(_is_plain(answer) for answer in answers):
            brief.MergeFromString(_EMPTY_RESULT[type(brief)] * len(answers))
            return
        add = message.results.add
        for answer in answers:
            result = add()
            if isinstance(answer, SchedulerError):
                result.error.CopyFrom(self.item_error("Complete", answer))
            elif brief is None or not _is_plain(answer):
                _tell_finished(answer, result.response)

    def _check(self, x: pb.CompleteRequest, path: str) -> None:
        checks = Checks(path)
        checks.id("lease_id", x.lease_id)
        checks.enum("outcome", x.outcome, _OUTCOMES, required=True)
        if x.HasField("usage"):
            usage = x.usage
            checks.number("usage.prompt_tokens", usage.prompt_tokens, 0, TOKENS_MAX)
            checks.number("usage.output_tokens", usage.output_tokens, 0, TOKENS_MAX)
        checks.text("error", x.error, ERROR_BYTES_MAX)
        checks.id("session_id", x.session_id, required=False)
        checks.done()

    def _command(
        self,
        x: pb.CompleteRequest,
        caller: Identity,
        session_id: str,
        now_ns: int,
        index: int | None,
    ) -> Complete:
        """Returns the command of a completion; checks all of it by name where a field is unusual.

        Args:
            x: As stated.
            caller: Who states it.
            session_id: Session of the stream it came over, or empty.
            now_ns: Time of the command.
            index: Its place among the completions of its call; None if it is the call.

        Raises:
            InvalidCommand: Names every bad field.
        """
        engine = self._engine
        lease_id, outcome, usage = x.lease_id, _OUTCOMES.get(x.outcome), x.usage
        prompt, output = usage.prompt_tokens, usage.output_tokens
        error, stated_id = x.error, x.session_id
        known = lease_id in engine.state.leases or is_id(lease_id)
        usual = known and 0 <= prompt <= TOKENS_MAX and 0 <= output <= TOKENS_MAX
        if outcome is None or error or stated_id or not usual:
            self._check(x, "" if index is None else f"completions[{index}].")
            outcome = _OUTCOMES[x.outcome]
        if not prompt and not usage.HasField("prompt_tokens"):
            prompt = _NOT_STATED
        if not output and not usage.HasField("output_tokens"):
            output = _NOT_STATED
        return Complete(
            now_ns=now_ns,
            nonce=engine.gate_nonce(),
            peer=caller.name,
            lease_id=lease_id,
            outcome=outcome,
            worker=stated_id or session_id,
            prompt_tokens=prompt,
            output_tokens=output,
            error=error,
        )

    def require_lease(self, caller: Identity, lease_id: str) -> None:
        """Checks that the caller may know of a lease; if not, there is no such lease."""
        if not caller.pools and not caller.user_prefixes:
            return
        state = self._engine.state
        found = state.leases.get(lease_id)
        if found is not None and found.lease is not None:
            name, user_id = found.lease.pool, found.user_id
        else:
            past = old_lease(state, lease_id)
            name, request_id = ("", "") if past is None else (past.pool, past.request_id)
            pool = state.pools.get(name)
            gone = None if pool is None else pool.gone.get(request_id)
            request = None if pool is None else pool.requests.get(request_id)
            user_id = getattr(gone or request, "user_id", "")
        if not name:
            return
        if not caller.sees_pool(name) or not self._runtime.user_ids.sees(caller, user_id):
            raise Unknown("LEASE_UNKNOWN", f"There is no lease {lease_id!r}.", leaseId=lease_id)

    # -- cancels ------------------------------------------------------------------------------

    def cancel(self, x: pb.CancelRequest, caller: Identity, *, path: str = "") -> pb.CancelResponse:
        """Cancels a request and returns the answer, to be told when it is durable.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED.
            Unknown: POOL_UNKNOWN, REQUEST_UNKNOWN.
        """
        checks = Checks(path)
        checks.id("pool", x.pool)
        checks.id("request_id", x.request_id)
        checks.reason("reason", x.reason, REASON_BYTES_MAX)
        checks.done()
        caller.require_pool(x.pool)
        self.require_request(caller, x.pool, x.request_id)
        engine = self._engine
        done: a.Finished = engine.apply(
            c.Cancel(
                now_ns=engine.now_ns(),
                nonce=engine.gate_nonce(),
                peer=caller.name,
                pool=x.pool,
                request_id=x.request_id,
                reason=x.reason or "CALLER",
            )
        )
        return pb.CancelResponse(
            state=number(done.state),
            duplicate=done.existing is _REPEATED,
        )

    def cancel_results(
        self, items: Iterable[pb.CancelRequest], caller: Identity
    ) -> list[pb.CancelResult]:
        """Cancels requests, each by itself."""
        results = []
        for index, item in enumerate(items):
            try:
                response = self.cancel(item, caller, path=f"cancels[{index}].")
                results.append(pb.CancelResult(response=response))
            except SchedulerError as error:
                results.append(pb.CancelResult(error=self.item_error("Cancel", error)))
        return results

    def require_request(self, caller: Identity, pool_name: str, request_id: str) -> None:
        """Checks that the caller may know of a request; if not, there is no such request.

        Raises:
            Unknown: REQUEST_UNKNOWN.
        """
        if not caller.user_prefixes:
            return
        pool = self._engine.state.pools.get(pool_name)
        if pool is None:
            return
        known = (
            pool.requests.get(request_id) or pool.gone.get(request_id) or pool.dead.get(request_id)
        )
        if known is not None and not self._runtime.user_ids.sees(caller, known.user_id):
            raise Unknown(
                "REQUEST_UNKNOWN",
                f"There is no request {request_id!r} in pool {pool_name!r}.",
                pool=pool_name,
                requestId=request_id,
            )

    # -- errors -------------------------------------------------------------------------------

    def item_error(self, rpc: str, error: SchedulerError, path: str = "") -> pb.ItemError:
        """Returns an error as the result of one item, and takes note of it.

        Args:
            rpc: The call.
            error: What happened.
            path: Where the item stands in its call, unless the fields the error names say it.
        """
        if path and isinstance(error, InvalidCommand):
            error = error.below(path)
        self._runtime.observer.refused(rpc, error.metadata.get("pool", ""), error.reason)
        return status.item_error(error, self._runtime.retry_seconds(error))


def _is_plain(answer: a.Finished | SchedulerError) -> bool:
    """Whether a lease ended as SUCCEEDED just now: nothing its worker does not know."""
    return isinstance(answer, a.Finished) and answer.existing is _NEW and answer.state is _SUCCEEDED


def _tell_finished(done: a.Finished, answer: pb.CompleteResponse) -> None:
    """Writes what became of a lease into its answer."""
    answer.pool = done.pool
    answer.request_id = done.request_id
    answer.state = number(done.state)
    if done.existing is _REPEATED:
        answer.duplicate = True
