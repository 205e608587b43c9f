"""Checks of fields: every violation of a call is found, and all are reported at once.

A `Checks` walks through one message, notes what is wrong with each field, and raises once at the
end.  It hands back plain values (nanoseconds, text, ints), so that a good field is read only once.
"""

import re
from collections.abc import Iterable, Sequence

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from scheduler_service.app.limits import CREDITS_MAX, ID_BYTES_MAX
from scheduler_service.core.errors import InvalidCommand
from scheduler_service.core.policy import SECOND_NS

_control = re.compile("[\x00-\x1f\x7f-\x9f]").search
_REASON = re.compile(r"[A-Z0-9_]+").fullmatch
_NANOS_MAX = 999_999_999
_SECONDS_MAX = 253_402_300_799
"""The last second of the year 9999."""


def is_id(text: str) -> bool:
    """Whether `text` is 1 to 256 bytes of UTF-8 without control characters."""
    if text.isascii():
        return 0 < len(text) <= ID_BYTES_MAX and text.isprintable()
    return len(text.encode()) <= ID_BYTES_MAX and _control(text) is None


def nanoseconds(duration: Duration) -> int:
    """Returns a duration in nanoseconds."""
    return duration.seconds * SECOND_NS + duration.nanos


class Checks:
    """Finds what is wrong with the fields of one message.

    Args:
        path: Where the message stands in its call, with a dot at the end; empty at the top.
    """

    __slots__ = ("path", "violations")

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.violations: list[tuple[str, str]] = []

    def bad(self, field: str, problem: str) -> None:
        """Notes a violation."""
        self.violations.append((self.path + field, problem))

    def id(self, field: str, text: str, *, required: bool = True) -> str:
        """Checks an id and returns it."""
        if is_id(text) or (not text and not required):
            return text
        if not text:
            self.bad(field, "is required")
        elif len(text.encode()) > ID_BYTES_MAX:
            self.bad(field, f"must be at most {ID_BYTES_MAX} bytes, is {len(text.encode())}")
        else:
            self.bad(field, "must not contain control characters")
        return text

    def ids(self, field: str, texts: Iterable[str], count_max: int) -> tuple[str, ...]:
        """Checks a list of ids and returns it."""
        found = tuple(texts)
        if not self.entries(field, len(found), count_max):
            return found[:count_max]
        for index, text in enumerate(found):
            if not is_id(text):
                self.id(f"{field}[{index}]", text)
        return found

    def entries(self, field: str, count: int, count_max: int) -> bool:
        """Checks how many entries a list has; returns whether they are few enough."""
        if count > count_max:
            self.bad(field, f"must have at most {count_max} entries, has {count}")
        return count <= count_max

    def credits(self, stated: int, left: int) -> None:
        """Checks the credits of one message of a stream that has `left` of them."""
        if stated:
            self.number("credits", stated, 0, CREDITS_MAX)
            if left + stated > CREDITS_MAX:
                self.bad("credits", f"must not come to more than {CREDITS_MAX} in all")

    def text(self, field: str, text: str, bytes_max: int) -> str:
        """Checks free text and returns it."""
        if len(text) * 4 > bytes_max and len(text.encode()) > bytes_max:
            self.bad(field, f"must be at most {bytes_max} bytes, is {len(text.encode())}")
        return text

    def reason(self, field: str, text: str, bytes_max: int) -> str:
        """Checks a reason of `A-Z0-9_` and returns it; it may be empty."""
        if text and (len(text) > bytes_max or _REASON(text) is None):
            self.bad(field, f"must be 1 to {bytes_max} of A-Z, 0-9 and _")
        return text

    def number(self, field: str, value: int, low: int, high: int) -> int:
        """Checks a number and returns it."""
        if not low <= value <= high:
            self.bad(field, f"must be {low} to {high}, is {value}")
        return value

    def count(self, field: str, value: int, high: int, default: int) -> int:
        """Checks a count of 1 to `high` and returns it; 0 is the default."""
        if value == 0:
            return default
        return self.number(field, value, 1, high)

    def duration(self, field: str, duration: Duration, low_ns: int, high_ns: int) -> int:
        """Checks a duration that is present and returns it in nanoseconds."""
        seconds, nanos = duration.seconds, duration.nanos
        value = seconds * SECOND_NS + nanos
        if abs(nanos) > _NANOS_MAX or (seconds > 0 > nanos) or (seconds < 0 < nanos):
            self.bad(field, "is not a valid duration")
        elif not low_ns <= value <= high_ns:
            low, high = _in_seconds(low_ns), _in_seconds(high_ns)
            self.bad(field, f"must be {low} to {high}, is {_in_seconds(value)}")
        return value

    def timestamp(self, field: str, time: Timestamp) -> int:
        """Checks a point in time and returns it in nanoseconds since 1970."""
        if not (0 <= time.nanos <= _NANOS_MAX and 0 <= time.seconds <= _SECONDS_MAX):
            self.bad(field, "is not a time from 1970 to 9999")
            return 0
        return time.seconds * SECOND_NS + time.nanos

    def enum(self, field: str, value: int, known: Iterable[int], *, required: bool = False) -> int:
        """Checks the number of an enum and returns it; 0 is unspecified."""
        if value == 0:
            if required:
                self.bad(field, "is required")
        elif value not in known:
            self.bad(field, f"has no value {value}")
        return value

    def enums(
        self, field: str, values: Sequence[int], known: Iterable[int], count_max: int
    ) -> None:
        """Checks a list of numbers of an enum, none of them unspecified."""
        if not self.entries(field, len(values), count_max):
            return
        for index, value in enumerate(values):
            self.enum(f"{field}[{index}]", value, known, required=True)

    def merge(self, other: "Checks") -> None:
        """Takes over the violations of a part."""
        self.violations += other.violations

    def done(self) -> None:
        """Ends the checks.

        Raises:
            InvalidCommand: Names every bad field.
        """
        if self.violations:
            raise InvalidCommand(self.violations)


def _in_seconds(value_ns: int) -> str:
    return f"{value_ns / SECOND_NS:.9g} s"
