"""The scheduling core: a pure state machine whose log of decisions is its only truth."""

from importlib.util import find_spec
from typing import Final

_scheduler = find_spec(f"{__name__}.scheduler")

COMPILED: Final = _scheduler is not None and not str(_scheduler.origin).endswith(".py")
"""Whether the core runs compiled, or from its source; it decides the same either way."""
