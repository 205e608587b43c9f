"""Whose session a record means: from the state while the worker is known, else from the log."""

import asyncio

from scheduler_service.app import codec
from scheduler_service.app.audit import DecisionLog
from scheduler_service.app.engine import Engine
from scheduler_service.app.ports import StoredGroup
from scheduler_service.app.workers import SESSION_PREFIX
from scheduler_service.core import decisions as d

SCAN_BYTES = 64 << 20
"""Records looked at for the name of one session."""

NAMES_MAX = 1024
"""Sessions remembered that the state no longer knows."""

_FIRST_STEP = 1024
"""Records looked at first; each further step looks at four times as many."""

_PAGE_BYTES = 1 << 20


class WorkerNames:
    """Knows the worker's own id for the session that stands in a record.

    Args:
        engine: Knows the workers there are.
        log: Knows those that are forgotten.
    """

    def __init__(self, engine: Engine, log: DecisionLog) -> None:
        self._engine = engine
        self._log = log
        self._past: dict[str, str] = {}

    async def of(self, decision: d.Decision, sequence: int) -> str:
        """Returns the own id of the worker that a decision concerns.

        Empty if it concerns none, and if the log no longer goes back to where the session was seen.
        """
        key = getattr(decision, "worker", "")
        known = self._engine.state.workers.get(key)
        if known is not None:
            return known.name
        if not key.startswith(SESSION_PREFIX):
            return str(key)
        if key not in self._past:
            found = await self._look_back(key, sequence)
            if len(self._past) >= NAMES_MAX:
                del self._past[next(iter(self._past))]
            self._past[key] = found
        return self._past[key]

    async def _look_back(self, key: str, sequence: int) -> str:
        """Looks for the session from `sequence` back: it is seen again and again while it lives."""
        oldest = self._log.head().oldest_sequence
        scanned, step, until = 0, _FIRST_STEP, sequence
        while until >= oldest and scanned < SCAN_BYTES:
            first = max(oldest, until - step + 1)
            after = first - 1
            while after < until and scanned < SCAN_BYTES:
                groups = await self._log.in_thread(after, _PAGE_BYTES)
                if not groups:
                    break
                for group in groups:
                    scanned += len(group.frame)
                    name = _name_in(group, key)
                    if name:
                        return name
                after = groups[-1].end.sequence
                await asyncio.sleep(0)
            until, step = first - 1, 4 * step
        return ""


def _name_in(group: StoredGroup, key: str) -> str:
    needle = key.encode()
    if needle in group.frame:
        for record in codec.split_frame(group.frame):
            if needle in record:
                decision = codec.decode(record)
                if isinstance(decision, d.WorkerSeen) and decision.worker == key:
                    return decision.worker_name
    return ""
