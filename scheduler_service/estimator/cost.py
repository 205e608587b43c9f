"""What a request costs, from its tokens, before it runs (SFQ §7.4).

    cost            = (a * prompt_tokens + b * expected_output) / 1000, rounded up, at least 1
    expected_output = the caller's prediction, or
                      output cap * (total real output / total cap), rounded up, at most the cap

`a` and `b` are cost units for 1000 tokens.  The ratio is learned: the pool's own rests on a prior
that counts for so many cap tokens, a user's rests on the pool's in the same way, so a user nobody
has seen is estimated like everybody, and one that has been seen often like itself.

What is charged is never corrected afterwards (SFQ §5.1): a wrong estimate is a matter for the next
estimate, and for the error that is measured.
"""

from typing import Final, final

from mypy_extensions import mypyc_attr

RATIO_MILLI_MAX: Final = 1_000_000
"""Largest output ratio in thousandths of the cap."""

_MILLI: Final = 1000


@final
@mypyc_attr(acyclic=True)
class Tokens:
    """Token counts that a caller stated; 0 is not known.

    Attributes:
        prompt: Prompt length.
        output_cap: Most output it asked for.
        predicted_output: Output length it predicts itself.
    """

    __slots__ = ("output_cap", "predicted_output", "prompt")

    def __init__(self, prompt: int, output_cap: int, predicted_output: int) -> None:
        self.prompt = prompt
        self.output_cap = output_cap
        self.predicted_output = predicted_output

    @property
    def stated(self) -> bool:
        """Whether any of them is known."""
        return self.prompt > 0 or self.output_cap > 0 or self.predicted_output > 0


Learned = tuple[int, int]
"""Real output in thousandths of the cap, and the cap tokens that rests on: 0 if none were seen."""

NOTHING_LEARNED: Final[Learned] = (0, 0)


def output_ratio_milli(
    prior: Learned, pool: Learned = NOTHING_LEARNED, user: Learned = NOTHING_LEARNED
) -> int:
    """Returns the output ratio to expect, in thousandths of the cap, rounded down, at least 1.

    Args:
        prior: What is believed before anything was seen, and how many cap tokens that counts for.
        pool: What the pool's requests showed.
        user: What this user's requests showed.
    """
    ratio, weight = prior
    for seen, tokens in (pool, user):
        if tokens:
            ratio = (ratio * weight + seen * tokens) // (weight + tokens)
    return min(max(ratio, 1), RATIO_MILLI_MAX)


def expected_output_tokens(tokens: Tokens, ratio_milli: int) -> int:
    """Returns the output length to expect, in tokens; 0 if nothing was said about it.

    Args:
        tokens: A prediction wins over the cap.
        ratio_milli: Expected output in thousandths of the cap, at least 1.
    """
    if tokens.predicted_output:
        return tokens.predicted_output
    expected = -(-tokens.output_cap * ratio_milli // _MILLI)
    return min(expected, tokens.output_cap)


def cost_of(
    prompt_tokens: int, output_tokens: int, prompt_cost_milli: int, output_cost_milli: int
) -> int:
    """Returns cost units for these tokens, rounded up, at least 1: nobody rides free.

    Args:
        prompt_tokens: Prompt length, at least 0.
        output_tokens: Expected or real output length, at least 0.
        prompt_cost_milli: Cost units for 1000 prompt tokens, at least 0.
        output_cost_milli: Cost units for 1000 output tokens, at least 0.
    """
    milli = prompt_tokens * prompt_cost_milli + output_tokens * output_cost_milli
    return max(-(-milli // _MILLI), 1)
