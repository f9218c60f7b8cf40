"""fold-unit-dims: tiles without dimensions of one."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest

from tests.passes.ir_cases import after, filecheck, kernel, program
from tests.support.programs import check_pass
from tiledsl.passes.fold_unit_dims import DEPTH, FoldUnitDims, _is_index

PARAMETERS = "A: 64*96*float32, W: 1*96*float32, C: 64*96*float32, D: 4*3*8*float32, n: int32"
ROWS = """
%i = tensor.iota {axis = 0} : tensor<16x1x1xint32>
%j = tensor.iota {axis = 2} : tensor<1x1x8xint32>
%x = tile.load %A[%i, %j] : tensor<16x1x8xfloat32>
%w = tile.load %W[%c0, %j] : tensor<1x1x8xfloat32>
%y = arith.mul %x, %w : tensor<16x1x8xfloat32>
"""


def lines_of(text: str) -> list[str]:
    """The lines after the pass, which keeps the meaning."""
    generator = np.random.default_rng(0)
    shapes = ((64, 96), (1, 96), (64, 96), (4, 3, 8))
    tiles = [generator.integers(-9, 9, shape).astype(np.float32) for shape in shapes]
    check_pass(FoldUnitDims(), kernel(PARAMETERS, text), [*tiles, 5])
    return after(FoldUnitDims(), text, parameters=PARAMETERS)


def is_unchanged(text: str) -> bool:
    return lines_of(text) == after([], text, parameters=PARAMETERS)


def test_a_sum_of_rows() -> None:
    text = """
%s = tensor.reduce %y {kind = "sum", axis = 2} : tensor<16x1xfloat32>
%k = tensor.iota {axis = 0} : tensor<16xint32>
%r = tensor.reshape %s : tensor<16xfloat32>
tile.store %r, %C[%k, %c3]
"""
    filecheck(
        lines_of(ROWS + text),
        """
        %i = tensor.iota {axis = 0} : tensor<16x1xint32>
        %j = tensor.iota {axis = 1} : tensor<1x8xint32>
        %x = tile.load %A[%i, %j] : tensor<16x8xfloat32>
        %w = tile.load %W[%c0, %j] : tensor<1x8xfloat32>
        %y = arith.mul %x, %w : tensor<16x8xfloat32>
        %s = tensor.reduce %y {kind = "sum", axis = 1} : tensor<16xfloat32>
        %k = tensor.iota {axis = 0} : tensor<16xint32>
        tile.store %s, %C[%k, %c3]
        """,
    )


@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
def test_what_is_reduced_along_a_dimension_of_one_stays_as_it_is(kind: str) -> None:
    text = f"""
%s = tensor.reduce %y {{kind = "{kind}", axis = 1}} : tensor<16x8xfloat32>
%m = tensor.iota {{axis = 0}} : tensor<16x1xint32>
%o = tensor.iota {{axis = 1}} : tensor<1x8xint32>
tile.store %s, %C[%m, %o]
"""
    lines = lines_of(ROWS + text)
    assert lines[-1].startswith("tile.store %y, %C[") and not any("reduce" in line for line in lines)


def test_rows_of_one_lose_their_dimension_where_they_are_told_to() -> None:
    text = """
%j = tensor.iota {axis = 1} : tensor<1x8xint32>
%x = tile.load %A[%n, %j] : tensor<1x8xfloat32>
%s = tensor.reduce %x {kind = "max", axis = 1} : tensor<1xfloat32>
%t = tensor.reduce %s {kind = "max", axis = 0} : float32
%r = tensor.reshape %t : tensor<1x1xfloat32>
%y = arith.sub %x, %r : tensor<1x8xfloat32>
tile.store %y, %C[%n, %j]
"""
    assert is_unchanged(text)
    filecheck(
        after(FoldUnitDims(least_rank=2), text, parameters=PARAMETERS),
        """
        %j = tensor.iota {axis = 0} : tensor<8xint32>
        %x = tile.load %A[%n, %j] : tensor<8xfloat32>
        %s = tensor.reduce %x {kind = "max", axis = 0} : float32
        %r = tensor.reshape %s : tensor<1xfloat32>
        %y = arith.sub %x, %r : tensor<8xfloat32>
        tile.store %y, %C[%n, %j]
        """,
    )
    check_pass(
        FoldUnitDims(least_rank=2),
        kernel(PARAMETERS, text),
        [
            np.arange(n, dtype=np.float32).reshape(s)
            for n, s in ((6144, (64, 96)), (96, (1, 96)), (6144, (64, 96)), (96, (4, 3, 8)))
        ]
        + [5],
    )


def test_indices_that_other_tiles_use_are_computed_again() -> None:
    # The rows are of tiles with columns, which keep their second dimension, and of a column, which loses it.
    text = """
%k = tensor.iota {axis = 0} : tensor<16x1xint32>
%rows = arith.add %k, %n : tensor<16x1xint32>
%columns = tensor.iota {axis = 1} : tensor<1x8xint32>
%s = tensor.reduce %y {kind = "max", axis = 2} : tensor<16x1xfloat32>
%z = tile.load %A[%rows, %columns] : tensor<16x8xfloat32>
tile.store %z, %C[%k, %columns]
tile.store %s, %C[%rows, %c40]
"""
    lines = lines_of(ROWS + text)
    filecheck(
        lines[next(number for number, line in enumerate(lines) if line.startswith("%k =")) :],
        """
        %k = tensor.iota {axis = 0} : tensor<16x1xint32>
        %k_1 = tensor.iota {axis = 0} : tensor<16xint32>
        %rows = arith.add %k, %n : tensor<16x1xint32>
        %rows_1 = arith.add %k_1, %n : tensor<16xint32>
        %columns = tensor.iota {axis = 1} : tensor<1x8xint32>
        %s = tensor.reduce %y {kind = "max", axis = 1} : tensor<16xfloat32>
        %z = tile.load %A[%rows, %columns] : tensor<16x8xfloat32>
        tile.store %z, %C[%k, %columns]
        tile.store %s, %C[%rows_1, %c40]
        """,
    )


def test_loops_and_branches_carry_fewer_dimensions() -> None:
    text = """
%b = arith.cmp %bx, %c1 {predicate = "lt"} : bool
%r = scf.for %c0, %c3, %c1[%y] : tensor<16x1x8xfloat32> (%k: int32, %sum: tensor<16x1x8xfloat32>) {
  %more = arith.add %sum, %x : tensor<16x1x8xfloat32>
  scf.yield [%more]
}
%q = scf.if %b : tensor<16x1x8xfloat32> {
  scf.yield [%r]
} {
  scf.yield [%y]
}
tile.store %q, %C[%i, %j]
"""
    lines = lines_of(ROWS + text)
    assert "x1x8" not in "\n".join(lines)
    assert sum("tensor<16x8xfloat32> (%k: int32, %sum: tensor<16x8xfloat32>)" in line for line in lines) == 1


def test_loops_and_branches_carry_indices() -> None:
    text = """
%b = arith.cmp %bx, %c1 {predicate = "lt"} : bool
%start = arith.constant {value = 3} : tensor<16x1x1xint32>
%r = scf.for %c0, %c3, %c1[%i] : tensor<16x1x1xint32> (%k: int32, %old: tensor<16x1x1xint32>) {
  %more = arith.add %i, %k : tensor<16x1x1xint32>
  tile.store %x, %C[%old, %j]
  scf.yield [%more]
}
%q = scf.if %b : tensor<16x1x1xint32> {
  %twice = arith.add %i, %i : tensor<16x1x1xint32>
  tile.store %x, %C[%i, %j]
  scf.yield [%twice]
} {
  scf.yield [%start]
}
%p, %s = scf.while [%i, %c0] : tensor<16x1x1xint32>, int32 (%m: tensor<16x1x1xint32>, %n1: int32) {
  %go = arith.cmp %n1, %c2 {predicate = "lt"} : bool
  %half = arith.add %i, %n1 : tensor<16x1x1xint32>
  scf.condition %go[%half, %n1]
} (%o: tensor<16x1x1xint32>, %n2: int32) {
  %n3 = arith.add %n2, %c1 : int32
  scf.yield [%i, %n3]
}
%u = arith.add %r, %q : tensor<16x1x1xint32>
%v = arith.add %u, %p : tensor<16x1x1xint32>
tile.store %y, %C[%v, %j]
"""
    assert not any("1x1x" in line or "x1x1" in line for line in lines_of(ROWS + text))


def test_a_transpose_of_what_is_reshaped_keeps_its_order() -> None:
    text = """
%p = tensor.iota {axis = 0} : tensor<4x1x1x1xint32>
%q = tensor.iota {axis = 3} : tensor<1x1x1x8xint32>
%x = tile.load %D[%p, %c1, %q] : tensor<4x1x1x8xfloat32>
%y = tensor.reshape %x : tensor<4x2x4xfloat32>
%z = tensor.transpose %y {permutation = (1, 0, 2)} : tensor<2x4x4xfloat32>
%f = tensor.transpose %x {permutation = (3, 1, 0, 2)} : tensor<8x1x4x1xfloat32>
%g = tensor.reshape %f : tensor<8x4xfloat32>
%h = tensor.reshape %z : tensor<8x4xfloat32>
%s = arith.add %g, %h : tensor<8x4xfloat32>
%i = tensor.iota {axis = 0} : tensor<8x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x4xint32>
tile.store %s, %C[%i, %j]
"""
    lines = lines_of(text)
    assert [line for line in lines if "transpose" in line] == [
        "%z = tensor.transpose %y {permutation = (1, 0, 2)} : tensor<2x4x4xfloat32>",
        "%f = tensor.transpose %x {permutation = (1, 0)} : tensor<8x4xfloat32>",
    ]


@pytest.mark.parametrize(
    "text",
    [
        # a row beside more of them; a reduction and a print of the dimension; two dimensions
        ROWS
        + "%k = tensor.iota {axis = 1} : tensor<1x4x1xint32>\n%z = tile.load %D[%c0, %k, %j] : tensor<1x4x8xfloat32>\n"
        "%s = arith.add %y, %z : tensor<16x4x8xfloat32>\n%r = tensor.reshape %s : tensor<64x8xfloat32>\n"
        "%m = tensor.iota {axis = 0} : tensor<64x1xint32>\n%o = tensor.iota {axis = 1} : tensor<1x8xint32>\n"
        "tile.store %r, %C[%m, %o]",
        ROWS + '%s = tensor.reduce %y {kind = "abssum", axis = 1} : tensor<16x8xfloat32>\n'
        "%m = tensor.iota {axis = 0} : tensor<16x1xint32>\n%o = tensor.iota {axis = 1} : tensor<1x8xint32>\n"
        "tile.store %s, %C[%m, %o]",
        ROWS.replace("x1x", "x").replace("axis = 2", "axis = 1").replace("<1x1", "<1").replace("<16x1>", "<16x1x1>")
        + "tile.store %y, %C[%i, %j]",
    ],
)
def test_what_stays(text: str) -> None:
    assert is_unchanged(text)


@pytest.mark.parametrize(("depth", "folded"), [(49, True), (50, False)])
def test_indices_are_computed_again_through_fifty_operations(depth: int, folded: bool) -> None:
    """The one that counts positions included."""
    chain = [f"%n{step + 1} = arith.add %n{step}, %c1 : tensor<16x1xint32>" for step in range(depth)]
    text = "\n".join(["%n0 = tensor.iota {axis = 0} : tensor<16x1xint32>", *chain])
    lines = lines_of(
        ROWS
        + f"""{text}
%s = tensor.reduce %y {{kind = "sum", axis = 2}} : tensor<16x1xfloat32>
%columns = tensor.iota {{axis = 1}} : tensor<1x8xint32>
%z = tile.load %A[%n{depth}, %columns] : tensor<16x8xfloat32>
tile.store %z, %C[%n0, %columns]
tile.store %s, %C[%n{depth}, %c40]"""
    )
    assert any(line.endswith("axis = 1} : tensor<16xfloat32>") for line in lines) is folded


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int) -> None:
    """Whatever is computed of tiles with some dimensions of one, the meaning stays."""
    generator = random.Random(seed)
    rank = generator.choice([3, 4])
    full = [generator.choice([1, 2, 4]) for _ in range(rank)]
    lines: list[str] = []
    tiles: list[tuple[str, tuple[int, ...]]] = []

    def emit(text: str, shape: tuple[int, ...], dtype: str = "float32") -> str:
        name = f"%v{len(lines)}"
        type = f"tensor<{'x'.join(map(str, shape))}x{dtype}>" if shape else dtype
        lines.append(f"{name} = {text} : {type}")
        return name

    def position(shape: tuple[int, ...]) -> str:
        """A place for each element of a tile, row by row."""
        place, stride = "%c0", 1
        for axis in reversed(range(len(shape))):
            own = tuple(size if index == axis else 1 for index, size in enumerate(shape))
            index = emit(f"tensor.iota {{axis = {axis}}}", own, "int32")
            scaled = emit(f"arith.mul {index}, %c{stride}", own, "int32")
            after = own[: axis + 1] + shape[axis + 1 :]
            place = scaled if place == "%c0" else emit(f"arith.add {scaled}, {place}", after, "int32")
            stride *= shape[axis]
        return place

    for _ in range(3):
        shape = tuple(generator.choice([1, size]) for size in full)
        place = position(shape)
        tiles.append((emit(f"tile.load %A[%c{generator.randrange(9)}, {place}]", shape), shape))
    for _ in range(8):
        name, shape = generator.choice(tiles)
        kind = generator.choice(["add", "add", "reduce", "transpose", "reshape", "index", "for"])
        if kind == "add":
            fit = [each for each in tiles if len(each[1]) == len(shape)]
            other, second = generator.choice(fit)
            if all(a == b or 1 in (a, b) for a, b in zip(shape, second)):
                shape = tuple(map(max, shape, second))
                tiles.append((emit(f"arith.add {name}, {other}", shape), shape))
        elif kind == "reduce" and len(shape) > 1:
            axis = generator.randrange(len(shape))
            shape = shape[:axis] + shape[axis + 1 :]
            tiles.append((emit(f'tensor.reduce {name} {{kind = "sum", axis = {axis}}}', shape), shape))
        elif kind == "transpose":
            order = generator.sample(range(len(shape)), len(shape))
            shape = tuple(shape[axis] for axis in order)
            text = f"({', '.join(map(str, order))}{',' if len(order) == 1 else ''})"
            tiles.append((emit(f"tensor.transpose {name} {{permutation = {text}}}", shape), shape))
        elif kind == "reshape":
            sizes = [size for size in shape if size > 1] or [1]
            while len(sizes) < 4 and generator.random() < 0.7:
                sizes.insert(generator.randrange(len(sizes) + 1), 1)
            if len(sizes) > 1 and generator.random() < 0.4:
                sizes[:2] = [sizes[0] * sizes[1]]
            tiles.append((emit(f"tensor.reshape {name}", tuple(sizes)), tuple(sizes)))
        elif kind == "index":
            axis = generator.randrange(len(shape))
            own = tuple(size if index == axis else 1 for index, size in enumerate(shape))
            index = emit(f"tensor.iota {{axis = {axis}}}", own, "int32")
            number = emit(f"arith.cast {index}", own)
            tiles.append((emit(f"arith.mul {name}, {number}", shape), shape))
        elif kind == "for":
            type = f"tensor<{'x'.join(map(str, shape))}xfloat32>"
            result = f"%r{len(lines)}"
            lines.append(
                f"{result} = scf.for %c0, %c2, %c1[{name}] : {type} (%k{len(lines)}: int32, {result}s: {type}) {{"
            )
            lines.append(f"{result}m = arith.add {result}s, {result}s : {type}\nscf.yield [{result}m]\n}}")
            tiles.append((result, shape))
    for row, (name, shape) in enumerate(tiles):
        assert prod(shape) <= 96 * 3
        place = position(shape)
        quotient = emit(f"arith.floordiv {place}, %c96", shape, "int32") if prod(shape) > 96 else f"%c{3 * row}"
        if prod(shape) > 96:
            quotient = emit(f"arith.add {quotient}, %c{3 * row}", shape, "int32")
            place = emit(f"arith.floormod {place}, %c96", shape, "int32")
        lines.append(f"tile.store {name}, %C[{quotient}, {place}]")
    lines_of("\n".join(lines))


def test_views_of_tensors_keep_their_dimensions() -> None:
    view = "%v = tile.view %C : buffer<1*64*96*float32, global>\n"
    text = """
%i = tensor.iota {axis = 0} : tensor<16x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x8xint32>
%x = tile.load %A[%i, %j] : tensor<16x8xfloat32>
"""
    assert is_unchanged(view + text + "tile.store %x, %v[%c0, %i, %j]\n")
    folded = lines_of(view + ROWS + "tile.store %y, %v[%c0, %i, %j]\n")
    filecheck(
        folded,
        """
        %v = tile.view %C : buffer<1*64*96*float32, global>
        %i = tensor.iota {axis = 0} : tensor<16x1xint32>
        %j = tensor.iota {axis = 1} : tensor<1x8xint32>
        %x = tile.load %A[%i, %j] : tensor<16x8xfloat32>
        %w = tile.load %W[%c0, %j] : tensor<1x8xfloat32>
        %y = arith.mul %x, %w : tensor<16x8xfloat32>
        tile.store %y, %v[%c0, %i, %j]
        """,
    )


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("tensor.iota {axis = 0} : tensor<4x1x1xint32>", True),
        ("arith.add %i, %s : tensor<4x1x1xint32>", True),
        ("arith.cast %i : tensor<4x1x1xint64>", True),
        ('arith.cmp %i, %s {predicate = "lt"} : tensor<4x1x1xbool>', True),
        ("arith.cast %i : tensor<4x1x1xfloat32>", False),
        ("arith.add %i, %j : tensor<4x8x1xint32>", False),  # along two dimensions
        ("arith.add %s, %s : int32", False),
        ("arith.add %x, %s : tensor<4x1x1xint32>", False),  # of what is loaded
        ("arith.add %deep, %s : tensor<4x1x1xint32>", False),
    ],
)
def test_what_is_an_index(text: str, known: bool) -> None:
    made = program(
        f"""%i = tensor.iota {{axis = 0}} : tensor<4x1x1xint32>
        %j = tensor.iota {{axis = 1}} : tensor<1x8x1xint32>
        %deep = arith.mul %i, %c3 : tensor<4x1x1xint32>
        %x = tile.load %N[%i] : tensor<4x1x1xint32>
        %y = {text}"""
    )
    values = {value.name: value for op in made.root.walk() for value in op.results}
    op = values["y"].op
    assert op is not None
    assert _is_index(op, {values["i"]: 1, values["j"]: 1, values["deep"]: DEPTH}) is known
