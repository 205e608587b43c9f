"""The command line against a real service: what people see, what scripts read, exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest
from typer.testing import CliRunner

from fairsched import Fairsched, new_request
from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.cli import app, output, session

WIDE = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}
COMMAND = [sys.executable, "-m", "scheduler_service"]


@pytest.fixture
def run(target, monkeypatch):
    """Returns a function that runs a command in this process and returns its result."""
    monkeypatch.setattr(output.out, "_width", 200, raising=False)
    runner = CliRunner(env={**WIDE, "FAIRSCHED_TARGET": target})

    def call(*words: str, code: int = 0):
        result = runner.invoke(app, [str(word) for word in words])
        assert result.exit_code == code, result.output + repr(result.exception)
        return result

    return call


def shell(target: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as people do."""
    return subprocess.run(
        [*COMMAND, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **WIDE, "FAIRSCHED_TARGET": target, **environment},
    )


def lines(text: str) -> list[dict]:
    """Reads JSON lines."""
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def filled(target, pool):
    """A pool with three waiting requests of two users, and one leased to a worker."""
    with Fairsched(target) as client:
        for number, user in enumerate(["acme", "acme", "zeta", "acme"]):
            request_id = f"{pool}-r{number}"
            client.enqueue(new_request(pool=pool, user_id=user, request_id=request_id, cost=100))
        request = pb.NextDispatchRequest(pools=[pool], worker_id=f"w-{pool}")
        (dispatch,) = client.scheduler.NextDispatch(request).dispatches
        yield dispatch.request_id
        done = pb.CompleteRequest(
            lease_id=dispatch.lease_id, outcome=decision_pb2.OUTCOME_SUCCEEDED
        )
        client.scheduler.Complete(done)


def test_pools(run, pool):
    """Pools can be made, shown, changed, listed and deleted."""
    name = f"{pool}-cli"
    run("pools", "create", name, "--preset", "sfq", "--set", "lease_duration=30s")
    shown = run("pools", "show", name).output
    assert "sfq" in shown
    assert "30.0 s" in shown
    changed = run("pools", "update", name, "--set", "quota_k=9", "--set", "placement=overtake")
    assert "9" in changed.output
    (found,) = lines(run("pools", "show", name, "--json").output)
    assert found["policy"]["quota_k"] == 9
    assert found["policy"]["placement"] == "PLACEMENT_OVERTAKE"
    assert found["policy"]["lease_duration"] == 30
    run("pools", "update", name, "--set", "quota_k=")
    (found,) = lines(run("pools", "show", name, "--json").output)
    assert found["policy"]["quota_k"] == 5
    assert name in run("pools", "list").output
    run("pools", "delete", name)
    assert name not in {one["pool"] for one in lines(run("pools", "list", "--json").output)}


def test_a_pool_with_workers_is_deleted_on_purpose_only(run, target, pool):
    """The refusal says who is there, in one line."""
    name = f"{pool}-served"
    run("pools", "create", name)
    with Fairsched(target) as client:
        client.scheduler.RegisterWorker(pb.RegisterWorkerRequest(worker_id="gpu-7", pools=[name]))
    refused = run("pools", "delete", name, code=session.EXIT_REFUSED)
    assert "gpu-7" in refused.stderr
    assert "POOL_HAS_WORKERS" in refused.stderr
    with Fairsched(target) as client:
        client.enqueue(new_request(pool=name, user_id="a", request_id="r", prompt_tokens=1))
    full = run("pools", "delete", name, "--force", code=session.EXIT_REFUSED).stderr
    assert f"Pool '{name}' holds 1 request: cancel what is in it, or wait" in full
    assert "force covers workers only" in full
    run("cancel", name, "r")
    run("pools", "delete", name, "--force")
    assert name not in run("pools", "list").output


def test_users(run, pool, filled):
    """Users are listed with what they wait for; a weight and a cap can be set."""
    assert "zeta" in run("users", "list", pool, "--busy").output
    back = run("weight", pool, "acme", "0").output
    assert "The weight of user acme is back to the default, 1." in back
    assert "The weight of user acme is now 2.5." in run("weight", pool, "acme", "2.5").output
    run("users", "set", pool, "acme", "--max-in-flight", "3")
    (user,) = lines(run("users", "show", pool, "acme", "--json").output)

    assert (user["weight_milli"], user["max_in_flight"]) == (2500, 3)
    assert user["waiting_count"] + user["in_flight_count"] == 3
    assert "2.5 (its own)" in run("users", "show", pool, "acme").output
    run("users", "set", pool, "later", "--weight", "3")
    run("users", "forget", pool, "later")


def test_pause_and_resume(run, pool, filled):
    """A pool and a user can be paused, for a time too, and it shows."""
    assert "paused" in run("pause", pool).output
    assert lines(run("pools", "show", pool, "--json").output)[0]["pause"] == {}
    assert "goes on" in run("resume", pool).output
    assert "until" in run("pause", pool, "acme", "--for", "10m").output
    assert "until" in run("users", "list", pool).output
    run("resume", pool, "acme")
    assert "was not paused" in run("resume", pool, "acme").output


def test_queue_request_cancel(run, pool, filled):
    """The queue shows what waits; a request says why; it can be cancelled."""
    assert "waiting" in run("queue", pool).output
    (leased,) = lines(run("queue", pool, "--state", "leased", "--json").output)
    assert leased["request_id"] == filled
    assert "more; --limit" in run("queue", pool, "--limit", "1").output
    waiting = lines(run("queue", pool, "--state", "waiting", "--json").output)
    one = waiting[-1]["request_id"]
    shown = run("request", pool, one).output
    assert "waiting" in shown
    (found,) = lines(run("request", pool, one, "--json").output)
    assert "waits for its turn" in found["wait"]["description"]
    assert "waits for its turn" in shown
    assert "cancelled" in run("cancel", pool, one).output
    assert "cancelled" in run("request", pool, one).output


def test_empty_lists_say_so(run, make_pool):
    """A list without entries is a sentence, not a bare heading; for scripts it is nothing."""
    name = make_pool()
    assert run("queue", name).output == "nothing waits\n"
    assert run("queue", name, "--state", "leased").output == "nothing is in that state\n"
    assert run("dead-letters", "list", name).output == "there are no dead letters\n"
    assert run("users", "list", name, "--busy").output == "nobody is busy\n"
    assert run("workers", "list", "--pool", name).output == "no worker was heard of\n"
    assert run("queue", name, "--json").output == ""


def test_stats_dump_workers(run, pool, filled):
    """Counts add up, a dump holds users or requests, workers are listed and drained."""
    (found,) = lines(run("stats", pool, "--json").output)
    (one,) = found["pools"]
    assert (one["waiting_count"], one["leased_count"]) == (3, 1)
    assert one["fairness_gap_micros"] <= one["fairness_bound_micros"]
    assert pool in run("stats").output
    (users,) = lines(run("dump", pool).output)
    assert {user["user_id"] for user in users["users"]} == {"acme", "zeta"}
    (requests,) = lines(run("dump", pool, "--level", "request").output)
    assert len(requests["requests"]) == 4
    assert len(requests["state_digest"]) >= 16
    worker = f"w-{pool}"
    (row,) = [x for x in run("workers", "list", "--pool", pool).output.splitlines() if worker in x]
    assert row.rstrip().endswith(("now", "s ago"))
    assert "draining" in run("workers", "drain", worker).output


def test_dead_letters(run, target, make_pool):
    """A dead letter is listed with its reason, put back, and discarded."""
    name = make_pool(max_attempts=1)
    with Fairsched(target) as client:
        client.enqueue(new_request(pool=name, user_id="a", request_id="dead", cost=1))
        request = pb.NextDispatchRequest(pools=[name], worker_id="w", hand_over_disabled=True)
        request.lease_duration.FromSeconds(1)
        assert client.scheduler.NextDispatch(request).dispatches
        leased = decision_pb2.REQUEST_STATE_LEASED
        found = client.get_request(name, "dead", wait=10, known_state=leased)
    assert found.request.state == decision_pb2.REQUEST_STATE_DEAD_LETTERED
    assert "MAX_ATTEMPTS" in run("dead-letters", "list", name).output
    assert "redelivery" in run("dead-letters", "requeue", name, "dead").output
    run("dead-letters", "discard", name, "dead", code=session.EXIT_REFUSED)


def test_tail_without_follow(run, pool, filled):
    """The log up to now, filtered, as lines for people and for scripts."""
    text = run("tail", "--no-follow", "--pool", pool, "--kind", "dispatched").output
    assert filled in text
    assert "charge 100" in text
    found = lines(run("tail", "--no-follow", "--pool", pool, "--user", "zeta", "--json").output)
    assert {decision["user_id"] for decision in found} == {"zeta"}
    run("tail", "--kind", "nonsense", code=2)


def test_tail_follows(target, pool):
    """A tail shows what comes while it runs, and Ctrl-C ends it quietly."""
    command = [*COMMAND, "tail", "--pool", pool, "--json", "--target", target, "--after", "0"]
    # A shell that runs the tests in the background has SIGINT ignored, for its children too.
    ours = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, ours)
    with child as process:
        timer = threading.Timer(40, process.kill)
        timer.start()
        try:
            first = json.loads(process.stdout.readline())
            assert first["kind"] == "DECISION_KIND_POOL_CONFIGURED"
            with Fairsched(target) as client:
                client.enqueue(new_request(pool=pool, user_id="a", request_id="live", cost=1))
            assert json.loads(process.stdout.readline())["request_id"] == "live"
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
            assert process.stderr.read() == b""
        finally:
            timer.cancel()
            process.kill()


def test_explain(run, pool, filled):
    """A dispatched request is explained in words and numbers; a decision by its sequence too."""
    text = run("explain", filled, "--pool", pool).output
    (found,) = lines(run("explain", filled, "--pool", pool, "--json").output)
    assert found["text"].split(".")[0] in text
    assert f"went to worker 'w-{pool}', " in text
    assert "micro" not in text
    assert "meter_after                   100 cost units" in text
    assert re.search(r"^weight +1 *$", text, re.MULTILINE)
    assert {"name": "charge_micros", "value": "100000000", "unit": "micro cost units"} in found[
        "facts"
    ]
    sequence = found["decision"]["sequence"]
    assert "dispatched" in run("explain", sequence, "--sequence").output
    run("explain", "nothing", "--pool", pool, code=session.EXIT_UNKNOWN)
    run("explain", "no-number", "--sequence", code=2)


def test_explain_finds_the_pool(run, target, pool, make_pool, filled):
    """Without --pool every pool is searched; if several have the request, they are named."""
    others = [make_pool(), make_pool()]
    with Fairsched(target) as client:
        for name in others:
            client.enqueue(new_request(pool=name, user_id="a", request_id=f"{pool}-both", cost=1))

    assert f"Request '{filled}'" in run("explain", filled).output
    several = run("explain", f"{pool}-both", code=session.EXIT_USAGE).output
    assert all(name in several for name in others)
    assert "--pool" in several
    nothing = run("explain", "nothing", code=session.EXIT_UNKNOWN).stderr
    assert "There is no request 'nothing'" in nothing
    assert pool in nothing
    which = run("top", "--once", code=session.EXIT_USAGE).output
    assert all(name in which for name in (pool, *others))


def test_top_once(run, pool, filled):
    """One look shows who waits, the gap and its bound."""
    text = run("top", pool, "--once", "--interval", "0.2").output
    assert "zeta" in text
    assert "gap" in text
    pool_line, *users = lines(run("top", pool, "--json", "--interval", "0.2").output)
    assert pool_line["waiting_count"] == 3
    assert {user["user_id"] for user in users} == {"acme", "zeta"}


def test_errors_are_one_line(target, pool, tmp_path):
    """What goes wrong is one clear line and an exit code of its own, never a traceback."""
    unknown = shell(target, "users", "list", "nowhere")
    assert unknown.returncode == session.EXIT_UNKNOWN
    assert unknown.stderr.count("\n") == 1
    assert "POOL_UNKNOWN" in unknown.stderr
    for command in ("stats", "tail"):
        away = shell(target, command, "--target", "127.0.0.1:9", "--timeout", "1")
        assert away.returncode == session.EXIT_AWAY
        assert away.stderr.count("\n") == 1
        assert "127.0.0.1:9" in away.stderr
        assert "check" in away.stderr
    refused = shell(target, "weight", pool, "acme", "5000")
    assert refused.returncode == session.EXIT_REFUSED
    assert "weight_milli" in refused.stderr
    usage = shell(target, "pools", "create", "x", "--set", "nonsense=1")
    assert usage.returncode == session.EXIT_USAGE
    assert "quota_k" in usage.stderr


def test_odd_names_are_shown_safely(run, target, pool):
    """Names that look like markup or drive a terminal are shown as they are."""
    odd = "[red]x[/red] \u202eevil"
    with Fairsched(target) as client:
        client.enqueue(new_request(pool=pool, user_id=odd, cost=1))
    text = run("users", "list", pool).output

    assert "[red]x[/red]" in text
    assert "\u202e" not in text
    assert "\\u202e" in text
