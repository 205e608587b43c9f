"""Methods that charge what is served: CFS-like, the virtual token counter, and two counters.

Counters are exact: whole tokens times their price, over the weight, as fractions.

Source:
    SFQ §6.1 and reference [6] (CFS), §6.2 and reference [7] (VTC: input price at admission,
    output price as served, lift on return to the smallest counter of the waiting, or to that of
    the last user that left when nobody waits), reference [9] (two counters; see `TwoCounter`).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from scheduler_service.sim.baselines.queues import UserQueues

INPUT_PRICE: Final = 1
OUTPUT_PRICE: Final = 2


class _Served(UserQueues):
    """A counter a user, raised as tokens are served; the smallest goes next."""

    metered = True
    _output_price = OUTPUT_PRICE

    def started(self) -> None:
        """All counters are 0."""
        self._tokens = [0] * len(self._queues)  # price-weighted tokens served
        self._lift = [Fraction(0)] * len(self._queues)  # what lifts have added
        self._running = [0] * len(self._queues)
        self._last_left = 0  # user whose queue was the last to become empty

    def counter(self, user: int) -> Fraction:
        """Returns the counter of `user`: service over weight, and lifts."""
        return Fraction(self._tokens[user] * 1000, self._weight[user]) + self._lift[user]

    def _floor(self, user: int) -> Fraction:
        """Returns the level that a returning user is raised to."""
        others = [self.counter(other) for other in self._backlogged if other != user]
        return min(others) if others else self.counter(self._last_left)

    def arrived(self, user: int, request: int, now_ns: int, *, was_empty: bool) -> None:
        """Raises a returning user, so that idle time is not banked."""
        if was_empty:
            self._lift[user] += max(Fraction(0), self._floor(user) - self.counter(user))

    def select(self, now_ns: int) -> int:
        """Returns the user with the smallest counter; ties by user."""
        return min(self._backlogged, key=lambda user: (self.counter(user), user))

    def dispatched(self, user: int, request: int, now_ns: int) -> None:
        """Notes who left last."""
        if not self._queues[user]:
            self._last_left = user

    def served_prompt(self, request: int, tokens: int) -> None:
        """Charges prompt tokens as they are served."""
        self._tokens[self._user[request]] += tokens

    def served_output(self, request: int, tokens: int) -> None:
        """Charges response tokens."""
        self._tokens[self._user[request]] += self._output_price * tokens

    def decoding(self, request: int, change: int) -> None:
        """Counts what a user has running."""
        self._running[self._user[request]] += change

    def decoded(self, tokens: int) -> None:
        """Charges a block of everything that runs."""
        price = self._output_price * tokens
        for user, running in enumerate(self._running):
            if running:
                self._tokens[user] += price * running


class ChargeAsServed(_Served):
    """CFS-like: every token is charged when it is served, at one price, over the weight.

    A user that wakes up is raised to the smallest counter of the waiting users (`min_vruntime`,
    a running maximum as in the kernel).
    """

    name = "cfs"
    _output_price = 1

    def started(self) -> None:
        """All counters are 0."""
        super().started()
        self._minimum = Fraction(0)

    def _floor(self, user: int) -> Fraction:
        """Returns `min_vruntime`."""
        others = [self.counter(other) for other in self._backlogged if other != user]
        if others:
            self._minimum = max(self._minimum, min(others))
        return self._minimum

    def dispatched(self, user: int, request: int, now_ns: int) -> None:
        """Advances `min_vruntime` to whoever runs."""
        super().dispatched(user, request, now_ns)
        self._minimum = max(self._minimum, self.counter(user))


class TokenCounter(_Served):
    """VTC: the prompt is charged at dispatch, each response token as it is served."""

    name = "vtc"

    def dispatched(self, user: int, request: int, now_ns: int) -> None:
        """Charges the prompt."""
        super().dispatched(user, request, now_ns)
        self._tokens[user] += INPUT_PRICE * self._prompt[request]

    def served_prompt(self, request: int, tokens: int) -> None:
        """Changes nothing: the prompt was charged at dispatch."""


class TwoCounter(UserQueues):
    """Two counters a user, after the abstract of Equinox; only the idea, not its formulas.

    From the abstract: one counter for what the user gets (weighted tokens), one for what the
    operator spends (use of the engine), both from predictions made before execution, and a score
    that weighs them with tunable parameters; the smallest score goes next.  Its formulas, its
    predictor (here the request's own prediction), adaptive batching and latency term could not
    be read and are left out, so this says how two counters behave, not how Equinox does.

    Here the user's counter is prompt + 2 * predicted response, and the operator's is the space the
    request takes in batches, prompt + predicted response, each over the weight.  Both are taken as
    a share of all users' so that the weights `alpha` and 1 - `alpha` mean something.

    Args:
        alpha_milli: Weight of the user's counter in thousandths.
    """

    name = "two_counter"

    def __init__(self, alpha_milli: int = 500) -> None:
        super().__init__()
        self._alpha = alpha_milli

    def started(self) -> None:
        """All counters are 0."""
        count = len(self._queues)
        self._user_side, self._engine_side = [Fraction(0)] * count, [Fraction(0)] * count

    def score(self, user: int) -> Fraction:
        """Returns the weighted sum of both counters, each as a share of all users'."""
        mine = self._alpha, 1000 - self._alpha
        total = Fraction(0)
        for weight, side in zip(mine, (self._user_side, self._engine_side), strict=True):
            everyone = sum(side)
            if everyone:
                total += weight * side[user] / everyone
        return total

    def arrived(self, user: int, request: int, now_ns: int, *, was_empty: bool) -> None:
        """Raises a returning user's counters to the smallest of the waiting users'."""
        others = [other for other in self._backlogged if other != user]
        if was_empty and others:
            for side in (self._user_side, self._engine_side):
                side[user] = max(side[user], min(side[other] for other in others))

    def select(self, now_ns: int) -> int:
        """Returns the user with the smallest score; ties by user."""
        return min(self._backlogged, key=lambda user: (self.score(user), user))

    def dispatched(self, user: int, request: int, now_ns: int) -> None:
        """Charges both counters from the prediction."""
        prompt, response = self._prompt[request], self._response[request]
        weight = self._weight[user]
        tokens = INPUT_PRICE * prompt + OUTPUT_PRICE * response
        self._user_side[user] += Fraction(tokens * 1000, weight)
        self._engine_side[user] += Fraction((prompt + response) * 1000, weight)
