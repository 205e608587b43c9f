"""Explanations of decisions say what the record says, and nothing needs more than the record."""

import typing

import msgspec
import pytest

from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.charge import charge_for
from scheduler_service.core.explain import explain
from scheduler_service.core.phrases import cost_text, seconds_value, time_text
from scheduler_service.core.policy import PoolPolicy
from tests.support.scenes import LONG, SHORT, Scene

_FULL = d.Offer(free_tokens=0, total_tokens=1000)
_ROOMY = d.Offer(free_tokens=1000, total_tokens=1000)


def _facts(decision: d.Decision) -> dict[str, str]:
    return {fact.name: fact.value for fact in explain(decision).facts}


def test_smallest_meter():
    """A dispatch of the user with the smallest meter says so, with its charge and the runner-up."""
    scene = Scene("sfq")
    scene.enqueue("a1", "a", cost=30)
    scene.enqueue("b1", "b", cost=10)
    scene.enqueue("b2", "b", cost=10)
    scene.ask(count=2)

    text = explain(scene.dispatched()).text

    assert "Request 'b1' of user 'b'" in text
    assert "to worker 'w'" in text
    assert "the smallest meter of all, 0" in text
    assert "charged 10 (cost 10 at weight 1); its meter went from 0 to 10" in text


def test_a_session_goes_by_its_workers_name():
    """A worker that has a session is called by its own id; the session of the record follows."""
    scene = Scene()
    scene.enqueue("r", "a")
    scene.ask("session-1f")
    scene.pass_time(61)
    scene.do(c.Tick)
    lost = next(x for x in scene.log if isinstance(x, d.LeaseEnded))
    given = explain(scene.dispatched(), "gpu-1")
    facts = {fact.name: fact.value for fact in given.facts}

    assert "went to worker 'gpu-1' (session-1f), " in given.text
    assert (facts["worker_id"], facts["worker"]) == ("gpu-1", "session-1f")
    assert "lost its lease of worker 'gpu-1' (session-1f): " in explain(lost, "gpu-1").text
    assert "of worker 'session-1f': " in explain(lost).text


def test_within_the_slack():
    """A dispatch that is not of the smallest meter names the window and who was passed."""
    scene = Scene(slack_milli=1000)
    scene.enqueue("a1", "a", cost=100)
    scene.enqueue("b1", "b", cost=100, predicted_class=LONG)
    scene.ask()
    scene.enqueue("a2", "a", cost=10)
    scene.ask()

    x = scene.dispatched()
    text = explain(x).text

    assert x.request_id == "a2"
    assert "meter, 100, was within the slack of the smallest, 0" in text
    assert "The slack was 100: users with a meter up to 100 were eligible." in text
    assert "'b' had the smallest meter, 100 below its user's" in text
    assert "has been passed 1 time in a row now" in text
    assert _facts(x)["slack_micros"] == "100000000"


def test_promotion():
    """A promotion names the wait, the threshold, what earned it, and that the debt is paid."""
    scene = Scene(quota_k=2, aging_min_sample=1, aging_quantile_bp=1)
    for number in range(2):
        scene.enqueue(f"s{number}", "a", cost=1)
        scene.ask()
    scene.enqueue("long", "a", cost=1, predicted_class=LONG)
    scene.pass_time(3)
    scene.enqueue("s2", "a", cost=1)
    scene.ask()

    x = scene.dispatched()
    text = explain(x).text

    assert x.rule is d.Rule.PROMOTION
    assert "It was promoted: it had waited 3 s, longer than the aging threshold of 0 ms" in text
    assert "2 short admissions had earned a predicted-long request its turn" in text
    assert "The promotion that was owed to its user is paid." in text


def test_unbounded_slack_charges_nothing():
    """With unbounded slack the explanation says that the class order alone decided."""
    scene = Scene("psf")
    scene.enqueue("l", "a", predicted_class=LONG)
    scene.enqueue("s", "b", predicted_class=SHORT)
    scene.ask()

    text = explain(scene.dispatched()).text

    assert "The slack is unbounded: the class order alone decided" in text
    assert "oldest predicted-short candidate" in text
    assert "Nothing was charged: with unbounded slack no meter moves." in text
    assert "slack_micros" not in _facts(scene.dispatched())


def test_max_passes():
    """A turn that came by the limit of passes says that its user had been passed so often."""
    scene = Scene(max_passes=1, slack_milli=1_000_000)
    scene.enqueue("a1", "a", cost=100)
    scene.ask()
    scene.enqueue("b1", "b", predicted_class=LONG)
    for number in range(2, 4):
        scene.enqueue(f"a{number}", "a", cost=1)
    scene.ask(count=2)

    x = scene.dispatched()

    assert x.turn is d.Turn.MAX_PASSES
    assert "had been passed by as many dispatches in a row as the policy allows" in explain(x).text


def test_overtaking_and_reservation():
    """An overtaking dispatch names whom it overtook; a reserved one why a worker was kept."""
    scene = Scene(max_overtakes=1)
    scene.enqueue("big", "a", kv_tokens=500)
    scene.enqueue("small", "b", kv_tokens=5)
    scene.ask(offer=d.Offer(free_tokens=10, total_tokens=1000))

    overtaking = explain(scene.dispatched()).text

    scene.enqueue("small2", "b", kv_tokens=5)
    scene.ask(offer=d.Offer(free_tokens=10, total_tokens=1000))
    scene.ask(offer=_ROOMY)
    reserved = scene.dispatched()

    assert "What came first did not fit the worker (1 request: 'big')" in overtaking
    assert reserved.request_id == "big"
    assert "overtaken too often, so this worker was kept for it" in explain(reserved).text


def test_redelivery():
    """A redelivery says that it had paid for its turn and is charged nothing."""
    scene = Scene()
    scene.enqueue("r", "a")
    scene.ask()
    scene.pass_time(61)
    scene.ask("other")

    text = explain(scene.dispatched()).text

    assert "attempt 2" in text
    assert "it had paid for its turn" in text
    assert "Nothing was charged: a request pays once, at its first dispatch." in text


@pytest.mark.parametrize("preset", ["fair_qba", "sfq", "qba", "psf", "aa", "fcfs"])
def test_facts_are_the_record(preset):
    """Every fact of a dispatch is the field of that name; charge and meters fit each other."""
    scene = Scene(preset, aging_min_sample=1)
    for number in range(40):
        kind = LONG if number % 3 == 0 else SHORT
        scene.enqueue(f"r{number}", f"u{number % 5}", cost=1 + number * 7, predicted_class=kind)
        scene.pass_time(0.25)
        if number % 2:
            scene.ask()
    dispatches = [x for x in scene.log if isinstance(x, d.Dispatched)]

    assert len(dispatches) == 20
    for x in dispatches:
        facts = _facts(x)
        assert facts["cost"] == str(x.cost)
        assert facts["meter_after_micros"] == str(x.meter_after)
        assert int(facts["meter_after_micros"]) - int(facts["meter_before_micros"]) == int(
            facts["charge_micros"]
        )
        charged = charge_for(x.cost, x.weight_milli) if x.slack_micros >= 0 else 0
        assert facts["charge_micros"] == str(charged)
        assert facts["wait"] == seconds_value(x.wait_ns)
        assert explain(x).related == (x.request_sequence,)


def _every_kind() -> list[d.Decision]:
    """Returns a record of every kind, its fields filled with plain values."""
    made = []
    for kind in typing.get_args(d.Decision):
        values = {}
        for field in msgspec.structs.fields(kind):
            values[field.name] = _value(field.type, field.name)
        made.append(kind(**values))
    return made


def _value(kind: object, name: str) -> object:
    if name == "now_ns":
        return 10**18
    if name == "state":
        return d.RequestState.CANCELLED
    if isinstance(kind, type) and issubclass(kind, int) and hasattr(kind, "__members__"):
        return next(iter(kind))
    if kind is bool:
        return True
    if kind is int:
        return 10**18 + 5_000_000_000 if name.endswith("_ns") else 3
    if kind is str:
        return f"<{name}>"
    if kind is bytes:
        return b"x"
    if kind is d.Offer:
        return d.Offer()
    if kind is PoolPolicy:
        return PoolPolicy()
    return ()


@pytest.mark.parametrize("decision", _every_kind(), ids=lambda x: type(x).__name__)
def test_every_kind_is_explained(decision):
    """Every kind of decision has an explanation of whole sentences that names what it is about."""
    explanation = explain(decision)

    assert explanation.sentences
    assert all(s[0].isupper() or s[0] in "'<0123456789" for s in explanation.sentences)
    assert explanation.text.endswith(".")
    for name in ("request_id", "worker"):
        if hasattr(decision, name):
            assert getattr(decision, name) in explanation.text
    if hasattr(decision, "worker") and not isinstance(decision, d.WorkerSeen):
        assert "worker 'gpu-1' (<worker>)" in explain(decision, "gpu-1").text.lower()


def test_ends_say_why():
    """An end says how, why, and that no meter changed."""
    scene = Scene()
    scene.enqueue("r", "a", max_wait_ns=1_000_000_000)
    scene.pass_time(2)
    scene.do(c.Tick)

    text = explain(next(x for x in scene.log if isinstance(x, d.Ended))).text

    assert "waited as long as it may and left, uncharged (MAX_WAIT)" in text
    assert "No meter changed." in text


@pytest.mark.parametrize(
    ("micros", "text"),
    [(0, "0"), (1_500_000, "1.5"), (-2_000_001, "-2.000001"), (1_234_567_000_000, "1,234,567")],
)
def test_cost_text(micros, text):
    """Micro cost units are shown exactly, in cost units."""
    assert cost_text(micros) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ms"),
        (999_999_999, "999 ms"),
        (1_500_000_000, "1.5 s"),
        (61_000_000_000, "1 min 1 s"),
        (7_322_000_000_000, "2 h 2 min 2 s"),
    ],
)
def test_time_text(ns, text):
    """Durations are shown in the unit people would use."""
    assert time_text(ns) == text
