"""The configuration: schema, sources, and what a changed file changes."""

from scheduler_service.config.applied import AppliedFiles, Plan, digest_of, plan
from scheduler_service.config.loading import ConfigRefused, load, pools_of, render
from scheduler_service.config.schema import (
    DEFAULT_POOL,
    LogFormat,
    LogLevel,
    Settings,
    is_loopback,
    split_address,
)

__all__ = [
    "DEFAULT_POOL",
    "AppliedFiles",
    "ConfigRefused",
    "LogFormat",
    "LogLevel",
    "Plan",
    "Settings",
    "digest_of",
    "is_loopback",
    "load",
    "plan",
    "pools_of",
    "render",
    "split_address",
]
