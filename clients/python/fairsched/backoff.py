"""How long to pause between two attempts."""

import random

FIRST_S = 0.1
"""Longest first pause, seconds."""

LONGEST_S = 5.0
"""Longest pause, seconds."""

_jitter = random.SystemRandom()


class Backoff:
    """Growing pauses with jitter: half to all of 0.1 s, 0.2 s, … 5 s."""

    def __init__(self, longest: float = LONGEST_S) -> None:
        self._longest = longest
        self._next = FIRST_S

    def pause(self) -> float:
        """Returns the next pause in seconds."""
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return min(pause, self._longest) * _jitter.uniform(0.5, 1)

    def reset(self) -> None:
        """Begins anew, after a success."""
        self._next = FIRST_S
