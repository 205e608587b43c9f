"""The hash chain of the decision log.

    h_0 = 32 zero bytes,   h_n = SHA-256(h_{n-1} || record_n)

A changed, missing or reordered record changes every later hash.  The chain does not show that
records were cut off at the end, or that everything was written anew: for that the head is published
and compared.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256

from scheduler_service.app import codec
from scheduler_service.app.ports import Group, Payload, Position, StoreDamaged, StoredGroup
from scheduler_service.core.decisions import Decision
from scheduler_service.core.phrases import count_text


def extend(chain_hash: bytes, records: Iterable[bytes]) -> bytes:
    """Returns the chain hash after these records."""
    for record in records:
        chain_hash = sha256(chain_hash + record).digest()
    return chain_hash


def verify(before: Position, group: StoredGroup, *, file: str) -> None:
    """Checks that `group` is what follows `before`, unchanged.

    Raises:
        StoreDamaged: It is not; names the file and the first sequence that cannot be trusted.
    """
    expected = before.sequence + 1
    if group.first_sequence != expected:
        raise StoreDamaged(file, expected, f"the next group begins at {group.first_sequence}")
    try:
        records = codec.split_frame(group.frame)
    except codec.FrameError as error:
        raise StoreDamaged(file, expected, f"the group is malformed: {error}") from error
    if group.end.sequence - before.sequence != len(records):
        raise StoreDamaged(
            file,
            expected,
            f"{count_text(len(records), 'record')} where {group.end.sequence} should be the last",
        )
    if extend(before.chain_hash, records) != group.end.chain_hash:
        raise StoreDamaged(file, expected, "the hash chain is broken")


class GroupBuilder:
    """Turns decisions into the next group of the chain.

    Args:
        end: Position after the last record so far; the first one follows it.

    Attributes:
        sequence: Sequence of the last record taken.
        records: Records of the group under construction.
        bytes: Bytes of records and payloads in it.

    Complexity:
        O(1) a record: one encoding and one hash.
    """

    __slots__ = (
        "_chain_hash",
        "_deletes",
        "_fetches",
        "_log_bytes",
        "_now_ns",
        "_puts",
        "bytes",
        "records",
        "sequence",
    )

    def __init__(self, end: Position) -> None:
        self.sequence, self._chain_hash, self._now_ns, self._log_bytes = end
        self._clear()

    def _clear(self) -> None:
        self.records: list[bytes] = []
        self.bytes = 0
        self._puts: list[tuple[int, Payload]] = []
        self._deletes: list[int] = []
        self._fetches: list[int] = []

    @property
    def end(self) -> Position:
        """Position after the last record taken."""
        return Position(self.sequence, self._chain_hash, self._now_ns, self._log_bytes)

    @property
    def has_work(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.records or self._fetches or self._deletes or self._puts)

    def add(self, decisions: Sequence[Decision]) -> None:
        """Adds decisions, at least one: all of them, or none if one has no encoding."""
        encode = codec.encode
        records = [encode(decision) for decision in decisions]
        self._chain_hash = extend(self._chain_hash, records)
        self._now_ns = decisions[-1].now_ns
        size = sum(map(len, records))
        self.records += records
        self.bytes += size
        self._log_bytes += size
        self.sequence += len(records)

    def put_payload(self, key: int, payload: Payload) -> None:
        """Keeps a payload under the accept sequence `key`."""
        self._puts.append((key, payload))
        self.bytes += len(payload.payload) + len(payload.metadata)

    def delete_payload(self, key: int) -> None:
        """Drops the payload of the accept sequence `key`; there need not be one."""
        self._deletes.append(key)

    def fetch_payload(self, key: int) -> None:
        """Asks for the payload of `key` to come back with the group."""
        self._fetches.append(key)

    def take(self) -> Group:
        """Returns the group and begins the next one."""
        assert self.has_work
        group = Group(
            self.sequence - len(self.records) + 1,
            self.end,
            self.records,
            self._puts,
            self._deletes,
            self._fetches,
        )
        self._clear()
        return group
