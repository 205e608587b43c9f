"""What a request is taken to cost, and its class: its tokens, and what is in force in its pool."""

from typing import Final

from scheduler_service.core.policy import ClassBy, PredictedClass
from scheduler_service.core.state import Pool
from scheduler_service.estimator.classify import is_short
from scheduler_service.estimator.cost import (
    NOTHING_LEARNED,
    Tokens,
    cost_of,
    expected_output_tokens,
    output_ratio_milli,
)

_SHORT: Final = PredictedClass.SHORT
_BY_WORK: Final = ClassBy.WORK


def estimate(
    pool: Pool, user_id: str, tokens: Tokens, cost: int = 0, predicted_class: int = 0
) -> tuple[int, int, bool]:
    """Returns expected output tokens, cost, and whether the request is predicted short.

    Args:
        pool: Its policy and the ratios and cutoff in force.
        user_id: Its user.
        tokens: What the caller stated.
        cost: Stated cost, cost units; 0 if none was.
        predicted_class: Stated class; 0 if none was.
    """
    policy = pool.policy
    expected = tokens.predicted_output
    if not expected and tokens.output_cap:
        ratio = output_ratio_milli(
            (policy.prior_output_ratio_milli, policy.prior_weight_tokens),
            pool.ratios.get("", NOTHING_LEARNED),
            pool.ratios.get(user_id, NOTHING_LEARNED),
        )
        expected = expected_output_tokens(tokens, ratio)
    if not cost:
        cost = cost_of(tokens.prompt, expected, policy.prompt_cost_milli, policy.output_cost_milli)
    if predicted_class:
        return expected, cost, predicted_class == _SHORT
    short = is_short(
        prompt_tokens=tokens.prompt,
        output_tokens=expected,
        cost=cost,
        cutoff=pool.short_cutoff,
        by_work=policy.class_by is _BY_WORK,
    )
    return expected, cost, short
