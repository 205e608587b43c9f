"""Filters of decisions: the quick look at the bytes never changes what the full look says."""

import itertools

import pytest

from scheduler_service.app import codec
from scheduler_service.app.decision_filter import DecisionFilter, kind_of
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from tests.support.scenes import Scene


@pytest.fixture(scope="module")
def log():
    """A log with many kinds of decisions about a few users."""
    scene = Scene(max_in_flight_per_user=2)
    for number in range(60):
        scene.pass_time(0.5)
        scene.enqueue(f"r{number}", f"u{number % 4}", cost=1 + number)
        if number % 2:
            for request in scene.ask().granted:
                request_id = request.request_id
                if number % 5 == 0:
                    scene.finish(request_id, d.Outcome.GIVEN_BACK)
                elif number % 3 == 0:
                    scene.finish(request_id)
        if number % 11 == 0:
            scene.do(c.Cancel, pool="p", request_id=f"r{number}")
    return scene.log


def _slow(decision, wanted):
    """The conditions, spelled out."""
    conditions = [
        not wanted.kinds or type(decision).__struct_config__.tag in wanted.kinds,
        not wanted.pools or getattr(decision, "pool", "") in wanted.pools,
        not wanted.user_ids or getattr(decision, "user_id", "") in wanted.user_ids,
        not wanted.request_ids or getattr(decision, "request_id", "") in wanted.request_ids,
        not wanted.user_prefixes
        or any(getattr(decision, "user_id", "").startswith(p) for p in wanted.user_prefixes),
        decision.now_ns >= wanted.start_ns,
        not wanted.end_ns or decision.now_ns < wanted.end_ns,
    ]
    return all(conditions)


def test_the_tag_is_read_from_the_bytes(log):
    """The kind of a record is known without decoding it, for short and long records."""
    kinds = {type(x) for x in log}

    assert len(kinds) >= 8
    for decision in log:
        assert kind_of(codec.encode(decision)) == type(decision).__struct_config__.tag


def test_every_combination(log):
    """A record passes exactly when every condition that is stated holds."""
    times = sorted(x.now_ns for x in log)
    middle = times[len(times) // 2]
    choices = {
        "pools": [frozenset(), frozenset({"p"}), frozenset({"q"})],
        "user_ids": [frozenset(), frozenset({"u1"}), frozenset({"u1", "u3"})],
        "user_prefixes": [(), ("u",), ("u2", "x")],
        "request_ids": [frozenset(), frozenset({"r5", "r11"})],
        "kinds": [frozenset(), frozenset({10, 15})],
        "start_ns": [0, middle],
        "end_ns": [0, middle],
    }
    passed = 0
    for values in itertools.product(*choices.values()):
        wanted = DecisionFilter(**dict(zip(choices, values, strict=True)))
        for decision in log:
            found = wanted.decoded(codec.encode(decision))
            assert (found is not None) == _slow(decision, wanted)
            assert found is None or found == decision
            passed += found is not None

    assert passed > 1000


def test_every_record_about_a_request_names_its_user(log):
    """A reader of one user gets everything that happened to its requests."""
    owners = {x.request_id: x.user_id for x in log if isinstance(x, d.Accepted)}
    about = [x for x in log if hasattr(x, "request_id")]

    assert len({type(x) for x in about}) >= 5
    assert all(x.user_id == owners[x.request_id] for x in about)
