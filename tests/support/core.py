"""The core under test as a value: the real one, or one with a mistake planted in its source.

`mutated` loads the core's modules a second time, in this process, with one line of one of them
changed; the real modules are untouched.  What is plain data (policies, records, errors) is shared,
so that the oracle can read the records of a mutant.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from scheduler_service import core
from scheduler_service.core import COMPILED, commands, invariants, scheduler, snapshot
from scheduler_service.core import evolve as fold
from scheduler_service.core.state import State

PACKAGE = "scheduler_service.core"
SHARED = ("policy", "decisions", "errors")
FOLDER = Path(core.__path__[0])


class Core(NamedTuple):
    """What a test needs of a core."""

    apply: Callable[..., Any]
    evolve: Callable[..., None]
    new_state: Callable[[], Any]
    check: Callable[[Any], None]
    snapshot: ModuleType
    commands: ModuleType


REAL = Core(scheduler.apply, fold.evolve, State, invariants.check, snapshot, commands)


class Edit(NamedTuple):
    """One change of one text.

    Attributes:
        place: A module of the core by its name, or any file by its path from the top.
        old: Must occur there exactly once.
        new: What is there instead.
    """

    place: str
    old: str
    new: str

    def applied(self, text: str) -> str:
        """Returns the text with the change in it.

        Raises:
            LookupError: What is to change is not there, or not once: the text has changed, and so
                must the edit.
        """
        count = text.count(self.old)
        if count != 1:
            raise LookupError(f"{self.place} has {self.old!r} {count} times, not once")
        return text.replace(self.old, self.new)


def mutated(*edits: Edit) -> Core:
    """Returns a core with `edits` planted.

    Raises:
        LookupError: As `Edit.applied`.
    """
    sources = {edit.place: _source(edit.place) for edit in edits}
    for edit in edits:
        sources[edit.place] = edit.applied(sources[edit.place])
    return _load(sources)


def _source(module: str) -> str:
    return (FOLDER / f"{module}.py").read_text()


def _load(sources: dict[str, str]) -> Core:
    """Imports the core anew with some of its sources replaced, and puts the real one back."""
    if COMPILED:  # a compiled module cannot call a changed one
        whole = {path.stem: path.read_text() for path in FOLDER.glob("[!_]*.py")}
        sources = {name: text for name, text in whole.items() if name not in SHARED} | sources
    package = sys.modules[PACKAGE]
    prefix = f"{PACKAGE}."
    real = {name: module for name, module in sys.modules.items() if name.startswith(prefix)}
    kept = {name for name in real if name.removeprefix(prefix) in SHARED}
    for name in real.keys() - kept:
        del sys.modules[name]
        delattr(package, name.removeprefix(prefix))
    try:
        finder = _Finder(sources)
        sys.meta_path.insert(0, finder)
        try:
            core = _bundle(prefix)
        finally:
            sys.meta_path.remove(finder)
    finally:
        for name in [name for name in sys.modules if name.startswith(prefix)]:
            del sys.modules[name]
        sys.modules.update(real)
        for name, module in real.items():
            setattr(package, name.removeprefix(prefix), module)
    return core


def _bundle(prefix: str) -> Core:
    loaded = importlib.import_module(f"{prefix}scheduler")
    laws = importlib.import_module(f"{prefix}invariants")
    state = importlib.import_module(f"{prefix}state")
    images = importlib.import_module(f"{prefix}snapshot")
    evolving = importlib.import_module(f"{prefix}evolve")
    inputs = importlib.import_module(f"{prefix}commands")
    return Core(loaded.apply, evolving.evolve, state.State, laws.check, images, inputs)


class _Finder:
    """Finds the modules whose source is replaced."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.sources = sources

    def find_spec(self, name: str, _path: object, _target: object = None) -> Any:
        """Returns a spec for a replaced module; everything else is found as usual."""
        short = name.removeprefix(f"{PACKAGE}.")
        if short not in self.sources or name == short:
            return None
        loader = _Loader(self.sources[short], short)
        return importlib.util.spec_from_loader(name, loader)


class _Loader:
    def __init__(self, source: str, name: str) -> None:
        self.source = source
        self.name = name

    def create_module(self, _spec: object) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        code = compile(self.source, f"<mutant of {self.name}.py>", "exec")
        exec(code, module.__dict__)  # noqa: S102 - our own source, one line changed
