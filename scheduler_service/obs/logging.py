"""Log lines: one event a line, JSON or for a console, written off the hot path.

`Log.report` takes the time, puts the event into a bounded queue and returns: no formatting, no
system call.  A thread formats with structlog and writes.  When a reader of the output does not keep
up, lines are dropped and counted rather than anybody waiting; the next line that fits tells.

What libraries write through `logging` (asyncio, grpc) becomes an event too.  User ids are masked if
asked for; tokens, keys, payloads and metadata are never given to a log line at all.
"""

import atexit
import hmac
import logging
import secrets
import threading
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from hashlib import sha256
from queue import SimpleQueue
from typing import Any, BinaryIO

import msgspec
import structlog

from scheduler_service.app import clock
from scheduler_service.core.policy import SECOND_NS
from scheduler_service.obs.events import EVENTS, UNKNOWN

QUEUE_MAX = 10_000
"""Lines that wait to be written."""

USER_KEYS = frozenset({"user", "user_id", "userId", "runner_up"})
"""Keys whose values are user ids."""

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_CLOSE_SECONDS = 5.0
_MASK_HEX = 12

_Line = tuple[int, str, Mapping[str, object]]


class Log:
    """Writes events; `report` is what the rest of the service calls.

    Args:
        stream: Where lines go.
        level: Least important level written: "debug", "info", "warning", "error".
        console: Whether lines are for people rather than JSON.
        mask_user_ids: Whether user ids are masked.

    Attributes:
        dropped: Lines that were dropped so far.
    """

    def __init__(
        self,
        stream: BinaryIO,
        *,
        level: str = "info",
        console: bool = False,
        mask_user_ids: bool = False,
    ) -> None:
        self.dropped = 0
        self._told_dropped = 0
        self._least = _LEVELS[level]
        self._mask_key = secrets.token_bytes(32) if mask_user_ids else b""
        self._lines: SimpleQueue[_Line | None] = SimpleQueue()
        self._logger = _logger(stream, console=console)
        self._thread = threading.Thread(target=self._run, name="fairsched-log", daemon=True)
        self._closed = False
        self._thread.start()
        atexit.register(self.close)

    def report(self, event: str, /, **values: object) -> None:
        """Takes an event; never waits, never raises.  May be called by any thread."""
        if _LEVELS[EVENTS.get(event, UNKNOWN).level] < self._least:
            return
        if self._lines.qsize() >= QUEUE_MAX:
            self.dropped += 1
            return
        self._lines.put((clock.wall_ns(), event, values))

    def set_level(self, level: str) -> None:
        """Changes the least important level written."""
        self._least = _LEVELS[level]

    def capture_libraries(self) -> None:
        """Turns what libraries log through `logging` into events."""
        root = logging.getLogger()
        root.handlers[:] = [_Handler(self.report)]
        root.setLevel(logging.WARNING)

    def close(self) -> None:
        """Writes what waits and ends the thread."""
        if not self._closed:
            self._closed = True
            atexit.unregister(self.close)
            self._lines.put(None)
            self._thread.join(_CLOSE_SECONDS)

    # -- on the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            line = self._lines.get()
            try:
                if line is None:
                    return
                self._write(*line)
                if self.dropped != self._told_dropped:
                    count, self._told_dropped = self.dropped - self._told_dropped, self.dropped
                    self._write(clock.wall_ns(), "lines.dropped", {"count": count})
            except Exception:  # noqa: BLE001 - a line that cannot be written must not end the log
                self.dropped += 1

    def _write(self, wall_ns: int, event: str, values: Mapping[str, object]) -> None:
        level = EVENTS.get(event, UNKNOWN).level
        if self._mask_key:
            values = {key: self._masked(key, value) for key, value in values.items()}
        self._logger.msg(event, wall_ns=wall_ns, level=level, **values)

    def _masked(self, key: str, value: object) -> object:
        return self.mask(value) if key in USER_KEYS and isinstance(value, str) else value

    def mask(self, user_id: str) -> str:
        """Returns what stands for a user id: the same as long as this process lives."""
        if not self._mask_key or not user_id:
            return user_id
        return "u-" + hmac.new(self._mask_key, user_id.encode(), sha256).hexdigest()[:_MASK_HEX]


class _Handler(logging.Handler):
    """Hands records of `logging` on as events."""

    def __init__(self, report: Callable[..., None]) -> None:
        super().__init__(logging.WARNING)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        """Hands one record on."""
        values: dict[str, object] = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            values["error"] = repr(record.exc_info[1])
        failed = record.levelno >= logging.ERROR
        self._report("library.failed" if failed else "library.logged", **values)


def _logger(stream: BinaryIO, *, console: bool) -> Any:
    """Returns a structlog logger that formats one event a line."""
    processors: list[Any] = [_timestamp]
    if console:
        processors += [structlog.dev.ConsoleRenderer(colors=stream.isatty()), _to_bytes]
    else:
        processors += [_first_things_first, _to_json]
    return structlog.wrap_logger(
        structlog.BytesLogger(stream),
        processors=processors,
        wrapper_class=structlog.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _timestamp(
    _logger: object, _method: str, values: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    values["timestamp"] = _iso(values.pop("wall_ns"))
    return values


def _iso(wall_ns: int) -> str:
    """Returns wall time in ISO 8601, UTC, with microseconds."""
    seconds, nanos = divmod(wall_ns, SECOND_NS)
    moment = datetime.fromtimestamp(seconds, tz=UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{nanos // 1000:06d}Z"


def _first_things_first(
    _logger: object, _method: str, values: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    first = {key: values.pop(key) for key in ("timestamp", "level", "event")}
    return {**first, **values}


def _to_json(_logger: object, _method: str, values: MutableMapping[str, Any]) -> bytes:
    return msgspec.json.encode(values, enc_hook=repr)


def _to_bytes(_logger: object, _method: str, text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
