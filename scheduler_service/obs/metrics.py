"""Metrics in the text format of Prometheus.

Nothing is counted here but calls: what happened is in the tally, what is there is read from the
state, both in plain integers.  A page is made in two steps: the numbers are taken on the event
loop, a few pools at a time, so each pool's are of one sequence; then a thread formats them.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, get_args

from prometheus_client import CONTENT_TYPE_LATEST, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry

from scheduler_service.app.application import Application
from scheduler_service.app.histogram import DurationHistogram
from scheduler_service.app.observation import Observation, service_version
from scheduler_service.app.readiness import Readiness
from scheduler_service.core.decisions import Decision
from scheduler_service.core.outlook import WaitCause
from scheduler_service.obs.catalogue import METRICS, POOLS_SHOWN_MAX, Metric
from scheduler_service.obs.pool_metrics import Rows, pool_rows

_KIND_LABELS: dict[type[Any], str] = {
    kind: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower() for kind in get_args(Decision)
}
"""Kind of a decision -> label, as in `lease_ended`."""

_INTAKE = frozenset({"Enqueue", "BatchEnqueue", "Acquire", "GatewaySession"})
_POOLS_AT_ONCE = 10
_NS = 1e9


@dataclass(slots=True)
class Sources:
    """Where the numbers come from, once the service runs.

    Attributes:
        app: The use cases.
        seen: What happened.
        lag_ns: Gives the longest time the loop was late.
        violations_before: Broken laws that earlier processes found.
    """

    app: Application
    seen: Observation
    lag_ns: Callable[[], int]
    violations_before: int = 0


class Metrics:
    """Counts calls, and makes metrics pages; the `Observer` of the servicers.

    Args:
        readiness: Whether calls can be answered.
        dropped_lines: Gives how many log lines were dropped.
        users_max: Users of each pool with metrics of their own; 0 for none.
        mask: Masks a user id.
    """

    def __init__(
        self,
        readiness: Readiness,
        *,
        dropped_lines: Callable[[], int] = lambda: 0,
        users_max: int = 0,
        mask: Callable[[str], str] = str,
    ) -> None:
        self._readiness = readiness
        self._dropped_lines = dropped_lines
        self._users_max = users_max
        self._mask = mask
        self._sources: Sources | None = None
        self._durations: dict[str, DurationHistogram] = {}
        self._codes: dict[tuple[str, str], int] = {}
        self._errors: dict[tuple[str, str], int] = {}
        self._process = ProcessCollector(registry=CollectorRegistry())

    def attach(self, sources: Sources) -> None:
        """Begins to show a running service."""
        self._sources = sources

    # -- told by the servicers ----------------------------------------------------------------

    def called(self, rpc: str, code: str, duration_ns: int) -> None:
        """Counts a call that has ended."""
        durations = self._durations.get(rpc)
        if durations is None:
            durations = self._durations[rpc] = DurationHistogram()
        durations.observe(duration_ns)
        key = (rpc, code)
        self._codes[key] = self._codes.get(key, 0) + 1

    def refused(self, rpc: str, pool: str, reason: str) -> None:
        """Counts a refusal."""
        key = (rpc, reason)
        self._errors[key] = self._errors.get(key, 0) + 1
        if rpc in _INTAKE and self._sources is not None:
            self._sources.seen.tally.refuse(pool, reason)

    # -- pages --------------------------------------------------------------------------------

    async def page(self) -> tuple[str, bytes]:
        """Returns content type and body of a metrics page; to be called on the loop."""
        rows = Rows()
        self._service_rows(rows)
        sources = self._sources
        if sources is not None:
            pools = list(islice(sources.seen.engine.state.pools, POOLS_SHOWN_MAX))
            for number, name in enumerate(pools, 1):
                pool_rows(rows, name, sources.seen, self._users_max, self._mask)
                if number % _POOLS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            _held_rows(rows, sources.app, set(pools))
        loop = asyncio.get_running_loop()
        body = await loop.run_in_executor(None, _format, rows, self._process)
        return CONTENT_TYPE_LATEST, body

    def _service_rows(self, rows: Rows) -> None:
        readiness = self._readiness
        rows.add("fairsched_ready", int(readiness.ready))
        for problem in readiness.problems:
            rows.add("fairsched_problems", 1, problem)
        for rpc, durations in self._durations.items():
            rows.histogram("fairsched_rpc_duration_seconds", durations, rpc)
        for (rpc, code), count in self._codes.items():
            rows.add("fairsched_rpcs_total", count, rpc, code)
        for (rpc, reason), count in self._errors.items():
            rows.add("fairsched_rpc_errors_total", count, rpc, reason)
        rows.add("fairsched_log_lines_dropped_total", self._dropped_lines())
        if self._sources is not None:
            _running_rows(rows, self._sources)


def _running_rows(rows: Rows, sources: Sources) -> None:
    app, seen = sources.app, sources.seen
    engine, store, head = seen.engine, seen.store, seen.log.head()
    version = str(engine.state.algorithm_version)
    rows.add("fairsched_build_info", 1, service_version(), version, str(store.durability))
    rows.add("fairsched_start_time_seconds", seen.tally.start_ns / _NS)
    rows.add("fairsched_sequence", head.newest.sequence)
    rows.add("fairsched_head_hash48", int.from_bytes(head.newest.chain_hash[:6]))
    rows.add("fairsched_oldest_sequence", head.oldest_sequence)
    rows.add("fairsched_pending_decisions", engine.log.pending_count)
    for kind, count in seen.tally.decisions.items():
        rows.add("fairsched_decisions_total", count, _KIND_LABELS[kind])
    rows.histogram("fairsched_decide_duration_seconds", engine.decide_latency)
    rows.add("fairsched_commits_total", engine.log.group_count)
    rows.histogram("fairsched_commit_duration_seconds", engine.log.commit_latency)
    rows.add("fairsched_parked_calls", app.slots.calls)
    rows.add("fairsched_streams", app.slots.streams)
    rows.add("fairsched_watches", seen.watchers)
    rows.add("fairsched_workers", len(engine.state.workers))
    rows.add("fairsched_pools", len(engine.state.pools))
    usage = store.usage()
    rows.add("fairsched_log_bytes", usage.log_bytes)
    rows.add("fairsched_store_bytes", usage.file_bytes)
    rows.add("fairsched_store_journal_bytes", usage.journal_bytes)
    rows.add("fairsched_disk_free_bytes", usage.free_bytes)
    rows.add("fairsched_audit_ring_bytes", seen.log.ring_bytes)
    violations = sources.violations_before + isinstance(engine.failed, AssertionError)
    rows.add("fairsched_invariant_violations_total", violations)
    rows.add("fairsched_debug_loop_lag_max_seconds", sources.lag_ns() / _NS)
    for reason, count in seen.tally.refused.items():
        rows.add("fairsched_rejections_total", count, "", reason)


def _held_rows(rows: Rows, app: Application, shown: set[str]) -> None:
    held, misfits = app.blocked.held(), app.blocked.misfits
    counts, now_ns = misfits.counts(), app.engine.now_ns()
    for pool in shown:
        rows.add("fairsched_misfit_requests", counts.get(pool, 0), pool)
        rows.add("fairsched_stalled_seconds_total", misfits.stalled_ns(pool, now_ns) / _NS, pool)
        for cause in (WaitCause.USER_CAP, WaitCause.USER_PAUSED):
            rows.add("fairsched_held_users", held.get((pool, cause), 0), pool, cause.name.lower())


# -- on a thread --------------------------------------------------------------------------------


class _Page(Collector):
    """Formats rows, then what the process collector knows."""

    def __init__(self, rows: Rows, process: ProcessCollector) -> None:
        self._rows = rows
        self._process = process

    def collect(self) -> Iterator[Family]:
        """Yields every family that has a row, in the order of the catalogue."""
        for name, metric in METRICS.items():
            family = self._family(name, metric)
            if family.samples:
                yield family
        yield from self._process.collect()

    def _family(self, name: str, metric: Metric) -> Family:
        if metric.kind == "histogram":
            histogram = HistogramMetricFamily(name, metric.help, labels=metric.labels)
            for labels, buckets, total in self._rows.histograms.get(name, ()):
                histogram.add_metric(labels, buckets, total)
            return histogram
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(name, metric.help, labels=metric.labels)
        for labels, value in self._rows.values.get(name, ()):
            family.add_metric(labels, value)
        return family


def _format(rows: Rows, process: ProcessCollector) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Page(rows, process))
    return generate_latest(registry)
