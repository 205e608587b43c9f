"""How values are read from the command line: lengths of time, policy fields, enum values."""

import re

import typer
from google.protobuf import descriptor, duration_pb2, field_mask_pb2

from fairsched.v1 import policy_pb2

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = "google.protobuf.Duration"


def seconds(text: str) -> float:
    """Returns a length of time such as `500ms`, `30s`, `10m`, `2h` or `1.5` (seconds)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", text.strip())
    if match is None:
        message = f"{text!r} is not a length of time; write 500ms, 30s, 10m, 2h or 7d"
        raise typer.BadParameter(message)
    return float(match[1]) * _UNITS_S[match[2] or "s"]


def duration(text: str) -> duration_pb2.Duration:
    """Returns a length of time as a message."""
    message = duration_pb2.Duration()
    message.FromNanoseconds(round(seconds(text) * 1e9))
    return message


def weight_milli(text: str) -> int:
    """Returns a weight such as `2.5` in thousandths."""
    try:
        return round(float(text) * 1000)
    except (ValueError, OverflowError):
        message = f"{text!r} is not a weight; write a number such as 2.5"
        raise typer.BadParameter(message) from None


def policy(
    preset: str | None, settings: list[str] | None
) -> tuple[policy_pb2.PoolPolicy, field_mask_pb2.FieldMask | None]:
    """Returns the policy that `--preset` and `--set field=value` state.

    `field=` (without a value) goes back to the preset's; then the mask names every field.
    """
    made = policy_pb2.PoolPolicy()
    cleared: list[str] = []
    if preset is not None:
        made.preset = preset
    for text in settings or ():
        name, sign, value = text.partition("=")
        field = made.DESCRIPTOR.fields_by_name.get(name.strip())
        if not sign or field is None:
            names = ", ".join(made.DESCRIPTOR.fields_by_name)
            message = f"{text!r} is not field=value; fields are: {names}"
            raise typer.BadParameter(message)
        if value.strip():
            _set(made, field, value.strip())
        else:
            cleared.append(field.name)
    if not cleared:
        return made, None
    stated = [field.name for field, _ in made.ListFields()]
    return made, field_mask_pb2.FieldMask(paths=[*stated, *cleared])


def _set(made: policy_pb2.PoolPolicy, field: descriptor.FieldDescriptor, value: str) -> None:
    if field.message_type is not None and field.message_type.full_name == _DURATION:
        getattr(made, field.name).CopyFrom(duration(value))
    elif field.enum_type is not None:
        setattr(made, field.name, enum(field.enum_type, value))
    elif field.cpp_type == field.CPPTYPE_STRING:
        setattr(made, field.name, value)
    else:
        try:
            setattr(made, field.name, int(value.replace("_", "")))
        except ValueError:
            message = f"{field.name} takes a whole number, not {value!r}"
            raise typer.BadParameter(message) from None


def enum(kind: descriptor.EnumDescriptor, value: str) -> int:
    """Returns the number of an enum value such as `dead-lettered` or `PLACEMENT_STALL`."""
    wanted = value.upper().replace("-", "_").replace(" ", "_")
    known = {entry.name: entry.number for entry in kind.values}
    prefix = kind.values_by_number[0].name.removesuffix("UNSPECIFIED")
    exact = known.get(wanted, known.get(prefix + wanted) or None)
    matches = [number for name, number in known.items() if name.endswith(f"_{wanted}")]
    if exact is not None:
        return exact
    if len(matches) == 1 and matches[0]:
        return matches[0]
    choices = ", ".join(n.removeprefix(prefix).lower() for n, number in known.items() if number)
    message = f"{value!r} is none of: {choices}"
    raise typer.BadParameter(message)
