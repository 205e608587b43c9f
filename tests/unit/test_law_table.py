"""The table of laws in `tests/README.md` names tests that exist."""

import ast
import re
from pathlib import Path

from tests.support.source import tree_of

TESTS = Path(__file__).parent.parent
README = (TESTS / "README.md").read_text()


def names_in(path: Path) -> set[str]:
    """Test functions and machine classes of a module."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def test_every_law_has_its_test():
    """Each `path::test` of the table is there."""
    links = re.findall(r"`([\w/]+\.py)::(\w+)`", README)
    missing = [f"{path}::{name}" for path, name in links if name not in names_in(TESTS / path)]
    assert not missing
    assert len(links) > 50


def test_every_bug_has_its_test():
    """Each test named for a bug is in one of the modules that the text names."""
    section = README.split("## Bugs found so", maxsplit=1)[1]
    names = names_in(TESTS / "property/test_corners.py")
    names |= names_in(TESTS / "property/test_unplaceable.py")
    names |= names_in(TESTS / "unit/core/test_timers.py")
    assert set(re.findall(r"`(test_\w+)`", section)) <= names
