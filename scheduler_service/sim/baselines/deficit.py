"""Methods by credit: deficit round robin, and the deficit part of DLPM.

DLPM orders requests by how much of their prompt is in the prefix cache, among users with credit
left.  The traces here have no prefixes, so that part never acts and requests go in order of
arrival among those users; what remains is the fairness rule of the method.

Source:
    SFQ §4.1, reference [2] (DRR), and reference [8] (DLPM), whose deficit rule was read from its
    abstract and from a public implementation that cites it; its prefix matching is left out.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from scheduler_service.sim.baselines.queues import MICRO, UserQueues

QUANTUM_UNITS: Final = 1000
"""Default quantum in cost units a visit, about the mean cost of a request of the paper."""


class DeficitRoundRobin(UserQueues):
    """Deficit round robin: credit a visit, and requests that fit the balance.

    A visit adds `quantum * weight` once; the visited user keeps its turn while its head fits.

    Args:
        quantum_units: Cost units added a visit at weight 1, at least 1.
    """

    name = "drr"

    def __init__(self, quantum_units: int = QUANTUM_UNITS) -> None:
        super().__init__()
        self._units = quantum_units

    def started(self) -> None:
        """The active list is empty, all deficits are 0."""
        self._active: deque[int] = deque()
        self._deficit = [0] * len(self._queues)
        self._quantum = [self._units * weight * MICRO // 1000 for weight in self._weight]
        self._visiting = False  # whether the head of the list has had its quantum

    def arrived(self, user: int, request: int, now_ns: int, *, was_empty: bool) -> None:
        """Puts a newly backlogged user at the tail with no credit."""
        if was_empty:
            self._deficit[user] = 0
            self._active.append(user)

    def _price(self, user: int) -> int:
        return self._cost[self._queues[user][0]] * MICRO

    def select(self, now_ns: int) -> int:
        """Returns the user whose head fits its balance, visiting users until one does."""
        deficit, active = self._deficit, self._active
        while True:
            user = active[0]
            if not self._visiting:
                deficit[user] += self._quantum[user]
                self._visiting = True
            if self._price(user) <= deficit[user]:
                return user
            active.rotate(-1)
            self._visiting = False
            self._skip_rounds()

    def _skip_rounds(self) -> None:
        """Gives all users the credit of the rounds in which none of them could send."""
        rounds = min(
            -(-(self._price(user) - self._deficit[user]) // self._quantum[user])
            for user in self._active
        )
        for user in self._active:
            self._deficit[user] += max(0, rounds - 1) * self._quantum[user]

    def dispatched(self, user: int, request: int, now_ns: int) -> None:
        """Takes the cost off the balance; a user with nothing left loses its credit."""
        self._deficit[user] -= self._cost[request] * MICRO
        if not self._queues[user]:
            self._deficit[user] = 0
            self._active.popleft()
            self._visiting = False


class DeficitLocality(UserQueues):
    """The deficit rule of DLPM: only users with credit; when none has any, all get a quantum.

    Prompt tokens are charged at dispatch, response tokens as they are served.

    Args:
        quantum_tokens: Tokens of a refill at weight 1.
        prompt_price: Price of a prompt token.
        output_price: Price of a response token.
    """

    name = "dlpm"
    metered = True

    def __init__(
        self,
        quantum_tokens: int = QUANTUM_UNITS,
        prompt_price: int = 1,
        output_price: int = 2,
    ) -> None:
        super().__init__()
        self._tokens, self._in, self._out = quantum_tokens, prompt_price, output_price

    def started(self) -> None:
        """Nobody has credit."""
        self.credit = [0] * len(self._queues)
        self._running = [0] * len(self._queues)

    def select(self, now_ns: int) -> int:
        """Returns the user with credit whose head is the oldest."""
        credit = self.credit
        while True:
            able = [self._queues[user][0] for user in self._backlogged if credit[user] > 0]
            if able:
                return self._user[min(able)]
            for user, balance in enumerate(credit):
                if balance <= 0:
                    credit[user] = balance + self._tokens * self._weight[user]

    def dispatched(self, user: int, request: int, now_ns: int) -> None:
        """Charges the prompt."""
        self.credit[user] -= self._in * self._prompt[request] * 1000

    def served_prompt(self, request: int, tokens: int) -> None:
        """Changes nothing: the prompt was charged at dispatch."""

    def served_output(self, request: int, tokens: int) -> None:
        """Charges response tokens."""
        self.credit[self._user[request]] -= self._out * tokens * 1000

    def decoding(self, request: int, change: int) -> None:
        """Counts what a user has running."""
        self._running[self._user[request]] += change

    def decoded(self, tokens: int) -> None:
        """Charges a block of everything that runs."""
        for user, running in enumerate(self._running):
            if running:
                self.credit[user] -= self._out * tokens * running * 1000
