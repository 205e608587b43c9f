"""What a planted fault is."""

from typing import NamedTuple

from tests.support.core import Edit


class Fault(NamedTuple):
    """The mistake that a report is about, as a change of our own sources.

    Attributes:
        rows: Rows of the table whose report it is, as in `R1`.
        name: What is wrong, as the table says it.
        tests: What must fail with it, as the table names them.
        edits: How it is planted; paths from the top.
    """

    rows: tuple[str, ...]
    name: str
    tests: tuple[str, ...]
    edits: tuple[Edit, ...]


def fault(rows: str, name: str, tests: str, *edits: tuple[str, str, str]) -> Fault:
    """Returns a fault; rows and tests are separated by blanks."""
    planted = tuple(Edit(*edit) for edit in edits)
    return Fault(tuple(rows.split()), name, tuple(tests.split()), planted)
