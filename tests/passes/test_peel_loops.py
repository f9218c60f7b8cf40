"""peel-loops: where loops are divided, that nothing but masks changes, and why others stay."""

from __future__ import annotations

import itertools
import operator
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.ir_cases import after, body_lines, filecheck, program
from tests.support.programs import Author, check_pass, inputs_for, programs
from tiledsl.dialects import arith, scf, tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation
from tiledsl.ir.pass_manager import PassManager, Program
from tiledsl.ir.verifier import verify
from tiledsl.passes import default_pipeline
from tiledsl.passes.peel_loops import PeelLoops, _meet, _simplify_masks
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


@pytest.mark.parametrize(
    ("bounds", "meet"),
    [(("%c0", "%s", "%s", "%n"), True), (("%c0", "%s", "%n", "%s"), False), (("%c0", "%c8", "%c8", "%n"), False)],
)
def test_loops_of_which_one_ends_where_the_other_begins(bounds: tuple[str, str, str, str], meet: bool) -> None:
    """At a number that is computed: one value stands for equal constants."""
    text = "%n = arith.add %s, %bx : int32\n" + "\n".join(
        f"scf.for {lower}, {upper}, %c1 (%i{lower[1:]}: int32) {{ scf.yield }}"
        for lower, upper in (bounds[:2], bounds[2:])
    )
    first, second = (op for op in program(text).root.walk() if isinstance(op, scf.ForOp))
    assert (_meet(first, second), _meet(second, first)) == (meet, False)
