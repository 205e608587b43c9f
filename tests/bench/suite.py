"""The benchmarks by name, and what they all share."""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from tests.bench import machine, servers
from tests.bench.load import Slice, run
from tests.bench.results import Results
from tests.bench.rounds import Cell, Rounds, alternate

_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class Settings:
    """How thoroughly to measure.

    Attributes:
        quick: Whether this is the short mode, which only reports.
        rounds: Guarded rounds of everything that is compared.
        seconds: Length of a slice.
        warmup: Unmeasured seconds before it.
        attempts: Slices tried before a noisy one is kept.
        data: Where services keep their logs; the disk that is measured.
        install: Whether missing servers of others may be installed.
    """

    quick: bool = False
    rounds: int = 5
    seconds: float = 2.0
    warmup: float = 0.5
    attempts: int = 4
    data: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    install: bool = False


class Context:
    """What a benchmark works with: tools, guard, results, and servers that end with it."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        guard: machine.Guard,
        results: Results,
        say: Callable[[str], None],
    ) -> None:
        self.name = name
        self.settings = settings
        self.quick = settings.quick
        self.guard = guard
        self.results = results
        self.say = say
        self._stack = ExitStack()

    @cached_property
    def tools(self) -> machine.Tools:
        """The compiled programs, built when first needed."""
        return machine.build()

    def scale(self, full: int, quick: int) -> int:
        """Returns the size for this mode."""
        return quick if self.quick else full

    def until_end(self, resource: AbstractContextManager[_T]) -> _T:
        """Enters a context that is left when the benchmark ends."""
        return self._stack.enter_context(resource)

    def echo(self) -> servers.Process:
        """Starts a bare echo server that ends with the benchmark."""
        return self.until_end(servers.echo_server())

    def service(self, **options: Any) -> servers.Process:
        """Starts a service that ends with the benchmark."""
        return self.until_end(servers.service(root=self.settings.data, **options))

    def slice(self, server: servers.Process, mode: str, **options: Any) -> Slice:
        """Runs the load generator once, for as long as the settings say."""
        stated = {"seconds": self.settings.seconds, "warmup": self.settings.warmup, **options}
        return run(self.tools, server, mode, **stated)

    def cell(
        self,
        name: str,
        server: servers.Process,
        mode: str,
        before: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> Cell:
        """Returns a cell of the rounds: one slice of the load generator."""
        return Cell(name, lambda: self.slice(server, mode, **options), before)

    def alternate(self, cells: list[Cell], rounds: int | None = None) -> Rounds:
        """Measures cells in alternating, guarded rounds and keeps their slices."""

        def told(cell: str, number: int, slice_: Slice) -> None:
            self.results.keep(self.name, cell, number, slice_)
            noisy = slice_.lost_percent > self.guard.limit
            noise = f"  noise {slice_.lost_percent:.0f} %" if noisy else ""
            errors = f"  errors {slice_.errors}" if slice_.errors else ""
            self.say(f"  {self.name} {number + 1}  {cell:28} {_brief(slice_)}{noise}{errors}")

        found = alternate(
            cells,
            rounds=rounds or self.settings.rounds,
            guard=self.guard,
            attempts=self.settings.attempts,
            told=told,
        )
        guard = self.results.guard
        guard["slices kept although noisy"] = (
            guard.get("slices kept although noisy", 0) + found.noisy
        )
        guard["slices dropped"] = guard.get("slices dropped", 0) + found.dropped
        return found

    def close(self) -> None:
        """Ends what the benchmark started."""
        self._stack.close()


def _brief(slice_: Slice) -> str:
    parts = [
        f"{name} {values['items_per_s']:,.0f}/s p50 {values['p50_us'] / 1000:.2f} ms "
        f"p99 {values['p99_us'] / 1000:.2f} ms"
        for name, values in slice_.series.items()
        if name != "pacer" and values["calls"]
    ]
    return "; ".join(parts[:3])


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A named benchmark.

    Attributes:
        name: By which it is selected.
        title: What it shows.
        run: Does it.
        long: Whether it runs only when it is named, or with `--all`.
        in_quick: Whether the quick mode runs it.
    """

    name: str
    title: str
    run: Callable[[Context], None]
    long: bool = False
    in_quick: bool = True


BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(
    name: str, title: str, *, long: bool = False, in_quick: bool = True
) -> Callable[[Callable[[Context], None]], Callable[[Context], None]]:
    """Registers a benchmark."""

    def register(run_it: Callable[[Context], None]) -> Callable[[Context], None]:
        BENCHMARKS[name] = Benchmark(name, title, run_it, long, in_quick)
        return run_it

    return register
