"""Near misses of program texts that cover the frontend, and what is said of each: an error, or a digest of the IR."""

from __future__ import annotations

import linecache
import re
import warnings
from pathlib import Path
from typing import Any

import tiledsl
import tiledsl.language as T
from tests.frontend import device, host
from tests.frontend.device_programs import DEVICE_PROGRAMS
from tests.frontend.host_programs import HOST_PROGRAMS
from tests.frontend.near_texts import near
from tests.frontend.test_elaborate_fuzz import GEMM, ROWS, VALUES
from tests.frontend.test_parser import SNIPPETS
from tests.golden.programs import digest
from tiledsl.errors import TileError
from tiledsl.frontend.elaborate import Arguments, elaborate_eager
from tiledsl.frontend.parser import parse_module
from tiledsl.frontend.program import PrimFunc
from tiledsl.ir.printer import print_op
from tiledsl.ir.verifier import verify

FILE = Path(__file__).with_name("texts.txt")
HEAD = """\
# What is said of near misses of texts: a text and a seed, its edit, and the error with its place or a digest of the IR.
# `make golden` writes the outcomes anew; see test_texts.py.
"""

SURFACE = """
M = T.dynamic("M")
block: int = 8; dt = "int32"
scale = 2.0; steps = (1, 2)

@T.macro
def bump(counter: T.Ref, by=1):
    counter = counter + by

@T.macro
def leave(limit):
    if limit > 3:
        T.thread_return()

def spread(x, *more, **named):
    return x * scale + sum(more) + named["k"]

@T.prim_func
def main(
    A: T.Tensor((M, 16), "float32"), B: T.Tensor[(16, 16), "float16"], C: T.StridedTensor((16,), (2,), dt), n: T.int32
):
    W = T.alloc_global((16, 16), "float32")
    with T.Kernel(T.ceildiv(M, block), 2, threads=128) as (bx, by):
        s = T.alloc_shared((block, 16), "float32")
        f = T.alloc_fragment((block, 16), "float32")
        v = T.alloc_var("int32", 3)
        T.copy(A[bx * block : (bx + 1) * block, :], s)
        bump(v)
        bump(v, by=n)
        f[0:4, 0:8] = s[4:8, 8:16]
        for i, j in T.Parallel(block, 16):
            f[i, j] = spread(s[i, j], 1, 2, k=i) if j % 2 else T.exp(s[i, j])
        T.reduce_max(f, T.alloc_fragment((block,), "float32"), dim=1)
        with T.If(n > 2):
            with T.Then():
                C[0] = v
            with T.Else():
                C[-1] = T.cast(f[0, 0], "int32")
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[k, 0], f[0:1, 0:16])
        for t, u in T.Persistent([4, n], 2, bx):
            W[t, u] = A[t, u] + (B[t, 0:4])[2]
        x: T.int8 = n
        y, z = x, (W[0, 0], n)
        assert n < 9, f"n is {block:>3}"
    with T.Kernel(2) as bx:
        leave(n)
        for q in T.serial(0, n, 2):
            while C[q] > 0:
                C[q] -= 1
                if C[q] == n:
                    T.loop_break()
            if q == n: continue
            T.atomic_add(W[q, bx], 1.0)
        T.copy(W, B)
"""
EAGER = """
@tiledsl.jit(target="interpret")
def main(A, B, size, flag=True):
    rows, columns = T.const("rows, columns")
    A: T.Tensor((rows, columns), "float32")
    B: T.Tensor((rows,), T.int32)
    C = T.empty((rows, columns), "float32")
    D = T.empty((rows,), "int32")
    assert size > 1, "too small"
    with T.Kernel(T.ceildiv(rows, size), threads=64) as bx:
        for i, j in T.Parallel(size, columns):
            C[bx * size + i, j] = A[bx * size + i, j] * 2
        if flag:
            T.copy(B[bx * size : bx * size + size], D[bx * size])
    return C, D
"""
TEXTS = {"gemm": GEMM, "rows": ROWS, "surface": SURFACE, "eager": EAGER, "function": GEMM}
for kind, bodies in (("snippet", SNIPPETS), ("host", HOST_PROGRAMS), ("device", DEVICE_PROGRAMS)):
    TEXTS |= {f"{kind}{number}": text.strip("\n") for number, text in enumerate(bodies)}


def build(name: str, text: str) -> Any:
    """The IR that a text becomes; the tree where it is no program. Raises TileError."""
    if name.startswith("snippet"):
        return parse_module(text)
    if name.startswith("host"):
        run = host.while_built(host.function(text), as_text=len(text) % 2 == 0)
        if run.error:
            raise run.error
        return run.notes
    if name.startswith("device"):
        text = device.HEAD + "".join(f"        {line}\n" for line in text.split("\n"))
    if name not in ("eager", "function"):
        used = {
            key: value for key, value in VALUES.items() if re.search(rf"\b{key}\b", text) and name in ("gemm", "rows")
        }
        return tiledsl.parse(text, **used).build(())
    made = defined(text)
    if isinstance(made, PrimFunc):
        return made.build(())
    arguments = {
        "A": Arguments((6, 5), "float32", (5, 1)),
        "B": Arguments((6,), "int32", (1,)),
        "size": 4,
        "flag": True,
    }
    return elaborate_eager(made.function, arguments, made.frame_locals)


def defined(text: str) -> Any:
    """`main` of a text as Python defines it. Raises SyntaxError and whatever else the text does."""
    file = f"<{digest(text)}>"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = compile(text, file, "exec", dont_inherit=True)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"T": T, "tiledsl": tiledsl, **VALUES}
    exec(code, names)
    return names["main"]


def outcome(name: str, text: str) -> str:
    """What is said of a text in one line."""
    try:
        made = build(name, text)
    except TileError as error:
        loc = error.loc
        assert loc is not None or "\n" not in error.message, error
        place = f"{loc.line}:{loc.column}-{loc.end_line}:{loc.end_column} " if loc else ""
        notes = "".join(
            f" | {each}" if isinstance(each, str) else f" | {each[0]} {each[1].line}:{each[1].column}"
            for each in error.notes
        )
        said = f"{place}{error.message}{notes}"
        return said if len(said) <= 110 else f"{said[:100]}... {digest(said)}"
    if name.startswith(("snippet", "host")):
        return f"a tree {digest(repr(made))}"
    verify(made)
    return f"IR {digest(print_op(made, locations=True))}"


def line(name: str, seed: int) -> str:
    """A near miss by its text and seed: what is edited, and what is said of it."""
    text = TEXTS[name]
    made = near(text, seed)
    start = _same(text, made)
    same = _same(text[start:][::-1], made[start:][::-1])
    was, now = (each[start : len(each) - same] for each in (text, made))
    return f"{name} {seed} {was!r} -> {now!r}: {outcome(name, made)}".replace("\n", "\\n")


def _same(a: str, b: str) -> int:
    """How many characters two texts begin with that are the same."""
    return next((n for n, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def recorded() -> dict[tuple[str, int], str]:
    """The recorded lines by text and seed."""
    lines = [each for each in FILE.read_text().split("\n") if each and not each.startswith("#")]
    return {(each.split()[0], int(each.split()[1])): each for each in lines}
