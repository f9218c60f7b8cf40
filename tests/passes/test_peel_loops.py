"""peel-loops: where loops are divided, that nothing but masks changes, and why others stay."""

from __future__ import annotations

import itertools
import math
import operator
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import triton
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledsl
import tiledsl.language as T
from benchmarks.programs.tilelang_style import one_loop_attention
from tests.codegen.test_block_modules import gemm as product
from tests.passes.ir_cases import after, body_lines, filecheck, program
from tests.passes.test_block_programs import count, lowered
from tests.support.example_modules import load_example
from tests.support.programs import Author, attention, check_pass, gemm, inputs_for, programs
from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation
from tiledsl.ir.pass_manager import PassManager, Program
from tiledsl.ir.verifier import verify
from tiledsl.passes import default_pipeline
from tiledsl.passes.peel_loops import MODES, PeelLoops, _simplify_masks
from tiledsl.runtime.target import Target

POINTERS = {"select-emitter.backend": "triton", "select-access.mode": "pointer"}
PEEL = PeelLoops(mode="all")


def before_peeling(func: Operation, options: dict[str, Any] | None = None) -> Operation:
    """The program as the pass sees it."""
    passes = default_pipeline({**POINTERS, **(options or {})})
    names = [each.name for each in passes]
    made = Program(func.clone({}), Target("cuda", 90))
    PassManager(passes[: names.index("peel-loops")]).run(made)
    return made.root


def loops_of(root: Operation) -> list[scf.ForOp]:
    return [op for op in root.walk() if isinstance(op, scf.ForOp)]


def masks_in(loop: scf.ForOp) -> int:
    """Comparisons of indices, and loads with masks."""
    found = 0
    for op in loop.body.walk():
        found += isinstance(op, arith.CmpOp) and op.lhs.dtype == "int32"
        found += isinstance(op, tile.LoadOp) and op.mask is not None
    return found


def check(func: Operation, sizes: dict[str, int] | None = None, **options: Any) -> list[scf.ForOp]:
    """Peel, compare with the program before, at every bit, and return the loops."""
    root = before_peeling(func, options)
    return loops_of(check_pass(PEEL, root, inputs_for(func, 0, sizes), uninitialised="zero"))


def remarks(root: Operation) -> list[str]:
    made = Program(root.clone({}), Target("cuda", 90))
    PEEL.run(made)
    return [each for op in made.root.walk() if isinstance(op, tile.KernelOp) for each in op.remarks if "peel" in each]


# Sums that wrap

OFFSET = """
%i = tensor.iota {{axis = 0}} : tensor<4x1xint32>
%zero = arith.constant {{value = 0}} : tensor<4x1xint32>
%one = arith.constant {{value = 1}} : tensor<4x1xint32>
%end = arith.constant {{value = {limit}}} : int32
%sum = scf.for %c0, %c9, %c1[%zero] : tensor<4x1xint32> (%k: int32, %old: tensor<4x1xint32>) {{
  %first = arith.mul %k, %c{factor} : int32
  %place = arith.add %first, %i : tensor<4x1xint32>
  %moved = arith.{moves} {operands} : tensor<4x1xint32>
  %ok = arith.cmp {sides} {{predicate = "{predicate}"}} : tensor<4x1xbool>
  %more = arith.select %ok, {choice} : tensor<4x1xint32>
  %twice = arith.add %old, %old : tensor<4x1xint32>
  %new = arith.add %twice, %more : tensor<4x1xint32>
  scf.yield [%new]
}}
%at = arith.add %i, %bx : tensor<4x1xint32>
tile.store %sum, %N[%at]
"""


@pytest.mark.parametrize("predicate", ["lt", "le", "gt", "ge"])
@pytest.mark.parametrize("moves", ["%place, %s", "%s, %place"])
def test_sums_with_numbers_from_outside_wrap(moves: str, predicate: str) -> None:
    """Such as a loaded offset: an index is less than all others again where it passes the limit of int32."""
    divided = 0
    for factor, sides, choice, limit in itertools.product(
        (4, -4), ("%moved, %end", "%end, %moved"), ("%one, %zero", "%zero, %one"), (5, 2**31 - 1)
    ):
        move = "add" if moves.startswith("%place") else "sub"
        body = OFFSET.format(
            factor=factor, sides=sides, choice=choice, limit=limit, predicate=predicate, moves=move, operands=moves
        )
        root = program(body, grid=(1,)).root
        names = list(root.attributes["parameters"])
        for number in (20, 2**31 - 20, 20 - 2**31):
            inputs = list(inputs_for(root, 0))
            inputs[names.index("s")] = number
            divided += len(loops_of(check_pass(PEEL, root, inputs))) > 1
    assert divided > 20


WINDOW = """
%i = tensor.iota {{axis = 0}} : tensor<4xint32>
scf.for %c{start}, %c{end}, %c{step} (%k: int32) {{
  %first = arith.mul %k, %c{factor} : int32
  %p = arith.add %first, %i : tensor<4xint32>
  %a = arith.cmp %p, %c{low} {{predicate = "{above}"}} : tensor<4xbool>
  %b = arith.cmp %c{high}, %p {{predicate = "{below}"}} : tensor<4xbool>
  %m = arith.and %a, %b : tensor<4xbool>
  %x = tile.load %N[%p] mask=%m : tensor<4xint32>
  tile.store %x, %N[%p] mask=%m
  scf.yield
}}"""


@pytest.mark.parametrize(("start", "end", "step"), [(0, 16, 1), (1, 16, 2), (3, 30, 3)])
@pytest.mark.parametrize("factor", [4, 3, -4])
def test_loops_are_divided_where_masks_begin_and_end_to_hold(start: int, end: int, step: int, factor: int) -> None:
    """Of all elements of an iteration; with no iteration in between the loop stays."""
    compare, tried = {"ge": operator.ge, "gt": operator.gt}, 0
    base = 0 if factor > 0 else -64
    for above, below, low, high in itertools.product(compare, compare, (-9, 10, 12, 15), (28, 47, 48, 70)):
        low, high = low + base, high + base
        turns = range(start, end, step)
        free = [
            k for k in turns
            if all(compare[above](k * factor + i, low) and compare[below](high, k * factor + i) for i in range(4))
        ]  # fmt: skip
        head, tail = [k for k in turns if free and k < free[0]], [k for k in turns if free and k > free[-1]]
        parts = [part for part in (head, free, tail) if part]
        if len(parts) < 2 or 1 in map(len, parts):  # a loop of one turn is none
            continue
        names = {"above": above, "below": below, "low": low, "high": high, "factor": factor}
        lines = after(PEEL, WINDOW.format(start=start, end=end, step=step, **names))
        text = "\n".join(lines)
        bounds = [tuple(map(number, match)) for match in re.findall(r"scf.for %c(\w+), %c(\w+), %c\w+", text)]
        assert [[*range(*each, step)] for each in bounds] == parts, (names, bounds)
        masks = ["mask=" in line for line in lines if "tile.load" in line]
        assert masks == [part is not free for part in parts]
        tried += 1
    assert tried > 3


def number(name: str) -> int:
    return int(name.replace("m", "-"))


LOADED = """
%zero = arith.constant {{value = 0}} : int32
%sum = scf.for %c0, %c9, %c1[%zero] : int32 (%k: int32, %old: int32) {{
  %x = tile.load %N[%k] : int32
  %most = arith.constant {{value = {most}}} : int32
  %y = arith.and %x, %most : int32
  %first = arith.mul %k, %c4 : int32
  {sum}
  %ok = arith.cmp %moved, %c5 {{predicate = "ge"}} : bool
  %more = arith.select %ok, %c1, %c0 : int32
  %twice = arith.add %old, %old : int32
  %new = arith.add %twice, %more : int32
  scf.yield [%new]
}}
tile.store %sum, %N[%bx]
"""


@pytest.mark.parametrize(
    ("sum", "most", "divided"),
    [
        ("%moved = arith.add %first, %y : int32", 2**30 - 1, True),
        ("%moved = arith.add %first, %y : int32", 2**31 - 1, False),
        ("%t = arith.add %y, %y : int32\n%moved = arith.add %first, %t : int32", 2**30 - 1, False),
        ("%t = arith.mul %y, %c8 : int32\n%moved = arith.add %first, %t : int32", 2**30 + 2**28, False),
    ],
)
def test_sums_with_numbers_from_inside_wrap(sum: str, most: int, divided: bool) -> None:
    """Such as a loaded number without its sign: what is added to it may make it negative."""
    root = program(LOADED.format(sum=sum, most=most), grid=(1,)).root
    inputs = inputs_for(root, 0)
    inputs[list(root.attributes["parameters"]).index("N")][:] = most
    assert (len(loops_of(check_pass(PEEL, root, inputs))) > 1) is divided


# The form of it

GUARDED = """
%i = tensor.iota {axis = 0} : tensor<16x1xint32>
%zero = arith.constant {value = 0.0} : tensor<16x1xfloat32>
%sum = scf.for %c0, %c7, %c1[%zero] {num_stages = 2} : tensor<16x1xfloat32> (%k: int32, %old: tensor<16x1xfloat32>) {
  %first = arith.mul %k, %c16 : int32
  %rows = arith.add %first, %i : tensor<16x1xint32>
  %ok = arith.cmp %rows, %m {predicate = "lt"} : tensor<16x1xbool>
  %x = tile.load %D[%rows] mask=%ok {guarded = true} : tensor<16x1xfloat32>
  %new = arith.add %old, %x : tensor<16x1xfloat32>
  scf.yield [%new]
}
%place = arith.add %i, %bx : tensor<16x1xint32>
tile.store %sum, %B[%place, %c0]
"""


def test_before_and_after() -> None:
    lines = after(PEEL, GUARDED)
    filecheck(
        lines[1:4],
        """
        %0 = arith.max %m, %c0 : int32
        %1 = arith.truncdiv %0, %c16 : int32
        %2 = arith.min %1, %c7 : int32
        """,
    )
    main, rest = (at for at, line in enumerate(lines) if "scf.for" in line)
    assert lines[main].startswith("%sum = scf.for %c0, %2, %c1[%c0p0] {num_stages = 2}")
    assert lines[rest].startswith("%sum_1 = scf.for %2, %c7, %c1[%sum] {num_stages = 2}")
    assert "%x = tile.load %D[%rows] {guarded = true} : tensor<16x1xfloat32>" in lines[main:rest]
    assert any("tile.load" in line and "mask=" in line for line in lines[rest:])
    assert lines[-1].startswith("tile.store %sum_1, ")


@pytest.mark.parametrize("sign", ["add", "sub"])
def test_a_sum_that_wraps_in_all_iterations_or_none_adds_no_loop(sign: str) -> None:
    """Whether it does is asked beside the masks of the loop's end, of numbers that stay."""
    sums = f"""%t = arith.{sign} %first, %s : int32
    %u = arith.sub %t, %c100 : int32
    %rows = arith.add %u, %i : tensor<16x1xint32>"""
    body = GUARDED.replace("%rows = arith.add %first, %i : tensor<16x1xint32>", sums).replace("%D[%rows]", "%D[%i]")
    lines = after(PEEL, body)
    assert sum("scf.for" in line for line in lines) == 2
    main = lines[next(at for at, line in enumerate(lines) if "scf.for" in line) :]
    assert ["mask=" in line for line in main if "tile.load" in line] == [False, True]


def test_both_ends_of_a_loop_with_two_masks_each() -> None:
    """Counted from the first iteration, the last of the starts and the first of the ends, which is no earlier."""
    masks = {"low": ("%s", "ge"), "lower": ("%bx", "ge"), "high": ("%m", "lt"), "higher": ("%t", "lt")}
    lines = [
        f'%{name} = arith.cmp %rows, {side} {{predicate = "{predicate}"}} : tensor<16x1xbool>'
        for name, (side, predicate) in masks.items()
    ]
    lines += [
        "%two = arith.and %low, %lower : tensor<16x1xbool>", "%three = arith.and %two, %high : tensor<16x1xbool>",
        "%ok = arith.and %three, %higher : tensor<16x1xbool>",
    ]  # fmt: skip
    body = GUARDED.replace(next(line for line in GUARDED.splitlines() if "%ok = " in line), "\n".join(lines))
    found = after(PEEL, "%t = arith.cast %l : int32\n" + body)
    filecheck(
        found[2:27],
        """
        %0 = arith.cast %s : int64
        %1 = arith.add %0, %c31 : int64
        %2 = arith.max %1, %c16 : int64
        %3 = arith.truncdiv %2, %c16 : int64
        %4 = arith.sub %3, %c1 : int64
        %5 = arith.cast %bx : int64
        %6 = arith.add %5, %c31 : int64
        %7 = arith.max %6, %c16 : int64
        %8 = arith.truncdiv %7, %c16 : int64
        %9 = arith.sub %8, %c1 : int64
        %10 = arith.cast %m : int64
        %11 = arith.add %10, %c16 : int64
        %12 = arith.max %11, %c16 : int64
        %13 = arith.truncdiv %12, %c16 : int64
        %14 = arith.sub %13, %c1 : int64
        %15 = arith.cast %t : int64
        %16 = arith.add %15, %c16 : int64
        %17 = arith.max %16, %c16 : int64
        %18 = arith.truncdiv %17, %c16 : int64
        %19 = arith.sub %18, %c1 : int64
        %20 = arith.max %4, %9 : int64
        %21 = arith.min %14, %19 : int64
        %22 = arith.max %20, %21 : int64
        %23 = arith.min %20, %c7 : int64
        %24 = arith.cast %23 : int32
        """,
    )
    middle = found.index("%25 = arith.min %22, %c7 : int64")
    assert found[middle + 1] == "%26 = arith.cast %25 : int32"
    loops = [line.partition(" {")[0] for line in found if "scf.for" in line]
    assert loops == [
        "%sum = scf.for %c0, %24, %c1[%c0p0]", "%sum_1 = scf.for %24, %26, %c1[%sum]",
        "%sum_2 = scf.for %26, %c7, %c1[%sum_1]",
    ]  # fmt: skip
    loads = [line for line in found if "tile.load" in line]
    assert ["mask=" in line for line in loads] == [True, False, True]


@pytest.mark.parametrize("inner", ["scf.for %c0, %c3, %c1 (%j: int32) {{ {} scf.yield }}", ""])
@pytest.mark.parametrize("outer", ["{num_stages = 2}", ""])
def test_loops_that_are_innermost_or_pipelined(outer: str, inner: str) -> None:
    body = GUARDED.replace("{num_stages = 2}", outer)
    lines = body.splitlines()
    at = next(number for number, line in enumerate(lines) if "tile.load" in line)
    lines.insert(at + 1, inner.format("tile.store %x, %B[%rows, %j] mask=%ok\n"))
    made = after(PEEL, "\n".join(lines))
    assert sum("scf.for %c0, %" in line and "[%c0p0]" in line for line in made) == 1
    assert any("[%sum]" in line for line in made) is bool(outer or not inner)


def test_off_changes_nothing_and_other_modes_are_refused() -> None:
    assert after(PeelLoops(mode="off"), GUARDED) == after([], GUARDED)
    with pytest.raises(TileError, match=r"peel-loops\.mode is 'always'; it must be one of auto, off, causal, all"):
        after(PeelLoops(mode="always"), GUARDED)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("%rows, %m", "%i, %m"), "no mask in it changes linearly with its index"),
        (('"lt"', '"eq"'), "no mask in it changes linearly with its index"),
        (("%first = arith.mul %k, %c16", "%first = arith.mul %k, %s"), "no mask in it changes linearly with its index"),
        (("%rows, %m", "%rows, %c7"), "its masks are needed in every iteration"),
        (("%c0, %c7, %c1[", "%c0, %c7, %s["), "its step is not a positive constant"),
        (("%c0, %c7, %c1[", "%c7, %c0, %c-1["), "its step is not a positive constant"),
    ],
)
def test_why_a_loop_stays(change: tuple[str, str], reason: str) -> None:
    body = GUARDED.replace(*change)
    assert body != GUARDED
    root = program(body).root
    line = loops_of(root)[0].loc.line
    assert remarks(root) == [f"the loop in line {line} is not peeled, because {reason}"]
    assert after(PEEL, body) == after([], body)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("lower", [0, 3])
@pytest.mark.parametrize("predicate", ["lt", "ge"])
def test_a_loop_is_divided_where_some_iteration_needs_no_mask(predicate: str, lower: int, step: int) -> None:
    for limit in range(8, 121, 8):
        body = GUARDED.replace("%rows, %m", f"%rows, %c{limit}").replace('"lt"', f'"{predicate}"')
        body = body.replace("%c0, %c7, %c1[", f"%c{lower}, %c7, %c{step}[")
        holds = [all((16 * k + i < limit) == (predicate == "lt") for i in range(16)) for k in range(lower, 7, step)]
        loads = [line for line in after(PEEL, body) if "tile.load" in line]
        assert any("mask=" not in line for line in loads) == any(holds), (limit, holds)
        told = remarks(program(body).root)
        assert len(told) == (not any(holds)) and all("needed in every iteration" in each for each in told)


LARGEST = 2**31 - 1


@pytest.mark.parametrize(
    ("limit", "dtype", "counts_one_more"),
    [
        (LARGEST - 1008 - 1024, "int32", True),
        (LARGEST - 1008 - 1023, "int32", False),  # one more iteration of the wider steps would not fit
        (LARGEST - 1008, "int32", False),
        (LARGEST - 1007, "int64", True),
    ],
)
def test_the_type_in_which_iterations_are_counted(limit: int, dtype: str, counts_one_more: bool) -> None:
    body = GUARDED.replace("%rows, %m", "%rows, %s").replace(
        "%new = arith.add %old, %x",
        """%far = arith.mul %k, %c1024 : int32
        %there = arith.add %far, %i : tensor<16x1xint32>
        %near = arith.cmp %there, %s {predicate = "lt"} : tensor<16x1xbool>
        %y = tile.load %D[%there] mask=%near {guarded = true} : tensor<16x1xfloat32>
        %both = arith.add %x, %y : tensor<16x1xfloat32>
        %new = arith.add %old, %both""",
    )
    assumed = f"""
    %least = arith.cmp %s, %c0 {{predicate = "ge"}} : bool
    %most = arith.cmp %s, %c{limit} {{predicate = "le"}} : bool
    tile.assume %least
    tile.assume %most
    """
    lines = after(PEEL, assumed + body)
    counting = lines[: next(at for at, line in enumerate(lines) if "scf.for" in line)]
    assert sum("arith.truncdiv" in line for line in counting) == 2
    assert all(line.endswith(dtype) for line in counting if "arith.truncdiv" in line)
    assert any("arith.sub" in line for line in counting) == counts_one_more


def test_masks_are_reduced_to_what_may_fail() -> None:
    made = program("""
    %i = tensor.iota {axis = 0} : tensor<16x1xint32>
    %j = tensor.iota {axis = 1} : tensor<1x8xint32>
    %t = arith.constant {value = true} : tensor<16x8xbool>
    %r = arith.cmp %i, %s {predicate = "lt"} : tensor<16x1xbool>
    %w = tensor.broadcast %r : tensor<16x8xbool>
    %n = arith.and %t, %w : tensor<16x8xbool>
    %q = arith.and %w, %t : tensor<16x8xbool>
    %x = tile.load %A[%i, %j] mask=%n other=%c2.0 : tensor<16x8xfloat32>
    %y = tile.load %A[%i, %j] mask=%t other=%c2.0 : tensor<16x8xfloat32>
    %z = tile.load %A[%i, %c3] mask=%q other=%c2.0 : tensor<16x8xfloat32>
    tile.store %x, %B[%i, %j] mask=%q
    tile.store %y, %B[%i, %j] mask=%t
    tile.store %f, %B[%i, %c5] mask=%w""")
    _simplify_masks(made)
    verify(made.root)
    filecheck(
        [line for line in body_lines(made) if "tile." in line],
        """
        %x = tile.load %A[%i, %j] mask=%r other=%c2p0 : tensor<16x8xfloat32>
        %y = tile.load %A[%i, %j] : tensor<16x8xfloat32>
        %z = tile.load %A[%i, %c3] mask=%q other=%c2p0 : tensor<16x8xfloat32>
        tile.store %x, %B[%i, %j] mask=%r
        tile.store %y, %B[%i, %j]
        tile.store %f, %B[%i, %c5] mask=%w
        """,
    )


@pytest.mark.parametrize("bounds", [("%c0, %s", "%s, %c7"), ("%c0, %s", "%s, %m"), ("%m, %s", "%s, %c7")], ids=str)
def test_loops_that_meet_stay(bounds: tuple[str, str]) -> None:
    start, _, rest = GUARDED.partition("%sum = ")
    loop, _, end = rest.partition("%place = ")
    first = "%half = " + loop.replace("%c0, %c7", bounds[0])
    second = "%sum = " + loop.replace("%c0, %c7", bounds[1]).replace("[%zero]", "[%half]")
    root = program(f"{start}{first}{second}%place = {end}").root
    assert ["the program has divided it itself" in each for each in remarks(root)] == [True, True]


def test_products_that_wrap_are_no_index() -> None:
    body = GUARDED.replace("%first = arith.mul %k, %c16", "%first = arith.mul %k, %c1103515245")
    assert ["no mask in it changes linearly" in each for each in remarks(program(body).root)] == [True]


def test_hashes_of_indices_wrap() -> None:
    """Of a loop whose end is an argument, the index may be any number; it is not a row's either way."""
    body = GUARDED.replace("%c0, %c7", "%c0, %s").replace("%k, %c16", "%k, %c1103515245")
    assert ["no mask in it changes linearly" in each for each in remarks(program(body).root)] == [True]
    func = hashed_dropout()
    check_pass(PEEL, before_peeling(func), [*inputs_for(func, 0)[:-1], np.int32(40)])


def hashed_dropout() -> Operation:
    """Sums of the numbers up to `end` of which a hash is negative."""
    author = Author("hashed")
    y = author.parameter("Y", (4,), "int32", output=True)
    end = author.scalar("end")
    with author.kernel(1):
        total = author.filled(0, (4,), "int32", name="total")
        with author.loop(0, end) as k, author.parallel(4) as (i,):
            number = author.add(author.mul(k, 4), i)
            dropped = author.cmp("lt", author.mul(number, 1103515245), 0)
            value = author.choose(dropped, lambda: author.constant(0), lambda: number)
            author.store(author.add(author.load(total, i), value), total, i)
        with author.parallel(4) as (i,):
            author.store(author.load(total, i), y, i)
    return author.finish()


@st.composite
def masked_sums(draw: st.DrawFn) -> Operation:
    """Rows of Y: sums over k of numbers that one or two comparisons of a linear form choose; bounds are arguments."""
    small, positive = st.integers(-5, 5), st.integers(1, 4)
    author = Author("masked")
    x = author.parameter("X", (64,), "int32")
    y = author.parameter("Y", (3, 4), "int32", output=True)
    lower, upper, limit = (author.scalar(name) for name in ("lower", "upper", "limit"))
    first = draw(st.sampled_from([lower, 0, 2, -3]))
    last = draw(st.sampled_from([upper, 9]))
    with author.kernel(3) as (bx,):
        total = author.filled(0, (4,), "int32", name="total")
        with author.loop(first, last, draw(positive), num_stages=draw(st.sampled_from([0, 2]))) as k:
            with author.parallel(4) as (i,):
                form = author.add(author.mul(k, draw(small)), author.mul(bx, draw(small)))
                form = author.add(form, author.mul(i, draw(small)))
                bound = draw(st.sampled_from([limit, author.constant(draw(small)), lower]))
                predicate = st.sampled_from(["lt", "le", "gt", "ge"])
                holds = author.cmp(draw(predicate), form, bound)
                if draw(st.booleans()):
                    other = author.add(form if draw(st.booleans()) else author.mul(k, draw(small)), draw(small))
                    joint = draw(st.sampled_from([arith.AndOp, arith.OrOp]))
                    holds = author.binary(joint, holds, author.cmp(draw(predicate), other, bound))
                number = author.add(author.mul(k, 3), i)
                made = (lambda: author.load(x, number)) if draw(st.booleans()) else (lambda: number)
                sides = [made, lambda: author.constant(0)]
                value = author.choose(holds, *(sides if draw(st.booleans()) else sides[::-1]))
                author.store(author.add(author.load(total, i), value), total, i)
        with author.parallel(4) as (i,):
            author.store(author.load(total, i), y, bx, i)
    return author.finish()


@settings(max_examples=150, deadline=None)
@given(masked_sums(), st.integers(0, 99), st.sampled_from([None, 2**31 - 1, -(2**31)]))
def test_sums_stay(func: Operation, seed: int, limit: int | None) -> None:
    inputs = inputs_for(func, seed)
    inputs[-1] = inputs[-1] if limit is None else np.int32(limit)
    check_pass(PEEL, before_peeling(func), inputs)


@settings(max_examples=30, deadline=None)
@given(programs(), st.integers(0, 99))
def test_random_programs_stay(func: Operation, seed: int) -> None:
    root = before_peeling(func)
    check_pass(PEEL, root, inputs_for(func, seed), uninitialised="zero")


# Modes


def modes_of(program: T.PrimFunc, target: str = "cuda:90", **options: Any) -> tuple[dict[str, str], list[str]]:
    """The source of each mode, and what "auto" remarks on."""
    kernels = {
        mode: tiledsl.compile(
            program, out_idx=-1, target=target, pass_configs={**POINTERS, "peel-loops.mode": mode, **options}
        )
        for mode in MODES
    }
    return {mode: kernel.source for mode, kernel in kernels.items()}, [*kernels["auto"].remarks]


def test_masks_that_compare_rows_with_columns_are_peeled_by_default() -> None:
    sources, remarks = modes_of(forward(4000, 64, 128, 64, 256))
    assert sources["auto"] == sources["causal"] == sources["all"] != sources["off"] and not remarks
    assert "mask=" in bodies(sources["off"])[0] and "mask=" not in bodies(sources["auto"])[0]
    plain = tiledsl.compile(forward(4000, 64, 128, 64, 256), out_idx=-1, target="cuda:90", pass_configs=POINTERS)
    assert plain.source == sources["auto"]


@pytest.mark.parametrize("target", ["cuda:80", "interpret"])
def test_targets_without_measurements_keep_their_loops(target: str) -> None:
    sources, remarks = modes_of(forward(4096, 64, 128, 64, 256), target)
    assert sources["auto"] == sources["off"] != sources["causal"] and not remarks


def test_bounds_alone_are_not_peeled_by_default() -> None:
    sources, remarks = modes_of(product(256, 256, 4100, 128, 128, 64))
    assert sources["auto"] == sources["causal"] == sources["off"] != sources["all"] and not remarks


@pytest.mark.parametrize(("iterations", "peeled"), [(3, False), (4, True)])
def test_loops_of_few_iterations_are_not_peeled_by_default(iterations: int, peeled: bool) -> None:
    text = """
@T.prim_func
def main(A: T.Tensor((256, 64), "float16"), B: T.Tensor((256, 64), "float16"), C: T.Tensor((256, 64), "float32")):
    with T.Kernel(4, threads=128) as bx:
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        s, c = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
        T.copy(A[bx * 64, 0], a)
        T.clear(c)
        for k in T.Pipelined(ITERATIONS, num_stages=2):
            T.copy(B[k * 64, 0], b)
            T.gemm(a, b, s, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(64, 64):
                c[i, j] += T.if_then_else(bx * 64 + i >= k * 64 + j, s[i, j], 0)
        T.copy(c, C[bx * 64, 0])
"""
    func = tiledsl.parse(text.replace("ITERATIONS", str(iterations)))
    sources = {
        mode: tiledsl.compile(func, target="cuda:90", pass_configs={**POINTERS, "peel-loops.mode": mode}).source
        for mode in ("auto", "causal", "off")
    }
    assert sources["auto"] == sources["causal" if peeled else "off"] and sources["causal"] != sources["off"]


def test_narrow_windows_leave_no_tile_without_a_mask() -> None:
    root = before_peeling(seen("window", 128, 64, 32).func)
    assert ["a window leaves too few iterations" in each for each in remarks(root)] == [True]


@pytest.mark.parametrize(("block_N", "peeled"), [(32, False), (16, False), (8, True)])
def test_windows_are_peeled_by_default_for_four_tiles_without_masks(block_N: int, peeled: bool) -> None:
    """Of 73 keys that 16 rows see, 57 are seen by all of them."""
    program = seen("window", 256, 16, block_N)
    sources, remarks = modes_of(program)
    assert sources["causal"] == sources["all"] != sources["off"]
    assert sources["auto"] == sources["causal" if peeled else "off"]
    assert any("a window leaves too few iterations" in each for each in remarks) is not peeled


# Matrix products


@pytest.mark.parametrize(("depth", "loops"), [(1, 0), (16, 0), (17, 0), (40, 1), (43, 1), (64, 1)])
def test_ragged_depth(depth: int, loops: int) -> None:
    """What runs once is not a loop: the last tile, and the others where there is one."""
    found = check(gemm(37, 24, depth, 16, 16, 16))
    assert [masks_in(loop) for loop in found] == [4] * loops  # of rows and columns, the same in every iteration


def test_depth_known_at_run_time() -> None:
    func = gemm(bm=16, bn=16, bk=16, dynamic=True)
    for depth in (1, 16, 40, 48):
        main, rest = check(func, {"M": 20, "N": 24, "K": depth})
        assert (masks_in(main), masks_in(rest)) == (4, 6)
        assert (main.num_stages, rest.num_stages) == (2, 2)


@pytest.mark.parametrize("splits", [2, 3])
def test_parts_along_k(splits: int) -> None:
    func, options = gemm(37, 24, 100, 16, 16, 16), {"split-k.splits": splits}
    main, rest, _ = check(func, **options)
    assert masks_in(main) < masks_in(rest)
    assert remarks(before_peeling(func, options)) == []


@pytest.mark.parametrize("persistent", [0, 1])
@pytest.mark.parametrize("parts", [{}, {"split-k.splits": 3}, {"split-k.streams": 5}], ids=str)
@pytest.mark.parametrize("sizes", [(37, 24, 100), (16, 48, 43)], ids=str)
def test_whole_pipeline(sizes: tuple[int, int, int], parts: dict[str, int], persistent: int) -> None:
    func = gemm(*sizes, 16, 16, 16)
    options = {**POINTERS, **parts, "peel-loops.mode": "all", "map-grid.persistent": persistent}
    made, plain = (lowered(func, {**options, **more}, inputs_for(func, 0)) for more in ({}, {"peel-loops.mode": "off"}))
    assert count(made, tensor.DotOp) == 2 * count(plain, tensor.DotOp)
    assert not any("peel" in each for op in made.root.walk() for each in op.attributes.get("remarks", ()))


def test_block_copies_have_no_masks() -> None:
    root = before_peeling(gemm(64, 64, 104, 64, 64, 32, num_stages=3), {"select-access.mode": "tma"})
    assert ["no mask in it" in each for each in remarks(root)] == [True]


# Attention


@pytest.mark.parametrize("tiles", [(16, 16), (16, 32), (32, 16), (16, 12)], ids=str)
@pytest.mark.parametrize("length", [7, 40, 45, 64])
@pytest.mark.parametrize("causal", [True, False])
def test_attention(length: int, tiles: tuple[int, int], causal: bool) -> None:
    loops = check(attention(length, 16, *tiles, causal=causal))
    if length > 32 and causal:
        main, rest = loops
        assert masks_in(main) < masks_in(rest)
        assert masks_in(main) == (2 if tiles[1] == 12 else 0)  # 12 rows are padded to 16


def seen(kind: str, length: int, block_M: int, block_N: int) -> T.PrimFunc:
    """Row sums of a masked product of Q and K: the masks of attention, written in several ways."""
    window = 72

    @T.prim_func
    def seen(
        Q: T.Tensor((length, 16), "float16"), K: T.Tensor((length, 16), "float16"), O: T.Tensor((length,), "float32")
    ):
        with T.Kernel(T.ceildiv(length, block_M), threads=128) as bx:
            q = T.alloc_shared((block_M, 16), "float16")
            k = T.alloc_shared((block_N, 16), "float16")
            scores = T.alloc_fragment((block_M, block_N), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            T.copy(Q[bx * block_M, 0], q)
            T.clear(total)
            first = T.max(0, bx * block_M - window) // block_N if kind == "window" else 0
            for tile in T.Pipelined(first, T.ceildiv(length, block_N), num_stages=2):
                T.copy(K[tile * block_N, 0], k)
                T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(block_M, block_N):
                    row, column = bx * block_M + i, tile * block_N + j
                    if kind == "window":
                        inside = T.And(column > row - window, row >= column)
                        scores[i, j] = T.if_then_else(inside, scores[i, j], 0)
                    elif kind == "hidden":
                        scores[i, j] = T.if_then_else(row < column, 0, scores[i, j])
                    elif kind == "either":
                        scores[i, j] = T.if_then_else(T.Or(row < column, row >= column + window), 0, scores[i, j])
                    elif kind == "branch":
                        if (tile + 1) * block_N > bx * block_M:
                            scores[i, j] = T.if_then_else(row >= column, scores[i, j], 0)
                    elif kind == "outside":
                        scores[i, j] = T.if_then_else(column < row, 0, scores[i, j])
                T.reduce_sum(scores, total, dim=1, clear=False)
            T.copy(total, O[bx * block_M])

    return seen


@pytest.mark.parametrize("tiles", [(16, 16), (32, 16), (16, 32)], ids=str)
@pytest.mark.parametrize("length", [16, 37, 128])
@pytest.mark.parametrize(
    ("kind", "masked"),
    [("hidden", "01"), ("window", "101"), ("either", "101"), ("branch", "01"), ("outside", "10")],
)
def test_masks(kind: str, masked: str, length: int, tiles: tuple[int, int]) -> None:
    loops = check(seen(kind, length, *tiles).func)
    if length == 128:
        assert "".join(str(int(masks_in(loop) > 0)) for loop in loops) == masked


def of_lengths(kind: str) -> T.PrimFunc:
    """Sums of what each row of a product may see, where that depends on a number in memory, or on dynamic sizes."""
    queries, keys = T.dynamic("queries, keys")

    @T.prim_func
    def of_lengths(
        Q: T.Tensor((queries, 16), "float16"),
        K: T.Tensor((keys, 16), "float16"),
        lengths: T.Tensor((1,), "int32"),
        O: T.Tensor((queries,), "float32"),
    ):
        with T.Kernel(T.ceildiv(queries, 16), threads=128) as bx:
            q = T.alloc_shared((16, 16), "float16")
            k = T.alloc_shared((16, 16), "float16")
            scores = T.alloc_fragment((16, 16), "float32")
            total = T.alloc_fragment((16,), "float32")
            T.copy(Q[bx * 16, 0], q)
            T.clear(total)
            length = lengths[0] if kind == "memory" else keys
            for tile in T.Pipelined(T.ceildiv(length, 16), num_stages=2):
                T.copy(K[tile * 16, 0], k)
                T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(16, 16):
                    column = tile * 16 + j
                    if kind == "memory":
                        scores[i, j] = T.if_then_else(column < length, scores[i, j], 0)
                    else:
                        seen = column <= bx * 16 + i + (keys - queries)
                        scores[i, j] = T.if_then_else(seen, scores[i, j], 0)
                T.reduce_sum(scores, total, dim=1, clear=False)
            T.copy(total, O[bx * 16])

    return of_lengths


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 70), (40, 64), (33, 20)])
@pytest.mark.parametrize("kind", ["memory", "causal"])
def test_lengths_known_at_run_time(kind: str, queries: int, keys: int) -> None:
    root = before_peeling(of_lengths(kind).func)
    inputs = inputs_for(root, 0, {"queries": queries, "keys": keys})
    for length in (0, 15, 16, keys):
        inputs[2][:] = length
        main, rest = loops_of(check_pass(PEEL, root, inputs, uninitialised="zero"))
        assert masks_in(main) == 0 < masks_in(rest)


# What is emitted


def forward(length: int, dim: int, block_M: int, block_N: int, threads: int = 128, **options: int) -> T.PrimFunc:
    """Causal attention of one head that masks every tile. With a window, rows of a block may see nothing of its first
    tile: their maximum is still the -1e30 that it began as."""
    tiles = {"block_M": block_M, "block_N": block_N, "threads": threads}
    return one_loop_attention.function(1, 1, 1, length, length, dim, True, **tiles, **options)  # type: ignore[no-any-return]


def run_head(kernel: tiledsl.Kernel, *inputs: torch.Tensor) -> torch.Tensor:
    """What the kernel of `forward` gives for Q, K and V of (length, dim)."""
    out: torch.Tensor = kernel(*(each[None, None] for each in inputs))
    return out[0, 0]


def compiled(func: T.PrimFunc, target: str, **options: Any) -> tiledsl.Kernel:
    return tiledsl.compile(
        func, out_idx=-1, target=target, pass_configs={**POINTERS, "peel-loops.mode": "all", **options}
    )


def bodies(source: str) -> list[str]:
    """The text of each loop."""
    return re.findall(r"^    for .*\n((?:        .*\n)+)", source, re.MULTILINE)


@pytest.mark.parametrize("tiles", [(16, 16), (32, 16), (16, 32)], ids=str)
@pytest.mark.parametrize("length", [16, 50, 96])
def test_causal_attention(length: int, tiles: tuple[int, int]) -> None:
    kernel = compiled(forward(length, 16, *tiles), "interpret")
    if length == 96:
        main, rest = bodies(kernel.source)
        assert "tl.where" not in main and "mask=" not in main and "tl.where" in rest
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(length, 16, generator=generator).half() for _ in range(3))
    expected = F.scaled_dot_product_attention(*(each[None].float() for each in (q, k, v)), is_causal=True)[0]
    torch.testing.assert_close(run_head(kernel, q, k, v).float(), expected, rtol=1e-2, atol=2e-3)


def in_window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """Attention of (length, dim) in float32."""
    age = torch.arange(len(q), device=q.device)[:, None] - torch.arange(len(k), device=q.device)
    scores = (q.float() @ k.float().T / math.sqrt(q.shape[1])).masked_fill((age < 0) | (age >= window), -math.inf)
    return scores.softmax(dim=-1) @ v.float()


@pytest.mark.parametrize("mode", ["off", "causal"])
def test_windows(mode: str) -> None:
    kernel = compiled(forward(200, 64, 32, 16, window=72), "interpret", **{"peel-loops.mode": mode})
    assert len(bodies(kernel.source)) == (3 if mode == "causal" else 1)
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(200, 64, generator=generator).half() for _ in range(3))
    torch.testing.assert_close(run_head(kernel, q, k, v).float(), in_window(q, k, v, 72), rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize(("tiles", "threads"), [((128, 128), 256), ((64, 64), 128), ((128, 64), 128)], ids=str)
def test_nothing_is_serialised(tiles: tuple[int, int], threads: int, tmp_path: Path) -> None:
    """The diagonal loop of square tiles runs once; if ptxas saw that, it would serialise its products."""
    kernel = compiled(forward(4096, 64, *tiles, threads), "cuda:90")
    main, rest = bodies(kernel.source)
    assert "tl.where" not in main and "tl.where" in rest
    said = assembled(kernel.asm["ptx"], tmp_path)
    assert "Compiling entry function" in said and "C7515" not in said


def assembled(ptx: str, folder: Path) -> str:
    """What the newest ptxas that comes with Triton says."""
    (folder / "kernel.ptx").write_text(ptx, encoding="utf-8")
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    for name in ("ptxas-blackwell", "ptxas"):
        command = [str(tools / name), "-arch=sm_90a", "-v", str(folder / "kernel.ptx"), "-o", os.devnull]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            break
    return done.stderr


def test_ragged_depth_compiles() -> None:
    kernel = compiled(product(256, 256, 4100, 128, 128, 64), "cuda:90")
    (main,) = bodies(kernel.source)
    assert "mask" not in main and kernel.source.count("mask=") == 2
    assert kernel.asm["ptx"].count("wgmma.mma_async") > 0


def test_loops_that_the_program_divides_stay() -> None:
    function = load_example("attention").attention.function
    for window in (0, 300):
        sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "queries": 1000, "keys": 1000, "dim": 64, "window": window}
        kernels = []
        for mode in ("off", "all"):
            options = {**POINTERS, "peel-loops.mode": mode}
            kernels.append(tiledsl.jit(function, target="cuda:90", pass_configs=options).compile(**sizes, causal=True))
        assert kernels[0].source == kernels[1].source
        reasons = [each for each in kernels[1].remarks if "peeled, because the program has divided it itself" in each]
        assert len(reasons) == (3 if window else 2)


def test_kernels_for_gluon_stay() -> None:
    options = {"select-emitter.backend": "gluon", "peel-loops.mode": "all"}
    kernel = tiledsl.compile(forward(512, 64, 128, 128, 256), out_idx=-1, target="cuda:90", pass_configs=options)
    plain = {"select-emitter.backend": "gluon"}
    other = tiledsl.compile(forward(512, 64, 128, 128, 256), out_idx=-1, target="cuda:90", pass_configs=plain)
    assert "@gluon.jit" in kernel.source and kernel.source == other.source
    (remark,) = kernel.remarks
    assert remark.startswith("peel-loops.mode='all' has no effect in Gluon")
