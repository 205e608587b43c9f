"""Pool policies to messages and back.

Fields have the same names on both sides but for times: `lease_duration` is a duration where the
core has `lease_duration_ns`.  The numbers of enums are the same (a test compares both).
"""

import enum
from collections.abc import Iterable
from typing import Any

from google.protobuf.duration_pb2 import Duration

from fairsched.v1 import policy_pb2 as pb
from scheduler_service.app.policies import FIELD_TYPES, policy_from
from scheduler_service.core.errors import InvalidCommand
from scheduler_service.core.policy import PRESETS, PoolPolicy
from scheduler_service.rpc.convert import duration
from scheduler_service.rpc.validate import nanoseconds

_EVERYTHING = "*"

CORE_NAMES = {
    name.removesuffix("_ns") if name.endswith("_ns") else name: name for name in FIELD_TYPES
}
"""Name of a field in the message -> its name in the core."""


def policy_message(policy: PoolPolicy) -> pb.PoolPolicy:
    """Returns a policy as a message, every field present."""
    values: dict[str, Any] = {}
    for name, core_name in CORE_NAMES.items():
        value = getattr(policy, core_name)
        values[name] = duration(value) if core_name.endswith("_ns") else value
    return pb.PoolPolicy(**values)


def stated(message: pb.PoolPolicy) -> tuple[dict[str, object], list[tuple[str, str]]]:
    """Returns what a message states, by the core's names, and every (field, problem) of it."""
    values: dict[str, object] = {}
    problems: list[tuple[str, str]] = []
    for field, value in message.ListFields():
        core_name = CORE_NAMES[field.name]
        kind = FIELD_TYPES[core_name]
        if isinstance(value, Duration):
            values[core_name] = nanoseconds(value)
        elif issubclass(kind, enum.Enum):
            try:
                values[core_name] = kind(value)
            except ValueError:
                problems.append((field.name, f"has no value {value}"))
        else:
            values[core_name] = value
    return values, problems


def created_policy(message: pb.PoolPolicy) -> PoolPolicy:
    """Returns the policy of a new pool: what is not stated is that of the preset.

    Raises:
        InvalidCommand: Names every bad field.
    """
    return _policy(message, None, ())


def updated_policy(
    policy: PoolPolicy, message: pb.PoolPolicy, paths: Iterable[str] = ()
) -> PoolPolicy:
    """Returns a policy with what `message` states changed.

    Args:
        policy: The policy in force.
        message: The change.
        paths: Of an update mask: the fields to change; one that is not stated goes back to the
            preset's.  Without any, exactly the fields that are stated change.

    Raises:
        InvalidCommand: Names every bad field.
    """
    return _policy(message, policy, tuple(paths))


def _policy(message: pb.PoolPolicy, base: PoolPolicy | None, paths: tuple[str, ...]) -> PoolPolicy:
    values, problems = stated(message)
    found = [(f"policy.{name}", problem) for name, problem in problems]
    if base is not None and paths:
        masked = _masked(paths, found)
        preset = PRESETS.get(str(values.get("preset", base.preset)), base)
        values = {name: values.get(name, getattr(preset, name)) for name in masked}
    try:
        policy = policy_from(values, base=base)
    except InvalidCommand as error:
        raise InvalidCommand(found + [_as_stated(*one) for one in error.violations]) from error
    if found:
        raise InvalidCommand(found)
    return policy


def _as_stated(field: str, problem: str) -> tuple[str, str]:
    """Returns a violation under the name that the field has in the message."""
    name = field.removesuffix("_ns")
    return (field, problem) if name == field else (name, f"{problem} (nanoseconds)")


def _masked(paths: tuple[str, ...], found: list[tuple[str, str]]) -> list[str]:
    """Returns the core's names of the fields that a mask names."""
    if paths == (_EVERYTHING,):
        return list(FIELD_TYPES)
    names = []
    for index, path in enumerate(paths):
        if path in CORE_NAMES:
            names.append(CORE_NAMES[path])
        else:
            found.append((f"update_mask.paths[{index}]", f"there is no field {path!r}"))
    return names
