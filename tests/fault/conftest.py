"""What the fault tests share: collecting events, how many rounds."""

import os

import pytest

from scheduler_service.store.directory import DataDirectory

ROUNDS = int(os.environ.get("FAIRSCHED_FAULT_ROUNDS", "1"))
"""How many times the usual number of rounds and fault points; 20 is the nightly dose."""


class Events(list):
    """Collects events as (name, values)."""

    def __call__(self, event, /, **values):
        self.append((event, values))

    @property
    def names(self):
        return [name for name, _ in self]


@pytest.fixture
def events():
    return Events()


@pytest.fixture
def rounds():
    return ROUNDS


@pytest.fixture
def directory(tmp_path):
    return DataDirectory(tmp_path / "data")
