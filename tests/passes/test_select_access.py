"""select-access: which loads and stores become blocks, what is said of the others, and that both mean the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.passes.ir_cases import body_lines, filecheck
from tiledsl.dialects import tile, triton
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation
from tiledsl.ir.pass_manager import Program, parse_program
from tiledsl.ir.printer import print_op
from tiledsl.ir.verifier import verify
from tiledsl.passes.lower_to_triton import LowerToTriton
from tiledsl.passes.select_access import SelectAccess
from tiledsl.runtime.target import Target

HEAD = """
    %0 = arith.constant {value = 0} : int32
    %32 = arith.constant {value = 32} : int32
    %rows = tensor.iota {axis = 0} : tensor<32x1xint32>
    %columns = tensor.iota {axis = 1} : tensor<1x64xint32>
    %row = arith.mul %bx, %32 : int32
    %i = arith.add %row, %rows : tensor<32x1xint32>
"""
LOAD = "%x = tile.load %A[%i, %columns] {guarded = true} : tensor<32x64xfloat16>\n"
STORE = "tile.store %x, %C[%i, %columns] {guarded = true}\n"


def program(
    body: str,
    a: str = "100*64*float16, global",
    c: str = "100*64*float16, global",
    target: Target | None = None,
    **options: str,
) -> Program:
    text = f"""tile.func {{sym_name = "f", parameters = ("A", "C"), symbols = ("m",), symbol_sources = ("A.0",)}}
      (%A: buffer<{a}>, %C: buffer<{c}>, %m: int32) {{
      %grid = arith.constant {{value = 4}} : int32
      tile.kernel [%grid] (%bx: int32) {{ {HEAD} {body} scf.yield }}
    }}"""
    made = parse_program(text, target)
    SelectAccess(**{"mode": "tma", **options}).run(made)
    verify(made.root)
    return made


def kernel(made: Program) -> tile.KernelOp:
    return next(op for op in made.root.walk() if isinstance(op, tile.KernelOp))


def accesses(made: Program) -> list[str]:
    return [op.name for op in made.root.walk() if op.name.startswith("tile.") and isinstance(op, ACCESSES)]


ACCESSES = (tile.LoadOp, tile.StoreOp, tile.LoadBlockOp, tile.StoreBlockOp)


def test_tiles_become_blocks_at_scalar_starts() -> None:
    lowered = program(LOAD + STORE)
    assert body_lines(lowered) == [  # nothing else used the indices of each element
        "%row = arith.mul %bx, %c32 : int32",
        "%x = tile.load_block %A[%row, %c0] {axes = (0, 1)} : tensor<32x64xfloat16>",
        "tile.store_block %x, %C[%row, %c0] {axes = (0, 1)}",
    ]
    assert kernel(lowered).remarks == ()


def test_blocks_have_no_eviction_policy() -> None:
    hinted = LOAD.replace("true}", 'true, eviction = "evict_first"}') + STORE
    assert body_lines(program(hinted)) == body_lines(program(LOAD + STORE))


def test_masks_that_are_the_bounds_of_the_buffer_are_dropped() -> None:
    body = """
    %100 = arith.constant {value = 100} : int32
    %low = arith.cmp %i, %0 {predicate = "ge"} : tensor<32x1xbool>
    %high = arith.cmp %i, %100 {predicate = "lt"} : tensor<32x1xbool>
    %inside = arith.and %low, %high : tensor<32x1xbool>
    %x = tile.load %A[%i, %columns] mask=%inside {guarded = true} : tensor<32x64xfloat16>
    tile.store %x, %C[%i, %columns] mask=%high {guarded = true}
    """
    filecheck(
        accesses(program(body)),
        """
        tile.load_block
        tile.store_block
        """,
    )


def test_a_dynamic_number_of_rows_is_a_bound_too() -> None:
    body = """
    %high = arith.cmp %i, %m {predicate = "lt"} : tensor<32x1xbool>
    %x = tile.load %A[%i, %columns] mask=%high {guarded = true} : tensor<32x64xfloat16>
    """
    filecheck(
        accesses(program(body, a="m*64*float16, global")),
        """
        tile.load_block
        """,
    )


def test_scalar_indices_and_transposed_tiles() -> None:
    body = """
    %down = tensor.iota {axis = 0} : tensor<64x1xint32>
    %across = tensor.iota {axis = 1} : tensor<1x32xint32>
    %x = tile.load %A[%bx, %across, %down] {guarded = true} : tensor<64x32xfloat16>
    """
    lowered = program(body, a="4*32*64*float16, global")
    assert body_lines(lowered)[-1] == "%x = tile.load_block %A[%bx, %c0, %c0] {axes = (2, 1)} : tensor<64x32xfloat16>"
    LowerToTriton().run(lowered)
    verify(lowered.root)
    described = next(op for op in lowered.root.walk() if isinstance(op, triton.DescriptorOp))
    assert (described.block, described.dims) == ((1, 32, 64), (0, 1, 2))
    assert lines_of_launch(lowered)[-3:] == [
        "%x = triton.load_block %A_block_1[%bx, %c0_1, %c0_2] : tensor<1x32x64xfloat16>",
        "%x_1 = tensor.reshape %x : tensor<32x64xfloat16>",
        "%x_2 = tensor.transpose %x_1 {permutation = (1, 0)} : tensor<64x32xfloat16>",
    ]


def lines_of_launch(made: Program) -> list[str]:
    """What stands in the launch, without its last line."""
    return [line.strip() for line in print_op(launch_of(made)).splitlines()[1:-1] if "scf.yield" not in line]


def launch_of(made: Program) -> Operation:
    return next(op for op in made.root.walk() if isinstance(op, triton.LaunchOp))


def test_dimensions_of_one_element_come_first_in_a_descriptor() -> None:
    body = "%x = tile.load %A[%i, %bx, %columns] {guarded = true} : tensor<32x64xfloat16>"
    made = program(body, a="100*8*64*float16, global")
    LowerToTriton().run(made)
    described = next(op for op in made.root.walk() if isinstance(op, triton.DescriptorOp))
    assert (described.block, described.dims) == ((1, 32, 64), (1, 0, 2))
    assert lines_of_launch(made)[-2:] == [
        "%x = triton.load_block %A_block_1[%bx, %row, %2] : tensor<1x32x64xfloat16>",
        "%x_1 = tensor.reshape %x : tensor<32x64xfloat16>",
    ]


MASKED = """
    %7 = arith.constant {value = 7} : int32
    %some = arith.cmp %i, %7 {predicate = "lt"} : tensor<32x1xbool>
    %x = tile.load %A[%i, %columns] mask=%some {guarded = true} : tensor<32x64xfloat16>
"""
OTHER = """
    %100 = arith.constant {value = 100} : int32
    %one = arith.constant {value = 1.0} : float16
    %high = arith.cmp %i, %100 {predicate = "lt"} : tensor<32x1xbool>
    %x = tile.load %A[%i, %columns] mask=%high other=%one {guarded = true} : tensor<32x64xfloat16>
"""
STRIDED_WALK = """
    %j = arith.mul %columns, %32 : tensor<1x64xint32>
    %x = tile.load %A[%i, %j] {guarded = true} : tensor<32x64xfloat16>
"""
ODD_START = """
    %j = arith.add %bx, %columns : tensor<1x64xint32>
    %x = tile.load %A[%i, %j] {guarded = true} : tensor<32x64xfloat16>
"""
TWO_WALKS = """
    %d = arith.add %i, %columns : tensor<32x64xint32>
    %x = tile.load %A[%bx, %d] {guarded = true} : tensor<32x64xfloat16>
"""
DIAGONAL = "%y = tile.load %A[%i, %rows] {guarded = true} : tensor<32x1xfloat16>"
ROW = """
    %all = tensor.iota {axis = 0} : tensor<64xint32>
    %x = tile.load %A[%bx, %all] {guarded = true} : tensor<64xfloat16>
"""
WIDE_INDEX = """
    %j = arith.cast %columns : tensor<1x64xint64>
    %x = tile.load %A[%i, %j] {guarded = true} : tensor<32x64xfloat16>
"""
COLUMN = "%x = tile.load %A[%i, %columns, %bx] {guarded = true} : tensor<32x64xfloat16>"
NARROW = """
    %two = tensor.iota {axis = 1} : tensor<1x2xint32>
    %x = tile.load %A[%i, %two] {guarded = true} : tensor<32x2xfloat16>
"""


@pytest.mark.parametrize(
    ("body", "a", "reason"),
    [
        (LOAD, "100*60*float16, global", "its stride in dimension 0 is 120 bytes, not a multiple of 16"),
        (LOAD, "100*m*float16, global", "its stride in dimension 0 is known only at run time"),
        (LOAD, "100*64*float16, global, strides(1, 100)", "neighbours in its last dimension are 100 elements apart"),
        (LOAD.replace("float16", "float64"), "100*64*float64, global", "descriptors of float64 are not used"),
        (MASKED, "100*64*float16, global", "its mask is more than the buffer's bounds"),
        (OTHER, "100*64*float16, global", "what lies outside does not read 0"),
        (STRIDED_WALK, "100*64*float16, global", "its elements are not neighbours in memory"),
        (ODD_START, "100*64*float16, global", "its blocks may begin at other columns than multiples of 8"),
        (TWO_WALKS, "100*64*float16, global", "its elements are not neighbours in memory"),
        (DIAGONAL, "100*64*float16, global", "one dimension of the tile walks along two of the buffer"),
        (ROW, "100*64*float16, global", "rows are as fast through pointers"),
        (WIDE_INDEX, "100*64*float16, global", "an index is int64"),
        (NARROW, "100*64*float16, global", "its blocks are 2 elements wide, less than 16 bytes"),
        (COLUMN, "100*64*64*float16, global", "its blocks are 1 elements wide, less than 16 bytes"),
        (LOAD.replace("true}", 'true, cache = ".cg"}'), "100*64*float16, global", "it has a cache hint"),
    ],
)
def test_others_stay_with_a_reason(body: str, a: str, reason: str) -> None:
    lowered = program(body, a=a)
    filecheck(
        accesses(lowered),
        """
        tile.load
        """,
    )
    (remark,) = kernel(lowered).remarks
    assert remark.startswith("A (line ")
    assert remark.endswith(f"because {reason}")
    LowerToTriton().run(lowered)
    assert launch_of(lowered).attributes["remarks"] == (remark,)


@pytest.mark.parametrize(
    ("a", "shape", "reason"),
    [
        ("1024*512*float16", (256, 64), ""),
        ("1024*512*float16", (512, 64), "its block is 512 long, and a descriptor's at most 256"),
        ("1024*512*float16", (32, 512), ""),  # columns come in pieces
        ("1024*512*float16", (256, 1), "its blocks are 1 elements wide, less than 16 bytes"),
        ("1024*512*float16", (32, 8), ""),
        ("1024*512*float16", (1, 64), ""),
        ("1024*512*float32", (32, 4), ""),
        ("1024*512*float32", (32, 2), "its blocks are 2 elements wide, less than 16 bytes"),
        ("1024*512*float16", (32, 7), "its blocks are 7 elements wide, less than 16 bytes"),
        ("1024*512*int8", (32, 8), "its blocks are 8 elements wide, less than 16 bytes"),
        ("1024*512*int64", (32, 4), "descriptors of int64 are not used"),
        ("1024*512*bool", (32, 64), "descriptors of bool are not used"),
        ("8*8*8*1024*512*float16", (32, 64), ""),
        ("2*8*8*8*1024*512*float16", (32, 64), "it has 6 dimensions, and a descriptor 2 to 5"),
        ("512*float16", (1, 64), "it has 1 dimension, and a descriptor 2 to 5"),
        (
            "8*1024*512*float16, strides(0, 512, 1)",
            (32, 64),
            "its stride in dimension 0 is 0 bytes, not a multiple of 16",
        ),
        (
            "1024*512*float16, strides(516, 1)",
            (32, 64),
            "its stride in dimension 0 is 1032 bytes, not a multiple of 16",
        ),
        ("1024*512*float16, strides(520, 1)", (32, 64), ""),
        ("1024*m*float16", (32, 64), "its stride in dimension 0 is known only at run time"),
        ("m*1024*64*float16", (32, 64), ""),
    ],
)
def test_which_tiles_a_descriptor_moves(a: str, shape: tuple[int, int], reason: str) -> None:
    sizes, _, strides = a.partition(", ")
    *dims, dtype = sizes.split("*")
    walks = """%u = tensor.iota {axis = 0} : tensor<ROWSx1xint32>
        %v = tensor.iota {axis = 1} : tensor<1xCOLUMNSxint32>""".replace("ROWS", str(shape[0]))
    at = ", ".join(["%bx"] * (len(dims) - 2) + ["%u", "%v"][-len(dims) :])
    body = f"{walks} %x = tile.load %A[{at}] {{guarded = true}} : tensor<{shape[0]}xCOLUMNSx{dtype}>"
    buffer = f"{sizes}, global" + (f", {strides}" if strides else "")
    made = program(body.replace("COLUMNS", str(shape[1])), a=buffer)
    assert [each.partition("because ")[2] for each in kernel(made).remarks] == [reason] * bool(reason)
    assert accesses(made) == ["tile.load" if reason else "tile.load_block"]


@pytest.mark.parametrize(
    ("c", "reason"),
    [
        ("100*60*float16, global, strides(64, 1)", "its rows have 120 bytes, not a multiple of 16"),
        ("100*56*float16, global, strides(64, 1)", "its blocks are 64 elements wide, and its rows 56"),
        ("100*64*float16, global", ""),
        ("100*m*float16, global, strides(64, 1)", ""),
    ],
)
def test_stores_that_leave_the_rows_stay(c: str, reason: str) -> None:
    made = program(LOAD + STORE, c=c, mode="tma")
    assert [each.partition("because ")[2] for each in kernel(made).remarks if each[0] == "C"] == [reason] * bool(reason)
    assert ("tile.store_block" in accesses(made)) is not bool(reason)


@pytest.mark.parametrize("stays", [False, True])
def test_stores_that_may_begin_before_the_tensor_stay(stays: bool) -> None:
    """Which is so where guard-accesses had to check for it; a load reads 0 there."""
    guard = """
        %first = arith.cmp %i, %0 {predicate = "ge"} : tensor<32x1xbool>
        %inside = arith.cmp %i, %100 {predicate = "lt"} : tensor<32x1xbool>
        %both = arith.and %first, %inside : tensor<32x1xbool>
    """
    head = "%100 = arith.constant {value = 100} : int32\n" + guard
    mask = "%both" if stays else "%inside"
    load = LOAD.replace("%columns]", "%columns] mask=%both")
    made = program(head + load + f"tile.store %x, %C[%i, %columns] mask={mask} {{guarded = true}}\n")
    reasons = [each.partition("because ")[2] for each in kernel(made).remarks]
    assert reasons == ["its blocks may begin before the tensor"] * stays
    assert accesses(made) == ["tile.load_block", "tile.store" if stays else "tile.store_block"]


def test_what_is_read_and_written_in_one_kernel_stays() -> None:
    lowered = program(LOAD + STORE.replace("%C", "%A"))
    filecheck(
        accesses(lowered),
        """
        tile.load
        tile.store
        """,
    )
    assert "both reads and writes" in kernel(lowered).remarks[0]


def test_modes_of_single_operands() -> None:
    filecheck(
        accesses(program(LOAD + STORE, operands="C=pointer")),
        """
        tile.load_block
        tile.store
        """,
    )
    filecheck(
        accesses(program(LOAD + STORE, mode="pointer", operands="C=tma")),
        """
        tile.load
        tile.store_block
        """,
    )
    filecheck(
        accesses(program(LOAD + STORE, mode="pointer")),
        """
        tile.load
        tile.store
        """,
    )


def product(depth: int = 3, dtype: str = "float16", between: str = "", rows: int = 64) -> str:
    """C = A @ B in a pipelined loop over tiles of both; `between` computes %a, to be multiplied, from A's tile %x."""
    return f"""
    %1 = arith.constant {{value = 1}} : int32
    %acc = arith.constant {{value = 0.0}} : tensor<{rows}x64xfloat32>
    %tall = tensor.iota {{axis = 0}} : tensor<{rows}x1xint32>
    %start = arith.mul %bx, %32 : int32
    %r = arith.add %start, %tall : tensor<{rows}x1xint32>
    %last = scf.for %0, %32, %1[%acc] {{num_stages = {depth}}} : tensor<{rows}x64xfloat32>
        (%k: int32, %carried: tensor<{rows}x64xfloat32>) {{
      %inner = arith.mul %k, %32 : int32
      %across = tensor.iota {{axis = 1}} : tensor<1x32xint32>
      %down = tensor.iota {{axis = 0}} : tensor<32x1xint32>
      %xs = arith.add %inner, %across : tensor<1x32xint32>
      %ys = arith.add %inner, %down : tensor<32x1xint32>
      %x = tile.load %A[%r, %xs] {{guarded = true}} : tensor<{rows}x32x{dtype}>
      %y = tile.load %B[%ys, %columns] {{guarded = true}} : tensor<32x64x{dtype}>
      {between}
      %sum = tensor.dot {"%a" if between else "%x"}, %y, %carried : tensor<{rows}x64xfloat32>
      scf.yield [%sum]
    }}
    %half = arith.cast %last : tensor<{rows}x64xfloat16>
    tile.store %half, %C[%r, %columns] {{guarded = true}}
    """


def chosen(
    body: str, threads: int = 128, b: str = "1024*64*float16, global", c: str = "float16", **options: Any
) -> Program:
    """What "auto" makes of a product on sm_90."""
    a = b.replace("1024*64", "128*1024")
    text = f"""tile.func {{sym_name = "f", parameters = ("A", "B", "C"), symbols = ("m",), symbol_sources = ("C.0",)}}
      (%A: buffer<{a}>, %B: buffer<{b}>, %C: buffer<m*64*{c}, global>, %m: int32) {{
      %grid = arith.constant {{value = 4}} : int32
      tile.kernel [%grid] {{threads = {threads}}} (%bx: int32) {{ {HEAD} {body} }}
    }}"""
    made = parse_program(text, options.pop("target", Target("cuda", 90)))
    SelectAccess(**options).run(made)
    verify(made.root)
    return made


@pytest.mark.parametrize(
    ("depth", "available", "fits"), [(26, 232448, True), (27, 232448, False), (4, 50176, True), (4, 50175, False)]
)
def test_sums_are_copied_beside_the_operands_if_there_is_room(
    depth: int, available: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The operands of each stage take 8192 bytes, the copy 16384, barriers 1024.
    monkeypatch.setattr(Target, "max_shared_bytes", available)
    body = product(depth).replace("%half, %C", "%last, %C")
    made = chosen(body, c="float32", mode="tma")
    assert accesses(made) == (BLOCKS if fits else [*BLOCKS[:2], "tile.store"])
    reason = f"16384 bytes, does not fit in shared memory beside {depth * 8192} bytes of the loop's operands"
    assert any(reason in each for each in kernel(made).remarks) is not fits


@pytest.mark.parametrize("over", [False, True])
def test_a_copy_with_nothing_beside_it_may_fill_shared_memory(over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "max_shared_bytes", 32 * 64 * 2 - over)
    assert accesses(program(LOAD + STORE, target=Target("cuda", 90)))[1] == ("tile.store" if over else BLOCKS[2])


ODD = "%odd = arith.add %bx, %columns : tensor<1x64xint32>"
BLOCKS = ["tile.load_block", "tile.load_block", "tile.store_block"]
POINTERS = ["tile.load", "tile.load", "tile.store"]


def test_auto_takes_products_of_what_a_pipelined_loop_loads_and_their_result() -> None:
    assert accesses(chosen(product())) == BLOCKS
    assert accesses(chosen(product(), operands="C=pointer")) == [*BLOCKS[:2], "tile.store"]
    assert accesses(chosen(product(), target=Target("cuda", 100))) == BLOCKS


def test_auto_stores_rows_beside_a_product_through_pointers() -> None:
    """Of one dimension that is longer than 1 there is no tile to store at once."""
    row = """%first = tensor.iota {axis = 0} : tensor<1x1xint32>
      %sums = tensor.reduce %half {kind = "max", axis = 0} : tensor<64xfloat16>
      %line = tensor.reshape %sums : tensor<1x64xfloat16>
      tile.store %line, %C[%first, %columns] {guarded = true}"""
    assert accesses(chosen(product() + row)) == [*BLOCKS, "tile.store"]


def test_auto_leaves_products_that_an_iteration_adds_up() -> None:
    """Two that go to sums of their own are loaded as blocks."""
    two = product().replace("scf.yield [%sum]", "%s = tensor.dot %x, %y, %sum : tensor<64x64xfloat32>\nscf.yield [%s]")
    made = chosen(two)
    assert accesses(made) == POINTERS
    assert all("an iteration adds up products" in each for each in kernel(made).remarks) and kernel(made).remarks
    apart = product().replace("%acc]", "%acc, %acc]").replace("%last =", "%last, %other =").replace("%carried:", "%d:")
    apart = apart.replace("tensor<64x64xfloat32>\n        (", "tensor<64x64xfloat32>, tensor<64x64xfloat32>\n        (")
    apart = apart.replace("%d: tensor<64x64xfloat32>", "%carried: tensor<64x64xfloat32>, %d: tensor<64x64xfloat32>")
    apart = apart.replace(
        "scf.yield [%sum]", "%s = tensor.dot %x, %y, %d : tensor<64x64xfloat32>\nscf.yield [%sum, %s]"
    )
    assert accesses(chosen(apart)) == BLOCKS


@pytest.mark.parametrize(
    "options",
    [
        {"target": None},
        {"target": Target("interpret")},
        {"target": Target("hip", "gfx942")},
        {"target": Target("cuda", 80)},
        {"threads": 64},
        {"mode": "pointer"},
    ],
    ids=str,
)
def test_auto_without_the_hardware_or_with_few_threads(options: dict[str, Any]) -> None:
    made = chosen(product(), **options)
    assert accesses(made) == POINTERS
    assert kernel(made).remarks == ()


def storing(shape: str, place: str) -> str:
    """The product in a loop that stores zeros."""
    zeros = f"%zeros = arith.constant {{value = 0.0}} : tensor<{shape}xfloat16> tile.store %zeros, {place}"
    return product().replace("scf.yield [", f"{zeros} {{guarded = true}} scf.yield [")


@pytest.mark.parametrize(
    "body",
    [
        product(depth=0),
        product(depth=1),
        storing("64x32", "%A[%r, %xs]"),
        product(rows=16),
        product(between="%a = arith.add %x, %x : tensor<64x32xfloat16>"),
        product(between='%a = arith.math [%x] {function = "exp"} : tensor<64x32xfloat16>'),
    ],
    ids=["not pipelined", "one stage", "rewritten", "few rows", "computed", "softmax"],
)
def test_auto_leaves_other_loops(body: str) -> None:
    made = chosen(body)
    assert not {"tile.load_block", "tile.store_block"} & {*accesses(made)}
    assert kernel(made).remarks == ()


def test_auto_takes_narrow_elements_only_where_the_summed_ones_are_neighbours() -> None:
    b = "1024*64*float8_e4m3fn, global"
    body = product(dtype="float8_e4m3fn")
    assert accesses(chosen(body, b=b)) == POINTERS
    turned = chosen(body.replace("%B[%ys, %columns]", "%B[%columns, %ys]"), b="64*1024*float8_e4m3fn, global")
    assert accesses(turned) == BLOCKS


def test_auto_stores_as_blocks_what_is_computed_behind_the_loop() -> None:
    assert accesses(chosen(storing("32x64", "%C[%ys, %columns]"))) == [*BLOCKS[:2], "tile.store", BLOCKS[2]]
    unchanged = chosen(product().replace("%half, %C", "%last, %C"), c="float32")
    assert accesses(unchanged) == [*BLOCKS[:2], "tile.store"]
    assert [each.partition("because ")[2] for each in kernel(unchanged).remarks] == [
        "a copy of what a loop leaves takes shared memory beside the loop's operands"
    ]


def test_what_a_product_and_something_else_read_is_loaded_through_pointers() -> None:
    seen = product().replace("scf.yield [", "tile.store %y, %C[%ys, %columns] {guarded = true} scf.yield [")
    made = chosen(seen, mode="tma")
    assert accesses(made) == [BLOCKS[0], "tile.load", BLOCKS[2], BLOCKS[2]]
    assert [each.partition("because ")[2] for each in kernel(made).remarks] == [
        "large products read it, and something else does, too"
    ]


def test_auto_takes_both_sides_or_none() -> None:
    made = chosen(product().replace("%ys, %columns", "%ys, %odd").replace("%x = ", f"{ODD} %x = "))
    assert accesses(made) == POINTERS
    assert [(each.partition(" (")[0], each.partition(") ")[2]) for each in kernel(made).remarks] == [
        ("B", "is accessed through pointers, because its blocks may begin at other columns than multiples of 8"),
        ("A", "is accessed through pointers, because B is, which it is multiplied with"),
    ]


def test_hardware_without_a_tma() -> None:
    made = parse_program(print_op(program(LOAD, mode="pointer").root), Target("cuda", 80))
    SelectAccess(mode="tma").run(made)
    assert kernel(made).remarks[0].endswith("because cuda:80 has no tensor memory accelerator")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "fast"}, "select-access.mode is 'fast'; it must be one of auto, pointer, tma"),
        ({"operands": "A"}, "'A' is not name=mode"),
        ({"operands": "A=tma,C=tma,A=pointer"}, "operands names 'A' twice: A=tma and A=pointer"),
        ({"operands": "Z=tma"}, "names 'Z', which no kernel loads or stores as a whole tile"),
    ],
)
def test_wrong_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(TileError, match=message):
        program(LOAD, **options)


def test_what_is_stored_in_all_columns_of_a_block_becomes_a_tile() -> None:
    body = """%x = tile.load %A[%i, %0] {guarded = true} : tensor<32x1xfloat16>
    tile.store %x, %C[%i, %columns] {guarded = true}"""
    lines = body_lines(program(body))
    assert lines[-2:] == [
        "%0 = tensor.broadcast %x : tensor<32x64xfloat16>",
        "tile.store_block %0, %C[%row, %c0] {axes = (0, 1)}",
    ]
