"""map-grid: every block is visited once, whatever the panels; hints and limits of CUDA; programs that take several
blocks (tiledsl.passes.map_grid.persistent)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tests.passes.ir_cases import program as ir_program
from tiledsl.dialects import arith, scf, tile, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.errors import TileError
from tiledsl.ir.core import Value
from tiledsl.ir.pass_manager import Program, parse_program
from tiledsl.ir.verifier import verify
from tiledsl.passes.map_grid import MapGrid
from tiledsl.runtime.target import Target


def program(extents: tuple[int | str, ...], options: str = "()") -> Program:
    """A kernel that stores its block indices; string extents are scalar parameters."""
    symbols = [each for each in extents if isinstance(each, str)]
    arguments = "".join(f", %{name}: int32" for name in symbols)
    parameters = ", ".join(f'"{name}"' for name in ["A", *symbols])
    lines, grid = [], []
    for number, extent in enumerate(extents):
        if isinstance(extent, int):
            lines.append(f"%g{number} = arith.constant {{value = {extent}}} : int32")
        grid.append(f"%{extent}" if isinstance(extent, str) else f"%g{number}")
    blocks = [f"%b{axis}" for axis in "xyz"[: len(extents)]]
    stored = [*blocks, *[blocks[0]] * (3 - len(blocks))]
    return parse_program(
        f"""tile.func {{sym_name = "f", parameters = ({parameters},)}} (%A: buffer<9*9*9*int32, global>{arguments}) {{
  {" ".join(lines)}
  %one = arith.constant {{value = 1}} : int32
  tile.kernel [{", ".join(grid)}] {{options = {options}}} ({", ".join(f"{b}: int32" for b in blocks)}) {{
    tile.store %one, %A[{", ".join(stored)}] {{guarded = true}}
  }}
}}"""
    )


def evaluate(value: Value, env: dict[Value, int]) -> int:
    if value not in env:
        op = value.op
        if isinstance(op, arith.ConstantOp):
            return int(op.value)
        assert isinstance(op, arith.BinaryOp), op
        env[value] = int(op.compute(*(evaluate(each, env) for each in op.operands)))
    return env[value]


def visited(lowered: Program, sizes: dict[str, int]) -> list[tuple[int, ...]]:
    """The block indices in launch order: the first grid dimension runs fastest."""
    kernel = next(op for op in lowered.root.walk() if isinstance(op, tile.KernelOp))
    store = next(op for op in lowered.root.walk() if isinstance(op, tile.StoreOp))
    fixed = {arg: sizes[arg.name] for arg in lowered.root.regions[0].args if arg.name in sizes}
    extents = [evaluate(value, dict(fixed)) for value in kernel.grid]
    out = []
    for block in itertools.product(*(range(extent) for extent in reversed(extents))):
        known = {**fixed, **dict(zip(kernel.body.args, reversed(block), strict=True))}
        out.append(tuple(evaluate(index, known) for index in store.indices))
    return out


GRIDS: list[tuple[int | str, ...]] = [(5, 7), (8, 4), (1, 9), (9, 1), (4, 6, 3), ("gx", 6), (5, "gy"), ("gx", "gy", 2)]


@pytest.mark.parametrize("order", ["row", "column"])
@pytest.mark.parametrize("panel", [1, 2, 3, 4, 10])
@pytest.mark.parametrize("grid", GRIDS)
def test_every_block_once(grid: tuple[int | str, ...], panel: int, order: str) -> None:
    lowered = program(grid, f'(("swizzle", ({panel}, "{order}")), ("num_warps", 8))')
    MapGrid().run(lowered)
    verify(lowered.root)
    sizes = {"gx": 5, "gy": 7}
    extents = [sizes[each] if isinstance(each, str) else each for each in grid]
    expected = {(*point, *[point[0]] * (3 - len(point))) for point in itertools.product(*map(range, extents))}
    got = visited(lowered, sizes)
    assert len(got) == len(expected) and set(got) == expected
    kernel = next(op for op in lowered.root.walk() if isinstance(op, tile.KernelOp))
    assert kernel.options == (("num_warps", 8),) and len(kernel.grid) == len(grid) - 1


def test_panels_are_walked_down_first() -> None:
    lowered = program((2, 3), '(("swizzle", (2, "column")),)')
    MapGrid(group_m=1).run(lowered)
    assert [block[:2] for block in visited(lowered, {})] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    lowered = program((3, 4))
    MapGrid(group_m=2).run(lowered)
    assert [block[:2] for block in visited(lowered, {})][:7] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (0, 2)]


def test_a_swizzle_of_columns_is_walked_across_first() -> None:
    for options in ('(("swizzle", (2, "column")),)', '(("swizzle", (2, "column", 1)),)'):
        lowered = program((4, 3), options)
        MapGrid().run(lowered)
        first = [block[:2] for block in visited(lowered, {})][:7]
        assert first == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 0)]
    lowered = program((3, 4), '(("swizzle", (2,)),)')
    MapGrid().run(lowered)
    assert [block[:2] for block in visited(lowered, {})][:3] == [(0, 0), (0, 1), (1, 0)]


@pytest.mark.parametrize("grid", [(2, 70000), (2, 2, 70000), (3, 70000, 2)])
def test_long_dimensions_are_folded(grid: tuple[int, ...]) -> None:
    lowered = program(grid)
    MapGrid().run(lowered)
    verify(lowered.root)
    kernel = next(op for op in lowered.root.walk() if isinstance(op, tile.KernelOp))
    assert len(kernel.grid) == 1
    store = next(op for op in lowered.root.walk() if isinstance(op, tile.StoreOp))
    point = [size - 1 for size in grid]
    block = 0
    for size, index in zip(reversed(grid), reversed(point), strict=True):
        block = block * size + index
    known: dict[Value, int] = {kernel.body.args[0]: block}
    assert [evaluate(index, known) for index in store.indices][: len(grid)] == point


@pytest.mark.parametrize("grid", [(70000,), (70000, 3), ("gx", "gy")])
def test_other_grids_stay(grid: tuple[Any, ...]) -> None:
    lowered = program(grid)
    MapGrid().run(lowered)
    kernel = next(op for op in lowered.root.walk() if isinstance(op, tile.KernelOp))
    assert len(kernel.grid) == len(grid)


def test_panel_size_must_be_positive() -> None:
    with pytest.raises(TileError, match="no positive panel size"):
        MapGrid().run(program((4, 4), '(("swizzle", (0, "row")),)'))


@pytest.mark.parametrize(("extent", "dimensions"), [(65535, 2), (65536, 1)])
def test_a_grid_folds_where_its_second_dimension_is_larger_than_cuda_allows(extent: int, dimensions: int) -> None:
    made = program((4, extent))
    MapGrid(persistent=0).run(made)
    (kernel,) = (op for op in made.root.walk() if isinstance(op, tile.KernelOp))
    assert len(kernel.grid) == dimensions


@pytest.mark.parametrize(("semantics", "persists"), [("relaxed", True), ("acquire", False), ("acq_rel", False)])
def test_grids_whose_blocks_may_wait_for_each_other_do_not_persist(semantics: str, persists: bool) -> None:
    body = f'%old = tile.atomic %c1, %N[%bx] {{kind = "add", semantics = "{semantics}"}} : int32'
    made = ir_program(body, grid=(64,))
    MapGrid(persistent=1).run(made)
    assert any(isinstance(op, scf.ForOp) for op in made.root.walk()) is persists
    (kernel,) = (op for op in made.root.walk() if isinstance(op, tile.KernelOp))
    assert any("not persistent" in each for each in kernel.remarks) is not persists


def test_a_grid_persists_only_where_that_is_asked_for_or_gains() -> None:
    made = ir_program("tile.store %c1, %N[%bx]", grid=(64,))
    MapGrid().run(made)
    assert not any(isinstance(op, scf.ForOp) for op in made.root.walk())


@pytest.mark.parametrize(("columns", "persists"), [(256, True), (128, False), (320, False)])
def test_a_grid_of_one_large_product_persists(columns: int, persists: bool) -> None:
    """320 columns are two products, 256 + 64, though their sums are as large."""

    @T.prim_func
    def gemm(
        A: T.Tensor((4096, 4096), "float16"), B: T.Tensor((4096, 5120), "float16"), C: T.Tensor((4096, 5120), "float16")
    ):
        with T.Kernel(5120 // columns, 32, threads=256) as (bx, by):
            a, b = T.alloc_shared((128, 64), "float16"), T.alloc_shared((64, columns), "float16")
            c = T.alloc_fragment((128, columns), "float32")
            T.clear(c)
            for k in T.Pipelined(64, num_stages=2):
                T.copy(A[by * 128, k * 64], a)
                T.copy(B[k * 64, bx * columns], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * 128, bx * columns])

    assert ("programs" in tiledsl.compile(gemm, target="cuda:90").source) is persists


PRODUCT = """%zero = arith.constant {value = 0.0} : tensor<128x256xfloat32>
%z = arith.constant {value = 0.0} : float32
%sums = scf.for %c0, %c8, %c1[%zero] {num_stages = 2} : tensor<128x256xfloat32>
    (%k: int32, %acc: tensor<128x256xfloat32>) {
  %a = tile.load_block %A[%bx, %k] {axes = (0, 1)} : tensor<128x64xfloat16>
  %b = tile.load_block %B[%k, %bx] {axes = (0, 1)} : tensor<64x256xfloat16>
  %d = tensor.dot %a, %b, %acc : tensor<128x256xfloat32>
  scf.yield [%d]
}
tile.store_block %sums, %C[%bx, %c0] {axes = (0, 1)}
"""
FLOAT = "arith.constant {value = 0.0} : float32"
NESTED = "scf.for %c0, %c8, %c1 (%l: int32) { tile.store %z, %C[%l, %l] scf.yield }\n"


def looped(
    body: str = PRODUCT,
    grid: tuple[int | str, ...] = (12, 12),
    target: str | None = "cuda:90",
    options: str = "",
    **of: Any,
) -> tuple[scf.ForOp | None, tile.KernelOp]:
    """The loop over the blocks of a kernel that map-grid makes persistent, and the kernel."""
    parameters = "A: 4096*512*float16, B: 512*4096*float16, C: 4096*4096*float32, s: int32"
    made = ir_program(body, parameters=parameters, grid=grid, target=target and Target.parse(target))
    (kernel,) = (op for op in made.root.walk() if isinstance(op, tile.KernelOp))
    kernel.set_option(options or "none", 2 if options else None)
    MapGrid(**of).run(made)
    verify(made.root)
    first = next(op for op in kernel.body if not isinstance(op, (arith.ConstantOp, arith.BinaryOp)))
    return (first if isinstance(first, scf.ForOp) and first.lower is kernel.body.args[0] else None), kernel


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (PRODUCT.replace("128x", "64x"), {}), (PRODUCT.replace("%c8, %c1[", "%s, %c1["), {}),
        (PRODUCT.replace("scf.for %c0, ", "scf.for %s, "), {}),
        (PRODUCT.replace("num_stages = 2", "num_stages = 3"), {}),
        (PRODUCT.replace("%d =", "%x = tile.load %C[%k, %k] : float32\n%d ="), {}),
        (PRODUCT + '%old = tile.atomic %z, %C[%c0, %c0] {kind = "add"} : float32\n', {}),
        (PRODUCT + NESTED, {}), (PRODUCT.replace("%d =", NESTED + "%d ="), {}), (f"%z = {FLOAT} {NESTED}", {}),
        (PRODUCT.replace("%d = tensor.dot %a, %b, %acc", "%e = tensor.dot %a, %b, %acc : tensor<128x256xfloat32>\n"
                         "%d = tensor.dot %a, %b, %e"), {}),
        (PRODUCT, {"grid": (132,)}), (PRODUCT, {"grid": (11, 12)}), (PRODUCT, {"grid": ("%s",)}),
        (PRODUCT, {"target": "cuda:80"}), (PRODUCT, {"target": "cuda:100"}), (PRODUCT, {"target": "hip:gfx942"}),
        (PRODUCT, {"target": None}), (PRODUCT, {"options": "num_ctas"}), (PRODUCT, {"flatten": False}),
        (PRODUCT, {"persistent": 0}),
    ],
)  # fmt: skip
def test_other_grids_than_those_of_large_products_do_not_persist(body: str, options: dict[str, Any]) -> None:
    assert looped(body, **options)[0] is None


@pytest.mark.parametrize("options", [{}, {"grid": (133,)}, {"grid": (7, 5, 4)}, {"grid": ("%s",), "persistent": 1}])
def test_the_loop_over_blocks_of_a_persistent_grid(options: dict[str, Any]) -> None:
    loop, kernel = looped(**options)
    assert loop is not None and loop.flatten and len(kernel.grid) == 1 and not kernel.remarks
    programs = kernel.grid[0].op
    assert isinstance(programs, arith.MinOp) and isinstance(programs.lhs.op, triton.MultiprocessorsOp)
    assert loop.step is kernel.grid[0] and (kernel.grid[0].name, kernel.body.args[0].name) == ("programs", "program")
    assert programs.rhs is loop.upper or constant_of(programs.rhs) == constant_of(loop.upper)
    assert [type(op) for op in kernel.body][-2:] == [scf.ForOp, scf.YieldOp] and loop.yielded == []


def test_so_many_programs_for_each_multiprocessor_take_the_blocks() -> None:
    loop, kernel = looped(persistent=3)
    (programs,) = kernel.grid
    assert loop is not None and isinstance(programs.op, arith.MinOp)
    times = programs.op.lhs.op
    assert isinstance(times, arith.MulOp) and constant_of(times.rhs) == 3


@pytest.mark.parametrize(
    ("stages", "target", "flattened"),
    [(2, "cuda:90", True), (3, "cuda:90", False), (3, "cuda:80", True), (3, "hip:gfx942", True), (3, None, True)],
)
def test_loops_are_flattened_where_a_block_is_stored_while_the_next_is_loaded(
    stages: int, target: str | None, flattened: bool
) -> None:
    """Of 232448 bytes the result takes 131072, and a stage 49152."""
    body = PRODUCT.replace("num_stages = 2", f"num_stages = {stages}")
    loop, kernel = looped(body, target=target, persistent=1)
    assert loop is not None and loop.flatten is flattened
    assert ["the persistent grid's loops are not flattened" in each for each in kernel.remarks] == [True] * (
        not flattened
    )
    not_flat = looped(body, target=target, persistent=1, flatten=False)[0]
    assert not_flat is not None and not not_flat.flatten
    without, _ = looped(f"%z = {FLOAT} tile.store %z, %C[%c0, %c0]\n", target=target, persistent=1)
    assert without is not None and without.flatten


@pytest.mark.parametrize(("rows", "fits"), [(8, True), (16, False)])
def test_shared_memory_may_be_filled_to_the_last_byte(rows: int, fits: bool) -> None:
    """Of 232448 bytes 230400 are the loop's, its result's and its barriers'; a row that is read takes 256."""
    read = f"%r = tile.load_block %C[%bx, %c0] {{axes = (0, 1)}} : tensor<{rows}x64xfloat32>\n"
    body = PRODUCT + read + '%m = tensor.reduce %r {kind = "max", axis = 0} : tensor<64xfloat32>\n'
    assert (looped(body)[0] is not None) is fits
    loop, kernel = looped(body, persistent=1)
    assert loop is not None and loop.flatten is fits
    assert ["need 234496 bytes of shared memory; cuda:90 has 232448" in each for each in kernel.remarks] == [True] * (
        not fits
    )


def test_large_tiles_without_a_loop_of_products_are_no_reason_against_flattening() -> None:
    loop, kernel = looped("%t = arith.constant {value = 0.0} : tensor<256x256xfloat32>\n"
                          "tile.store_block %t, %C[%bx, %c0] {axes = (0, 1)}\n", persistent=1)  # fmt: skip
    assert loop is not None and loop.flatten and not kernel.remarks


@pytest.mark.parametrize("emitter", ["gluon", "triton"])
def test_kernels_for_gluon_take_blocks_by_themselves(emitter: str) -> None:
    made = ir_program("tile.store %c1, %N[%bx]", grid=(64,))
    (kernel,) = (op for op in made.root.walk() if isinstance(op, tile.KernelOp))
    kernel.set_option("emitter", emitter)
    MapGrid(persistent=1).run(made)
    assert any(isinstance(op, scf.ForOp) for op in made.root.walk()) is (emitter == "triton")
    assert ["map-grid.persistent=1 has no effect in Gluon" in each for each in kernel.remarks] == [True] * (
        emitter == "gluon"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"persistent": -2}, r"map-grid.persistent is -2; it must be a number of programs, 0, or -1"),
        ({"group_m": -1}, r"map-grid.group_m is -1; it must be a number of rows, or 0 for the program's own"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, int], message: str) -> None:
    with pytest.raises(TileError, match=f"^{message}$"):
        MapGrid(**options).run(ir_program(""))
