"""A data directory, and stores in it that are closed when the test ends."""

import pytest

from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.sqlite import SqliteStore


@pytest.fixture
def directory(tmp_path):
    return DataDirectory(tmp_path / "data")


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
def open_store(directory, events):
    opened = []

    def open_(**options):
        store = SqliteStore(directory, report=events, **options)
        opened.append(store)
        return store

    yield open_
    for store in opened:
        store.close()
