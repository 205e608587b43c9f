"""A service in a process of its own: `python -m tests.support.child SETTINGS-JSON`.

Events go to standard output, one JSON object a line.  `fault` makes the store misbehave: after so
many groups it blocks for ever (`hang`) or fails (`fail`).
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from scheduler_service.app.ports import Group, Payload, Store, StoreFailed
from scheduler_service.config import load
from scheduler_service.server import loader, serve
from scheduler_service.server.opening import open_sqlite

ROOT = Path(__file__).parents[2]


class FaultyStore:
    """A store that misbehaves after `good` groups."""

    def __init__(self, store: Store, kind: str, good: int) -> None:
        self._store = store
        self._kind = kind
        self._good = good

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, group: Group) -> dict[int, Payload]:
        self._good -= 1
        if self._good < 0:
            if self._kind == "hang":
                threading.Event().wait()
            raise StoreFailed("the disk is gone")
        return self._store.append(group)


class Child:
    """A running child process.

    Args:
        data_dir: Its data directory.
        fault: How its store misbehaves, if it does.
        good: After how many groups.
        environment: Added to this process's own.
        flags: Settings.

    Attributes:
        events: What it reported so far.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        fault: str = "",
        good: int = 0,
        environment: dict[str, str] | None = None,
        **flags: Any,
    ) -> None:
        self.data_dir = data_dir
        self.port_file = data_dir.with_name(data_dir.name + ".port")
        self.port_file.unlink(missing_ok=True)
        self.events: list[dict[str, Any]] = []
        flags = {"listen": "127.0.0.1:0", "http_listen": "", **flags}
        flags |= {"data_dir": str(data_dir), "port_file": str(self.port_file)}
        plan = json.dumps({"flags": flags, "fault": fault, "good": good})
        own = {k: v for k, v in os.environ.items() if not k.startswith("FAIRSCHED_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.child", plan],
            cwd=ROOT,
            env=own | (environment or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: list[str] = []
        self._errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._gather, args=(pipe, lines), daemon=True)
            for pipe, lines in (
                (self.process.stdout, self._lines),
                (self.process.stderr, self._errors),
            )
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _gather(pipe: Any, lines: list[str]) -> None:
        lines.extend(pipe)
        pipe.close()

    async def serving(self) -> int:
        """Waits until it serves; returns its port."""
        while not self.reported("service.serving"):
            assert self.process.poll() is None, self.errors
            await asyncio.sleep(0.01)
        port: int = json.loads(self.port_file.read_text())["port"]
        return port

    def reported(self, event: str) -> list[dict[str, Any]]:
        """Returns every event of that name so far."""
        found = [json.loads(line) for line in list(self._lines)]
        return [values for values in found if values["event"] == event]

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    async def ended(self, patience: float = 10.0) -> int:
        """Waits until it has ended; returns its exit code."""
        code = await asyncio.to_thread(self.process.wait, patience)
        for thread in self._threads:
            thread.join(5)
        return code

    @property
    def errors(self) -> str:
        """What it wrote to standard error."""
        return "".join(self._errors)

    def kill(self) -> None:
        """Ends it, however it is."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join(5)


def main() -> int:
    """Runs the service."""
    plan = json.loads(sys.argv[1])
    flags = plan["flags"]
    file = Path(flags.pop("config_file")) if "config_file" in flags else None

    def report(event: str, /, **values: object) -> None:
        line = json.dumps({"event": event, **values}, default=str)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def open_store(directory: Any, settings: Any, report: Any) -> Any:
        store = open_sqlite(directory, settings, report)
        return FaultyStore(store, plan["fault"], plan["good"]) if plan["fault"] else store

    read = loader(file, flags)
    work = serve(load(file, flags), report=report, read=read, open_store=open_store)
    return asyncio.run(work)


if __name__ == "__main__":
    sys.exit(main())


async def until(condition):
    """Returns once a condition holds."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.02)
