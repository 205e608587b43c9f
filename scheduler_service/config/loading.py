"""From file, environment and flags to checked settings; and settings to text again."""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scheduler_service.config.schema import Settings

ENVIRONMENT_PREFIX = "FAIRSCHED_"

_OF_OTHERS = re.compile(
    r"FAIRSCHED_(TARGET|TOKEN_FILE|CLIENT_TLS_[A-Z]+|HTTP_PORT|CONFIG"
    r"|PORT|PORT_\d+_.*|SERVICE_(HOST|PORT)(_.*)?)"
)
"""Variables of clients and of orchestrators that name a service's address; not settings."""

_IN_FILE_ONLY = {"pools"}


class ConfigRefused(ValueError):
    """The configuration is refused as a whole.

    Attributes:
        problems: (key, what is wrong with it).
    """

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        lines = (f"{key}: {problem}" if key else problem for key, problem in problems)
        super().__init__("; ".join(lines))
        self.problems = problems


def load(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Returns the settings in force.

    Args:
        file: TOML file; None for none.
        flags: Settings stated as flags; None values are not stated.
        environment: The environment; None takes that of the process.

    Raises:
        ConfigRefused: Something is unknown or out of range; names every bad key.
    """
    if environment is None:
        environment = os.environ
    stated = {key: value for key, value in (flags or {}).items() if value is not None}
    from_environment = _from_environment(environment)
    from_file = _from_file(file) if file is not None else {}
    try:
        return Settings.model_validate({**from_file, **from_environment, **stated})
    except ValidationError as error:
        raise ConfigRefused(_problems(error)) from None


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings that the environment states.

    Raises:
        ConfigRefused: A variable is named like a setting and is none.
    """
    found, problems = {}, []
    for name, value in environment.items():
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        key = name.removeprefix(ENVIRONMENT_PREFIX).lower()
        if key in Settings.model_fields and key not in _IN_FILE_ONLY and name.isupper():
            found[key] = value
        elif _OF_OTHERS.fullmatch(name) is None:
            problems.append((name, "is no setting"))
    if problems:
        raise ConfigRefused(problems)
    return found


def _from_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigRefused([(str(file), f"cannot be read: {error}")]) from error
    except (ValueError, RecursionError) as error:  # also numbers and nesting past any sense
        raise ConfigRefused([(str(file), f"is not TOML: {error}")]) from error


def _problems(error: ValidationError) -> list[tuple[str, str]]:
    problems = []
    for found in error.errors(include_url=False, include_context=False, include_input=False):
        key = ".".join(str(part) for part in found["loc"])
        if found["type"] == "extra_forbidden":
            problems.append((key, "is no setting"))
        else:
            problems.append((key, found["msg"].removeprefix("Value error, ")))
    return problems


def pools_of(settings: Settings) -> dict[str, dict[str, Any]]:
    """Returns the pools as plain data: for each what is stated, nothing else."""
    return {
        name: entry.model_dump(mode="json", exclude_none=True)
        for name, entry in settings.pools.items()
    }


def render(settings: Settings) -> str:
    """Returns settings as a TOML file that gives the same settings, each with its description."""
    lines = []
    for key, field in Settings.model_fields.items():
        if key in _IN_FILE_ONLY:
            continue
        value = getattr(settings, key)
        lines.append(f"# {field.description}")
        lines.append(f"# {key} =" if value is None else f"{key} = {_toml(value)}")
    for name, entry in pools_of(settings).items():
        users = entry.pop("users", {})
        lines += ["", f"[pools.{_toml(name)}]"]
        lines += [f"{key} = {_toml(value)}" for key, value in entry.items()]
        for user_id, own in users.items():
            lines += ["", f"[pools.{_toml(name)}.users.{_toml(user_id)}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in own.items()]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, Path):
        value = str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
