"""A gateway over one stream: the fast path.

Whatever the tasks of a process want at the same moment goes out in one message, and what becomes of
it comes back in one.  Results come in the order of their items; what happens to requests that wait
for their turn comes as events, against credits.

A lost stream fails everything that was under way with `UnavailableError`; the next use opens
another one.  Since every item has an id, callers simply repeat: `AsyncFairsched` does.
"""

import asyncio
import contextlib
import logging
import re
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from fairsched import errors
from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from fairsched.v1 import scheduler_service_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    from fairsched.async_calls import AsyncStream

CREDITS = 10_000
"""Events that the service may send ahead."""

CLOSE_WITHIN_S = 1.0
"""How long closing waits for what is still to be sent, seconds."""

BATCH = 1000
"""Most items of one kind in one message."""

Item = TypeVar("Item")

log = logging.getLogger("fairsched")

_Key = tuple[str, str]
_PLACE = re.compile(r"^(enqueues|completions|cancels)\[\d+\]\.(request\.)?")


def _own(error: errors.CallError) -> errors.CallError:
    """Names bad fields as the caller knows them: without their place in the session's message."""
    error.field_violations = [
        (_PLACE.sub("", field), problem) for field, problem in error.field_violations
    ]
    return error


def _plain_end() -> pb.CompleteResponse:
    """Returns what an empty result means: only with brief results, and only of a completion."""
    return pb.CompleteResponse(state=decision_pb2.REQUEST_STATE_SUCCEEDED)


class _Line(Generic[Item]):
    """Items of one kind: those to be sent, and those whose results are awaited, in order."""

    def __init__(self) -> None:
        self._unsent: deque[tuple[Item, asyncio.Future[Any]]] = deque()
        self._sent: deque[asyncio.Future[Any]] = deque()

    def add(self, item: Item) -> asyncio.Future[Any]:
        result = asyncio.get_running_loop().create_future()
        self._unsent.append((item, result))
        return result

    def take(self) -> list[Item]:
        taken: list[Item] = []
        while self._unsent and len(taken) < BATCH:
            item, result = self._unsent.popleft()
            taken.append(item)
            self._sent.append(result)
        return taken

    def answer(self, value: Any) -> None:
        result = self._sent.popleft()
        if not result.done():
            if value.HasField("error"):
                result.set_exception(_own(errors.from_item(value.error)))
            else:
                result.set_result(value.response if value.HasField("response") else _plain_end())

    def fail(self, error: errors.CallError) -> None:
        for result in [*self._sent, *(result for _, result in self._unsent)]:
            if not result.done():
                result.set_exception(error)
        self._sent.clear()
        self._unsent.clear()

    def __bool__(self) -> bool:
        return bool(self._unsent)


class SessionWait(AsyncIterator[pb.AcquireResponse]):
    """What happens to one request, as a stream of `Acquire` would say it."""

    def __init__(self, session: "AsyncGatewaySession", request: pb.EnqueueRequest) -> None:
        self._session = session
        self.key = (request.pool, request.request_id)
        self._news: asyncio.Queue[pb.AcquireResponse | errors.CallError] = asyncio.Queue()
        self._waiting = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pb.AcquireResponse:
        news = await self._news.get()
        if isinstance(news, errors.CallError):
            raise news
        return news

    def put(self, news: pb.AcquireResponse | errors.CallError) -> None:
        """Takes what happened."""
        self._waiting = isinstance(news, pb.AcquireResponse) and news.HasField("queued")
        self._news.put_nowait(news)

    def cancel(self) -> None:
        """Stops listening; a request that still waits is cancelled."""
        self._session.leave(self, waiting=self._waiting)


class AsyncGatewaySession:
    """Enqueues, waits, completes and cancels over one stream."""

    def __init__(
        self, stub: "pb_grpc.SchedulerServiceAsyncStub", *, brief_results: bool = False
    ) -> None:
        self._stub = stub
        self._brief_results = brief_results
        self._enqueues: _Line[pb.SessionEnqueue] = _Line()
        self._completions: _Line[pb.CompleteRequest] = _Line()
        self._cancels: _Line[pb.CancelRequest] = _Line()
        self._waits: dict[_Key, SessionWait] = {}
        self._credits = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def enqueue(self, request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        """Adds a request to its user's queue."""
        answer: pb.EnqueueResponse = await self._ask(
            self._enqueues, pb.SessionEnqueue(request=request)
        )
        return answer

    async def complete(self, completion: pb.CompleteRequest) -> pb.CompleteResponse:
        """Ends a lease."""
        answer: pb.CompleteResponse = await self._ask(self._completions, completion)
        return answer

    async def cancel(self, request: pb.CancelRequest) -> pb.CancelResponse:
        """Cancels a request."""
        answer: pb.CancelResponse = await self._ask(self._cancels, request)
        return answer

    def wait_for_turn(self, request: pb.EnqueueRequest) -> SessionWait:
        """Enqueues a request and returns what happens to it."""
        wait = SessionWait(self, request)
        self._waits[wait.key] = wait
        result = self._enqueues.add(pb.SessionEnqueue(request=request, acquire=True))
        result.add_done_callback(lambda done: self._accepted(wait, done))
        self._start()
        return wait

    def leave(self, wait: SessionWait, *, waiting: bool) -> None:
        """Stops telling `wait`; cancels its request if it still waits."""
        if self._waits.get(wait.key) is wait:
            del self._waits[wait.key]
            if waiting and self._task is not None:
                pool, request_id = wait.key
                result = self._cancels.add(pb.CancelRequest(pool=pool, request_id=request_id))
                result.add_done_callback(lambda done: done.exception())
                self._wake.set()

    async def close(self) -> None:
        """Sends what there is to send and ends the stream."""
        task = self._task
        if task is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_WITHIN_S):
                    while self._cancels or self._completions:
                        self._wake.set()
                        await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _ask(self, line: _Line[Item], item: Item) -> Any:
        result = line.add(item)
        self._start()
        return await result

    def _start(self) -> None:
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="fairsched gateway session")

    def _accepted(self, wait: SessionWait, done: "asyncio.Future[pb.EnqueueResponse]") -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            queued = pb.AcquireQueued(outlook=done.result())
            wait.put(pb.AcquireResponse(queued=queued))
        else:
            self._waits.pop(wait.key, None)
            wait.put(cast("errors.CallError", error))

    async def _run(self) -> None:
        stream = cast(
            "AsyncStream[pb.GatewaySessionRequest, pb.GatewaySessionResponse]",
            self._stub.GatewaySession(),
        )
        reader = asyncio.create_task(self._read(stream), name="fairsched gateway session reader")
        error = errors.unavailable("the session was closed")
        self._credits = 0
        try:
            await self._write(stream, reader)
            await reader
        except errors.UnavailableError as found:
            error = found
        except errors.CallError as found:
            error = errors.unavailable(f"the service ended the session: {found}")
            log.warning("%s", error)
        finally:
            self._task = None
            reader.cancel()
            stream.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            self._fail(error)

    def _fail(self, error: errors.UnavailableError) -> None:
        waits, self._waits = self._waits, {}
        for line in (self._enqueues, self._completions, self._cancels):
            line.fail(error)
        for wait in waits.values():
            wait.put(error)

    async def _write(
        self,
        stream: "AsyncStream[pb.GatewaySessionRequest, pb.GatewaySessionResponse]",
        reader: asyncio.Task[None],
    ) -> None:
        reader.add_done_callback(lambda _: self._wake.set())
        while not reader.done():
            message = self._next_message()
            if message is not None:
                await stream.write(message)
                continue
            self._wake.clear()
            await self._wake.wait()

    def _next_message(self) -> pb.GatewaySessionRequest | None:
        """Returns everything there is to say; None if there is nothing."""
        more = CREDITS - self._credits if self._credits <= CREDITS // 2 else 0
        if not (more or self._enqueues or self._completions or self._cancels):
            return None
        self._credits += more
        return pb.GatewaySessionRequest(
            credits=more,
            enqueues=self._enqueues.take(),
            completions=self._completions.take(),
            cancels=self._cancels.take(),
            brief_results=self._brief_results,
        )

    async def _read(
        self, stream: "AsyncStream[pb.GatewaySessionRequest, pb.GatewaySessionResponse]"
    ) -> None:
        async for response in stream:
            for line, results in (
                (self._enqueues, response.enqueue_results),
                (self._completions, response.completion_results),
                (self._cancels, response.cancel_results),
            ):
                for result in results:
                    line.answer(result)
            if response.events:
                await asyncio.sleep(0)  # what was accepted is told before what came of it
                for event in response.events:
                    self._tell(event)
        raise errors.unavailable("the service closed the session")

    def _tell(self, event: pb.RequestEvent) -> None:
        self._credits -= 1
        if self._credits <= CREDITS // 2:
            self._wake.set()
        wait = self._waits.get((event.pool, event.request_id))
        if wait is None:
            return
        match event.WhichOneof("event"):
            case "queued":
                wait.put(pb.AcquireResponse(queued=event.queued))
            case "granted":
                wait.put(pb.AcquireResponse(granted=event.granted))
            case "ended":
                wait.put(pb.AcquireResponse(ended=event.ended))
                self._waits.pop(wait.key, None)
            case None:  # news that this client does not know yet
                pass
