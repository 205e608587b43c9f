"""The table of reports in README.md, as data."""

import re
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
TABLE = (HERE / "README.md").read_text()


class Row(NamedTuple):
    """One row of the table.

    Attributes:
        number: Its number, as in `R1`.
        tests: What shows the right behaviour: `file` or `file::function`, below `tests/`.
        faults: Names of the planted faults.
    """

    number: str
    tests: tuple[str, ...]
    faults: tuple[str, ...]


def _row(number: str, tests: str, faults: str) -> Row:
    return Row(number, tuple(re.findall(r"`([^`]+)`", tests)), tuple(faults.strip().split("<br>")))


ROWS = [
    _row(*found)
    for found in re.findall(
        r"^\| (R\d+) \| [^|]+ \| ([^|]*) \| ([^|]*) \| [^|]* \|$", TABLE, re.MULTILINE
    )
]
