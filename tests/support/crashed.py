"""A data directory as a crash leaves it."""

import shutil
from pathlib import Path

from scheduler_service.store.directory import DataDirectory


def copy_as_crashed(directory: DataDirectory, target: Path) -> DataDirectory:
    """Copies the files of an open store, without the shared-memory file, which no crash keeps."""
    copy = DataDirectory(target)
    shutil.rmtree(copy.path, ignore_errors=True)
    copy.path.mkdir()
    for path in directory.path.iterdir():
        if not path.name.endswith("-shm"):
            shutil.copy(path, copy.path)
    return copy
