"""The files of compiled kernels: what is written is read again, and nothing else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tiledsl.runtime import kernel_files

COMPILED = SimpleNamespace(asm={"cubin": b"\x7fELF", "llir": "define", "ttir": "module {}", "source": "none"})


def test_levels_come_in_their_order_as_bytes() -> None:
    found = kernel_files.contents(COMPILED)
    assert [*found.items()] == [("ttir", b"module {}"), ("llir", b"define"), ("cubin", b"\x7fELF")]
    assert kernel_files.contents(COMPILED, kernel_files.BINARIES) == {"cubin": b"\x7fELF"}


def test_what_describes_the_others_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    ordinary = kernel_files.write_file
    monkeypatch.setattr(kernel_files, "write_file", lambda path, data: (order.append(path.name), ordinary(path, data)))
    files = kernel_files.contents(COMPILED)
    paths = kernel_files.write(tmp_path, "a.b", files, b"{}")
    assert order == ["a.b.ttir", "a.b.llir", "a.b.cubin", "a.b.json"] == [path.name for path in paths]
    found = kernel_files.read(tmp_path, "a.b", kernel_files.digests(files))
    assert found == {suffix: (tmp_path / f"a.b.{suffix}", data) for suffix, data in files.items()}


def test_what_was_changed_or_is_gone_is_not_read(tmp_path: Path) -> None:
    files = {"ttir": b"module {}", "ptx": b".version"}
    kernel_files.write(tmp_path, "kernel", files)
    expected = kernel_files.digests(files)
    (tmp_path / "kernel.ptx").write_bytes(b".version 8")
    with pytest.raises(ValueError, match=r"kernel\.ptx has been changed"):
        kernel_files.read(tmp_path, "kernel", expected)
    (tmp_path / "kernel.ptx").write_bytes(b".version")
    (tmp_path / "kernel.ttir").chmod(0o666)
    with pytest.raises(ValueError, match="others may write it"):
        kernel_files.read(tmp_path, "kernel", expected)
    (tmp_path / "kernel.ttir").unlink()
    with pytest.raises(FileNotFoundError):
        kernel_files.read(tmp_path, "kernel", expected)
