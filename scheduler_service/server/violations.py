"""Broken laws, counted over restarts.

The process that finds one ends within a second, before anybody has looked at its metrics.  So it is
written down beside the log, and the next process goes on counting: an alert on the count works.
Whoever has dealt with it removes the file.
"""

import json
import os
from pathlib import Path

from scheduler_service.app.engine import Engine
from scheduler_service.app.ports import Reporter

NAME = "violations.jsonl"
_FILE_MODE = 0o600


def count(folder: Path) -> int:
    """Returns how many are written down in a data directory; 0 if that cannot be read."""
    try:
        return sum(1 for line in (folder / NAME).read_bytes().splitlines() if line.strip())
    except OSError:
        return 0


def keep(folder: Path, engine: Engine, report: Reporter) -> None:
    """Writes down, for good, why an engine has stopped, if a law was broken."""
    if not isinstance(engine.failed, AssertionError):
        return
    found = {
        "law": str(engine.failed),
        "durable_sequence": engine.log.durable.sequence,
        "now_ns": engine.now_ns(),
    }
    try:
        _append(folder / NAME, json.dumps(found) + "\n")
    except OSError as error:
        report("violation.not_kept", error=str(error))


def _append(path: Path, line: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(path, flags, _FILE_MODE)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
