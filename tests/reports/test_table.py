"""The table of reports is complete, and every test it names exists."""

import re

from tests.reports.table import HERE, ROWS, TABLE


def test_every_row_names_a_test():
    """No report is listed without the test that shows it."""
    assert len(ROWS) == len(re.findall(r"^\| R", TABLE, re.MULTILINE)) == 87
    assert [row.number for row in ROWS if not row.tests] == []


def test_every_test_named_exists():
    """The files and functions of the table are those of the tree."""
    missing = []
    for row in ROWS:
        for name in row.tests:
            file, _, function = name.partition("::")
            path = HERE.parent / file
            known = path.is_file() and (not function or f"def {function}(" in path.read_text())
            if not known:
                missing.append((row.number, name))

    assert missing == []


def test_every_test_of_this_folder_is_in_the_table():
    """A test that is named by a number stands in that row."""
    named = {
        f"reports/{path.name}::{function}"
        for path in HERE.glob("test_*.py")
        for function in re.findall(r"def (test_r\d+\w*)", path.read_text())
    }

    assert {name for name in named if f"`{name}`" not in TABLE} == set()
