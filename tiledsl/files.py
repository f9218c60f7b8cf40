"""Files: written whole or not at all, and read only if nobody else may have written them."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from tiledsl.errors import TileError

LARGEST_FILE = 64 << 20
_OURS = 0o644  # of what others read and nobody else writes
_USERS = 0o666  # as of any file that a program writes


def write_file(path: Path, data: bytes, mode: int = _OURS) -> None:
    """Write a file atomically: readers see the old content or all of the new one. Raises OSError.

    mode: the permissions, of which the umask takes its part.
    """
    try:
        temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(temporary, flags, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:  # which names the temporary file
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextlib.contextmanager
def open_to_append(path: Path) -> Iterator[int]:
    """A descriptor of a file that is read anywhere and written at its end; it is made if there is none. Raises OSError,
    also for a link and for what is no regular file."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, _OURS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def append_lines(descriptor: int, lines: bytes) -> None:
    """Add lines to a file in one write, so that writers at the same time do not mix. OSError if only a part fits.

    A last line that was cut short is ended first.
    """
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        lines = b"\n" + lines
    if os.write(descriptor, lines) != len(lines):
        raise OSError("only a part was written: the disk is full")


def write_output(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write a file that the user names, as `>` in a shell does, but in one step. Raises OSError.

    A link stays and what it leads to is written; a file that is there keeps its permissions; into a device or a pipe
    the data goes.
    """
    to = Path(path)
    try:
        there = os.stat(to).st_mode
    except FileNotFoundError:
        there = None
    if there is None or stat.S_ISREG(there):
        real = Path(os.path.realpath(to))
        write_file(real, data, _USERS)
        if there is not None:
            os.chmod(real, stat.S_IMODE(there))
    else:
        try:
            with open(to, "wb") as file:  # a folder is refused here
                file.write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(to)) from None
    return to


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], notes: Sequence[str] = ()) -> Iterator[None]:
    """Inside, an OSError becomes the TileError that says what cannot be written, `path` if the error names nothing."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise TileError(f"{error.filename or path} cannot be written: {reason}", notes=list(notes)) from error


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file that the user names, in UTF-8. TileError if there is none, or if it cannot be read."""
    if not os.path.exists(path):
        raise TileError(f"there is no file {os.fspath(path)}")
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TileError(f"{os.fspath(path)} cannot be read: {error}") from None


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for the user alone (mode 0700). Raises OSError.

    A folder that is there stays as it is: who shares a cache with a group has set its permissions.
    """
    missing = []
    while not folder.is_dir() and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def read_file(path: Path, *, own: bool = False) -> bytes:
    """A regular file of bearable size. OSError or ValueError otherwise; never waits, as reading a pipe would.

    own: ValueError also if another user than this one or root could have written it. What is checked is the very file
    that is read, whatever takes its place meanwhile; a link is not followed.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | (os.O_NOFOLLOW if own else 0)
    descriptor = os.open(path, flags)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("not a regular file")
        if found.st_size > LARGEST_FILE:
            raise ValueError(f"too large, {found.st_size} bytes")
        if own and (found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o022):
            raise ValueError("others may write it")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(LARGEST_FILE)
    finally:
        os.close(descriptor)
