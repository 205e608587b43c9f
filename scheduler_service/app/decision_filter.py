"""Which decisions a reader wants: all conditions that are stated must hold.

Most records are refused by their bytes, without being decoded: the tag of the record says its kind,
and an id that is wanted must be in it somewhere.
"""

from dataclasses import dataclass, field

from scheduler_service.app import codec
from scheduler_service.core.decisions import Decision

_FIXARRAY = 0x90
_FIXARRAY_MASK = 0xF0
_TAG_AFTER_FIXARRAY = 1
_TAG_AFTER_ARRAY_16 = 3


def kind_of(record: bytes) -> int:
    """Returns the kind of an encoded decision: the tag, which is its first item."""
    if record[0] & _FIXARRAY_MASK == _FIXARRAY:
        return record[_TAG_AFTER_FIXARRAY]
    return record[_TAG_AFTER_ARRAY_16]


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """What a reader wants to see; what is empty is no condition.

    Attributes:
        pools: Names of pools.
        user_ids: Users, as the core knows them.
        user_prefixes: Starts of user ids.
        request_ids: Requests.
        kinds: Tags of decisions.
        start_ns: Earliest time, inclusive.
        end_ns: Latest time, exclusive; 0 is none.
    """

    pools: frozenset[str] = field(default_factory=frozenset)
    user_ids: frozenset[str] = field(default_factory=frozenset)
    user_prefixes: tuple[str, ...] = ()
    request_ids: frozenset[str] = field(default_factory=frozenset)
    kinds: frozenset[int] = field(default_factory=frozenset)
    start_ns: int = 0
    end_ns: int = 0
    _needles: tuple[tuple[bytes, ...], ...] = ()

    def __post_init__(self) -> None:
        wanted = (self.pools, self.user_ids, self.user_prefixes, self.request_ids)
        needles = tuple(tuple(text.encode() for text in texts) for texts in wanted if texts)
        object.__setattr__(self, "_needles", needles)

    def decoded(self, record: bytes) -> Decision | None:
        """Returns the decision of a record if it is wanted, else None."""
        if self.kinds and kind_of(record) not in self.kinds:
            return None
        for needles in self._needles:
            if not any(needle in record for needle in needles):
                return None
        decision = codec.decode(record)
        return decision if self._wants(decision) else None

    def is_past(self, decision_ns: int) -> bool:
        """Whether nothing decided at this time or later can be wanted."""
        return 0 < self.end_ns <= decision_ns

    def _wants(self, decision: Decision) -> bool:
        if decision.now_ns < self.start_ns or self.is_past(decision.now_ns):
            return False
        if self.pools and getattr(decision, "pool", "") not in self.pools:
            return False
        if self.user_ids or self.user_prefixes:
            user_id = getattr(decision, "user_id", "")
            if self.user_ids and user_id not in self.user_ids:
                return False
            if self.user_prefixes and not user_id.startswith(self.user_prefixes):
                return False
        return not self.request_ids or getattr(decision, "request_id", "") in self.request_ids
