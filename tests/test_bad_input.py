"""Mistakes of users, one by one: each is a TileError with one sentence, its place, the values involved and a way out.

bad_input.txt holds the bodies of kernels, each with the error as the user sees it (lines and columns count from the
body's start). `python tests/test_bad_input.py` writes it anew, for a reader to compare.
"""
# ruff: noqa: E501

from __future__ import annotations

import json
import linecache
import pickle
import re
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.support.load_file import load_file
from tiledsl.errors import TileError, source_line
from tiledsl.language.refused import ELSEWHERE, REFUSED
from tiledsl.location import Loc

# The kernel is given tiles s (shared, float16) and f (fragment, float32), both (32, 32), tensors A and B of (64, 64)
# float32, a scalar n, the block index bx, and on the host a None and a list.
HEAD = """
import itertools
import math

import tiledsl
import tiledsl.language as T
from tests.support.load_file import load_file

none = None
table = [1, 2]


def build():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64, 64), "float32"), n: T.int32):
        with T.Kernel(4, threads=128) as bx:
            s = T.alloc_shared((32, 32), "float16")
            f = T.alloc_fragment((32, 32), "float32")
            B[0, 0] = 1.0
%s

    return main
"""
FIRST = HEAD[: HEAD.index("%s")].count("\n")
FILE = Path(__file__).with_name("bad_input.txt")
CASES = [tuple(case.strip("\n").split("\n---\n")) for case in FILE.read_text().split("\n===\n")]


def module(path: Path, text: str) -> Any:
    """Import a file with this text."""
    file = path / "user_program.py"
    file.write_text(text)
    return load_file(file)


def error_of(body: str, path: Path) -> str:
    """The error of a kernel's body, with lines and columns counted from the body's start."""
    with pytest.raises(TileError) as caught:
        tiledsl.compile(module(path, HEAD % textwrap.indent(body, " " * 12)).build(), target="cuda:80")
    error = caught.value
    error.loc, place = _shifted(error.loc), error.loc
    assert place is not None and place.file == str(path / "user_program.py")
    error.notes = [note if isinstance(note, str) else (note[0], _shifted(note[1])) for note in error.notes]
    quoted = source_line(place.file, place.line)
    lines = str(error).split("\n")
    caret = " " * (place.column - 13) + "^" * (
        (place.end_column if place.end_line == place.line else len(quoted) + 1) - place.column
    )
    return "\n".join(
        [lines[0].removeprefix("user_program.py:"), quoted[12:], caret, *[x for x in lines if "  note: " in x]]
    )


def _shifted(loc: Loc | None) -> Loc:
    assert loc is not None
    return Loc(loc.file, loc.line - FIRST, loc.column - 12, loc.end_line - FIRST, loc.end_column - 12)


@pytest.mark.parametrize(("body", "wanted"), CASES, ids=[body.split("\n")[-1].strip()[:40] for body, _ in CASES])
def test_in_a_kernel(body: str, wanted: str, tmp_path: Path) -> None:
    assert error_of(body, tmp_path) == wanted


def marked(error: TileError) -> str:
    """The text above the caret."""
    loc = error.loc
    assert loc is not None, error
    text = source_line(loc.file, loc.line)
    return text[loc.column - 1 : loc.end_column - 1 if loc.end_line == loc.line else None]


# What a whole program, a declaration or a call gets wrong


def refused(make: Any, message: str, caret: str | None = None, notes: list[str] | None = None) -> TileError:
    """The TileError of `make`, compared with what it should say."""
    with pytest.raises(TileError) as caught:
        make()
    error = caught.value
    assert error.message == message
    if caret is not None:
        assert marked(error) == caret
    if notes is not None:
        assert [note if isinstance(note, str) else note[0] for note in error.notes] == notes
    return error


def compiled(body: str, *, declared: str = 'A: T.Tensor((4, 4), "float32")', **options: Any) -> Any:
    """Compile a program from a text with these parameters."""
    text = f"@T.prim_func\ndef main({declared}):\n" + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    return tiledsl.compile(tiledsl.parse(text), **{"target": "interpret", **options})


WRITE = "with T.Kernel(1) as bx:\n    A[0, 0] = 1.0"


@pytest.mark.parametrize(
    ("declared", "message", "caret"),
    [
        ("A", "parameter A has no type; write A: T.Tensor((M, N), dtype)", "A"),
        ("A: 'sum'", "parameter A is 'sum', neither a T.Tensor nor an element type", "A: 'sum'"),
        ("*A", "*A: a tile program has a fixed number of parameters", "A"),
        ("self, A: T.Tensor((4,), 'int8')", "a tile program cannot be a method", "self"),
        ("A: T.Tensor((4,), 'int8'), A: T.int32", "two parameters are called 'A'", "A: T.int32"),
        ("A: T.Tensor((-4,), 'int8')", "dimension 0 of a tensor is -4; dimensions are at least 0", None),
        ("A: T.StridedTensor((4, 4), (4, -1))", "stride 1 of a tensor is -1; torch's tensors have none below 0", None),
        (
            "A: T.Tensor((4, None), 'int8')",
            "dimension 1 of a tensor is None (was a tunable left None?), not an integer or a T.dynamic symbol",
            "T.Tensor((4, None), 'int8')",
        ),
        ("A: T.Tensor((4,), None)", "an element type is None; was a tunable left None?", "T.Tensor((4,), None)"),
        ("A: T.Tensor((4,), 'flaot32')", "'flaot32' is not an element type; did you mean 'float32'?", None),
        ("A: T.Tensor((4,), 'float16x2')", "float16x2: a thread's vectors have no Triton form; write the loop over their elements, with T.Parallel or, in code for one thread, T.vectorized", None),
        ("A: T.Tensor((4,), T.bfloat16x2)", "T.bfloat16x2: a thread's vectors have no Triton form; write the loop over their elements, with T.Parallel or, in code for one thread, T.vectorized", None),
        ("A: T.Tensor((4,), 'int4')", "int4: Triton has no such element type; keep the packed bytes in uint8 and unpack them in T.Parallel", None),
        ("A: T.ptr", "T.ptr: tensors made from raw addresses are not part of the tile language; pass one tensor and index it", None),
    ],
)  # fmt: skip
def test_declarations(declared: str, message: str, caret: str | None) -> None:
    refused(lambda: compiled(WRITE, declared=declared), message, caret)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("T.Kernel(1, 1, 1, 1)", "T.Kernel takes one to three grid dimensions, not 4"),
        ("T.Kernel(1, -2)", "T.Kernel: grid dimension 1 is -2; it must be at least 0, and below 2^31"),
        ("T.Kernel(1 << 31)", "T.Kernel: grid dimension 0 is 2147483648; it must be at least 0, and below 2^31"),
        ("T.Kernel(2.5)", "T.Kernel: grid dimension 0 is float 2.5, not an integer"),
        ("T.Kernel(None)", "T.Kernel: grid dimension 0 is None (was a tunable left None?), not an integer"),
        ("T.Kernel(4, threads=None)", "T.Kernel: threads is None (was a tunable left None?); it must be a number from 1 to 1024 (128 if left out)"),
        ("T.Kernel(4, threads=(32, None))", "T.Kernel: threads is None (was a tunable left None?); it must be a number from 1 to 1024 (128 if left out)"),
        ("T.Kernel(4, threads=0)", "T.Kernel: threads is 0; it must be a number from 1 to 1024"),
        ("T.Kernel(4, threads=(64, 32))", "T.Kernel: threads is 2048; it must be a number from 1 to 1024"),
        ("T.Kernel(4, num_warp=4)", "T.Kernel has no option 'num_warp'"),
        ("T.Kernel(4, num_warps=3)", "T.Kernel: num_warps is 3; it must be a power of two from 1 to 32"),
        ("T.Kernel(4, num_ctas=3)", "T.Kernel: num_ctas is 3; it must be a power of two from 1 to 16"),
        ("T.Kernel(4, maxnreg=300)", "T.Kernel: maxnreg is 300; it must be a number from 1 to 255"),
        ("T.Kernel(4, num_stages='2')", "T.Kernel: num_stages is '2'; it must be at least 1"),
        ("T.Kernel(T.dynamic('Q'))", "the dynamic dimension Q is used, but no tensor parameter's dimension tells it"),
        ("T.ClusterKernel(4)", "T.ClusterKernel: clusters, barriers by number and schedules by hand have no Triton form; write T.alloc_barrier and roles (T.ws), or T.copy inside T.Pipelined"),
    ],
)  # fmt: skip
def test_launches(kernel: str, message: str) -> None:
    error = refused(lambda: compiled(f"with {kernel} as bx:\n    A[0, 0] = 1.0"), message)
    assert marked(error).startswith(kernel.split("(")[0])


def test_programs_that_do_nothing() -> None:
    refused(lambda: compiled("A[0, 0] = 1.0"), "main has no `with T.Kernel(...)`, so nothing would run")
    refused(lambda: compiled("with T.Kernel(1) as bx:\n    x = A[0, 0]"), "main writes none of its tensors")
    two = 'A: T.Tensor((4, 4), "float32"), B: T.Tensor((4, 4), "float32"), n: T.int32'
    refused(lambda: compiled(WRITE, declared=two, out_idx=[1]), "the output B of main is never written")
    refused(lambda: compiled(WRITE, declared=two, out_idx=[-1]), "out_idx names n of main, which is not a tensor")
    refused(lambda: compiled(WRITE, declared=two, out_idx=7), "out_idx 7, but main has 3 parameters")
    refused(lambda: compiled(WRITE, declared=two, out_idx=[0, -3]), "out_idx names a parameter of main twice: [0, -3]")
    refused(
        lambda: compiled(WRITE, declared=two, out_idx="B"),
        "out_idx is 'B'; it must be a position or a list of positions",
    )
    for keyword, statement in {
        "for": "for i in T.serial(4)",
        "if": "if A[0, 0] > 1.0",
        "while": "while A[0, 0] > 1.0",
    }.items():
        message = f"`{keyword}` on a device value stands outside of T.Kernel, where nothing runs on the device"
        refused(lambda: compiled(f"{statement}:\n    A[0, 0] = 1.0"), message)


def test_what_is_no_function() -> None:
    refused(lambda: T.prim_func(3), "@T.prim_func stands before a function; this is int 3", "T.prim_func(3)")
    refused(lambda: T.macro("x"), "@T.macro stands before a function; this is str 'x'", 'T.macro("x")')
    refused(lambda: tiledsl.jit(3), "@tiledsl.jit stands before a function, not int 3", "tiledsl.jit(3)")
    refused(
        lambda: tiledsl.compile(max),
        "tiledsl.compile takes a @T.prim_func or a parsed program, not builtin_function_or_method",
    )
    refused(
        lambda: tiledsl.compile(T.prim_func(lambda A: 3), target="interpret"),
        "a lambda cannot be a kernel; write it as a function with `def`",
    )
    refused(tiledsl.jit(lambda: 3), "<lambda> returns int, not a program")


def test_a_function_without_source() -> None:
    names: dict[str, Any] = {"T": T}
    exec('@T.prim_func\ndef f(A: T.Tensor((4,), "float32")):\n    pass', names)
    with pytest.raises(
        TileError, match=r"the source of 'f' is not available .*; put the function in a file or use tiledsl.parse"
    ):
        tiledsl.compile(names["f"], target="interpret")


@pytest.mark.parametrize("text", ["", "main = 3\n", "def other(): pass\n"])
def test_a_function_whose_file_has_changed(text: str, tmp_path: Path) -> None:
    file = tmp_path / "changed.py"
    file.write_text('import tiledsl.language as T\n\n\ndef main(A: T.Tensor((4,), "float32")): pass\n')
    function = load_file(file).main
    file.write_text("#\n" * 3 + text + "\n" * 3)
    linecache.clearcache()
    with pytest.raises(TileError) as caught:
        tiledsl.compile(T.prim_func(function), target="interpret")
    message = "the function 'main' is not at this line any more; was the file changed after its import?"
    assert caught.value.message == message


def test_names_outside_a_program() -> None:
    message = "T.copy is only possible inside a tile program (a @T.prim_func, @T.macro or eager @tiledsl.jit)"
    refused(
        lambda: T.copy(T.dynamic("a"), 3),
        "T.copy needs a buffer or a part of one, not a value known only at run time (a)",
    )
    refused(
        lambda: T.alloc_fragment((4,), "int8"),
        message.replace("copy", "alloc_fragment"),
        'T.alloc_fragment((4,), "int8")',
    )
    refused(
        lambda: T.ceildiv(None, 4),
        "T.ceildiv needs integers, not None (was a tunable left None?)",
        "T.ceildiv(None, 4)",
    )
    refused(
        lambda: T.Tensor((4, -1), "int8"),
        "dimension 1 of a tensor is -1; dimensions are at least 0",
        'T.Tensor((4, -1), "int8")',
    )


def test_words_of_triton_and_torch_name_what_is_written_here(tmp_path: Path) -> None:
    for name, instead in ELSEWHERE.items():
        assert name not in T.__all__ and name not in REFUSED
        assert all(hasattr(T, each) for each in re.findall(r"T\.(\w+)", instead)), instead
    text = error_of("f = T.where(f > 0, f, 0)", tmp_path).split("\n")[0]
    assert text == "1:5: error: T.where is not part of the tile language; write T.if_then_else, or `if`"
    with pytest.raises(TileError, match=r"T\.dot is not part of the tile language; write T\.gemm"):
        tiledsl.compile(tiledsl.parse("@T.prim_func\ndef f(A: T.Tensor((4,), 'float32')):\n    T.dot(A, A, A)\n"))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_names_say_what_to_write(name: str) -> None:
    error = refused(lambda: compiled(f"with T.Kernel(1) as bx:\n    T.{name}(1, 2)"), f"T.{name}: {REFUSED[name]}")
    assert marked(error) == f"T.{name}(1, 2)" and error.loc is not None and error.loc.line == 4
    with pytest.raises(TileError, match=rf"T\.{name}: "):
        getattr(T, name)(1)


# Calls


@pytest.fixture(scope="module")
def scale() -> Any:
    text = """
    @T.prim_func
    def scale(A: T.Tensor((M, 8), "float32"), k: T.float32, B: T.Tensor((M, 8), "float32")):
        with T.Kernel(T.ceildiv(M, 4)) as bx:
            for i, j in T.Parallel(4, 8):
                B[bx * 4 + i, j] = A[bx * 4 + i, j] * k
    """
    program = tiledsl.parse("M = T.dynamic('M')\n" + textwrap.dedent(text))
    return tiledsl.compile(program, out_idx=[-1], target="interpret")


def test_the_call_that_is_right(scale: Any) -> None:
    x = torch.randn(5, 8)
    torch.testing.assert_close(scale(x, 2.0), x * 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "scale takes 2 inputs or all 3 parameters (A: float32['M', 8], k: float32, B: float32['M', 8]), not 0"),
        (([[1.0]], 2.0), "scale: A is a tensor, not list"),
        ((None, 2.0), "scale: A is None, but the program uses it"),
        ((torch.zeros(3, 8), torch.ones(1)), "scale: k is a float32 scalar, not Tensor"),
        ((torch.zeros(3, 8), "2"), "scale: k is a float32 scalar, not str"),
        ((torch.zeros(3, 8).half(), 2.0), "scale: A must be float32, but the tensor is float16"),
        ((torch.zeros(3), 2.0), "scale: A has shape (3,), but 2 dimensions ('M', 8) are declared"),
        ((torch.zeros(3, 9), 2.0), "scale: A has shape (3, 9), but it was compiled for ('M', 8)"),
        ((torch.zeros(3, 0), 2.0), "scale: A has shape (3, 0), but it was compiled for ('M', 8)"),
        ((torch.zeros(8, 3).t(), 2.0), "scale: A has strides (1, 3), but must be contiguous"),
        ((torch.zeros(3, 8, device="meta"), 2.0, torch.zeros(3, 8)), "scale: B is on cpu, but A is on meta"),
        ((torch.zeros(3, 8), 2.0, torch.zeros(4, 8)), "scale: B.shape[0] is 4, but M is 3 by A.shape[0]"),
    ],
)  # fmt: skip
def test_arguments(scale: Any, arguments: tuple[Any, ...], message: str) -> None:
    refused(lambda: scale(*arguments), message, "scale(*arguments)")


def test_keywords(scale: Any) -> None:
    refused(lambda: scale(torch.zeros(3, 8), kk=2.0), "scale has no further parameter 'kk'")
    refused(lambda: scale(torch.zeros(3, 8)), "scale takes 2 inputs or all 3 parameters (A: float32['M', 8], k: float32, B: float32['M', 8]), not 1")  # fmt: skip


def test_a_tensor_on_the_cpu_for_a_gpu() -> None:
    kernel = compiled(WRITE, target="cuda:90")
    refused(
        lambda: kernel(torch.zeros(4, 4)),
        "main: A is on the CPU, but the program is compiled for cuda:90",
        "kernel(torch.zeros(4, 4))",
        ["move the tensors with .cuda(), or compile with target='interpret'"],
    )


@tiledsl.jit(target="interpret")
def twice(A, B, block=4):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), "float32")
    B: T.Tensor((M, N), "float32")
    with T.Kernel(T.ceildiv(M, block)) as bx:
        for i, j in T.Parallel(block, N):
            B[bx * block + i, j] = A[bx * block + i, j] * 2.0


def test_eager_calls() -> None:
    x = torch.ones(4, 4)
    refused(lambda: twice(x), "twice: missing a required argument: 'B'", "twice(x)")
    refused(lambda: twice(x, x, 4, 5), "twice: too many positional arguments", "twice(x, x, 4, 5)")
    refused(lambda: twice(x, torch.ones(4, 5)), "dimension 1 of B is 5, but N is 4", 'B: T.Tensor((M, N), "float32")')
    refused(lambda: twice(x, torch.ones(4)), "B has 1 dimensions (4,), but is declared as T.Tensor((M, N), 'float32')")
    refused(lambda: twice(x, [1.0]), "B is a tensor, but the call gives list [1.0]", 'B: T.Tensor((M, N), "float32")')
    refused(lambda: twice(torch.ones(0, 4), x), "dimension 0 of B is 4, but M is 0")
    refused(lambda: twice(x, x.half()), "twice: B must be float32, but the tensor is float16", "twice(x, x.half())")
    refused(
        lambda: twice(x, x, None),
        "T.ceildiv needs integers, not None (was a tunable left None?)",
        "T.ceildiv(M, block)",
    )
    refused(lambda: twice.compile(M=4), "T.const 'N' has no value: it is not a dimension of a tensor of the call")


def test_eager_results() -> None:
    @tiledsl.jit(target="interpret")
    def returns_a_parameter(A):
        A: T.Tensor((4,), "float32")
        with T.Kernel(1):
            A[0] = 1.0
        return A

    @tiledsl.jit(target="interpret")
    def forgets(A):
        A: T.Tensor((4,), "float32")
        C = T.empty((4,), "float32")
        with T.Kernel(1):
            C[0] = A[0]

    @tiledsl.jit(target="interpret")
    def leaves(A):
        A: T.Tensor((4,), "float32")
        C = T.empty((4,), "float32")
        with T.Kernel(1):
            A[0] = 1.0
        return C

    @tiledsl.jit(target="interpret", out_idx=[-1])
    def both(A):
        A: T.Tensor((4,), "float32")
        C = T.empty((4,), "float32")
        with T.Kernel(1):
            C[0] = A[0]
        return C

    x = torch.ones(4)
    refused(lambda: returns_a_parameter(x), "returns_a_parameter returns A, which is not from T.empty", "return A")
    refused(lambda: forgets(x), "C comes from T.empty but is not returned by forgets")
    refused(lambda: leaves(x), "the output C of leaves is never written")
    refused(lambda: both(x), "both: out_idx belongs to the lazy style")


# Targets


def test_an_element_type_that_the_target_lacks() -> None:
    body = (
        "with T.Kernel(1) as bx:\n    q = T.alloc_fragment((4, 4), 'float8_e4m3fn')\n    T.copy(A, q)\n    T.copy(q, A)"
    )
    refused(lambda: compiled(body, target="cuda:80"), "q is float8_e4m3fn, which cuda:80 does not have", "T.alloc_fragment((4, 4), 'float8_e4m3fn')")  # fmt: skip
    compiled(body, target="cuda:89")
    refused(
        lambda: compiled(WRITE, declared="A: T.Tensor((4, 4), 'float8_e4m3fn')", target="cuda:80"),
        "A is float8_e4m3fn, which cuda:80 does not have",
    )


def test_unknown_targets() -> None:
    with pytest.raises(TileError, match="unknown target 'cdua'"):
        compiled(WRITE, target="cdua")


def test_tiles_too_large_for_the_target() -> None:
    body = """
    with T.Kernel(1) as bx:
        a = T.alloc_shared((256, 512), "float16")
        b = T.alloc_shared((512, 256), "float16")
        c = T.alloc_fragment((256, 256), "float32")
        T.clear(c)
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, c)
        T.copy(c, C)
    """
    declared = (
        'A: T.Tensor((256, 512), "float16"), B: T.Tensor((512, 256), "float16"), C: T.Tensor((256, 256), "float32")'
    )
    refused(
        lambda: compiled(body, declared=declared, target="cuda:90"),
        "T.gemm needs 524288 bytes of shared memory for its operands, and cuda:90 has 232448 for a block",
        "T.gemm(a, b, c)",
        [
            "a is (256, 512) of float16, 262144 bytes, allocated",
            "b is (512, 256) of float16, 262144 bytes, allocated",
            "use smaller tiles",
        ],
    )
    compiled(body, declared=declared, target="interpret")


def test_shared_memory_that_only_the_compilation_knows() -> None:
    body = """
    with T.Kernel(1) as bx:
        a = T.alloc_shared((128, 64), "float16")
        b = T.alloc_shared((64, 128), "float16")
        c = T.alloc_fragment((128, 128), "float32")
        T.clear(c)
        for k in T.Pipelined(64, num_stages=9):
            T.copy(A[0, k * 64], a)
            T.copy(B[k * 64, 0], b)
            T.gemm(a, b, c)
        T.copy(c, C)
    """
    declared = (
        'A: T.Tensor((128, 4096), "float16"), B: T.Tensor((4096, 128), "float16"), C: T.Tensor((128, 128), "float32")'
    )
    kernel = compiled(body, declared=declared, target="cuda:80")
    with pytest.raises(
        TileError, match=r"needs \d+ bytes of shared memory, and cuda:80 has 166912 for a block"
    ) as caught:
        kernel.compiled
    assert marked(caught.value) == "with T.Kernel(1) as bx:"
    assert caught.value.stage == "resources"  # type: ignore[attr-defined]


# Nothing is left half-written


def test_nothing_is_left_on_disk(cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = tmp_path / "dump"
    monkeypatch.setenv("TILEDSL_DUMP_DIR", str(dump))
    with pytest.raises(TileError):
        compiled("with T.Kernel(1) as bx:\n    A[0, 0] = 1.0\n    T.copy(A, 3)")
    left = [path for folder in (cache_dir, dump) for path in folder.rglob("*") if path.is_file()]
    assert [path for path in left if "grammar" not in str(path)] == []
    kernel = compiled(WRITE, target="interpret")
    with pytest.raises(FileNotFoundError, match=r"no_such_folder/kernel\.py'$"):
        kernel.export(tmp_path / "no_such_folder" / "kernel.py")
    assert not (tmp_path / "no_such_folder").exists()
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match=r"/folder'$"):
        kernel.export(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".folder")] == []


def test_functions_of_libraries_say_what_the_language_has(tmp_path: Path) -> None:
    head = "import numpy as np\nimport torch\nimport tiledsl.language as T\n\n\n@T.prim_func\n"
    head += 'def main(A: T.Tensor((4, 4), "float32")):\n    with T.Kernel(1) as bx:\n        A[0, 0] = '
    for call, way_out in [
        ("torch.erf(A[0, 0])", "write T.erf"), ("np.maximum(A[0, 0], 1.0)", "write T.max"),
        ("torch.nn.functional.relu(A[0, 0])", "write T.max(x, 0)"), ("torch.matmul(A, A)", "write T.gemm"),
        ("torch.special.i0(A[0, 0])", "write it with the functions of tiledsl.language (T.exp, T.max, ...)"),
    ]:  # fmt: skip
        (tmp_path / call).mkdir()
        program = module(tmp_path / call, f"{head}{call}\n").main
        message = f"{call.partition('(')[0]} runs while the program is built, and takes no values of the device"
        refused(lambda made=program: tiledsl.compile(made, target="interpret"), message, call, [way_out])


def test_tensors_for_a_builder_are_told_by_shape_and_type() -> None:
    @tiledsl.jit
    def scaled(M, N):
        @T.prim_func
        def scaled(X: T.Tensor((M, N), "float32")):
            with T.Kernel(1) as bx:
                X[bx, 0] = 1.0

        return scaled

    refused(
        lambda: scaled(torch.ones(4, 5)),
        "scaled: missing a required argument: 'N'",
        notes=["it makes a kernel of sizes and tunables; give tensors to the kernel: scaled(...)(...)"],
    )
    refused(
        lambda: scaled(torch.ones(4, 5), N=torch.ones(5, dtype=torch.int8)),
        "scaled makes a kernel and takes no tensors: M is a torch Tensor of shape (4, 5) and torch.float32, "
        "N is a torch Tensor of shape (5,) and torch.int8",
        notes=["give it sizes and tunables, and its kernel the tensors: scaled(M=..., N=...)(...)"],
    )
    refused(
        lambda: T.Tensor((torch.ones(2, 3),)),
        "dimension 0 of a tensor is a torch Tensor of shape (2, 3) and torch.float32, not an integer or a T.dynamic symbol",
    )


def test_an_error_survives_being_sent_to_another_process() -> None:
    error = refused(lambda: compiled("with T.Kernel(1) as bx:\n    T.copy(A, 3)"), "T.copy needs a buffer or a part of one, not int 3")  # fmt: skip
    again = pickle.loads(pickle.dumps(error))
    assert (again.message, again.loc) == (error.message, error.loc)
    assert json.dumps(str(again))


def rewrite() -> None:
    """Write bad_input.txt anew."""
    found = []
    for body, _ in CASES:
        with tempfile.TemporaryDirectory() as folder:
            found.append(f"{body}\n---\n{error_of(body, Path(folder))}\n")
    FILE.write_text("\n===\n".join(found))


if __name__ == "__main__":
    rewrite()
