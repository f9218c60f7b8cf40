"""Kernels in Triton, or without source, from every level; bundles of Triton Runner; what a launch must not be given."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

import tiledsl
from tests.levels.conftest import SCALE
from tests.support.fake_driver import FakeDriver
from tiledsl.autotuner.storage.fingerprint import canonical
from tiledsl.errors import TileError
from tiledsl.levels.triton_kernel import TritonKernel
from tiledsl.runtime.compile import CompileError

CUDA = ("ttir", "ttgir", "llir", "ptx", "cubin")
TYPES = ("*fp32:16", "*fp32:16", "i32", "fp32")


@pytest.fixture(scope="session")
def compiled(scale: Any) -> Any:
    return tiledsl.triton_kernel(scale).compile(*TYPES, B=128, num_warps=2, target="cuda:90")


@pytest.fixture
def runner(scale_saved: Path, tmp_path: Path) -> Path:
    """The levels as Triton Runner keeps them: Triton's metadata, and a signature as text."""
    folder = tmp_path / "runner"
    shutil.copytree(scale_saved, folder)
    values = json.loads((folder / "scale.json").read_text())
    for name in ("schema", "language", "options", "arguments", "parameter_bytes", "source_sha256", "files"):
        del values[name]
    values["kernel_signature"] = (
        "(('x', '*fp32', 'D', False), ('y', '*fp32', 'D', False), ('n', 'i32', '', False), "
        "('factor', 'fp32', None, False), ('B', 'constexpr', 128, True), ('RELU', 'constexpr', False, False))"
    )
    (folder / "scale.json").write_text(json.dumps(values))
    (folder / "__grp__scale.json").write_text(json.dumps({"child_paths": {}}))  # which lies there, too
    return folder


def launched(kernel: TritonKernel, *arguments: Any, grid: Any = (1,), **keywords: Any) -> Any:
    """What Triton would launch, and the grid's size."""
    sizes: list[Any] = []
    results: list[Any] = []
    run = kernel.function.run

    def compile_only(*given: Any, grid: Any, warmup: bool, **rest: Any) -> None:
        sizes.append(grid(dict(zip(kernel.function.arg_names, given)) | rest) if callable(grid) else grid)
        results.append(run(*given, grid=(1,), warmup=True, **rest))

    kernel.function.run = compile_only
    try:
        kernel[grid](*arguments, **keywords)
    finally:
        del kernel.function.run
    return results[0], sizes[0]


@pytest.mark.parametrize("level", CUDA)
def test_each_level_gives_the_same_binary(
    scale: Any, compiled: Any, scale_saved: Path, runner: Path, level: str
) -> None:
    for loaded in (
        tiledsl.triton_kernel(scale).from_level(level, scale_saved),
        tiledsl.triton_kernel(scale).from_level(level, runner / f"scale.{level}"),
        tiledsl.triton_kernel(scale_saved, level),
        tiledsl.triton_kernel(runner / f"scale.{level}"),
    ):
        assert loaded.asm["cubin"] == compiled.asm["cubin"] and loaded.compiled.metadata["num_warps"] == 2
        assert len(loaded.remarks) == 1 and "edited" not in loaded.remarks[0]


def test_calls_are_specialised_as_triton_does(scale: Any, compiled: Any, device: FakeDriver) -> None:
    kernel = tiledsl.triton_kernel(scale)
    x, y = torch.empty(1000), torch.empty(1000)
    made = kernel.compile(x, y, 1001, 2.0, B=128, num_warps=2, target="cuda:90")
    assert made.asm["cubin"] == compiled.asm["cubin"]
    for n, aligned in ((1001, x), (1008, x), (1, x), (1 << 40, x), (7, torch.empty(1001)[1:])):
        mine = kernel.compile(aligned, y, n, 2.0, B=128, num_warps=2, target="cuda:90").triton
        triton = scale.run(aligned, y, n, 2.0, B=128, num_warps=2, grid=(1,), warmup=True, enable_fp_fusion=True)
        assert mine.asm["cubin"] == triton.asm["cubin"] and mine.src.signature == triton.src.signature
    with pytest.raises(TileError, match="x is 'float\\*', no type of Triton's"):
        kernel.compile("float*", y, 1, 2.0, B=128, target="cuda:90")
    with pytest.raises(TileError, match="missing a required argument"):
        kernel.compile(x, y, target="cuda:90")


def test_launches_take_the_level(scale: Any, scale_saved: Path, runner: Path, device: FakeDriver) -> None:
    x, y = torch.empty(1001), torch.empty(1001)
    by_signature = lambda meta: (-(-meta["n"] // meta["B"]),)
    for kernel in (
        tiledsl.triton_kernel(scale).from_level("ptx", scale_saved),
        tiledsl.triton_kernel(runner),
    ):
        for given in ({"B": 128}, {}, {"B": 128, "num_warps": 2}, {"B": 128, "RELU": False}):
            for n in (1001, 1, 1008):
                found, grid = launched(kernel, x, y, n, 2.0, grid=by_signature, **given)
                assert found.kernel == kernel.asm["cubin"] and grid == (-(-n // 128),)
        for keywords, message in {
            "B=64": "compiled for B=128, and the call has 64",
            "RELU=True": "compiled for RELU=False, and the call has True",
            "num_warps=4": "has num_warps=2, and the call 4",
            "tile=4": "has no argument 'tile'",
        }.items():
            with pytest.raises(TileError, match=message):
                launched(kernel, x, y, 1001, 2.0, **eval(f"dict({keywords})"))
        for arguments, message in {
            (x.half(), y, 1001, 2.0): r"x of type \*fp32, and the call has \*fp16",
            (x[1:], y, 1000, 2.0): "x being an address that is a multiple of 16 bytes",
            (x, y, 1 << 40, 2.0): "n of type i32, and the call has i64",
            (x, None, 1001, 2.0): r"y of type \*fp32, and the call has the constant None",
            (x, y, 1001, 2): "factor of type fp32, and the call has i32",
        }.items():
            with pytest.raises(TileError, match=message):
                launched(kernel, *arguments)
    assert (
        scale.run(x, y, 1001, 2.0, B=64, grid=(1,), warmup=True, enable_fp_fusion=True).metadata.num_warps == 4
    )  # the user's own function


def test_a_constant_of_another_value_is_refused(runner: Path, device: FakeDriver, tmp_path: Path) -> None:
    """As binaries for one D that were run with another."""
    values = json.loads((runner / "scale.json").read_text())
    values["kernel_signature"] = values["kernel_signature"].replace(
        "('n', 'i32', '', False)", "('n', 'constexpr', 1, False)"
    )
    (runner / "scale.json").write_text(json.dumps(values))
    with pytest.raises(TileError, match="takes parameters of 8, 8, 4, 4, 8, 8 bytes, and a launch gives 8, 8, 4"):
        tiledsl.triton_kernel(runner)


def test_refused(scale: Any, scale_saved: Path, runner: Path, tmp_path: Path) -> None:
    with pytest.raises(TileError, match=r"takes a function under @triton.jit or a path, not int"):
        tiledsl.triton_kernel(3)
    with pytest.raises(TileError, match="below its decorator"):
        tiledsl.triton_kernel(triton.autotune([triton.Config({"B": 64})], key=["n"])(scale))
    with pytest.raises(TileError, match="does not say what constants it was compiled for"):
        tiledsl.triton_kernel(scale).from_level("ptx", (scale_saved / "scale.ptx").read_text())
    with pytest.raises(TileError, match="has no hsaco of scale"):
        tiledsl.triton_kernel(scale_saved, "hsaco")
    with pytest.raises(TileError, match="has the JSON files of 0 kernels"):
        tiledsl.triton_kernel(tmp_path)
    with pytest.raises(TileError, match="there is no"):
        tiledsl.triton_kernel(tmp_path / "scale.ptx")
    shutil.copy(scale_saved / "scale.cubin", tmp_path)
    with pytest.raises(TileError, match="no JSON file beside it"):
        tiledsl.triton_kernel(tmp_path / "scale.cubin")
    values = json.loads((runner / "scale.json").read_text())
    (tmp_path / "scale.json").write_text(json.dumps({**values, "triton_version": "3.1.0"}))
    with pytest.raises(TileError, match=r"was made by Triton 3\.1\.0"):
        tiledsl.triton_kernel(tmp_path)
    assert "was made by Triton 3.1.0" in tiledsl.triton_kernel(tmp_path, allow="triton_version").remarks[1]
    del values["kernel_signature"]
    (tmp_path / "scale.json").write_text(json.dumps(values))
    with pytest.raises(TileError, match="arguments that no JSON file beside it describes"):
        tiledsl.triton_kernel(scale).from_level("cubin", tmp_path)
    with pytest.raises(TileError, match="runs from its source, which is compiled for a call's arguments"):
        _ = tiledsl.triton_kernel(scale).asm
    with pytest.raises(CompileError, match="does not compile for cuda:90"):
        tiledsl.triton_kernel(scale).compile("fp32", *TYPES[1:], B=128, target="cuda:90")


def test_mistakes_are_named(scale: Any, scale_saved: Path, tmp_path: Path) -> None:
    kernel = tiledsl.triton_kernel(scale)
    for keywords, message in (
        ({"B": 128, "num_warp": 2}, "scale has no argument 'num_warp', and Triton has no such option for cuda:90"),
        ({"B": 128, "attrs": 2}, "scale has no argument 'attrs'"),
        ({"B": 128, "target": "interpret"}, "the target 'interpret' compiles nothing"),
    ):
        with pytest.raises(TileError, match=message):
            kernel.compile(*TYPES, **{"target": "cuda:90", **keywords})
    with pytest.raises(TileError, match="scale: x is an argument that is a tuple") as caught:
        kernel.compile((1, 2), *TYPES[1:], B=128, target="cuda:90")
    assert "an argument is a tensor, a number" in str(caught.value)
    made = kernel.compile(*TYPES, B=128, waves_per_eu=2, target="hip:gfx942")
    assert made.metadata["waves_per_eu"] == 2
    (tmp_path / "a.py").touch()
    for given, message in (
        (tmp_path / "a.py", "a.py is no level of a kernel"),
        (scale_saved / "scale.json", "scale.json is no level of a kernel"),
    ):
        with pytest.raises(TileError, match=message):
            tiledsl.triton_kernel(given)
    with pytest.raises(TileError, match="a folder is named by a path, not by NoneType"):
        kernel.save_levels(None, *TYPES, B=128, target="cuda:90")  # type: ignore[arg-type]
    with pytest.raises(TileError, match="a folder is named by a path, not by NoneType"):
        tiledsl.triton_kernels(None)  # type: ignore[arg-type]
    with pytest.raises(TileError, match="itself has levels of a kernel"):
        tiledsl.triton_kernels(scale_saved)
    with pytest.raises(TileError, match="not int"):
        tiledsl.triton_kernels(scale_saved.parent, function=3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_a_launch_without_a_gpu(scale_saved: Path) -> None:
    x = torch.empty(128)
    with pytest.raises(TileError, match="scale is for cuda:90, and there is no GPU here"):
        tiledsl.triton_kernel(scale_saved)[(1,)](x, x, 128, 2.0)


def test_another_text_is_remarked(scale: Any, scale_saved: Path) -> None:
    from tiledsl.runtime.module import load_module

    other: Any = load_module("scale", SCALE.replace("* factor", "+ factor"), interpret=False).scale
    made = tiledsl.triton_kernel(other).from_level("cubin", scale_saved)
    assert made.remarks[1].endswith("was compiled from another text of scale")
    fewer: Any = load_module(
        "scale", SCALE.replace(", RELU: tl.constexpr = False", "").replace("if RELU", "if B"), False
    )
    with pytest.raises(TileError, match="arguments x, y, n, factor, B, RELU, and scale has x, y, n, factor, B"):
        tiledsl.triton_kernel(fewer.scale).from_level("cubin", scale_saved)


def test_folders_of_variants(scale: Any, scale_saved: Path, tmp_path: Path, device: FakeDriver) -> None:
    kernel = tiledsl.triton_kernel(scale)
    for tile in (64, 256):
        kernel.save_levels(tmp_path / f"tile {tile}", *TYPES, B=tile, target="cuda:90")
    shutil.copytree(scale_saved, tmp_path / "no binary")
    (tmp_path / "no binary" / "scale.cubin").unlink()
    (tmp_path / "nothing").mkdir()
    (tmp_path / "a.file").touch()
    x, y = torch.empty(1000), torch.empty(1000)
    for function in (None, scale):
        variants = tiledsl.triton_kernels(tmp_path, "cubin", function=function)
        assert list(variants) == ["tile 256", "tile 64"] and list(variants.left_out) == ["no binary", "nothing"]
        assert "has no cubin of scale" in variants.left_out["no binary"]
        grids = [launched(each, x, y, 1000, 2.0, grid=lambda meta: (meta["B"],))[1] for each in variants.values()]
        assert grids == [(256,), (64,)]
    assert sorted(tiledsl.triton_kernels(tmp_path)) == ["no binary", "tile 256", "tile 64"]  # from its ptx
    before = canonical(tiledsl.triton_kernels(tmp_path, "ptx"))
    assert before == canonical(tiledsl.triton_kernels(tmp_path, "ptx"))
    (tmp_path / "tile 64" / "scale.ptx").write_text((tmp_path / "tile 64" / "scale.ptx").read_text() + "// edited\n")
    assert before != canonical(tiledsl.triton_kernels(tmp_path, "ptx"))
    described = tmp_path / "tile 64" / "scale.json"
    described.write_text(re.sub(r'"triton_version": "[^"]*"', '"triton_version": "3.5.0"', described.read_text()))
    assert "tile 64" in tiledsl.triton_kernels(tmp_path, "cubin").left_out
    variants = tiledsl.triton_kernels(tmp_path, "cubin", allow=["triton_version"])
    assert sorted(variants) == ["tile 256", "tile 64"] and any("3.5.0" in each for each in variants["tile 64"].remarks)
    with pytest.raises(TileError, match="has no folder with a kernel to run") as caught:
        tiledsl.triton_kernels(tmp_path, "hsaco")
    assert "nothing: " in str(caught.value)


IN_TRITON_36 = """
import sys, triton, tiledsl, types
from pathlib import Path
from tiledsl.runtime.module import load_module
folder = Path(sys.argv[1])
assert "torch" not in sys.modules
sys.modules["torch"] = types.ModuleType("torch")  # only launching needs it, and this environment has none
gemm = ("*fp16:16", "*fp16:16", "*fp16:16", "i32", "i32:16", "i32:16"), {"BM": 64, "BN": 64, "BK": 32}
for name, (types, options), target in (
    ("scale", (("*fp32:16", "*fp32:16", "i32", "fp32"), {"B": 128, "num_warps": 2}), "cuda:90"),
    ("gemm", gemm, "cuda:90"),
    ("gemm", gemm, "hip:gfx942"),
):
    kernel = tiledsl.triton_kernel(getattr(load_module(name, (folder / f"{name}.triton").read_text(), False), name))
    saved = folder / f"{name} {target}"
    kernel.save_levels(saved, *types, target=target, **options)
    binary = "hsaco" if target.startswith("hip") else "cubin"
    expected = kernel.compile(*types, target=target, **options).asm[binary]
    for path in sorted(saved.iterdir()):
        if path.suffix != ".json":
            assert tiledsl.triton_kernel(path).asm[binary] == expected, path
            print(name, target, path.suffix)
from triton.runtime.driver import driver
from tests.support.fake_driver import FakeDriver
class Tensor:
    def __init__(self, dtype="fp32", address=16): self.dtype, self.address = dtype, address
    def data_ptr(self): return self.address
driver.set_active(FakeDriver())
kernel = tiledsl.triton_kernel(folder / "scale cuda:90")
launch = lambda *given, B=128: kernel.function.run(*given, B=B, RELU=False, grid=(1,), warmup=True)
for n in (1001, 1, 1008):
    assert launch(Tensor(), Tensor(), n, 2.0).kernel == kernel.asm["cubin"]
x = Tensor()
for given, B in (((Tensor(address=8), x, 9, 2.0), 128), ((Tensor("fp16"), x, 9, 2.0), 128), ((x, x, 9, 2.0), 64)):
    try:
        launch(*given, B=B)
    except tiledsl.TileError as error:
        print(error.message.rpartition("compiled for ")[2])
print(triton.__version__)
"""


def test_triton36(triton36: str, tmp_path: Path) -> None:
    (tmp_path / "scale.triton").write_text(SCALE)
    shutil.copy(Path(__file__).parents[1] / "runtime/kernels/gemm.triton", tmp_path)
    variables = {"PYTHONPATH": str(Path(__file__).parents[2]), "TILEDSL_CACHE_DIR": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path)}  # fmt: skip # noqa: E501
    done = subprocess.run(
        [triton36, "-c", IN_TRITON_36, tmp_path], env=variables, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert len(lines) == 19 and lines[-1] == "3.6.0"
    assert lines[-4:-1] == [
        "x being an address that is a multiple of 16 bytes, and in the call it is none",
        "x of type *fp32, and the call has *fp16",
        "B=128, and the call has 64",
    ]
