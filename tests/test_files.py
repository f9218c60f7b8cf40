"""Files appear whole, with the permissions that the umask leaves; what a user names is written through."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiledsl.errors import TileError
from tiledsl.files import (
    append_lines,
    make_private,
    open_to_append,
    read_file,
    read_text,
    write_file,
    write_output,
    writing,
)

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(params=[0o022, 0o027, 0o002])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_of_64_mebibytes_are_read_and_larger_ones_are_not(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    os.truncate(file, 64 << 20)
    assert len(read_file(file)) == 64 << 20
    os.truncate(file, (64 << 20) + 1)
    with pytest.raises(ValueError, match="too large, 67108865 bytes"):
        read_file(file)


def test_others_may_read_what_the_umask_lets_them(tmp_path: Path, umask: int) -> None:
    write_file(tmp_path / "ours", b"1")
    write_output(tmp_path / "theirs", b"1")
    assert mode(tmp_path / "ours") == 0o644 & ~umask
    assert mode(tmp_path / "theirs") == 0o666 & ~umask


def test_a_file_keeps_its_permissions_and_a_link_stays(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("before")
    file.chmod(0o640)
    link.symlink_to("file")
    assert write_output(link, b"after") == link
    assert link.is_symlink() and file.read_text() == "after" and mode(file) == 0o640
    dangling = tmp_path / "dangling"
    dangling.symlink_to("new")
    write_output(dangling, b"new")
    assert dangling.is_symlink() and (tmp_path / "new").read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["dangling", "file", "link", "new"]


def test_into_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_output(pipe, b"through")
    reader.join(10)
    assert read == [b"through"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_into_a_device(tmp_path: Path) -> None:
    """A link in between, so that a mistake costs the link and not the machine its device."""
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:
        write_output(link, b"1")
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(link)
    assert link.is_symlink() and stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_output(tmp_path, b"1")
    with pytest.raises(FileNotFoundError, match="nowhere/file"):
        write_output(tmp_path / "nowhere" / "file", b"1")
    assert os.listdir(tmp_path) == []


CLOSED = """
import os, sys
from tiledsl.runtime.streams import have_streams
os.close(2)
sys.stderr = None
have_streams()
sys.stderr.flush()
file = os.open(FILE, os.O_WRONLY | os.O_CREAT)
os.write(2, b"what a compiler prints")
print(file > 2, os.path.getsize(FILE))
"""


def test_files_do_not_get_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    code = CLOSED.replace("FILE", repr(str(tmp_path / "file")))
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stdout == "True 0\n"


def test_private_folders_are_the_users_alone(tmp_path: Path, umask: int) -> None:
    make_private(tmp_path / "a" / "b" / "c")
    make_private(tmp_path / "a" / "b" / "c")
    assert [mode(tmp_path / each) for each in ("a", "a/b", "a/b/c")] == [0o700] * 3
    (tmp_path / "shared").mkdir()
    os.chmod(tmp_path / "shared", 0o770)
    make_private(tmp_path / "shared" / "own")
    assert (mode(tmp_path / "shared"), mode(tmp_path / "shared" / "own")) == (0o770, 0o700)
    with pytest.raises(OSError):
        make_private(Path("/proc/none"))


def test_what_is_checked_is_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that takes another one's place after the check is not read: both go by one descriptor."""
    ours, other = tmp_path / "ours", tmp_path / "other"
    write_file(ours, b"ours")
    other.write_bytes(b"theirs")
    fstat = os.fstat

    def replaced_after_check(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        os.replace(other, ours)
        return found

    monkeypatch.setattr(os, "fstat", replaced_after_check)
    assert read_file(ours, own=True) == b"ours"
    monkeypatch.undo()
    assert read_file(ours, own=True) == b"theirs"


def test_what_others_may_have_written_is_not_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    write_file(file, b"1")
    for unsafe in (0o664, 0o646, 0o666):
        os.chmod(file, unsafe)
        with pytest.raises(ValueError, match="others may write it"):
            read_file(file, own=True)
        assert read_file(file) == b"1"
    for safe in (0o755, 0o644):
        os.chmod(file, safe)
        assert read_file(file, own=True) == b"1"
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(OSError):
        read_file(tmp_path / "link", own=True)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    if os.getuid():  # what root owns counts as the user's own
        with pytest.raises(ValueError, match="others may write it"):
            read_file(file, own=True)
    else:
        assert read_file(file, own=True) == b"1"


def test_files_of_this_user_and_of_root_are_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    write_file(file, b"1")
    found = list(os.stat(file))
    for owner, user, own in ((1000, 1000, True), (0, 1000, True), (1001, 1000, False), (1000, 0, False), (0, 0, True)):
        status = os.stat_result([*found[:4], owner, *found[5:10]])
        monkeypatch.setattr(os, "fstat", lambda _, status=status: status)
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        if own:
            assert read_file(file, own=True) == b"1"
        else:
            with pytest.raises(ValueError, match="others may write it"):
                read_file(file, own=True)


def test_lines_go_to_the_end_of_a_file(tmp_path: Path, umask: int) -> None:
    file = tmp_path / "lines"
    for lines in (b"1\n", b"2\n3\n", b"4"):
        with open_to_append(file) as descriptor:
            os.lseek(descriptor, 0, os.SEEK_SET)
            append_lines(descriptor, lines)
            assert not os.get_inheritable(descriptor) and os.pread(descriptor, 2, 0) == b"1\n"
    assert file.read_bytes() == b"1\n2\n3\n4" and mode(file) == 0o644 & ~umask
    with open_to_append(file) as descriptor:
        append_lines(descriptor, b"5\n")  # behind a line that was cut short
    assert file.read_bytes() == b"1\n2\n3\n4\n5\n"
    with pytest.raises(OSError):
        os.fstat(descriptor)  # it is closed


def test_lines_that_fit_in_part_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:-1]))
    with open_to_append(tmp_path / "lines") as descriptor:
        with pytest.raises(OSError, match="only a part was written: the disk is full"):
            append_lines(descriptor, b"12\n")
        assert os.pread(descriptor, 9, 0) == b"12"


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_what_is_no_regular_file_is_not_appended_to(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "it"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("elsewhere")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="it is not a regular file" if kind == "pipe" else None), open_to_append(path):
        pytest.fail("it was opened")
    assert os.listdir(tmp_path) == ["it"] and len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize("own", [True, False])
def test_reading_waits_for_nothing(tmp_path: Path, own: bool) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ValueError, match="not a regular file"):
        read_file(path, own=own)
    with pytest.raises(ValueError, match="not a regular file"):
        read_file(tmp_path, own=own)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none", own=own)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_links_are_read_unless_the_file_must_be_the_users_own(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    write_file(file, b"1")
    link.symlink_to("file")
    assert read_file(link) == b"1"
    with pytest.raises(OSError) as caught:
        read_file(link, own=True)
    assert caught.value.errno == errno.ELOOP


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_file(path, b"before")
    with pytest.raises(TypeError):
        write_file(path, "no bytes")  # type: ignore[arg-type]
    monkeypatch.setattr(os, "replace", lambda *_: os.stat(tmp_path / "none"))
    with pytest.raises(FileNotFoundError) as caught:
        write_file(path, b"after")
    assert caught.value.filename == str(path) and caught.value.errno == errno.ENOENT
    assert os.listdir(tmp_path) == ["file"] and path.read_bytes() == b"before"


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(TileError) as caught, writing("there", ["a way out"]):
        os.stat(tmp_path / "none")
    assert caught.value.message == f"{tmp_path / 'none'} cannot be written: No such file or directory"
    assert caught.value.notes == ["a way out"]
    with pytest.raises(TileError) as caught, writing("there"):
        raise OSError("it is full")
    assert caught.value.message == "there cannot be written: it is full" and caught.value.notes == []
    with pytest.raises(ValueError), writing("there"):
        raise ValueError
    with writing("there"):
        pass


def test_texts_are_of_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes("é\n".encode())
    assert read_text(file) == read_text(str(file)) == "é\n"
    file.write_bytes(b"\xe9")
    for path, message in ((file, f"{file} cannot be read: "), (tmp_path / "none", "there is no file .*none$")):
        with pytest.raises(TileError, match=message):
            read_text(path)
    with pytest.raises(TileError, match=r"cannot be read: .*[Dd]irectory"):
        read_text(tmp_path)
