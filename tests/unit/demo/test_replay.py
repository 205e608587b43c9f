"""What the demo replays, how it reads the log, and what it says about it."""

import io
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fairsched.v1 import decision_pb2 as pb
from scheduler_service.demo import arrivals, ledger, picture, report
from scheduler_service.sim.heavy import water_level
from scheduler_service.sim.traces import NO_USER, Row, TraceError

S = 1_000_000_000


def rows(count: int, user: str = NO_USER) -> list[Row]:
    """Rows of a trace, one a second."""
    return [Row(float(at), user, 10, 5) for at in range(count)]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(1, 400))
def test_water_level(costs, capacity):
    """The fair level fills the capacity exactly, or nobody is held back."""
    level = water_level(costs, [1] * len(costs), capacity)
    got = sum(min(Fraction(cost), Fraction(level)) for cost in costs if level != float("inf"))

    if sum(costs) <= capacity:
        assert level == float("inf") or level >= max(costs)
    else:
        assert float(got) == pytest.approx(capacity)


def test_shipped_part():
    """What is shipped is in order, has heavy and light users, and says where it is from."""
    replay = arrivals.shipped()
    times = [arrival.at_s for arrival in replay.arrivals]

    assert times == sorted(times)
    assert len({arrival.request_id for arrival in replay.arrivals}) == len(times)
    assert 1 <= len(replay.heavy) < len({arrival.user_id for arrival in replay.arrivals}) / 2
    assert "generated" in replay.source
    assert "21 clients (one sends nothing in them)" in replay.source
    assert replay.user_count == 20
    assert replay.capacity * replay.length_s * arrivals.LOAD == pytest.approx(replay.cost)


def test_rows_without_users_are_dealt_by_the_stated_rule():
    """The same trace gives the same users each time, the first the largest part."""
    first, second = arrivals.deal(rows(2000)), arrivals.deal(rows(2000))
    counts = {row.user: sum(r.user == row.user for r in first) for row in first}

    assert first == second
    assert len(counts) == arrivals.DEALT_USERS
    assert max(counts, key=counts.get) == "user-01"
    assert "1/k" in arrivals.replay(rows(200), "x").users


def test_short_trace_is_refused():
    """A trace too short to show anything is refused."""
    with pytest.raises(TraceError, match="100"):
        arrivals.replay(rows(99), "x")


class Log:
    """A decision log by hand."""

    def __init__(self, *users: str, pauses=()) -> None:
        self.reader = ledger.Reader("fair_qba", 2.0, users, pauses)
        self.sequence = 0

    def say(self, at_s: float, user: str, request: str, **details) -> None:
        self.sequence += 1
        decision = pb.Decision(sequence=self.sequence, user_id=user, request_id=request, **details)
        decision.time.FromNanoseconds(int(at_s * S))
        self.reader.take(decision)

    def accept(self, at_s: float, user: str, request: str, cost: int) -> None:
        self.say(at_s, user, request, accepted=pb.Accepted(cost=cost))

    def dispatch(self, at_s: float, user: str, request: str, cost: int, **more) -> None:
        self.say(at_s, user, request, dispatched=pb.Dispatched(cost=cost, **more))
        self.say(at_s, user, request, completed=pb.Completed())


def test_waits_are_in_trace_time_without_the_pause():
    """A wait is counted in seconds of the trace; what the trace was held back for is cut out."""
    log = Log("a", pauses=[(3 * S, 5 * S)])
    log.accept(1, "a", "r1", 7)
    log.accept(2, "a", "r2", 9)
    log.dispatch(2, "a", "r1", 7)
    log.dispatch(6, "a", "r2", 9)
    found = log.reader.finish()

    assert found.users["a"].waits_s == [2.0, 4.0]
    assert found.users["a"].points == [(2.0, 7), (6.0, 16)]
    assert found.held_s == 2.0
    assert found.users["a"].dispatched_by(1.9) == 0
    assert found.users["a"].dispatched_by(2.0) == 7
    assert found.ended == {"r1": 1, "r2": 1}


def test_redelivery_is_counted_apart():
    """A request that is given out again adds neither cost nor wait."""
    log = Log("a")
    log.accept(0, "a", "r1", 5)
    log.dispatch(1, "a", "r1", 5)
    log.dispatch(2, "a", "r1", 5, turn=pb.TURN_REDELIVERY)
    found = log.reader.finish()

    assert (found.redelivered, len(found.users["a"].waits_s)) == (1, 1)
    assert found.users["a"].points[-1][1] == 5


def test_together_is_the_longest_common_wait():
    """The stretch in which all wait begins with the last to come and ends with the first to go."""
    log = Log("a", "b")
    for request in ("a1", "a2", "a3"):
        log.accept(0, "a", request, 5)
    log.accept(1, "b", "b1", 5)
    log.dispatch(2, "a", "a1", 5)
    log.dispatch(4, "b", "b1", 5)
    found = log.reader.finish()

    assert found.together(["a", "b"]) == (2.0, 8.0)
    assert found.together(["b"]) == (2.0, 8.0)


def test_gap_of_service_is_measured():
    """Two users that both wait differ by what one got and the other did not."""
    log = Log("a", "b")
    for number in range(3):
        log.accept(0, "a", f"a{number}", 5)
        log.accept(0, "b", f"b{number}", 5)
    for number in range(2):
        log.dispatch(1, "a", f"a{number}", 5)
    gap = log.reader.finish().gap

    assert gap.gap_micros == 10 * ledger.MICRO


@pytest.fixture
def two_runs():
    """A replay of two users and a run of it under each policy: the light user gains."""
    made = [
        *[Row(float(at), "heavy", 100, 100) for at in range(120)],
        *[Row(float(at), "light", 5, 5) for at in range(0, 120, 4)],
    ]
    replay = arrivals.replay(made, "by hand")
    runs = []
    for policy, delays in (("fcfs", (20, 20)), ("fair_qba", (25, 1))):
        log = Log("heavy", "light")
        log.reader.ledger.policy = policy
        events = []
        for arrival in replay.arrivals:
            delay = delays[arrival.user_id == "light"]
            entry = (arrival.user_id, arrival.request_id, arrival.cost)
            events += [(arrival.at_s / 2, 0, entry), ((arrival.at_s + delay) / 2, 1, entry)]
        for at_s, is_dispatch, entry in sorted(events):
            (log.dispatch if is_dispatch else log.accept)(at_s, *entry)
        runs.append(log.reader.finish())
    return replay, runs


def test_who_is_better_and_who_is_worse(two_runs):
    """Users made worse are named, and so are those made better."""
    replay, (before, after) = two_runs

    assert replay.heavy == {"heavy"}
    assert report.verdict(["light"], before, after) == "better"
    assert report.worse(before, after) == ["heavy"]
    assert report.verdict(["light"], after, after) == ""


def test_table_holds_every_user(two_runs):
    """The table has a row for every user and for each group, within 80 columns."""
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(report.table(two_runs[0], *two_runs[1]))
    text = console.export_text()

    assert "1 light user " in text
    assert "20.0 →  1.0" in text
    assert "worse" in text
    assert "…" not in text


def test_picture_is_the_same_each_time(two_runs, tmp_path):
    """The same runs give the same bytes, in both themes, and the words that matter are in it."""
    replay, runs = two_runs
    for theme in (picture.LIGHT, picture.DARK):
        files = []
        for number in (1, 2):
            figure = picture.draw(replay, runs, 400 * ledger.MICRO, "caption", theme)
            path = tmp_path / f"{number}.svg"
            picture.save(figure, path, theme)
            files.append(path.read_bytes())
        assert files[0] == files[1]
    titles = [axes.get_title(loc="left") for axes in figure.axes]

    assert titles == ["First come, first served", "Fairsched"]
    assert len(files[0]) < 400_000


def test_percentile_is_nearest_rank():
    """The 99th percentile of 100 values is the 99th of them."""
    assert ledger.p99([float(n) for n in range(1, 101)]) == 99
    assert ledger.p99([]) == 0
    assert ledger.mean([]) == 0


def test_any_name_can_be_drawn(tmp_path, recwarn):
    """Names in other scripts, with formulas in them, or without end: no warning, and a picture."""
    user = "$山田" + "x" * 120
    made = [
        *[Row(float(at), user, 100, 100) for at in range(120)],
        *[Row(float(at), "light", 5, 5) for at in range(0, 120, 4)],
    ]
    replay = arrivals.replay(made, "by hand")
    log = Log(user, "light")
    for arrival in replay.arrivals:
        log.accept(arrival.at_s / 2, arrival.user_id, arrival.request_id, arrival.cost)
    for arrival in replay.arrivals:
        log.dispatch(80.0, arrival.user_id, arrival.request_id, arrival.cost)
    run = log.reader.finish()
    figure = picture.draw(replay, [run, run], 400 * ledger.MICRO, "caption")
    picture.save(figure, tmp_path / "demo.png")
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]

    assert not recwarn.list
    assert any(label.startswith("$山田x") and len(label) < 40 for label in labels)
