"""`Complete` is no record, and still says what it is."""

from scheduler_service.core.completion import Complete
from scheduler_service.core.decisions import Outcome


def test_it_says_what_it_is():
    """As records do; who shrinks a failing trace reads it."""
    said = repr(Complete(now_ns=7, lease_id="l-1", outcome=Outcome.FAILED, error="x"))

    assert said.startswith("Complete(now_ns=7, nonce='', peer='', lease_id='l-1', outcome=")
    assert said.endswith("prompt_tokens=-1, output_tokens=-1, error='x', undelivered=False)")
