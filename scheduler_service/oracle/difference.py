"""What the oracle reports: one named difference between a record and the algorithm."""

from typing import NamedTuple


class Difference(NamedTuple):
    """One thing in a record that the algorithm would not have decided.

    Attributes:
        sequence: Sequence of the record in the log.
        record: Type of the record, as in `Dispatched`.
        what: Field of the record, or name of the broken rule.
        expected: What the algorithm decides.
        found: What the record says.
        source: Where the rule is stated.
    """

    sequence: int
    record: str
    what: str
    expected: object
    found: object
    source: str

    def __str__(self) -> str:
        """One sentence, for people."""
        return (
            f"#{self.sequence} {self.record}.{self.what}: "
            f"expected {self.expected!r}, found {self.found!r} ({self.source})"
        )


class Report:
    """Collects the differences of one record.

    Attributes:
        sequence: Sequence of the record.
        record: Type name of the record.
        found: Differences so far.
    """

    def __init__(self, sequence: int, record: str) -> None:
        self.sequence = sequence
        self.record = record
        self.found: list[Difference] = []

    def add(self, what: str, expected: object, found: object, source: str) -> None:
        """Names a difference."""
        self.found.append(Difference(self.sequence, self.record, what, expected, found, source))

    def same(self, what: str, expected: object, found: object, source: str) -> None:
        """Names a difference unless both values are equal."""
        if expected != found:
            self.add(what, expected, found, source)

    def holds(self, what: str, *, true: bool, found: object, source: str) -> None:
        """Names a broken rule unless it is true."""
        if not true:
            self.add(what, "true", found, source)
