"""What every `Store` does, and that SQLite and memory do the same."""

import random

import pytest

from scheduler_service.app import chain, codec
from scheduler_service.app.chain import GroupBuilder
from scheduler_service.app.memory import MemoryStore
from scheduler_service.app.ports import GENESIS, Payload
from scheduler_service.core import decisions as d
from scheduler_service.core.errors import Trimmed


@pytest.fixture(params=["memory", "sqlite"])
def store(request):
    if request.param == "memory":
        return MemoryStore()
    return request.getfixturevalue("open_store")()


def append(store, count=1, *, puts=(), deletes=(), fetches=(), size=10):
    builder = GroupBuilder(store.head())
    for _ in range(count):
        number = builder.sequence + 1
        builder.add([d.Resumed(number * 1000, "p", "u" * size, by_timer=False)])
    for key, payload in puts:
        builder.put_payload(key, payload)
    for key in deletes:
        builder.delete_payload(key)
    for key in fetches:
        builder.fetch_payload(key)
    return store.append(builder.take())


def sequences(page):
    return [(group.first_sequence, group.end.sequence) for group in page]


def test_a_new_store_is_empty(store):
    """A new store is empty."""
    assert store.head() == store.base() == GENESIS
    assert store.read(0, max_bytes=100) == []
    assert store.payload_keys() == []
    assert store.usage().log_bytes == 0


def test_groups_come_back_as_they_were_appended(store):
    """Groups come back as they were appended."""
    for count in (1, 5, 2):
        append(store, count)
    page = store.read(0, max_bytes=10**9)

    assert sequences(page) == [(1, 1), (2, 6), (7, 8)]
    assert page[-1].end == store.head()
    before = GENESIS
    for group in page:
        chain.verify(before, group, file="f")
        before = group.end
    decisions = [decision for group in page for decision in codec.decode_frame(group.frame)]
    assert [decision.now_ns for decision in decisions] == [n * 1000 for n in range(1, 9)]
    assert store.usage().log_bytes == sum(len(codec.encode(decision)) for decision in decisions)


def test_a_read_begins_with_the_group_that_holds_the_next_record(store):
    """A read begins with the group that holds the next record."""
    for _ in range(4):
        append(store, 3)

    assert sequences(store.read(3, max_bytes=1)) == [(4, 6)]
    assert sequences(store.read(4, max_bytes=1)) == [(4, 6)]
    assert sequences(store.read(5, max_bytes=10**9)) == [(4, 6), (7, 9), (10, 12)]
    assert store.read(12, max_bytes=1) == []


def test_a_page_is_bounded_but_never_empty_before_the_end(store):
    """A page is bounded but never empty before the end."""
    for _ in range(20):
        append(store, 1, size=1000)
    after, pages = 0, 0
    while page := store.read(after, max_bytes=3000):
        assert len(page) == 3 or page[-1].end == store.head()
        after, pages = page[-1].end.sequence, pages + 1

    assert (after, pages) == (20, 7)


def test_payloads_live_until_they_are_deleted(store):
    """Payloads live until they are deleted."""
    puts = [(n, Payload(bytes([n]) * n, b"m%d" % n)) for n in range(1, 200)]
    append(store, puts=puts)
    assert store.payloads([3, 150, 777]) == {3: puts[2][1], 150: puts[149][1]}
    append(store, deletes=range(1, 100))

    assert store.payload_keys() == list(range(100, 200))
    assert store.payloads([3, 99, 100]) == {100: puts[99][1]}
    append(store, 0, deletes=[100])
    assert store.payloads([100]) == {}
    assert store.head().sequence == 2


def test_a_fetch_sees_the_puts_and_not_the_deletes_of_its_group(store):
    """A fetch sees the puts and not the deletes of its group."""
    payload = Payload(b"", b"")
    assert append(store, puts=[(1, payload)], fetches=[1, 2]) == {1: payload}
    assert append(store, deletes=[1], fetches=[1]) == {1: payload}
    assert append(store, fetches=[1]) == {}
    assert append(store, 0, fetches=[1]) == {}


def test_pruning_moves_the_base_and_never_takes_the_last_group(store):
    """Pruning moves the base and never takes the last group."""
    for _ in range(10):
        append(store, 3)
    page = store.read(0, max_bytes=10**9)
    assert store.prune(4, max_groups=100) == 1
    assert store.base() == page[0].end
    assert store.prune(10**9, max_groups=2) == 2
    assert store.base() == page[2].end
    with pytest.raises(Trimmed) as caught:
        store.read(8, max_bytes=1)
    assert caught.value.metadata == {"firstSequence": "10", "afterSequence": "8"}
    assert sequences(store.read(9, max_bytes=1)) == [(10, 12)]
    assert store.prune(10**9, max_groups=100) == 6

    assert store.prune(10**9, max_groups=100) == 0
    assert sequences(store.read(27, max_bytes=1)) == [(28, 30)]
    append(store)
    assert store.head().sequence == 31


def test_a_cut_tail_can_be_written_again(store):
    """A cut tail can be written again."""
    for _ in range(3):
        append(store, 2)
    page = store.read(0, max_bytes=10**9)

    assert store.cut_tail(4) == page[1].end == store.head()
    append(store, 2)
    assert store.read(0, max_bytes=10**9) == page


def test_a_log_can_go_on_behind_a_later_position(store):
    """A log can go on behind a later position."""
    append(store, 3)
    later = GENESIS._replace(sequence=50, chain_hash=b"h" * 32, now_ns=9, log_bytes=7000)
    store.restart_at(later)
    assert store.head() == store.base() == later
    assert store.usage().log_bytes == 0
    append(store, 2)

    assert sequences(store.read(50, max_bytes=1)) == [(51, 52)]
    with pytest.raises(Trimmed):
        store.read(2, max_bytes=1)


@pytest.mark.parametrize("seed", range(5))
def test_sqlite_and_memory_agree_on_any_history(seed, open_store):
    """SQLite and memory agree on any history."""
    rng = random.Random(seed)
    memory, disk = MemoryStore(), open_store()
    for _ in range(150):
        draw = rng.random()
        head = memory.head().sequence
        if draw < 0.6:
            keys = rng.sample(range(1, head + 6), min(5, head + 5))
            options = {
                "count": rng.randrange(4),
                "puts": [(key, Payload(rng.randbytes(9), b"")) for key in keys[:2]],
                "deletes": keys[2:4],
                "fetches": keys[1:],
                "size": rng.randrange(50),
            }
            assert append(memory, **options) == append(disk, **options)
        elif draw < 0.8:
            before, most = rng.randrange(head + 2), rng.randrange(4)
            assert memory.prune(before, max_groups=most) == disk.prune(before, max_groups=most)
        elif draw < 0.9 and head > memory.base().sequence:
            last = rng.choice(memory.read(memory.base().sequence, max_bytes=10**9)).end.sequence
            assert memory.cut_tail(last) == disk.cut_tail(last)
        else:
            disk.upkeep(idle=rng.random() < 0.5)
        base = memory.base().sequence
        assert (memory.head(), memory.base()) == (disk.head(), disk.base())
        assert memory.read(base, max_bytes=200) == disk.read(base, max_bytes=200)
        assert memory.payload_keys() == disk.payload_keys()
