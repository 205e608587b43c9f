"""What a crash left at the end of the write-ahead file.

SQLite itself drops an incomplete transaction there, silently and correctly.  This only looks, so
that the drop is reported once, with file and offset.

The file is a header of 32 bytes, then frames: 24 bytes and a page each.  Header and frame carry the
salts of the current round; frames of earlier rounds may follow and mean nothing.
"""

from pathlib import Path

_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_SALTS_BYTES = 8
_HEADER_SALTS_AT = 16
_FRAME_SALTS_AT = 8


def torn_tail_offset(path: Path, valid_frames: int, page_bytes: int) -> int | None:
    """Returns the offset at which an incomplete transaction was dropped, or nothing.

    Args:
        path: The write-ahead file; it need not exist.
        valid_frames: Frames that the database found to be whole when it opened the file.
        page_bytes: Page size of the database.
    """
    if not path.exists():
        return None
    size = path.stat().st_size
    if size == 0:
        return None
    if size < _HEADER_BYTES:
        return 0
    offset = _HEADER_BYTES + valid_frames * (_FRAME_HEADER_BYTES + page_bytes)
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
        file.seek(offset)
        frame = file.read(_FRAME_HEADER_BYTES)
    salts = header[_HEADER_SALTS_AT : _HEADER_SALTS_AT + _SALTS_BYTES]
    found = frame[_FRAME_SALTS_AT : _FRAME_SALTS_AT + _SALTS_BYTES]
    if not frame or not salts.startswith(found):
        return None
    return offset
