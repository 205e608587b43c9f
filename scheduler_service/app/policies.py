"""Pool policies from what an operator states: a preset and what is to differ from it.

The one way from a configuration file, and from the admin API, to a `PoolPolicy`.
"""

import enum
import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import get_type_hints

import msgspec

from scheduler_service.core.errors import InvalidCommand
from scheduler_service.core.policy import PRESETS, PoolPolicy, violations

_DIGEST_BYTES = 8

FIELD_TYPES: dict[str, type] = get_type_hints(PoolPolicy)
"""Type of every field of a policy."""

DEFAULT_PRESET = PoolPolicy().preset


def policy_from(
    stated: Mapping[str, object], *, base: PoolPolicy | None = None, path: str = "policy"
) -> PoolPolicy:
    """Returns the policy that differs from `base`, or from the preset stated, in what is stated.

    Args:
        stated: Values by field name of `PoolPolicy`, of the types that it declares.  Stating
            `preset` sets every field that is not stated beside it.
        base: Policy to change; without it, the default preset.
        path: Where the fields stand, for error messages.

    Raises:
        InvalidCommand: Names every bad field.
    """
    found: list[tuple[str, str]] = []
    changes = dict(stated)
    preset = changes.pop("preset", None)
    if preset is not None:
        if preset in PRESETS:
            base = PRESETS[str(preset)]
        else:
            found.append((f"{path}.preset", f"must be one of {', '.join(PRESETS)}"))
    for name in list(changes):
        problem = _type_problem(name, changes[name])
        if problem:
            found.append((f"{path}.{name}", problem))
            del changes[name]
    policy = msgspec.structs.replace(base or PRESETS[DEFAULT_PRESET], **changes)
    found += [(f"{path}.{name}", problem) for name, problem in violations(policy)]
    if found:
        raise InvalidCommand(found)
    return policy


def _type_problem(name: str, value: object) -> str:
    wanted = FIELD_TYPES.get(name)
    if wanted is None:
        return "is unknown"
    if issubclass(wanted, enum.Enum):
        return "" if isinstance(value, wanted) else f"must be a {wanted.__name__}"
    good = isinstance(value, int) and not isinstance(value, bool)
    return "" if good else "must be a whole number"


def policy_digest(policy: PoolPolicy) -> str:
    """Returns the digest that dispatch records name the policy by: 16 hexadecimal digits.

    It covers every field, whether or not it has its default value.
    """
    fields = {name: getattr(policy, name) for name in FIELD_TYPES}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
