"""Programs made wrong at random, as texts and as functions: nothing but a TileError comes out, and in finite time."""
# ruff: noqa: E501

from __future__ import annotations

import itertools
import linecache
import random
import re
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError
from tiledsl.frontend.program import PrimFunc
from tiledsl.ir.verifier import verify

GEMM = """
@T.macro
def load(A, s, by, ko):
    T.copy(A[by * block_M, ko * block_K], s)

@T.prim_func
def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
        a = T.alloc_shared((block_M, block_K), dtype)
        b = T.alloc_shared((block_K, block_N), dtype)
        c = T.alloc_fragment((block_M, block_N), "float32")
        T.use_swizzle(panel_size=10)
        T.clear(c)
        for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
            load(A, a, by, ko)
            T.copy(B[ko * block_K, bx * block_N], b)
            T.gemm(a, b, c, transpose_B=False)
        for i, j in T.Parallel(block_M, block_N):
            c[i, j] = T.max(c[i, j], 0) if i < j else T.exp(c[i, j])
        T.copy(c, C[by * block_M, bx * block_N])
"""
ROWS = """
@T.prim_func
def main(A: T.Tensor((M, N), "float32"), I: T.Tensor((M,), "int32"), B: T.Tensor((M, N), "float16"), n: T.int32):
    S = T.alloc_global((M, N), "float32")
    with T.Kernel(M, threads=64) as bx:
        x = T.alloc_fragment((1, N), "float32")
        m = T.alloc_fragment((1,), "float32")
        v = T.alloc_var("int32", 0)
        T.copy(A[bx, 0], x)
        T.reduce_max(x, m, dim=1, clear=True)
        for i in T.serial(n):
            if i % 2 == 0 and v < 7:
                v += I[i] // 3
            elif v > 9:
                break
            else:
                continue
        while v > 3:
            v = v - 1
        for j in T.Parallel(N):
            y = x[0, j] - m[0]
            if j < v:
                S[bx, j] = T.if_then_else(y > -1.0, y, T.cast(I[bx], "float32"))
    with T.Kernel(M) as bx:
        for j in T.Parallel(N):
            T.atomic_add(A[bx, j], S[bx, j])
            B[bx, j] = S[bx, N - 1 - j] ** 2
        T.cumsum(A[bx, 0:N], dim=0)
"""
VALUES = {"M": 32, "N": 16, "K": 48, "block_M": 16, "block_N": 16, "block_K": 16, "dtype": "float16"}
TOKEN = re.compile(r'"[^"]*"|[A-Za-z_][\w.]*|\d+(?:\.\d+)?|[-+*/%<>=!&|^~]+|[\[\](){}:,]')
WORDS = [
    "0", "1", "-1", "3", "2.5", "1e400", "10 ** 30", "None", "True", '"float16"', '"a"', "()", "(1, 2)", "[1]", "A", "B", "a", "c",
    "x", "v", "bx", "i", "n", "T.copy", "T.gemm", "T.fill", "T.serial", "T.Parallel", "T.Kernel", "T.alloc_var", "T.alloc_shared",
    "T.reduce_sum", "T.float16", "T.reshape", "T.view", "T.dynamic", "T.Tensor", "T.exp", "T.max", "T.atomic_add", "T.unroll", "range",
    "T.Persistent", "T.empty", "T.const", "T.cumsum", "T.clear", "T.ceildiv", "T.infinity", "T.cast", "T.reinterpret", "T.print",
    "main", "load", "not", "lambda: 1", "A[0]", "A[0:4, 1]", "c[0, 0]", "x[0, :]", "A.shape", "A.dtype", ":", "::2", "...", "*A", "-v",
]  # fmt: skip
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "<", ">", "==", "<<", "&", "and", "or", "in", "is", ",", "=", "+="]


def mutated(source: str, seed: int, count: int) -> str:
    """The source with some statements or tokens deleted, doubled, moved or replaced."""
    rng = random.Random(seed)
    lines = source.strip("\n").split("\n")
    for _ in range(count):
        kind, at = rng.randrange(6), rng.randrange(len(lines))
        if kind == 0 and len(lines) > 3:
            del lines[at]
        elif kind == 1:
            lines.insert(at, lines[rng.randrange(len(lines))])
        elif kind == 2:
            other = rng.randrange(len(lines))
            indents = [re.match(" *", lines[each])[0] for each in (at, other)]  # type: ignore[index]
            lines[at], lines[other] = indents[0] + lines[other].lstrip(), indents[1] + lines[at].lstrip()
        else:
            tokens = list(TOKEN.finditer(lines[at]))
            if tokens:
                token = tokens[rng.randrange(len(tokens))]
                new = rng.choice(OPERATORS if re.fullmatch(r"[-+*/%<>=!&|^~]+", token[0]) else WORDS)
                lines[at] = lines[at][: token.start()] + new + lines[at][token.end() :]
    return "\n".join(lines) + "\n"


numbers = itertools.count()


def function(source: str) -> Any:
    """The program as a Python function; None where Python itself refuses the source."""
    file = f"<fuzz {next(numbers)}>"
    try:
        code = compile(source, file, "exec")
    except (SyntaxError, ValueError, OverflowError):
        return None
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"T": T, "tiledsl": tiledsl, **VALUES}
    try:
        exec(code, names)
    except TileError:
        return None
    except Exception:  # Python's own, from annotations and decorators
        return None
    return names.get("main")


def elaborated(build: Any) -> None:
    start = time.perf_counter()
    try:
        verify(build())
    except TileError as error:
        assert str(error)
        assert len(error.message) < 600
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("source", [GEMM, ROWS])
def test_the_programs_are_right(source: str) -> None:
    used = {name: value for name, value in VALUES.items() if re.search(rf"\b{name}\b", source)}
    verify(tiledsl.parse(source, **used).build(()))
    verify(function(source).build())


COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@hypothesis_settings(max_examples=100, **COMMON)
@given(st.sampled_from([GEMM, ROWS]), st.integers(0, 1 << 32), st.integers(1, 4))
def test_texts(source: str, seed: int, count: int) -> None:
    text = mutated(source, seed, count)
    used = {name: value for name, value in VALUES.items() if re.search(rf"\b{name}\b", text)}
    elaborated(lambda: tiledsl.parse(text, **used).build(()))


@hypothesis_settings(max_examples=100, **COMMON)
@given(st.sampled_from([GEMM, ROWS]), st.integers(0, 1 << 32), st.integers(1, 3))
def test_functions(source: str, seed: int, count: int) -> None:
    program = function(mutated(source, seed, count))
    if isinstance(program, PrimFunc):
        elaborated(lambda: program.build())
