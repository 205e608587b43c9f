"""The hash chain: what it finds, and how groups are built."""

from hashlib import sha256

import pytest

from scheduler_service.app import chain, codec
from scheduler_service.app.chain import GroupBuilder
from scheduler_service.app.ports import GENESIS, Payload, StoreDamaged, StoredGroup
from scheduler_service.core import decisions as d


def decisions(first: int, count: int) -> list[d.Decision]:
    return [d.WorkerGone(1000 + n, f"w{n}") for n in range(first, first + count)]


def stored(group) -> StoredGroup:
    return StoredGroup(group.first_sequence, group.end, codec.join_frame(group.records))


@pytest.fixture
def groups():
    builder = GroupBuilder(GENESIS)
    result = []
    for start in (1, 4, 7):
        builder.add(decisions(start, 3))
        result.append(stored(builder.take()))
    return result


def test_the_chain_is_the_documented_formula(groups):
    """The chain is the documented formula."""
    expected = bytes(32)
    for decision in decisions(1, 9):
        expected = sha256(expected + codec.encode(decision)).digest()

    assert groups[-1].end.chain_hash == expected


def test_a_group_knows_its_place(groups):
    """A group knows its place."""
    records = [codec.encode(decision) for decision in decisions(1, 9)]

    assert [group.first_sequence for group in groups] == [1, 4, 7]
    assert [group.end.sequence for group in groups] == [3, 6, 9]
    assert groups[1].end.now_ns == 1006
    assert groups[1].end.log_bytes == sum(map(len, records[:6]))


def test_an_untouched_chain_verifies(groups):
    """An untouched chain verifies."""
    before = GENESIS
    for group in groups:
        chain.verify(before, group, file="f")
        before = group.end


def test_every_flipped_bit_of_a_group_is_found(groups):
    """Every flipped bit of a group is found."""
    frame = groups[1].frame
    for position in range(len(frame)):
        for bit in range(8):
            changed = bytearray(frame)
            changed[position] ^= 1 << bit
            with pytest.raises(StoreDamaged) as caught:
                chain.verify(groups[0].end, groups[1]._replace(frame=bytes(changed)), file="f")
            assert (caught.value.file, caught.value.sequence) == ("f", 4)


def test_a_missing_a_repeated_and_a_reordered_group_are_found(groups):
    """A missing a repeated and a reordered group are found."""
    for group in (groups[2], groups[0]):
        with pytest.raises(StoreDamaged):
            chain.verify(groups[0].end, group, file="f")


def test_reordered_records_are_found(groups):
    """Reordered records are found."""
    records = codec.split_frame(groups[0].frame)
    swapped = groups[0]._replace(frame=codec.join_frame([records[1], records[0], records[2]]))

    with pytest.raises(StoreDamaged, match="chain is broken"):
        chain.verify(GENESIS, swapped, file="f")


def test_a_group_that_lacks_a_record_is_found(groups):
    """A group that lacks a record is found."""
    records = codec.split_frame(groups[0].frame)
    short = groups[0]._replace(frame=codec.join_frame(records[:2]))

    with pytest.raises(StoreDamaged, match="2 records where 3"):
        chain.verify(GENESIS, short, file="f")


def test_the_builder_starts_afresh_after_each_group():
    """The builder starts afresh after each group."""
    builder = GroupBuilder(GENESIS)
    payload = Payload(b"pp", b"m")
    builder.add(decisions(1, 1))
    builder.put_payload(1, payload)
    builder.delete_payload(7)
    builder.fetch_payload(8)
    assert builder.bytes == len(builder.records[0]) + 3
    first = builder.take()

    assert (first.puts, first.deletes, first.fetches) == ([(1, payload)], [7], [8])
    assert not builder.has_work
    assert (builder.bytes, builder.records) == (0, [])
    assert builder.end == first.end


def test_a_group_may_only_fetch():
    """A group may only fetch."""
    builder = GroupBuilder(GENESIS)
    builder.fetch_payload(3)

    assert builder.has_work
    assert builder.take().end == GENESIS
