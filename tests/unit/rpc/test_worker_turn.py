"""Messages of many sessions in one turn: their order, and what an error ends."""

import asyncio

import pytest

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.core.errors import NotReady, Superseded
from scheduler_service.rpc.worker_turn import Turn


class _Session:
    """A session that writes down what it is asked to do."""

    def __init__(self, name, written, failing=""):
        self.name = name
        self.written = written
        self.failing = failing
        self.errors = []
        self.woken = 0

    def _does(self, what):
        self.written.append(f"{self.name} {what}")
        if self.failing == what:
            raise Superseded("SESSION_SUPERSEDED", "Another stream has resumed the session.")

    def begin(self, message):
        self._does("begins")
        return (self.name, len(message.completions)) if message.completions else None

    def go_on(self, _message):
        self._does("goes on")

    def end(self, error):
        self.errors.append(error.reason)

    def wake(self):
        self.woken += 1


class _Finishing:
    """Takes completions, or fails to."""

    def __init__(self, written):
        self.written = written
        self.error = None

    def complete_all(self, stated):
        if self.error is not None:
            raise self.error
        self.written.append(stated)


@pytest.fixture
async def turn():
    """A turn, and what is done in it."""
    written = []
    finishing = _Finishing(written)
    turn = Turn(finishing)
    turn.written, turn.finishing = written, finishing
    return turn


def _message(completions=0):
    return pb.WorkerSessionRequest(completions=[pb.CompleteRequest()] * completions)


async def _end_of_turn():
    """Lets everything run that was put off to the end of the turn."""
    await asyncio.sleep(0)


async def test_completions_of_all_come_before_what_each_asks_for(turn):
    """In order of arrival, at the end of the turn; who has no completions keeps its place."""
    sessions = [_Session(name, turn.written) for name in "abc"]
    for session, completions in zip(sessions, (2, 0, 3), strict=True):
        turn.add(session, _message(completions))
    assert turn.written == []
    await _end_of_turn()

    assert turn.written == [
        *("a begins", "b begins", "c begins"),
        [("a", 2), ("c", 3)],
        *("a goes on", "b goes on", "c goes on"),
    ]
    assert [session.woken for session in sessions] == [1, 1, 1]


async def test_many_completions_are_taken_in_parts(turn):
    """A part holds 200 at most, unless one message has more; nothing is left out."""
    for name, completions in (("a", 150), ("b", 50), ("c", 1), ("d", 900), ("e", 1)):
        turn.add(_Session(name, turn.written), _message(completions))
    await _end_of_turn()

    parts = [part for part in turn.written if isinstance(part, list)]
    assert parts == [[("a", 150), ("b", 50)], [("c", 1)], [("d", 900)], [("e", 1)]]
    assert turn.written.index("b goes on") < turn.written.index("c begins")


async def test_two_messages_of_one_session_are_decided_in_order(turn):
    """The second one's completions may come first, what it asks for does not."""
    session = _Session("a", turn.written)
    turn.add(session, _message(1))
    turn.add(session, _message(2))
    await _end_of_turn()

    goes_on = [place for place, what in enumerate(turn.written) if what == "a goes on"]
    assert turn.written[: goes_on[0]] == ["a begins", "a begins", [("a", 1), ("a", 2)]]
    assert len(goes_on) == 2


@pytest.mark.parametrize("failing", ["begins", "goes on"])
async def test_an_error_ends_one_session_and_no_other(turn, failing):
    """The others are decided and told as if it were not there."""
    bad = _Session("bad", turn.written, failing)
    good = [_Session("before", turn.written), _Session("after", turn.written)]
    for session in (good[0], bad, good[1]):
        turn.add(session, _message(1))
    await _end_of_turn()

    assert bad.errors == ["SESSION_SUPERSEDED"]
    assert [session.errors for session in good] == [[], []]
    assert [session.woken for session in good] == [1, 1]
    assert {"before goes on", "after goes on"} <= {x for x in turn.written if isinstance(x, str)}
    if failing == "begins":
        assert [("before", 1), ("after", 1)] in turn.written
        assert "bad goes on" not in turn.written


async def test_when_the_service_has_failed_all_are_told(turn):
    """Nobody is asked to go on, and later turns still come."""
    turn.finishing.error = NotReady("LOG_STALLED", "The decision log has failed.")
    sessions = [_Session(name, turn.written) for name in "ab"]
    for session in sessions:
        turn.add(session, _message(1))
    await _end_of_turn()

    assert [session.errors for session in sessions] == [["LOG_STALLED"], ["LOG_STALLED"]]
    assert turn.written == ["a begins", "b begins"]
    turn.add(sessions[0], _message(1))
    await _end_of_turn()
    assert sessions[0].errors == ["LOG_STALLED", "LOG_STALLED"]


async def test_who_cannot_wait_for_the_end_of_the_turn_need_not(turn):
    """What is decided early is not decided again."""
    turn.add(_Session("a", turn.written), _message(1))
    turn.decide()
    early = list(turn.written)
    await _end_of_turn()

    assert early == ["a begins", [("a", 1)], "a goes on"]
    assert turn.written == early
