"""Binaries kept as files: taken for what they were compiled for alone, and only if nobody changed them."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.fake_driver import FakeDriver, active
from tiledsl.runtime import kernel_files, launch_stored, launch_triton
from tiledsl.runtime.launch_stored import CachedBinary, find, install, specialised
from tiledsl.runtime.module import load_module

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(launch_triton.knobs() is None, reason="needs a Triton whose launcher is known")

SHIFT = """
import triton
import triton.language as tl


@triton.jit
def shift(x, y, by, factor):
    at = tl.arange(0, 16)
    tl.store(y + at, tl.load(x + at + by) * factor)
"""


_processes = itertools.count()


def new_function() -> Any:
    """As a process has it that has just started: modules of one text are loaded once."""
    return load_module("shift", SHIFT + f"# in process {next(_processes)}\n", interpret=False).shift


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    with active(FakeDriver()):
        yield


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Triton compiled itself."""
    kernels: list[Any] = []
    ordinary = triton.compiler.compile

    def compile(*arguments: Any, **options: Any) -> Any:
        kernels.append(ordinary(*arguments, **options))
        return kernels[-1]

    monkeypatch.setattr(triton.compiler, "compile", compile)
    return kernels


@pytest.fixture
def launch(tmp_path: Path, compiled: list[Any]) -> Callable[..., Any]:
    """Compile as a new process would that has this folder: `launch(y=..., source=..., num_warps=...)`."""

    def run(source: str = "0" * 64, num_warps: int = 1, name: str = "shift", **given: Any) -> Any:
        function = new_function()
        install(function, CachedBinary(name, tmp_path, source))
        values = {"x": torch.empty(64), "y": torch.empty(64), "by": 3, "factor": 2.0, **given}
        return function.run(*values.values(), grid=(1,), warmup=True, num_warps=num_warps)

    return run


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("shift.*.kept.*"))


def test_the_second_process_compiles_nothing(launch: Any, compiled: list[Any], tmp_path: Path) -> None:
    first = launch()
    assert len(compiled) == 1 and [each.suffix for each in files(tmp_path)] == [".cubin", ".json", ".triton"]
    again = launch()
    assert len(compiled) == 1 and again is not first
    assert again.kernel == first.kernel and again.metadata.num_warps == 1 and again.hash == first.hash


def test_the_first_schema_is_what_later_versions_find(launch: Any, tmp_path: Path) -> None:
    """Files outlive the version that wrote them: other names in them need another number."""
    launch()
    described = json.loads(next(each for each in files(tmp_path) if each.suffix == ".json").read_text())
    assert described["schema"] == 1 and set(described) == {"schema", "asked", "files"}
    assert set(described["files"]) == {"cubin", "triton"}
    assert set(described["asked"]) == {
        "source", "language", "signature", "constants", "attrs", "options", "target", "variables", "triton", "library",
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"num_warps": 2},
        {"source": "1" * 64},
        {"by": 16},
        {"by": 1},
        {"by": 1 << 40},
        {"x": torch.empty(65)[1:]},
        {"x": torch.empty(64, dtype=torch.float16)},
    ],
    ids=lambda change: "-".join(change),
)
def test_another_launch_takes_another_binary(
    launch: Any, compiled: list[Any], tmp_path: Path, change: dict[str, Any]
) -> None:
    launch(), launch(**change)
    assert len(compiled) == 2 and len(files(tmp_path)) == 6
    launch(), launch(**change)
    assert len(compiled) == 2


def test_another_version_or_library_of_triton_compiles_anew(
    launch: Any, compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch()
    monkeypatch.setattr(launch_stored, "library_size", lambda: 5)
    launch()
    monkeypatch.setattr(triton, "__version__", "3.6.99")
    launch()
    assert len(compiled) == 3


def _edited(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (file,) = folder.glob("*.json")
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return edit


def _damaged(suffix: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (file,) = folder.glob(f"shift.*{suffix}")
        data = file.read_bytes()
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    return damage


def _gone(suffix: str) -> Callable[[Path], None]:
    return lambda folder: next(folder.glob(f"shift.*{suffix}")).unlink()


def _mode(mode: int) -> Callable[[Path], None]:
    return lambda folder: next(folder.glob("shift.*.json")).chmod(mode)


@pytest.mark.parametrize(
    "change",
    [
        _edited(schema=launch_stored.SCHEMA + 1), _edited(asked={}), _edited(files={}), _edited(files=3),
        _damaged(".cubin"),
        _damaged(".triton"), _damaged(".json"), _gone(".cubin"), _gone(".triton"), _gone(".json"), _mode(0o620),
        _mode(0o602),
    ],
)  # fmt: skip
def test_what_was_changed_is_compiled_anew_and_kept(
    launch: Any, compiled: list[Any], tmp_path: Path, change: Callable[[Path], None]
) -> None:
    launch()
    change(tmp_path)
    assert launch().kernel == compiled[0].kernel and len(compiled) == 2
    launch()
    assert len(compiled) == 2  # it was written again


@pytest.mark.parametrize(
    ("knob", "value"),
    [("debug", True), ("always_compile", True), ("dump_ir", True), ("instrumentation_mode", "consan")],
)
def test_where_triton_is_watched_nothing_is_taken_or_kept(
    launch: Any, compiled: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knob: str, value: Any
) -> None:
    found = launch_triton.knobs()
    assert found is not None
    launch(by=7)
    kept = files(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(launch_stored, "knobs", lambda: (_With(found[0], knob, value), _With(found[1], knob, value)))
        launch(by=7), launch(by=32)
    assert len(compiled) == 3 and files(tmp_path) == kept


@pytest.mark.parametrize("part", ["runtime", "compilation"])
def test_which_knobs_watch(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watching = {"runtime": launch_stored._RUNTIME, "compilation": launch_stored._COMPILATION}
    for name in (*watching["runtime"], *watching["compilation"], "launch_enter_hook", "other"):
        set_knob = SimpleNamespace(**{name: True})
        knobs = tuple(set_knob if each == part else SimpleNamespace() for each in watching)
        monkeypatch.setattr(launch_stored, "knobs", lambda knobs=knobs: knobs)
        assert launch_stored._is_watched() is (name in watching[part])
    monkeypatch.setattr(launch_stored, "knobs", lambda: None)  # of a Triton that is not known
    assert launch_stored._is_watched() is True


class _With:
    """Knobs of which one is set."""

    def __init__(self, knobs: Any, name: str, value: Any) -> None:
        self._knobs, self._set = knobs, {name: value} if hasattr(knobs, name) else {}

    def __getattr__(self, name: str) -> Any:
        return self._set.get(name) or getattr(self._knobs, name)


def _with(number: int, data: bytes) -> bytes:
    return json.dumps({**json.loads(data), "num_warps": number}).encode()


@pytest.mark.parametrize(
    ("kind", "edit"),
    [("triton", lambda data: _with(2, data)), ("cubin", lambda data: data + b"\0")],
    ids=["triton", "cubin"],
)
def test_files_that_change_while_they_are_read_are_not_taken(
    launch: Any, compiled: list[Any], monkeypatch: pytest.MonkeyPatch, kind: str, edit: Callable[[bytes], bytes]
) -> None:
    """Triton reads them again."""
    launch()
    read = kernel_files.read

    def other(*arguments: Any) -> Any:
        kept = read(*arguments)
        path, data = kept[kind]
        return {**kept, kind: (path, edit(data))}

    monkeypatch.setattr(kernel_files, "read", other)
    launch()
    assert len(compiled) == 2


def test_builds_of_triton_are_told_apart_by_the_size_of_its_library() -> None:
    from triton._C import libtriton

    assert launch_stored.library_size() == os.path.getsize(libtriton.__file__) > 1 << 20


def test_a_folder_keeps_so_many(launch: Any, tmp_path: Path) -> None:
    for number in range(15):
        (tmp_path / f"shift.{number}.kept.json").write_text("")
    for by in (3, 32):
        launch(by=by)
    assert len(list(tmp_path.glob("shift.*.json"))) == 16


def test_a_folder_that_cannot_be_written_costs_nothing(compiled: list[Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    function = new_function()
    install(function, CachedBinary("shift", tmp_path / "file", "0" * 64))
    assert function.run(torch.empty(64), torch.empty(64), 3, 2.0, grid=(1,), warmup=True) is compiled[0]


def test_a_function_that_ran_is_left_alone(launch: Any, compiled: list[Any], tmp_path: Path) -> None:
    function = new_function()
    given = (torch.empty(64), torch.empty(64), 3, 2.0)
    function.run(*given, grid=(1,), warmup=True)
    install(function, CachedBinary("shift", tmp_path, "0" * 64))
    function.run(*given[:2], 32, 2.0, grid=(1,), warmup=True)
    assert len(compiled) == 2 and files(tmp_path) == [] and not hasattr(function, "kept")
    of_a_level = new_function()
    of_a_level.artifact = "a file of it"
    install(of_a_level, CachedBinary("shift", tmp_path, "0" * 64))
    assert not hasattr(of_a_level, "kept")


# Without Triton's own look at the arguments


def offered(folder: Path) -> Any:
    function = new_function()
    install(function, CachedBinary("shift", folder, "0" * 64))
    return function


def test_a_launch_finds_what_triton_would_compile(launch: Any, compiled: list[Any], tmp_path: Path) -> None:
    x, odd = torch.empty(64), torch.empty(65)[1:]
    launches = [(x, x, 3, 2.0), (odd, x, 3, 2.0), (x, odd, 3, 2.0), (x, x, 32, 2.0), (x, x, 1 << 40, 2.0), (x.half(), x, 3, 2.0)]  # fmt: skip # noqa: E501
    for given in launches:
        assert find(offered(tmp_path), given, {"num_warps": 1}) is None
        made = launch(**dict(zip(("x", "y", "by", "factor"), given)))
        found = find(offered(tmp_path), given, {"num_warps": 1})
        assert found.kernel == made.kernel and found.hash == made.hash
        assert find(offered(tmp_path), given, {"num_warps": 2}) is None
    assert len(compiled) == len(launches)


def test_what_is_not_sure_is_left_to_triton(launch: Any, tmp_path: Path) -> None:
    given = (torch.empty(64), torch.empty(64), 3, 2.0)
    launch()
    assert find(offered(tmp_path), given, {"num_warps": 1}) is not None
    plain = new_function()
    assert find(plain, given, {"num_warps": 1}) is None
    for name, value in (("debug", True), ("pre_run_hooks", [print]), ("is_gluon", lambda: True)):
        function = offered(tmp_path)
        setattr(function, name, value)
        assert find(function, given, {"num_warps": 1}) is None, name
    for other in ((*given[:2], 1, 2.0), (*given[:2], 3, "2"), (*given[:2], True, 2.0)):
        assert find(offered(tmp_path), other, {"num_warps": 1}) is None


@pytest.mark.parametrize(
    ("value", "kind", "divisible"),
    [
        (0, "i32", True), (2, "i32", False), (-1, "i32", False), (15, "i32", False), (16, "i32", True),
        (17, "i32", False),
        (-(1 << 31), "i32", True), (-(1 << 31) - 1, "i64", False), ((1 << 31) - 1, "i32", False),
        (1 << 31, "i64", True),
        ((1 << 63) - 1, "i64", False), (-(1 << 63), "i64", True), (1.0, "fp32", None), (2.5, "fp32", None),
    ],
)  # fmt: skip
def test_how_triton_sees_a_number(value: Any, kind: str, divisible: bool | None) -> None:
    assert specialised(value, False) == (kind, divisible)
    assert specialised(value, True) == (kind, None)


def test_how_triton_sees_a_descriptor() -> None:
    class TensorDescriptor:
        base, block_shape = torch.empty(4, dtype=torch.float16), [64, 32]

    assert specialised(TensorDescriptor(), False) == ("tensordesc<fp16[64, 32]>", None)
    TensorDescriptor.layout = None  # type: ignore[attr-defined] # Gluon's
    with pytest.raises(ValueError, match="an argument that is a TensorDescriptor"):
        specialised(TensorDescriptor(), False)


@pytest.mark.parametrize("value", [1, 1 << 63, -(1 << 63) - 1, True, "x", None])
def test_numbers_that_are_left_to_triton(value: Any) -> None:
    with pytest.raises(ValueError, match="an argument that is a"):
        specialised(value, False)
    if value == 1 and value is not True:
        assert specialised(value, True) == ("i32", None)
