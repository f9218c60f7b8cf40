"""Whole programs: the text as a person reads it, its results when interpreted, its pipelines when compiled."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tiledsl.codegen.triton_source import EmittedModule

GEMM = """
tile.func {sym_name = "gemm", parameters = ("A", "B", "C"), outputs = (2,)}
    (%A: buffer<96*128*float16, global>, %B: buffer<128*64*float16, global>, %C: buffer<96*64*float16, global>) {
  %gx = arith.constant {value = 2} : int32
  %gy = arith.constant {value = 3} : int32
  tile.kernel [%gx, %gy] {threads = 128, options = (("swizzle", (2, "row")),)} (%bx: int32, %by: int32) {
    %zero = arith.constant {value = 0.0} : tensor<32x32xfloat32>
    %c0 = arith.constant {value = 0} : int32
    %c1 = arith.constant {value = 1} : int32
    %steps = arith.constant {value = 4} : int32
    %c32 = arith.constant {value = 32} : int32
    %i = tensor.iota {axis = 0} : tensor<32x1xint32>
    %j = tensor.iota {axis = 1} : tensor<1x32xint32>
    %m = arith.mul %by, %c32 : int32 loc("gemm.py" 20 1 20 2)
    %n = arith.mul %bx, %c32 : int32 loc("gemm.py" 20 1 20 2)
    %rows = arith.add %i, %m : tensor<32x1xint32>
    %columns = arith.add %j, %n : tensor<1x32xint32>
    %r = scf.for %c0, %steps, %c1[%zero] {num_stages = 3} : tensor<32x32xfloat32>
        (%k: int32, %acc: tensor<32x32xfloat32>) {
      %ko = arith.mul %k, %c32 : int32
      %kr = arith.add %j, %ko : tensor<1x32xint32>
      %kc = arith.add %i, %ko : tensor<32x1xint32>
      %a = tile.load %A[%rows, %kr] {guarded = true} : tensor<32x32xfloat16> loc("gemm.py" 22 1 22 2)
      %b = tile.load %B[%kc, %columns] {guarded = true} : tensor<32x32xfloat16> loc("gemm.py" 23 1 23 2)
      %d = tensor.dot %a, %b, %acc : tensor<32x32xfloat32> loc("gemm.py" 24 1 24 2)
      scf.yield [%d]
    } loc("gemm.py" 21 1 21 2)
    %h = arith.cast %r : tensor<32x32xfloat16>
    tile.store %h, %C[%rows, %columns] {guarded = true} loc("gemm.py" 25 1 25 2)
  }
}"""

# Online softmax over a dynamic number of columns, two launches with a workspace, ragged masks, a branch that keeps.
SOFTMAX = """
tile.func {sym_name = "softmax", parameters = ("X", "scale", "Y"), symbols = ("M", "N"),
           symbol_sources = ("X.0", "X.1"),
           outputs = (2,)}
    (%X: buffer<M*N*float32, global>, %scale: float32, %Y: buffer<M*N*float32, global>, %M: int32, %N: int32) {
  %S = tile.alloc : buffer<2*M*float32, global>
  %c15 = arith.constant {value = 15} : int32
  %c16 = arith.constant {value = 16} : int32
  %sum = arith.add %N, %c15 : int32
  %tiles = arith.floordiv %sum, %c16 : int32
  tile.kernel [%M] {threads = 32} (%row: int32) {
    %c0 = arith.constant {value = 0} : int32
    %c1 = arith.constant {value = 1} : int32
    %low = arith.constant {value = -inf} : float32
    %zero = arith.constant {value = 0.0} : float32
    %i = tensor.iota {axis = 0} : tensor<16xint32>
    %m2, %l2 = scf.for %c0, %tiles, %c1[%low, %zero] : float32, float32 (%t: int32, %m: float32, %l: float32) {
      %t16 = arith.mul %t, %c16 : int32
      %col = arith.add %i, %t16 : tensor<16xint32>
      %ok = arith.cmp %col, %N {predicate = "lt"} : tensor<16xbool>
      %x = tile.load %X[%row, %col] mask=%ok other=%low {guarded = true} : tensor<16xfloat32>
      %xs = arith.mul %x, %scale : tensor<16xfloat32>
      %top = tensor.reduce %xs {kind = "max", axis = 0} : float32
      %m_new = arith.max %m, %top : float32
      %dm = arith.sub %m, %m_new : float32
      %alpha = arith.math [%dm] {function = "exp"} : float32
      %dx = arith.sub %xs, %m_new : tensor<16xfloat32>
      %p = arith.math [%dx] {function = "exp"} : tensor<16xfloat32>
      %ps = tensor.reduce %p {kind = "sum", axis = 0} : float32
      %la = arith.mul %l, %alpha : float32
      %l = arith.add %la, %ps : float32
      scf.yield [%m_new, %l]
    }
    tile.store %m2, %S[%c0, %row] {guarded = true}
    tile.store %l2, %S[%c1, %row] {guarded = true}
  }
  tile.kernel [%tiles, %M] {threads = 32, sym_name = "normalize"} (%t: int32, %row: int32) {
    %c0 = arith.constant {value = 0} : int32
    %c1 = arith.constant {value = 1} : int32
    %i = tensor.iota {axis = 0} : tensor<16xint32>
    %t16 = arith.mul %t, %c16 : int32
    %col = arith.add %i, %t16 : tensor<16xint32>
    %ok = arith.cmp %col, %N {predicate = "lt"} : tensor<16xbool>
    %x = tile.load %X[%row, %col] mask=%ok {guarded = true} : tensor<16xfloat32>
    %m = tile.load %S[%c0, %row] {guarded = true} : float32
    %l = tile.load %S[%c1, %row] {guarded = true} : float32
    %xs = arith.mul %x, %scale : tensor<16xfloat32>
    %dx = arith.sub %xs, %m : tensor<16xfloat32>
    %p = arith.math [%dx] {function = "exp"} : tensor<16xfloat32>
    %y = arith.div %p, %l : tensor<16xfloat32>
    tile.store %y, %Y[%row, %col] mask=%ok {guarded = true}
  }
}"""

# Scalars, while, if with and without results, atomics, 64-bit arguments, strides, gather through a table.
CONTROL = """
tile.func {sym_name = "control", parameters = ("T", "big", "flag", "X", "H", "OUT"),
           symbols = ("s",), symbol_sources = ("X.stride0",)}
    (%T: buffer<8*int32, global>, %big: int64, %flag: bool, %X: buffer<8*4*float32, global, strides(s, 1)>,
     %H: buffer<4*int32, global>, %OUT: buffer<8*4*float32, global>, %s: int32) {
  %blocks = arith.constant {value = 8} : int32
  tile.kernel [%blocks] {threads = 32} (%b: int32) {
    %c0 = arith.constant {value = 0} : int32
    %c1 = arith.constant {value = 1} : int32
    %c3 = arith.constant {value = 3} : int32
    %two = arith.constant {value = 2.0} : float32
    %i = tensor.iota {axis = 0} : tensor<4xint32>
    %row = tile.load %T[%b] {guarded = true} : int32
    %x = tile.load %X[%row, %i] {guarded = true} : tensor<4xfloat32>
    %n, %v = scf.while [%row, %x] : int32, tensor<4xfloat32> (%a: int32, %v: tensor<4xfloat32>) {
      %go = arith.cmp %a, %c3 {predicate = "gt"} : bool
      scf.condition %go[%a, %v]
    } (%a: int32, %v: tensor<4xfloat32>) {
      %a2 = arith.sub %a, %c1 : int32
      %v2 = arith.mul %v, %two : tensor<4xfloat32>
      scf.yield [%a2, %v2]
    }
    %limit = arith.constant {value = 1099511627776} : int64
    %large = arith.cmp %big, %limit {predicate = "ge"} : bool
    %y = scf.if %large : tensor<4xfloat32> {
      %w = arith.neg %v : tensor<4xfloat32>
      scf.yield [%w]
    } {
      scf.yield [%v]
    }
    scf.if %flag {
      %rest = arith.truncmod %row, %c3 : int32
      %old = tile.atomic %c1, %H[%rest] {kind = "add", guarded = true} : int32
      scf.yield
    } {
      scf.yield
    }
    tile.store %y, %OUT[%b, %i] {guarded = true}
  }
}"""


# What has effects only: prints, assertions, atomics of all kinds, an unrolled loop and one that counts down.
EFFECTS = """
tile.func {sym_name = "effects", parameters = ("F", "I", "H")}
    (%F: buffer<16*float32, global>, %I: buffer<16*int32, global>, %H: buffer<16*bfloat16, global>) {
  %one = arith.constant {value = 1} : int32
  tile.kernel [%one] {threads = 32} (%b: int32) {
    %c0 = arith.constant {value = 0} : int32
    %c3 = arith.constant {value = 3} : int32
    %down = arith.constant {value = -1} : int32
    %i = tensor.iota {axis = 0} : tensor<16xint32>
    %ones = arith.constant {value = 1.0} : tensor<16xfloat32>
    %halves = arith.constant {value = 0.5} : tensor<16xbfloat16>
    %low = arith.cmp %i, %c3 {predicate = "lt"} : tensor<16xbool>
    %ok = arith.cmp %b, %c3 {predicate = "lt"} : bool
    tile.assume %ok
    tile.assert %low {message = "low \\"part\\""}
    tile.print [%i, %b] {message = "index"}
    %f = tile.atomic %ones, %F[%i] mask=%low {kind = "max", guarded = true} : tensor<16xfloat32>
    %h = tile.atomic %halves, %H[%i] {kind = "add", guarded = true} : tensor<16xbfloat16>
    %old = tile.atomic %c3, %I[%c0] {kind = "load", semantics = "acquire", guarded = true} : int32
    %seen = tile.atomic %c3, %I[%c0] {kind = "load", guarded = true} : int32
    %sum = arith.add %old, %seen : int32
    %set = tile.atomic %sum, %I[%one] {kind = "store", semantics = "release", guarded = true} : int32
    %swap = tile.atomic %c3, %I[%c3] {kind = "exchange", guarded = true} : int32
    scf.for %c3, %c0, %down {unroll = 1} (%k: int32) {
      %and = tile.atomic %k, %I[%k] {kind = "and", semantics = "acq_rel", guarded = true} : int32
      scf.yield
    }
  }
}"""


@pytest.fixture(scope="module")
def modules(lowered: Callable[..., EmittedModule]) -> dict[str, EmittedModule]:
    programs = {"gemm": GEMM, "softmax": SOFTMAX, "control": CONTROL, "effects": EFFECTS}
    return {name: lowered(text) for name, text in programs.items()}


def test_gemm_reads_well(modules: dict[str, EmittedModule]) -> None:
    source = modules["gemm"].source
    kernel = source[source.index("@triton.jit") : source.index("def gemm_into")].rstrip()
    assert (
        kernel
        == """\
@triton.jit
def gemm_kernel(A, B, C):
    block = tl.program_id(0)
    panel = block // 4
    first = panel * 2
    within = block % 4
    rows = tl.minimum(3 - first, 2)
    by = first + within % rows
    bx = within // rows
    # gemm.py:20
    n = bx * 32
    # gemm.py:22
    A_start = by * 4096
    A_offsets = tl.arange(0, 32)[:, None] * 128 + tl.arange(0, 32)[None, :]
    # gemm.py:23
    B_offsets = tl.arange(0, 32)[:, None] * 64 + tl.arange(0, 32)[None, :]
    # gemm.py:21
    acc = tl.zeros((32, 32), tl.float32)
    for k in tl.range(4, num_stages=3):
        ko = k * 32
        # gemm.py:22
        a = tl.load(A + A_start + ko + A_offsets)
        # gemm.py:23
        b = tl.load(B + k * 2048 + n + B_offsets)
        # gemm.py:24
        acc = tl.dot(a, b, acc)
    h = acc.to(tl.float16)
    # gemm.py:25
    C_offsets = tl.arange(0, 32)[:, None] * 64 + tl.arange(0, 32)[None, :]
    tl.store(C + by * 2048 + n + C_offsets, h)"""
    )


def test_softmax_reads_well(modules: dict[str, EmittedModule]) -> None:
    source = modules["softmax"].source
    assert "        l = la + ps\n        m = m_new\n" in source
    assert "for t in range(tiles):" in source and "tiles = triton.cdiv(N, 16)" in source
    assert "S = torch.empty((2, M), dtype=torch.float32, device=X.device)" in source
    assert [each.name for each in modules["softmax"].kernels] == ["softmax_kernel", "normalize"]
    assert modules["softmax"].kernels[0].signature == {
        "X": "*fp32", "scale": "fp32", "M": "i32", "N": "i32", "tiles": "i32", "S": "*fp32",
    }  # fmt: skip
    assert modules["softmax"].kernels[0].divisible_by_16 == ("X", "S")


def test_control_reads_well(modules: dict[str, EmittedModule]) -> None:
    source = modules["control"].source
    assert "while go:\n        a = a - 1\n        v = v * 2.0\n        go = a > 3\n" in source
    assert "large = big >= 1099511627776\n    if large:\n        v = -v\n" in source and "else" not in source
    assert "def control_kernel(T, big: tl.int64, flag: tl.int1, X, H, OUT, s):" in source
    assert 'tl.atomic_add(H + rest, 1, sem="relaxed")' in source
    assert "s = X.stride(0)" in source
    assert modules["control"].entry == modules["control"].into == "control"


def test_effects_stay_in_order(modules: dict[str, EmittedModule]) -> None:
    source = modules["effects"].source
    kernel = source[source.index("@triton.jit") : source.index("def effects(")].rstrip()
    assert (
        kernel
        == """\
@triton.jit
def effects_kernel(F, I, H):
    low = tl.arange(0, 16) < 3
    tl.device_assert(low, "low \\"part\\"")
    tl.device_print("index", tl.arange(0, 16), 0)
    tl.atomic_max(F + tl.arange(0, 16), tl.full((16,), 1.0, tl.float32), mask=low, sem="relaxed")
    tl.atomic_add(H + tl.arange(0, 16), tl.full((16,), 0.5, tl.bfloat16), sem="relaxed")
    old = tl.atomic_or(I, tl.full((), 0, tl.int32), sem="acquire")
    seen = tl.atomic_or(I, tl.full((), 0, tl.int32), sem="relaxed")
    sum_ = old + seen
    tl.atomic_xchg(I + 1, sum_, sem="release")
    tl.atomic_xchg(I + 3, 3, sem="relaxed")
    for k in tl.range(3, 0, -1, loop_unroll_factor=3):
        tl.atomic_and(I + k, k, sem="acq_rel")"""
    )


def test_results(modules: dict[str, EmittedModule], run_modules: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((96, 128), (128, 64)))
    x = rng.standard_normal((3, 37)).astype(np.float32)
    table = np.array([5, 0, 7, 2, 1, 3, 4, 6], np.int32)
    values = rng.standard_normal((8, 4)).astype(np.float32)
    arguments = {
        "T": table, "big": 1 << 41, "flag": True, "X": values, "H": np.zeros(4, np.int32),
        "OUT": np.zeros((8, 4), np.float32),
    }  # fmt: skip
    results = run_modules(
        [
            (modules["gemm"], {"A": a, "B": b}),
            (modules["softmax"], {"X": x, "scale": 0.5}),
            (modules["control"], arguments),
            (modules["control"], {**arguments, "big": 5, "flag": False}),
        ]
    )
    assert not [each for each in results if isinstance(each, str)]
    gemm, softmax, control, small = results
    np.testing.assert_allclose(gemm[0], a.astype(np.float32) @ b.astype(np.float32), rtol=1e-2, atol=1e-2)
    shifted = np.exp(x * 0.5 - (x * 0.5).max(1, keepdims=True))
    np.testing.assert_allclose(softmax[0], shifted / shifted.sum(1, keepdims=True), rtol=1e-5)
    expected = values[table] * 2.0 ** np.maximum(table - 3, 0)[:, None]
    np.testing.assert_allclose(control[3], -expected, rtol=1e-6)
    assert list(control[2]) == [*np.bincount(table % 3), 0]
    np.testing.assert_allclose(small[3], expected, rtol=1e-6)
    assert not small[2].any()


@pytest.mark.parametrize("version", ["newest", "3.6"])
def test_loops_are_pipelined_as_asked(
    modules: dict[str, EmittedModule], compile_modules: Callable[..., Any], version: str, request: pytest.FixtureRequest
) -> None:
    options = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    made = {name: (error, ttgir) for name, error, ttgir in compile_modules(modules, **options)}
    assert not any(error for error, _ in made.values()), made
    assert made["gemm"][1].count("ttg.async_copy_global_to_local") == 6  # two loads, three stages
    assert "async_copy" not in made["softmax"][1]


def test_module_stands_alone(modules: dict[str, EmittedModule]) -> None:
    for module in modules.values():
        imports = [
            node for node in ast.walk(ast.parse(module.source)) if isinstance(node, (ast.Import, ast.ImportFrom))
        ]
        assert {alias.name for node in imports for alias in node.names} <= {
            "torch",
            "triton",
            "triton.language",
            "libdevice",
        }
        assert max(map(len, module.source.splitlines())) <= 110


def test_same_ir_gives_same_text(modules: dict[str, EmittedModule], lowered: Callable[..., EmittedModule]) -> None:
    assert lowered(SOFTMAX).source == modules["softmax"].source
