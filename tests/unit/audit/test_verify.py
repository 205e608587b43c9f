"""Verification finds every way in which a log can be wrong, and nothing in one that is right."""

from hashlib import sha256

import msgspec
import pytest
import pytest_asyncio

from scheduler_service.app import codec
from scheduler_service.app.memory import MemoryStore
from scheduler_service.app.ports import Position, Snapshot, StoreDamaged, StoredGroup
from scheduler_service.audit.verify import DIFFERENCES_MAX, Published, Verifier
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core import snapshot as core_snapshot
from scheduler_service.core.evolve import evolve
from scheduler_service.core.policy import PoolPolicy, PredictedClass
from scheduler_service.core.state import State
from tests.support.engines import running


@pytest_asyncio.fixture
async def records():
    """Groups of records of a log with all sorts of decisions."""
    async with running() as rig:
        rig.create_pool("p", PoolPolicy(quota_k=2, aging_min_sample=2, lease_duration_ns=10**9))
        for number in range(40):
            kind = PredictedClass.LONG if number % 3 == 0 else PredictedClass.SHORT
            rig.do(
                c.Enqueue,
                pool="p",
                request_id=f"r{number}",
                user_id=f"u{number % 4}",
                cost=1 + number,
                predicted_class=kind,
            )
            rig.clock.advance(10**8)
            for request_id in rig.dispatch(count=number % 2):
                if number % 5:
                    rig.complete(request_id)
            if number % 11 == 0:
                rig.do(c.ConfigureUser, pool="p", user_id="u1", weight_milli=500 + number,
                       max_in_flight=-1)  # fmt: skip
            if number % 3 == 0:
                await rig.engine.durable()
        rig.do(c.Cancel, pool="p", request_id="r39")
        await rig.engine.durable()
        groups = rig.store.read(0, max_bytes=1 << 30)
        return [codec.split_frame(group.frame) for group in groups]


class Log:
    """A log that can be tampered with: groups of records, and the hashes that are stored."""

    name = "test.log"

    def __init__(self, groups, first_sequence=1, chain_hash=bytes(32), now_ns=0):
        self.groups: list[StoredGroup] = []
        self._base = Position(first_sequence - 1, chain_hash, now_ns, 0)
        sequence = first_sequence
        for records in groups:
            for record in records:
                chain_hash = sha256(chain_hash + record).digest()
            last = sequence + len(records) - 1
            now_ns = codec.decode(records[-1]).now_ns
            end = Position(last, chain_hash, now_ns, 0)
            self.groups.append(StoredGroup(sequence, end, codec.join_frame(records)))
            sequence = last + 1

    def head(self):
        return self.groups[-1].end if self.groups else self._base

    def base(self):
        return self._base

    def read(self, after_sequence, *, max_bytes):
        found = [g for g in self.groups if g.end.sequence > after_sequence]
        return found[: 1 if max_bytes == 1 else 3]

    def replace(self, index, **fields):
        self.groups[index] = self.groups[index]._replace(**fields)


def _snapshot_at(groups, count):
    """Returns the snapshot after the first `count` groups."""
    state, chain_hash = State(), bytes(32)
    for records in groups[:count]:
        for record in records:
            evolve(state, codec.decode(record))
            chain_hash = sha256(chain_hash + record).digest()
    position = Position(state.sequence, chain_hash, state.now_ns, 0)
    return Snapshot(position, core_snapshot.digest(state), core_snapshot.dump(state))


def _heads(log):
    return [Published(g.end.sequence, g.end.chain_hash) for g in log.groups]


def test_a_good_log(records):
    """A log that is as it was written is good, with its snapshots and every published head."""
    log = Log(records)
    snapshots = [_snapshot_at(records, 4), _snapshot_at(records, 9)]
    verdict = Verifier(log, snapshots=snapshots, heads=_heads(log)).run()

    assert verdict.good, verdict
    assert verdict.redecided == verdict.ends_at == log.head().sequence > 80
    assert verdict.chain_hash == log.head().chain_hash
    assert (verdict.snapshots, verdict.heads, verdict.believed) == (2, len(log.groups), 0)


@pytest.mark.parametrize("index", [0, 5, -1])
def test_a_flipped_bit(records, index):
    """One changed bit of one record is found, wherever it is, and the place is named."""
    log = Log(records)
    group = log.groups[index]
    frame = bytearray(group.frame)
    frame[-3] ^= 1
    log.replace(index, frame=bytes(frame))
    verdict = Verifier(log).run()

    assert not verdict.good
    assert f"sequence {group.first_sequence}" in verdict.damage
    assert verdict.ends_at == group.first_sequence - 1


def test_a_removed_record(records):
    """A record taken out of a group, and a whole group taken out, are found."""
    log = Log(records)
    kept = codec.split_frame(log.groups[4].frame)
    log.replace(4, frame=codec.join_frame(kept[:-1]))
    inside = Verifier(log).run()
    log = Log(records)
    del log.groups[4]
    whole = Verifier(log).run()

    assert "should be the last" in inside.damage
    assert "the next group begins at" in whole.damage


def test_swapped_records(records):
    """Two records that changed places are found."""
    log = Log(records)
    kept = codec.split_frame(log.groups[4].frame)
    kept[0], kept[1] = kept[1], kept[0]
    log.replace(4, frame=codec.join_frame(kept))

    assert "the hash chain is broken" in Verifier(log).run().damage


def test_a_cut_tail(records):
    """A log that was cut off is good by itself, and not against a head that was published."""
    whole, cut = Log(records), Log(records[:-2])
    alone = Verifier(cut).run()
    against = Verifier(cut, heads=_heads(whole)[-1:]).run()

    assert alone.good
    assert not against.good
    assert "its end was cut off" in against.problems[0]


def test_a_log_written_anew(records):
    """A log that was written anew, chain and all, differs from what was published."""
    forged = [list(group) for group in records]
    completed = next(
        (g, i)
        for g, group in enumerate(forged)
        for i, record in enumerate(group)
        if isinstance(codec.decode(record), d.Completed)
    )
    group, index = completed
    decision = codec.decode(forged[group][index])
    forged[group][index] = codec.encode(msgspec.structs.replace(decision, peer="somebody"))
    log = Log(forged)
    alone = Verifier(log).run()
    against = Verifier(log, heads=_heads(Log(records))).run()

    assert alone.good
    assert not against.good
    assert all("the log was written anew" in problem for problem in against.problems)
    assert against.heads == group


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("charge_micros", lambda x: x.charge_micros - 1),
        ("rule", lambda x: d.Rule.LONG if x.rule is not d.Rule.LONG else d.Rule.SHORT_FIRST),
        ("meter_after", lambda x: x.meter_after + 1),
        ("runner_up", lambda x: "nobody"),
        ("short_admission_count_after", lambda x: x.short_admission_count_after + 1),
        ("slack_micros", lambda x: x.slack_micros + 1),
    ],
)
def test_a_decision_the_rules_would_not_take(records, field, change):
    """A dispatch that the rules decide otherwise is named, by sequence and field, although the
    chain holds."""
    forged = [list(group) for group in records]
    dispatches = [
        (g, i)
        for g, group in enumerate(forged)
        for i, record in enumerate(group)
        if isinstance(codec.decode(record), d.Dispatched)
    ]
    group, index = dispatches[7]
    decision = codec.decode(forged[group][index])
    changed = msgspec.structs.replace(decision, **{field: change(decision)})
    forged[group][index] = codec.encode(changed)
    verdict = Verifier(Log(forged)).run()

    assert not verdict.good
    first = verdict.differences[0]
    assert first.sequence == sum(map(len, forged[:group])) + index + 1
    assert first.what == field
    assert len(verdict.differences) <= DIFFERENCES_MAX


def test_a_dispatch_of_the_wrong_request(records):
    """Giving the turn to somebody else is found, even when everything else fits."""
    swapped = [list(group) for group in records]
    places = [
        (g, i, codec.decode(record))
        for g, group in enumerate(swapped)
        for i, record in enumerate(group)
        if isinstance(codec.decode(record), d.Accepted)
    ]
    (g1, i1, first), (g2, i2, second) = places[10], places[11]
    swapped[g1][i1] = codec.encode(msgspec.structs.replace(first, cost=second.cost + 50))
    verdict = Verifier(Log(swapped)).run()

    assert (g2, i2) != (g1, i1)
    assert verdict.differences


def test_a_pruned_log_begins_at_its_snapshot(records):
    """Behind a prune verification begins at the oldest snapshot, says so, and goes on."""
    at = _snapshot_at(records, 5)
    log = Log(
        records[3:],
        first_sequence=sum(map(len, records[:3])) + 1,
        chain_hash=_snapshot_at(records, 3).position.chain_hash,
    )
    later = _snapshot_at(records, 10)
    verdict = Verifier(log, snapshots=[later, at], heads=_heads(log)).run()

    assert verdict.good, verdict
    assert verdict.believed == at.position.sequence
    assert verdict.begins_at == at.position.sequence + 1
    assert verdict.redecided == log.head().sequence - at.position.sequence
    assert verdict.snapshots == 1
    assert verdict.heads == len(log.groups)


def test_a_pruned_log_without_a_snapshot(records):
    """Without a snapshot that reaches back, only the chain can be verified, and that is said."""
    base = _snapshot_at(records, 3).position
    log = Log(records[3:], first_sequence=base.sequence + 1, chain_hash=base.chain_hash)
    verdict = Verifier(log, snapshots=[_snapshot_at(records, 2)]).run()

    assert verdict.redecided == 0
    assert verdict.ends_at == log.head().sequence
    assert "no snapshot reaches back" in verdict.problems[-1]


def test_a_pruned_log_with_a_wrong_decision(records):
    """A wrong decision behind a snapshot is found by the oracle that begins there."""
    at = _snapshot_at(records, 5)
    forged = [list(group) for group in records[5:]]
    group, index = next(
        (g, i)
        for g, group in enumerate(forged)
        for i, record in enumerate(group)
        if isinstance(codec.decode(record), d.Dispatched)
    )
    decision = codec.decode(forged[group][index])
    forged[group][index] = codec.encode(
        msgspec.structs.replace(decision, charge_micros=decision.charge_micros + 1)
    )
    log = Log(
        forged,
        first_sequence=at.position.sequence + 1,
        chain_hash=at.position.chain_hash,
        now_ns=at.position.now_ns,
    )
    verdict = Verifier(log, snapshots=[at]).run()

    assert verdict.believed == at.position.sequence
    assert verdict.differences[0].what == "charge_micros"


def test_a_snapshot_of_something_else(records):
    """A snapshot that is not the fold of the records before it is found."""
    good = _snapshot_at(records, 6)
    other = _snapshot_at(records, 5)
    wrong_state = good._replace(state_digest=other.state_digest, body=other.body)
    wrong_log = good._replace(position=good.position._replace(chain_hash=bytes(32)))
    damaged = StoreDamaged("snapshot-7", 0, "checksum")

    for bad, problem in (
        (wrong_state, "is not the fold"),
        (wrong_log, "is not one of this log"),
        (damaged, "is damaged"),
    ):
        verdict = Verifier(Log(records), snapshots=[bad]).run()
        assert not verdict.good
        assert problem in verdict.problems[0]


def test_an_empty_log():
    """A log without records is good, unless a head was published for it."""
    log = MemoryStore()

    assert Verifier(log).run().good
    assert not Verifier(log, heads=[Published(1, b"x")]).run().good


def test_chain_only(records):
    """Without re-deciding, the chain and the snapshots are still verified."""
    log = Log(records)
    verdict = Verifier(log, snapshots=[_snapshot_at(records, 4)], redecide=False).run()

    assert verdict.good
    assert (verdict.redecided, verdict.snapshots) == (0, 1)
    log.replace(-1, end=log.groups[-1].end._replace(chain_hash=bytes(32)))
    assert not Verifier(log, redecide=False).run().good
