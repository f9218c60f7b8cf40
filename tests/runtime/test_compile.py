"""Compiling for named targets without a GPU: texts, resources, and failures as short errors."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tests.support.example_modules import load_example
from tiledsl.runtime.compile import CompiledKernel, CompileError, _again, compile_kernel
from tiledsl.runtime.launch_stored import specialised
from tiledsl.runtime.module import load_module
from tiledsl.runtime.resources import occupancy_limit
from tiledsl.runtime.target import Target

TARGETS = ("cuda:80", "cuda:90", "cuda:100", "hip:gfx942")
GEMM, SOFTMAX, MISC = (
    (Path(__file__).parent / "kernels" / f"{n}.triton").read_text() for n in ("gemm", "softmax", "misc")
)
GEMM_TYPES = {"a": "*fp16", "b": "*fp16", "c": "*fp16", "M": "i32", "N": "i32", "K": "i32"}
ALIGNED = ["a", "b", "c", "N", "K"]


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("compile")
    texts = {"gemm": GEMM, "softmax": SOFTMAX, "misc": MISC}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))
        yield {name: load_module(name, text, False, folder) for name, text in texts.items()}


@pytest.fixture(scope="module")
def gemms(modules: dict[str, Any]) -> dict[str, CompiledKernel]:
    tiles = {"BM": 64, "BN": 64, "BK": 32}
    return {
        name: compile_kernel(modules["gemm"].gemm, GEMM_TYPES, tiles, Target.parse(name), attrs=ALIGNED)
        for name in TARGETS
    }


@pytest.mark.parametrize("name", TARGETS)
def test_gemm_compiles(gemms: dict[str, CompiledKernel], name: str) -> None:
    kernel = gemms[name]
    assert kernel.name == "gemm" and "tt.dot" in kernel.asm["ttir"] and "ttg." in kernel.asm["ttgir"]
    resources = kernel.resources
    assert 0 < resources.shared_bytes <= kernel.target.max_shared_bytes
    assert resources.registers is not None and 16 < resources.registers <= 512
    assert resources.spills == 0 and resources.stack == 0 and resources.num_warps == 4
    blocks, limiting = resources.occupancy_limit
    assert blocks >= 1 and limiting in ("registers", "shared memory", "warps", "blocks")
    if name.startswith("hip"):
        assert "s_endpgm" in kernel.asm["amdgcn"] and "sass" not in kernel.asm
    else:
        assert f".target sm_{name[5:]}" in kernel.asm["ptx"] and isinstance(kernel.asm["cubin"], bytes)


@pytest.mark.parametrize("name", TARGETS)
def test_softmax_compiles(modules: dict[str, Any], name: str) -> None:
    types = {"x": "*bf16", "y": "*bf16", "N": "i32"}
    kernel = compile_kernel(modules["softmax"].softmax, types, {"BLOCK": 1024}, Target.parse(name), attrs=["x", "y"])
    assert kernel.resources.registers


def test_sass_is_disassembled_when_asked_for(gemms: dict[str, CompiledKernel]) -> None:
    asm = gemms["cuda:90"].asm
    assert "HGMMA" in asm["sass"] and "EXIT" in asm["sass"] and "sass" in list(asm)


def test_spills_are_counted(modules: dict[str, Any]) -> None:
    tiles = {"BM": 128, "BN": 128, "BK": 32}
    kernel = compile_kernel(modules["gemm"].gemm, GEMM_TYPES, tiles, Target("cuda", 80), maxnreg=64, attrs=ALIGNED)
    assert kernel.resources.registers == 64 and (kernel.resources.spills or 0) > 0
    assert "STL" in kernel.asm["sass"]


def test_missing_tools_leave_gaps(gemms: dict[str, CompiledKernel], monkeypatch: pytest.MonkeyPatch) -> None:
    from tiledsl.runtime import resources

    monkeypatch.setattr(resources, "run_tool", lambda *arguments: None)
    kernel = gemms["cuda:80"]
    found = resources.read_resources(kernel.target, 1024, 4, kernel.asm["cubin"], kernel.asm)
    assert (found.registers, found.spills, found.stack, found.shared_bytes) == (None, None, None, 1024)


def test_no_driver_is_opened(gemms: dict[str, CompiledKernel]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("the driver may have been opened by others")
    assert "libcuda.so" not in Path("/proc/self/maps").read_text()


def test_errors_are_short_and_quiet(modules: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CompileError) as caught:
        compile_kernel(modules["misc"].refused, {"x": "*fp32"}, {}, Target("cuda", 90))
    assert caught.value.stage == "source"
    assert "refused does not compile for cuda:90" in caught.value.message and "32 and 64" in caught.value.message
    with pytest.raises(CompileError) as caught:
        compile_kernel(modules["misc"].bad_assembly, {"x": "*i32"}, {}, Target("cuda", 90))
    error = caught.value
    assert error.stage == "cubin" and error.message.endswith("Unknown modifier '.op'") and "\n" not in error.message
    assert error.log and error.log in str(error) and "bogus" in Path(error.log).read_text()
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.stage, copy.log, str(copy)) == (error.stage, error.log, str(error))
    printed = capfd.readouterr()
    assert printed.out == "" and printed.err == ""


def test_too_much_shared_memory_says_needed_and_available(modules: dict[str, Any]) -> None:
    tiles = {"BM": 128, "BN": 256, "BK": 128}
    with pytest.raises(CompileError, match=r"gemm needs \d+ bytes of shared memory, and cuda:86 has 101376") as caught:
        compile_kernel(modules["gemm"].gemm, GEMM_TYPES, tiles, Target("cuda", 86), num_warps=8, attrs=ALIGNED)
    assert caught.value.stage == "resources"


def test_threads_compile_at_once(modules: dict[str, Any]) -> None:
    done: list[str] = []
    types = {"x": "*fp32", "y": "*fp32", "N": "i32"}

    def work(block: int) -> None:
        target = Target("cuda", 90)
        done.append(compile_kernel(modules["softmax"].softmax, types, {"BLOCK": block}, target).name)

    threads = [threading.Thread(target=work, args=(size,)) for size in (64, 128, 256)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == ["softmax"] * 3


def test_occupancy_limits() -> None:
    h100 = Target("cuda", 90)
    assert occupancy_limit(h100, 4, 168, 49152) == (3, "registers")
    assert occupancy_limit(h100, 4, 32, 100 * 1024) == (2, "shared memory")
    assert occupancy_limit(h100, 8, 32, 0) == (8, "warps")
    assert occupancy_limit(h100, 1, 16, 0) == (32, "blocks")
    assert occupancy_limit(Target("hip", "gfx942"), 4, 136, 32768) == (2, "shared memory")


SHIFT = """import triton
import triton.language as tl


@triton.jit
def shift(x, y, by, width, factor):
    at = tl.arange(0, 16)
    tl.store(y + at + width, tl.load(x + at + by) * factor)
"""


def key_of_launch(function: Any, target: Target, given: dict[str, Any]) -> str:
    """Triton's cache key of a launch with these arguments, but for the options."""
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    backend = make_backend(target.triton_target())
    bind = create_function_from_signature(function.signature, function.params, backend)
    keywords = {"num_warps": 4, "num_stages": 3, "debug": False}
    bound, specialization, options = bind(**given, **keywords)
    _, signature, constexprs, facts = function._pack_args(backend, keywords, bound, specialization, options)
    return str(ASTSource(function, signature, constexprs, facts).hash())


def test_a_launch_finds_what_was_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's cache key of a launch with such arguments is that of the compilation: nothing compiles twice."""
    import torch

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    function, target = load_module("shift", SHIFT, False, tmp_path).shift, Target.parse("cuda:90")
    types = {"x": "*fp32", "y": "*fp32", "by": "i32", "width": "i32", "factor": "fp32"}
    compiled = compile_kernel(function, types, {}, target, attrs=["y", "width"]).triton.src
    aligned = torch.empty(64)
    given = {"x": aligned[1:], "y": aligned, "by": 132, "width": 32, "factor": 2.5}
    assert compiled.attrs[(2,)] == [] and compiled.attrs[(3,)]
    assert compiled.hash() == key_of_launch(function, target, given)
    assert compiled.hash() != key_of_launch(function, target, {**given, "by": 144})


def test_the_number_of_programs_does_not_compile_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On devices with any number of multiprocessors, and in launches that look for what was kept."""
    import torch

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    text = SHIFT.replace("@triton.jit", '@triton.jit(do_not_specialize=["by"])')
    function, target = load_module("shift", text, False, tmp_path).shift, Target.parse("cuda:90")
    types = {"x": "*fp32", "y": "*fp32", "by": "i32", "width": "i32", "factor": "fp32"}
    compiled = compile_kernel(function, types, {}, target, attrs=["x", "y", "width"]).triton.src
    for programs in (132, 144, 1):
        given = {"x": torch.empty(64), "y": torch.empty(64), "by": programs, "width": 32, "factor": 2.5}
        assert compiled.hash() == key_of_launch(function, target, given)
        assert specialised(programs, True) == ("i32", None)


def test_threads_that_disturb_each_other_try_again() -> None:
    calls: list[int] = []

    def fails(times: int, text: str, inside: bool = False) -> str:
        calls.append(times)
        if len(calls) <= times:
            if inside:
                raise RuntimeError("at 5:19") from SystemError(text)
            raise SystemError(text)
        return "compiled"

    text = "AST constructor recursion depth mismatch (before=96, after=157)"
    for inside in (False, True):  # in a function that the kernel calls, Triton names the place
        calls.clear()
        assert _again(lambda inside=inside: fails(3, text, inside)) == "compiled" and len(calls) == 4
    calls.clear()
    with pytest.raises(SystemError, match="another"):
        _again(lambda: fails(1, "another"))
    assert len(calls) == 1


def test_a_kernel_that_spills_is_named_in_a_remark() -> None:
    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        with T.Kernel(1):
            A[0] = 1

    kernel = tiledsl.compile(main, target="cuda:80")
    before = kernel.remarks
    assert kernel.resources.spills == 0 and kernel.remarks == before
    kernel.note_spills("small", 64)
    assert kernel.remarks == before
    kernel.note_spills("large", 65)
    kernel.note_spills("large", 65)
    assert kernel.remarks[: len(before)] == before
    (remark,) = kernel.remarks[len(before) :]
    assert remark.startswith("large spills 65 bytes a thread for lack of registers: use smaller tiles")


def test_a_radix_sort_compiles_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rounds over 1024 keys, by digits of eight bits. Time of the processor, for others may use the machine."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    program = load_example("radix_sort").radix_sort.function(4, 1024, 8)
    before = os.times()
    resources = tiledsl.compile(program, out_idx=-1, target="cuda:90").resources
    assert sum(os.times()[:4]) - sum(before[:4]) < 5
    assert resources.spills == 0
    assert any(tmp_path.iterdir()), "it was compiled anew"
