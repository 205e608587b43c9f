"""Pools in the configuration: a preset, what differs from it, and users with their own settings.

    [pools.chat]
    preset = "fair_qba"
    quota_k = 8
    lease_duration_seconds = 30
    class_by = "response"

    [pools.chat.users."acme/batch"]
    weight_milli = 500
    max_in_flight = 4

The keys are those of `core.policy.PoolPolicy`: enums by their names in lower case, durations in
seconds instead of nanoseconds.  The model is made from that class, so the two cannot differ.
"""

import enum
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator

from scheduler_service.app.policies import FIELD_TYPES, policy_from
from scheduler_service.core.errors import InvalidCommand
from scheduler_service.core.policy import SECOND_NS, WEIGHT_MILLI_MAX, PoolPolicy
from scheduler_service.rpc.validate import is_id

_NANOS = "_ns"
_SECONDS = "_seconds"
_MAX_IN_FLIGHT = 10**9


class UserEntry(BaseModel):
    """A user with settings of its own.

    Attributes:
        weight_milli: Weight in thousandths; 1000 is weight 1.
        max_in_flight: Leased requests at once; 0 is no cap.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    weight_milli: int | None = Field(None, ge=1, le=WEIGHT_MILLI_MAX)
    max_in_flight: int | None = Field(None, ge=0, le=_MAX_IN_FLIGHT)


class Entry(BaseModel):
    """What all pool entries share."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    users: dict[str, UserEntry] = Field(default_factory=dict)

    @field_validator("users")
    @classmethod
    def _check_users(cls, users: dict[str, UserEntry]) -> dict[str, UserEntry]:
        for user_id in users:
            if not is_id(user_id):
                message = f"user id {user_id!r} must be 1 to 256 bytes without control characters"
                raise ValueError(message)
        return users


def key_of(field: str) -> str:
    """Returns the key by which the configuration knows a field of `PoolPolicy`."""
    return field.removesuffix(_NANOS) + _SECONDS if field.endswith(_NANOS) else field


def _model_fields() -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field, kind in FIELD_TYPES.items():
        wanted: Any = kind
        if field.endswith(_NANOS):
            wanted = int | float
        elif issubclass(kind, enum.Enum):
            wanted = str
        fields[key_of(field)] = (wanted | None, None)
    return fields


if TYPE_CHECKING:
    PoolEntry = Entry
else:
    PoolEntry = create_model("PoolEntry", __base__=Entry, **_model_fields())
    """One `[pools.NAME]` table; a key that is left out is None."""

POLICY_KEYS = {key_of(field): field for field in FIELD_TYPES}
"""Key in the configuration -> field of `PoolPolicy`."""


def stated(entry: Mapping[str, Any]) -> dict[str, object]:
    """Returns what an entry states, by field of `PoolPolicy` and in its types.

    A value that has no equal is handed on as it is, for `policy_from` to refuse.
    """
    found: dict[str, object] = {}
    for key, value in entry.items():
        field = POLICY_KEYS.get(key)
        if field is None or value is None:
            continue
        kind = FIELD_TYPES[field]
        if field.endswith(_NANOS):
            found[field] = _nanoseconds(value)
        elif issubclass(kind, enum.Enum):
            found[field] = kind.__members__.get(str(value).upper(), value)
        else:
            found[field] = value
    return found


def _nanoseconds(seconds: Any) -> object:
    """Returns seconds as nanoseconds, exactly as written; what is not finite, as it is."""
    value = Decimal(str(seconds))
    return int(value * SECOND_NS) if value.is_finite() else seconds


def policy_of(name: str, entry: Mapping[str, Any], base: PoolPolicy | None = None) -> PoolPolicy:
    """Returns the policy that an entry describes.

    Args:
        name: The pool.
        entry: Its keys and values.
        base: Policy that the entry changes; without it, the default preset.

    Raises:
        InvalidCommand: Names every bad key.
    """
    try:
        return policy_from(stated(entry), base=base, path=f"pools.{name}")
    except InvalidCommand as error:
        raise InvalidCommand([_in_keys(*violation) for violation in error.violations]) from None


def _in_keys(field: str, problem: str) -> tuple[str, str]:
    """Returns a violation with the key that the configuration knows the field by."""
    if field.endswith(_NANOS):
        return key_of(field), f"{problem} (in nanoseconds)"
    return field, problem
