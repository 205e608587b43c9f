"""Predicted short or predicted long: the work against the cutoff tau (QBA §II-C).

With `by_work` the prompt and the expected output together are compared, else the expected output
alone, as in the paper.  A caller that states a cost and no tokens is classified by its cost, since
a cost unit is usually a token.
"""


def is_short(
    *, prompt_tokens: int, output_tokens: int, cost: int, cutoff: int, by_work: bool
) -> bool:
    """Returns whether a request is predicted short.

    Args:
        prompt_tokens: Prompt length; 0 if not known.
        output_tokens: Expected output length; 0 if not known.
        cost: Its cost units, at least 1; used when no token count is known.
        cutoff: tau in tokens; 0 if there is none yet: everything is short.
        by_work: Whether prompt and output count together.
    """
    if cutoff == 0:
        return True
    size = output_tokens + (prompt_tokens if by_work else 0)
    if prompt_tokens == 0 and output_tokens == 0:
        size = cost
    return size <= cutoff
