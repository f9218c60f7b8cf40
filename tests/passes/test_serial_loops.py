"""parallelize-loops on random serial loops over a small tile: whatever it makes of them means the same."""

from __future__ import annotations

import random

import pytest

from tests.passes.ir_cases import body_lines, kernel
from tests.support.programs import check_pass, inputs_for
from tiledsl.ir.pass_manager import Program
from tiledsl.passes.parallelize_loops import ParallelizeLoops

ROWS, COLUMNS = 6, 8
SEEDS = 60


def random_loop(seed: int) -> str:
    """A nest of a serial loop over one axis of %s and a T.Parallel over the other, in either order.

    Each iteration updates %t, which has an element for each point, %c, whose places may move along with the loop, or
    %l; before or behind that it may read what there is. It may fill %w first.
    """
    rng = random.Random(seed)
    axis, dtype = rng.randrange(2), "float32"
    count, width = (ROWS, COLUMNS) if axis == 0 else (COLUMNS, ROWS)
    lower, upper = rng.choice((0, 0, 1, 2)), count - rng.choice((0, 0, 1))
    step = rng.choice((1, 1, 1, 2))

    def at(row: str, point: str = "%j") -> str:
        return f"{row}, {point}" if axis == 0 else f"{point}, {row}"

    lines: list[str] = []
    names = iter(f"%v{number}" for number in range(100))

    def add(text: str) -> str:
        name = next(names)
        lines.append(f"{name} = {text}")
        return name

    def element() -> str:
        row = rng.choice(("%k", "%k", "%k", "%back"))
        if (fills or copied == "in") and rng.random() < 0.3:
            return add(f"tile.load %w[%j] : {dtype}")
        return add(f"tile.load {rng.choice(('%s', '%s', '%s', '%c'))}[{at(row)}] : {dtype}")

    add_row = [f"%back = arith.sub %c{count - 1}, %k : int32", "%above = arith.sub %k, %c1 : int32"]
    lines += add_row
    fills, copied = False, ""
    if rng.random() < 0.3:
        lines.append(f"tile.store {element()}, %w[%j]")
        fills = True
    copied = rng.choice(("", "", "in", "out"))  # by a whole row, before the points or behind them
    for _ in range(rng.choice((1, 1, 2))):
        place = rng.choice((f"%t[%{'j' if rng.random() < 0.9 else 'c1'}]", f"%c[{at('%k')}]", "%l"))
        before = place if rng.random() < 0.6 or place[1] != "c" else f"%c[{at('%above')}]"
        if rng.random() < 0.2:
            lines.append(f"tile.store {add(f'tile.load {place} : {dtype}')}, %d[{at('%k')}]")
        term, old = element(), add(f"tile.load {before} : {dtype}")
        if rng.random() < 0.3:
            term = add(f"arith.{rng.choice(('mul', 'add'))} {term}, {element()} : {dtype}")
        operands = f"{old}, {term}" if rng.random() < 0.7 else f"{term}, {old}"
        made = add(f"arith.{rng.choice(('add', 'add', 'add', 'max', 'min', 'sub'))} {operands} : {dtype}")
        lines.append(f"tile.store {made}, {place}")
        behind = rng.random()
        if behind < 0.4:
            lines.append(f"tile.store {add(f'tile.load {place} : {dtype}')}, %d[{at('%k')}]")
        elif behind < 0.5:
            lines.append(f"tile.store {made}, %d[{at('%k')}]")
    body = "\n".join(lines)
    if rng.random() < 0.15:
        head, rest = "\n".join(add_row), "\n".join(lines[len(add_row) :])
        where = f'%q = arith.cmp {rng.choice(("%k", "%j"))}, %c3 {{predicate = "lt"}} : bool'
        body = f"{head} {where} scf.if %q {{ {rest} scf.yield }} {{ scf.yield }}"
    lower = max(lower, 1) if "%above" in body.replace(add_row[1], "") else lower
    loop = f"scf.for %c{lower}, %c{upper}, %c{step} (%k: int32) {{"
    points = f"tile.parallel {{extents = ({width},)}} (%j: int32) {{"
    if "%l" in body or rng.random() < 0.6:  # %l is the block's: in a T.Parallel its iterations would race
        points = points if "%l" not in body else "%j = arith.floormod %k, %c5 : int32 scf.if %yes {"
        end = "}" if "%l" not in body else "scf.yield } { scf.yield }"
        axes = f"{{shape = ({width},), source_axes = (SIDE,), target_axes = (SIDE,)}}"
        moved = {
            "": "",
            "in": f"tile.copy %s[{at('%k', '%c0')}], %w {axes.replace('SIDE', str(1 - axis), 1).replace('SIDE', '0')}",
            "out": f"tile.copy %t, %D[{at('%k', '%c0')}] {axes.replace('SIDE', '0', 1).replace('SIDE', str(1 - axis))}",
        }[copied]
        first, last = (moved, "") if copied == "in" else ("", moved)
        nest = f"{loop} {first} {points} {body} {end} {last} scf.yield }}"
    else:
        before = "tile.store %c0.5, %t[%j]" if rng.random() < 0.4 else ""
        after = f"%last = tile.load %t[%j] : {dtype} tile.store %last, %c[{at('%c0')}]" if rng.random() < 0.4 else ""
        nest = f"{points} {before} {loop} {body} scf.yield }} {after} }}"
    put = f"tile.copy %w, %E[%c{width + 1}] {{shape = ({width},), source_axes = (0,), target_axes = (0,)}}"
    tile = f"buffer<{ROWS}*{COLUMNS}*{dtype}"
    whole = f"{{shape = ({ROWS}, {COLUMNS}), source_axes = (0, 1), target_axes = (0, 1)}}"
    return f"""
      %s = tile.alloc : {tile}, shared> %c = tile.alloc : {tile}, fragment> %d = tile.alloc : {tile}, fragment>
      %t = tile.alloc : buffer<{width}*{dtype}, fragment> %w = tile.alloc : buffer<{width}*{dtype}, fragment>
      %l = tile.alloc : buffer<{dtype}, local>
      tile.copy %A[%c0, %c0], %s {whole} tile.copy %B[%c0, %c0], %c {whole}
      tile.fill %c0.5, %t tile.fill %c0.5, %d tile.store %c0.5, %l
      %yes = arith.cmp %c0, %c1 {{predicate = "lt"}} : bool
      {nest}
      tile.copy %c, %B[%c0, %c0] {whole} {f"tile.copy %d, %D[%c0, %c0] {whole}" * ("%D" not in nest)}
      tile.copy %t, %E[%c0] {{shape = ({width},), source_axes = (0,), target_axes = (0,)}}
      {put * ("%w" in nest)}
      %x = tile.load %l : {dtype} tile.store %x, %E[%c{width}]"""


def made_of(seed: int) -> str:
    """What becomes of a loop, after a check that it means the same: a scan, a T.Parallel, or the loop that it was."""
    text = random_loop(seed)
    sizes = f"{ROWS}*{COLUMNS}*float32"
    func = kernel(f"A: {sizes}, B: {sizes}, D: {sizes}, E: 17*float32", text)
    found = body_lines(Program(check_pass(ParallelizeLoops(), func, inputs_for(func, seed))))
    if any(line.startswith("tile.scan") for line in found):
        return "scan"
    return "loop" if any("scf.for" in line for line in found) else "parallel"


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_random_loops(first: int) -> None:
    made = [made_of(seed) for seed in range(first, first + 20)]
    assert {*made} == {"scan", "parallel", "loop"}, made
