"""The oracle shares no code with the core: only the definitions of policies and records."""

import ast
from pathlib import Path

import pytest

import scheduler_service.oracle
from tests.support.source import tree_of

MODULES = sorted(Path(scheduler_service.oracle.__path__[0]).glob("*.py"))
ALLOWED = {"scheduler_service.core.policy", "scheduler_service.core.decisions"}


def imported(path: Path) -> set[str]:
    """Names of the modules that a module imports, with names imported from packages."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found |= {
                f"{module}.{alias.name}" if module == "scheduler_service.core" else module
                for alias in node.names
            }
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_only_data_definitions_are_shared(path):
    """Of the core, the oracle knows policy and decisions; of the rest of the service, nothing."""
    foreign = {name for name in imported(path) if name.startswith("scheduler_service.")}
    own = {name for name in foreign if name.startswith("scheduler_service.oracle")}
    assert foreign - own <= ALLOWED
    assert not {name for name in imported(path) if name.startswith("sortedcontainers")}
