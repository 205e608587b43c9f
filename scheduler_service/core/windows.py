"""Sliding windows over recent dispatches: the largest value, and a quantile of waiting times."""

from collections import deque

from sortedcontainers import SortedList

from scheduler_service.core.search import place


class SlidingMax:
    """Largest of the last `size` values.

    Keeps only the values that can still become the largest, each with the number of its push, in
    falling order.

    Complexity:
        Amortised O(1) a push, but for moving what is left when the oldest leaves; O(1) to read.
    """

    __slots__ = ("_numbers", "_pushed", "_size", "_values", "largest")

    def __init__(self, size: int) -> None:
        self._size: int = size
        self._pushed: int = 0
        self._numbers: list[int] = []
        self._values: list[int] = []
        self.largest: int = 0

    def push(self, value: int) -> None:
        """Adds `value`, at least 0; the oldest of a full window leaves."""
        numbers, values = self._numbers, self._values
        pushed = self._pushed = self._pushed + 1
        while values and values[-1] <= value:
            values.pop()
            numbers.pop()
        values.append(value)
        numbers.append(pushed)
        if numbers[0] <= pushed - self._size:
            del numbers[0], values[0]
        self.largest = values[0]

    def dump(self) -> list[tuple[int, int]]:
        """Returns (age, value) of every candidate; age 0 is the newest push."""
        ages = (self._pushed - number for number in self._numbers)
        return list(zip(ages, self._values, strict=True))

    def restore(self, dumped: list[tuple[int, int]]) -> None:
        """Takes over what `dump` gave."""
        self._pushed = max((age for age, _ in dumped), default=0)
        self._numbers = [self._pushed - age for age, _ in dumped]
        self._values = [value for _, value in dumped]
        self.largest = self._values[0] if dumped else 0


class ReferenceSample:
    """Waiting times of started requests (QBA §III-A4, W_ref), newest `window` of them.

    Args:
        window: Entries kept; 0 keeps the whole history, which grows without bound and is meant
            for simulation only.

    Complexity:
        O(log n) plus a memory move of at most `window` pointers a push; O(1) a quantile.
    """

    __slots__ = ("_arrived", "_ordered", "_window")

    def __init__(self, window: int) -> None:
        self._window = window
        self._arrived: deque[int] = deque()
        self._ordered: list[int] | SortedList[int] = [] if window else SortedList()

    def __len__(self) -> int:
        return len(self._ordered)

    def push(self, wait_ns: int) -> None:
        """Adds one waiting time in nanoseconds, at least 0."""
        ordered, arrived = self._ordered, self._arrived
        arrived.append(wait_ns)
        if isinstance(ordered, list):
            if len(arrived) > self._window:
                del ordered[place(ordered, arrived.popleft())]
            ordered.insert(place(ordered, wait_ns), wait_ns)
        else:
            ordered.add(wait_ns)

    def quantile(self, level_bp: int) -> int:
        """Returns the nearest-rank quantile, `sample[ceil(level * n) - 1]`, in nanoseconds.

        Args:
            level_bp: Level in basis points, 1 … 10,000.  The sample must not be empty.
        """
        ordered = self._ordered
        rank = (level_bp * len(ordered) + 9_999) // 10_000
        return ordered[rank - 1]

    def dump(self) -> list[int]:
        """Returns the entries in order of arrival."""
        return list(self._arrived)

    def resized(self, window: int) -> "ReferenceSample":
        """Returns a sample over another window that holds this one's newest entries."""
        sample = ReferenceSample(window)
        for wait_ns in self.dump():
            sample.push(wait_ns)
        return sample
