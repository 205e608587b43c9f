"""Numbers as people read them, and what an explanation consists of."""

from typing import NamedTuple

from scheduler_service.core.policy import MICRO, SECOND_NS


class Fact(NamedTuple):
    """One number of an explanation: its name in the API, its value as text, its unit."""

    name: str
    value: str
    unit: str = ""


class Explanation(NamedTuple):
    """An explanation.

    Attributes:
        sentences: In English, the most important first.
        facts: The numbers behind them, in their order.
        related: Sequences of other decisions it rests on.
    """

    sentences: tuple[str, ...]
    facts: tuple[Fact, ...] = ()
    related: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """All sentences."""
        return " ".join(self.sentences)


def cost_text(micros: int) -> str:
    """Returns micro cost units as cost units, exact, without zeros at the end."""
    whole, rest = divmod(abs(micros), MICRO)
    sign = "-" if micros < 0 else ""
    fraction = f".{rest:06d}".rstrip("0") if rest else ""
    return f"{sign}{whole:,}{fraction}"


def time_text(duration_ns: int) -> str:
    """Returns a duration for people, to the millisecond."""
    millis = duration_ns // 1_000_000
    if duration_ns < SECOND_NS:
        return f"{millis} ms"
    if duration_ns < 60 * SECOND_NS:
        return f"{millis / 1000:g} s"
    minutes, seconds = divmod(millis // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min {seconds} s" if hours else f"{minutes} min {seconds} s"


def seconds_value(duration_ns: int) -> str:
    """Returns a duration in seconds, exact to the nanosecond."""
    return f"{duration_ns // SECOND_NS}.{duration_ns % SECOND_NS:09d}"


def count_text(number: int, noun: str) -> str:
    """Returns a number and its noun: "1 request", "2,000 requests"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def worker_text(key: str, name: str) -> str:
    """Returns a worker for people: "'gpu-1'", behind it the session by which the record means it.

    Args:
        key: Session or name, as in the record.
        name: The worker's own id; empty if that is not known.
    """
    return repr(key) if name in ("", key) else f"{name!r} ({key})"
