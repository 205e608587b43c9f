"""What the fault tests share: collecting events, copying a directory as a crash leaves it."""

import os
import shutil

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


def copy_as_crashed(directory: DataDirectory, target) -> DataDirectory:
    """Copies the files of an open store, without the shared-memory file, which no crash keeps."""
    copy = DataDirectory(target)
    shutil.rmtree(copy.path, ignore_errors=True)
    copy.path.mkdir()
    for path in directory.path.iterdir():
        if not path.name.endswith("-shm"):
            shutil.copy(path, copy.path)
    return copy
