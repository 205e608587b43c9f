"""The synchronous client: the same promises for threads."""

import collections
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import fairsched
from fairsched import Fairsched, new_request
from fairsched.v1 import audit_service_pb2, decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb


@pytest.fixture
def sync(target):
    """A synchronous client of the shared service."""
    with Fairsched(target) as made:
        yield made


def ended(client: Fairsched, pool: str, request_id: str) -> pb.RequestInfo:
    """Returns a request once it has ended."""
    state = decision_pb2.REQUEST_STATE_UNSPECIFIED
    for _ in range(10):
        found = client.get_request(pool, request_id, wait=5, known_state=state)
        state = found.request.state
        if found.request.HasField("end_time"):
            return found.request
    raise AssertionError(f"{request_id} did not end: {found}")


class AtWork:
    """Runs a worker in a thread and stops it at the end; what it raises is raised."""

    def __init__(self, worker) -> None:
        self.worker = worker
        self.error = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:  # noqa: BLE001 - raised at the end
            self.error = error

    def __enter__(self) -> "AtWork":
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.worker.stop()
        self.thread.join(30)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error


def test_enqueue_many_and_errors(sync, pool):
    """Batches have a result for each item; refusals are typed."""
    good = new_request(pool=pool, user_id="a", cost=1)
    bad = new_request(pool=pool, user_id="a", cost=-1)
    results = sync.enqueue_many([good, bad])

    assert isinstance(results[1], fairsched.InvalidRequestError)
    assert sync.enqueue(good).duplicate
    with pytest.raises(fairsched.NotFoundError):
        sync.get_request(pool, "nothing")


def test_gate_turn_is_kept_and_ended(sync, gate):
    """A turn outlives its lease's length and ends as succeeded."""
    told = []
    request = new_request(pool=gate, user_id="a", cost=1, max_wait=10)
    with sync.acquire(request, lease_duration=1, on_queued=told.append) as turn:
        time.sleep(1.6)
        assert not turn.lost.is_set()
        turn.used(output_tokens=3)
    info = ended(sync, gate, request.request_id)

    assert turn.end_error is None
    assert info.state == decision_pb2.REQUEST_STATE_SUCCEEDED


def test_exception_fails_the_request(sync, gate):
    """An exception in the turn ends the request as failed, with its text."""
    request = new_request(pool=gate, user_id="a", cost=1)
    with pytest.raises(ValueError, match="broke"), sync.acquire(request):
        raise ValueError("broke")
    info = ended(sync, gate, request.request_id)

    assert (info.state, info.error) == (decision_pb2.REQUEST_STATE_FAILED, "ValueError: broke")


def test_max_wait_ends_without_a_turn(sync, pool):
    """A request that may wait no longer ends its caller's wait with the reason."""
    request = new_request(pool=pool, user_id="a", cost=1, max_wait=0.2)
    with pytest.raises(fairsched.NotGrantedError) as caught, sync.acquire(request):
        pytest.fail("nobody serves this pool")

    assert caught.value.reason == "MAX_WAIT"


def test_worker_runs_and_hands_over(sync, pool):
    """Threads run requests at once; the gateway's turn names the worker; a failure is reported."""
    runs = collections.Counter()
    release = threading.Event()

    def handler(job):
        runs[job.dispatch.request_id] += 1
        if job.dispatch.payload == b"bad":
            raise ValueError("bad")
        if job.dispatch.payload == b"wait":
            release.wait(10)
        return fairsched.new_usage(prompt_tokens=1, output_tokens=1)

    ids = []
    with AtWork(sync.worker("w", [pool], handler, concurrency=2, lease_duration=1)):
        for payload in (b"bad", b"good", b"good"):
            request = new_request(pool=pool, user_id="a", cost=1, payload=payload)
            ids.append(request.request_id)
            sync.enqueue(request)
        states = [ended(sync, pool, request_id).state for request_id in ids]
        bound = new_request(pool=pool, user_id="b", cost=1, payload=b"wait")
        with sync.acquire(bound) as turn:
            assert turn.worker_id == "w"
            time.sleep(1.2)
        release.set()
        last = ended(sync, pool, bound.request_id)

    assert states == [
        decision_pb2.REQUEST_STATE_FAILED,
        decision_pb2.REQUEST_STATE_SUCCEEDED,
        decision_pb2.REQUEST_STATE_SUCCEEDED,
    ]
    assert last.state == decision_pb2.REQUEST_STATE_SUCCEEDED
    assert max(runs.values()) == 1


def test_a_gateway_can_leave_the_work_to_the_worker(sync, pool):
    """The turn lasts until the worker has completed the request, or says how it ended."""
    seen = []

    def handler(job: fairsched.Job) -> pb.Usage | None:
        info = sync.get_request(pool, job.dispatch.request_id).request
        seen.append(info.state)
        if job.dispatch.user_id == "bad":
            raise ValueError("out of memory")
        return fairsched.new_usage(output_tokens=6)

    with AtWork(sync.worker("w", [pool], handler)):
        with sync.acquire(new_request(pool=pool, user_id="a", cost=1)) as turn:
            turn.completed()
        with (
            pytest.raises(fairsched.NotGrantedError) as caught,
            sync.acquire(new_request(pool=pool, user_id="bad", cost=1)) as failed,
        ):
            failed.completed()

    assert turn.end_error is None
    assert seen == [decision_pb2.REQUEST_STATE_LEASED] * 2
    assert caught.value.state == decision_pb2.REQUEST_STATE_FAILED


def test_turn_can_be_given_to_another_worker(sync, pool):
    """A gateway whose worker does not answer gets another one for the same request."""
    release = threading.Event()

    def handler(job):
        release.wait(20)

    with AtWork(sync.worker("w1", [pool], handler)), AtWork(sync.worker("w2", [pool], handler)):
        with sync.acquire(new_request(pool=pool, user_id="a", cost=1)) as turn:
            first = turn.worker_id
            turn.next_grant("refused")
            second = turn.worker_id
        release.set()

    assert {first, second} == {"w1", "w2"}


def test_cancelled_request_tells_its_handler(sync, pool):
    """The handler of a cancelled request sees that it should stop."""
    started = threading.Event()
    seen = []

    def handler(job):
        started.set()
        seen.append(job.stop.wait(10) and job.cancel_requested)

    with AtWork(sync.worker("w", [pool], handler, lease_duration=1)):
        request = new_request(pool=pool, user_id="a", cost=1)
        sync.enqueue(request)
        assert started.wait(10)
        sync.cancel(pool, request.request_id)
        info = ended(sync, pool, request.request_id)

    assert seen == [True]
    assert info.state == decision_pb2.REQUEST_STATE_CANCELLED


def test_idle_worker_stops_at_once(sync, pool):
    """A worker that waits for work does not wait to the end when it is stopped."""
    with AtWork(sync.worker("idle", [pool], lambda job: None)):
        for _ in range(500):
            if sync.scheduler.ListWorkers(pb.ListWorkersRequest(pool=pool)).workers:
                break
            time.sleep(0.02)
        began = time.monotonic()

    assert time.monotonic() - began < 5


@pytest.mark.parametrize("concurrency", [1, 2], ids=["full", "room"])
def test_drained_worker_ends_with_its_leases(sync, pool, caplog, concurrency):
    """What a drained worker runs is finished and reported, past any grace; then it returns."""
    started, release = threading.Event(), threading.Event()

    def handler(job):
        started.set()
        release.wait(30)

    name = f"w-{pool}"
    worker = sync.worker(name, [pool], handler, concurrency=concurrency, grace=0.1)
    running = threading.Thread(target=worker.run)
    running.start()
    requests = [new_request(pool=pool, user_id="a", cost=1) for _ in range(2)]
    sync.enqueue(requests[0])
    assert started.wait(10)
    sync.scheduler.DrainWorker(pb.DrainWorkerRequest(worker_id=name))
    sync.enqueue(requests[1])
    time.sleep(0.5)
    assert running.is_alive()
    release.set()
    running.join(10)

    assert not running.is_alive()
    assert caplog.text.count(f"worker {name} is drained") == 1
    assert ended(sync, pool, requests[0].request_id).state == decision_pb2.REQUEST_STATE_SUCCEEDED
    waits = sync.get_request(pool, requests[1].request_id)
    assert waits.request.state == decision_pb2.REQUEST_STATE_WAITING
    with AtWork(sync.worker(name, [pool], handler)):
        info = ended(sync, pool, requests[1].request_id)
    assert info.state == decision_pb2.REQUEST_STATE_SUCCEEDED


def test_drained_worker_can_be_stopped(sync, pool):
    """A drained worker that is stopped tells its handlers when its grace is over."""
    started = threading.Event()

    def handler(job):
        started.set()
        assert job.stop.wait(30)

    name = f"w-{pool}"
    worker = sync.worker(name, [pool], handler, concurrency=2, grace=0.1)
    running = threading.Thread(target=worker.run)
    running.start()
    sync.enqueue(new_request(pool=pool, user_id="a", cost=1))
    assert started.wait(10)
    sync.scheduler.DrainWorker(pb.DrainWorkerRequest(worker_id=name))
    time.sleep(0.3)
    worker.stop()
    running.join(10)

    assert not running.is_alive()


def test_worker_restarts_with_the_service(own_service):
    """Killing the service loses no request and runs none twice."""
    runs = collections.Counter()

    def handler(job):
        runs[job.dispatch.request_id] += 1
        time.sleep(0.02)

    with Fairsched(own_service.target) as client:
        requests = [new_request(pool="default", user_id="a", cost=1) for _ in range(40)]
        client.enqueue_many(requests)
        with AtWork(client.worker("w", ["default"], handler, concurrency=2)):
            while len(runs) < 10:
                time.sleep(0.01)
            own_service.kill()
            own_service.start()
            states = {ended(client, "default", r.request_id).state for r in requests}

    assert states == {decision_pb2.REQUEST_STATE_SUCCEEDED}
    assert max(runs.values()) == 1
    assert own_service.stop() == 0


def test_a_turn_taken_at_once_survives_a_restart(own_service):
    """A worker that waits takes it before it was ever queued; its end is told all the same."""
    restarted = threading.Event()

    def handler(_job: fairsched.Job) -> None:
        assert restarted.wait(30)

    with Fairsched(own_service.target) as client, AtWork(client.worker("w", ["default"], handler)):
        for _ in range(500):
            if client.scheduler.ListWorkers(pb.ListWorkersRequest()).workers:
                break
            time.sleep(0.02)
        with client.acquire(new_request(pool="default", user_id="a", cost=1)) as turn:
            own_service.kill()
            own_service.start()
            restarted.set()
            turn.completed()

    assert turn.end_error is None
    assert own_service.stop() == 0


def test_watch_goes_on_after_a_restart(own_service):
    """A tail over a restart has every decision once, in order."""
    stop = threading.Event()
    seen = []
    enough = threading.Event()

    with Fairsched(own_service.target) as client:

        def follow() -> None:
            for decision in client.watch(0, stop=stop):
                seen.append(decision.sequence)
                if decision.kind == decision_pb2.DECISION_KIND_ACCEPTED and (
                    decision.request_id == "last"
                ):
                    enough.set()
                    return

        thread = threading.Thread(target=follow)
        thread.start()
        client.enqueue(new_request(pool="default", user_id="a", cost=1, request_id="first"))
        own_service.kill()
        own_service.start()
        client.ready(20)
        client.enqueue(new_request(pool="default", user_id="a", cost=1, request_id="last"))
        assert enough.wait(20)
        stop.set()
        thread.join()
        page = audit_service_pb2.ListDecisionsRequest(page_size=2)
        listed = [d.sequence for d in client.pages(client.audit.ListDecisions, page, "decisions")]

    assert seen == list(range(1, len(seen) + 1))
    assert listed[: len(seen)] == seen


def test_open_passes_through_up_to_its_limit():
    """Without a service an open gateway gives so many local turns at once, and counts them."""
    is_open = fairsched.Open(max_local_in_flight=1)
    request = new_request(pool="p", user_id="a", cost=1)
    with Fairsched("127.0.0.1:9", on_unavailable=is_open) as client:
        with client.acquire(request) as turn:
            assert turn.local
            with pytest.raises(fairsched.UnavailableError), client.acquire(request):
                pytest.fail("the limit is one")

        assert (client.local_turns.passed_count, client.local_turns.in_flight_count) == (1, 0)


WORKER = """
import sys, time
import fairsched

def handler(job):
    print("started", flush=True)
    job.stop.wait(30)
    raise fairsched.GiveBack("stopped")

with fairsched.Fairsched(sys.argv[1]) as client:
    client.worker("w", [sys.argv[2]], handler, grace=0.1).run(handle_signals=True)
print("ended", flush=True)
"""


def test_sigterm_gives_back(sync, pool, target):
    """SIGTERM ends a worker process in order; what it ran waits for another worker."""
    request = new_request(pool=pool, user_id="a", cost=1)
    sync.enqueue(request)
    command = [sys.executable, "-c", WORKER, target, pool]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "started\n"
            os.kill(process.pid, signal.SIGTERM)
            assert process.stdout.readline() == "ended\n"
            assert process.wait(10) == 0
        finally:
            process.kill()
    found = sync.get_request(pool, request.request_id)

    assert found.request.state == decision_pb2.REQUEST_STATE_REDELIVERY
