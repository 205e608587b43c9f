"""Python sources as syntax trees."""

import ast
from pathlib import Path

ATTEMPTS = 3


def tree_of(path: Path) -> ast.Module:
    """Parses a file.

    CPython 3.11 now and then reports a depth that does not match when another thread parses at the
    same time (python/cpython#106905); that says nothing about the file, so it is parsed again.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return ast.parse(path.read_text())
        except SystemError:
            continue
    return ast.parse(path.read_text())
