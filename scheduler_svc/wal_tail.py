"""What SQLite leaves out at the end of its write-ahead log, and does not tell.

It reads a log up to the last commit before the first frame that is not whole, and ignores what follows, whether a write
was cut short there or the medium has lost something. The format is that of sqlite.org/fileformat2.html#walformat.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_HEADER = struct.Struct(">8I")
"""Magic number, version, page size, checkpoint number, two salts, two checksums."""
_FRAME = struct.Struct(">6I")
"""Page number, pages of the database after a commit (0: no commit), two salts, two checksums."""
_SUMMED_OF_HEADER = 24
_SUMMED_OF_FRAME = 8
_MAGIC = 0x377F0682
"""The last bit says in which order the bytes of a word are summed: 1 is big-endian."""

Checksum = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WalTail:
    """What follows the last commit that SQLite reads.

    `frames` are of this generation of the log, the last one perhaps in part. `lost_commits` are those that had been
    written beyond the first frame that is not whole, with that one: no write cut short leaves any. Where
    `header_is_damaged`, none of the log is read, and nothing more is known.
    """

    frames: int = 0
    lost_commits: int = 0
    header_is_damaged: bool = False

    def __bool__(self) -> bool:
        return self.header_is_damaged or self.frames > 0


@dataclass(frozen=True, slots=True)
class _Frame:
    """A frame: of this generation of the log, whole and the continuation of the one before, the end of a commit."""

    is_ours: bool
    is_whole: bool
    commits: bool


def read_tail(wal: Path, num_read: int) -> WalTail:
    """The tail of a log, of which SQLite reads `num_read` frames. To be called before anything is written."""
    content = wal.read_bytes() if wal.exists() else b""
    if not content:
        return WalTail()
    if not _is_header(content):
        return WalTail(header_is_damaged=True)
    frames = list(_frames(content, num_read))
    while frames and not frames[-1].is_ours:  # an older generation's, not overwritten yet
        frames.pop()
    first = next((index for index, frame in enumerate(frames) if not frame.is_whole), len(frames))
    beyond = sum(frame.commits for frame in frames[first + 1 :])
    return WalTail(len(frames), beyond + frames[first].commits if beyond else 0)


def _is_header(content: bytes) -> bool:
    if len(content) < _HEADER.size:
        return False
    magic, _, page_size, _, _, _, *checksum = _HEADER.unpack_from(content)
    is_page_size = 512 <= page_size <= 65536 and page_size & (page_size - 1) == 0
    if magic & ~1 != _MAGIC or not is_page_size:
        return False
    return _sum((0, 0), content[:_SUMMED_OF_HEADER], magic) == tuple(checksum)


def _frames(content: bytes, start: int) -> Iterator[_Frame]:
    """The frames from number `start` (from 0) on."""
    magic, _, page_size, _, *salts, first, second = _HEADER.unpack_from(content)
    size = _FRAME.size + page_size
    if start:
        *_, first, second = _FRAME.unpack_from(content, _HEADER.size + (start - 1) * size)
    is_ours, is_whole, checksum = True, True, (first, second)
    for offset in range(_HEADER.size + start * size, len(content), size):
        frame = content[offset : offset + size]
        if len(frame) < _FRAME.size:
            yield _Frame(is_ours, is_whole=False, commits=False)
            return
        page, pages_after, *found, first, second = _FRAME.unpack_from(frame)
        is_ours = found == salts
        is_whole = is_whole and is_ours and page > 0 and len(frame) == size
        if is_whole:
            checksum = _sum(_sum(checksum, frame[:_SUMMED_OF_FRAME], magic), frame[_FRAME.size :], magic)
            is_whole = checksum == (first, second)
        yield _Frame(is_ours, is_whole, commits=pages_after > 0)


def _sum(start: Checksum, content: bytes, magic: int) -> Checksum:
    """The checksum of `content`, a multiple of 8 bytes, on top of `start`."""
    words = array("I", content)
    if ("big" if magic & 1 else "little") != sys.byteorder:
        words.byteswap()
    first, second = start
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
