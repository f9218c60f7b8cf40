"""lower-to-triton: launches that see only their arguments, and offsets that are split, wide enough and correct."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from tests.passes.ir_cases import kernel
from tests.support.programs import check_pass, inputs_for
from tiledsl.analysis.affine import bounds, linear_form
from tiledsl.dialects import arith, scf, tensor, tile, triton
from tiledsl.errors import TileError
from tiledsl.ir.core import Value
from tiledsl.ir.parser import parse_type
from tiledsl.ir.pass_manager import Program, parse_program
from tiledsl.ir.printer import print_op
from tiledsl.ir.types import BufferType
from tiledsl.ir.verifier import verify
from tiledsl.passes.lower_to_triton import LowerToTriton, _max_offset
from tiledsl.runtime.target import Target


def lower(
    buffer: str,
    body: str,
    index_bits: int = 0,
    symbols: str = "",
    kernel: str = "threads = 64",
    target: Target | None = None,
) -> Program:
    """One kernel over 8 by 4 blocks that has %A and int32 scalars %s, %t; `symbols` such as "M N"."""
    names = symbols.split()
    quoted = "".join(f'"{name}", ' for name in names)
    sources = "".join(f'"A.{axis}", ' for axis, _ in enumerate(names))
    arguments = "".join(f", %{name}: int32" for name in names)
    program = parse_program(
        f"""tile.func {{sym_name = "f", parameters = ("A", "s", "t"),
           symbols = ({quoted}), symbol_sources = ({sources})}}
    (%A: buffer<{buffer}>, %s: int32, %t: int32{arguments}) {{
  %gx = arith.constant {{value = 8}} : int32
  %gy = arith.constant {{value = 4}} : int32
  tile.kernel [%gx, %gy] {{{kernel}}} (%bx: int32, %by: int32) {{
    %c0 = arith.constant {{value = 0}} : int32
    %c1 = arith.constant {{value = 1}} : int32
    %c16 = arith.constant {{value = 16}} : int32
    %i = tensor.iota {{axis = 0}} : tensor<16x1xint32>
    %j = tensor.iota {{axis = 1}} : tensor<1x16xint32>
    {body}
  }}
}}""",
        target,
    )
    LowerToTriton(index_bits).run(program)
    verify(program.root)
    return program


ROWS = """%m = arith.mul %by, %c16 : int32
    %n = arith.mul %bx, %c16 : int32
    %rows = arith.add %i, %m : tensor<16x1xint32>
    %columns = arith.add %j, %n : tensor<1x16xint32>
    %x = tile.load %A[%rows, %columns] {guarded = true} : tensor<16x16xfloat16>
    tile.store %x, %A[%rows, %columns] {guarded = true}"""


def lines(program: Program) -> list[str]:
    """What stands in the launch behind the block's indices, the constants and the iotas of `lower`."""
    text = [line.strip() for line in print_op(program.root).splitlines()]
    return text[text.index("%j = tensor.iota {axis = 1} : tensor<1x16xint32>") + 1 : -2]


def pointer_moves(program: Program) -> list[tuple[str, tuple[int, ...]]]:
    """Element type and shape of the offsets of the first access, base first."""
    access = next(op for op in program.root.walk() if isinstance(op, (triton.LoadOp, triton.StoreOp, triton.AtomicOp)))
    out, value = [], access.operands[0]
    while isinstance(value.op, triton.AddPtrOp):
        out.append((value.op.offset.dtype, value.op.offset.shape))
        value = value.op.pointer
    return out[::-1]


@pytest.mark.parametrize(
    ("buffer", "symbols", "bits", "expected"),
    [
        ("64*128*float16, global", "", 0, ("int32", "int32")),
        ("32768*65536*float16, global", "", 0, ("int32", "int32")),  # 2**31 elements: the last offset still fits
        ("32769*65536*float16, global", "", 0, ("int64", "int32")),  # the tile's own extent fits
        ("M*1024*float16, global", "M", 0, ("int64", "int32")),
        ("M*N*float16, global", "M N", 0, ("int64", "int64")),
        ("M*N*float16, global", "M N", 32, ("int32", "int32")),
        ("64*128*float16, global", "", 64, ("int64", "int64")),
        ("64*128*float16, global, strides(90000000, 1)", "", 0, ("int64", "int32")),
        ("64*128*float16, global, strides(200000000, 1)", "", 0, ("int64", "int64")),
        ("2*2*float16, global, strides(2147483646, 1)", "", 0, ("int32", "int32")),  # the last offset fits
        ("2*2*float16, global, strides(2147483647, 1)", "", 0, ("int64", "int64")),
    ],
)
def test_width_of_offsets(buffer: str, symbols: str, bits: int, expected: tuple[str, str]) -> None:
    moves = pointer_moves(lower(buffer, ROWS, bits, symbols))
    assert moves == [(expected[0], ()), (expected[1], (16, 16))]


GATHER = """%table = tile.load %A[%c0, %j] {guarded = true} : tensor<1x16xint32>
    %p = arith.add %table, %s : tensor<1x16xint32>
    %x = tile.load %A[%c0, %p] {guarded = true} : tensor<1x16xint32>
    tile.store %x, %A[%c0, %j] {guarded = true}"""


def test_unbounded_sums_stay_whole_in_32_bits() -> None:
    # Scalar and table may both be far outside while their sum is inside: two wrapped halves would not meet again.
    assert lines(lower("64*128*int32, global", GATHER)) == [
        "%0 = triton.addptr %A_1, %j : tensor<1x16x*int32>",
        "%table = triton.load %0 : tensor<1x16xint32>",
        "%p = arith.add %table, %s_1 : tensor<1x16xint32>",
        "%1 = triton.addptr %A_1, %p : tensor<1x16x*int32>",
        "%x = triton.load %1 : tensor<1x16xint32>",
        "%2 = triton.addptr %A_1, %j : tensor<1x16x*int32>",
        "triton.store %2, %x",
    ]


TILE = ("int32", (1, 16))


@pytest.mark.parametrize(
    ("buffer", "operation", "high", "expected"),
    [
        ("2147483648*int8, global", "add", 9, [("int64", ()), TILE]),  # the table is at most the last offset
        ("2147483639*int8, global", "sub", 9, [("int32", ()), TILE]),  # and here 9 more: 2**31 - 1
        ("2147483640*int8, global", "sub", 9, [("int64", (1, 16))]),
        ("9*int8, global, strides(1048576)", "add", 2047, [("int32", ()), TILE]),  # an offset of 2**31 - 2**20
        ("9*int8, global, strides(1048576)", "add", 2048, [TILE]),
    ],
)
def test_sums_with_a_part_near_the_buffer_are_split(
    buffer: str, operation: str, high: int, expected: list[Any]
) -> None:
    body = f"""%high = arith.constant {{value = {high}}} : int32
    %some = arith.max %s, %c0 : int32
    %near = arith.min %some, %high : int32
    %table = arith.mul %j, %t : tensor<1x16xint32>
    %wide = arith.cast %table : tensor<1x16xint64>
    %near_64 = arith.cast %near : int64
    %p = arith.{operation} %wide, %near_64 : tensor<1x16xint64>
    %x = tile.load %A[%p] {{guarded = true}} : tensor<1x16xint8>
    tile.store %x, %A[%j] {{guarded = true}}"""
    assert pointer_moves(lower(buffer, body)) == expected


@pytest.mark.parametrize(
    ("stride", "index", "width"),
    [
        (143165575, "%i", "int32"),  # 15 * stride + 15 is less than 2**31
        (143165576, "%i", "int64"),
        (143165576, "%down", "int32"),  # -15 * stride is no less than -2**31
        (143165577, "%down", "int64"),
    ],
)
def test_offsets_of_tiles_in_large_buffers(stride: int, index: str, width: str) -> None:
    body = f"""%zero = arith.constant {{value = 0}} : tensor<16x1xint32>
    %down = arith.sub %zero, %i : tensor<16x1xint32>
    %x = tile.load %A[{index}, %j] {{guarded = true}} : tensor<16x16xint8>
    tile.store %x, %A[%i, %j] {{guarded = true}}"""
    found = pointer_moves(lower(f"99*99*int8, global, strides({stride}, 1)", body))
    assert found == [(width, (16, 16))]


def test_numbers_beyond_32_bits_wrap_in_offsets_of_32() -> None:
    # Where the access is inside, the sum fits, and so wrapped parts of it meet again.
    body = """%far = arith.constant {value = 2147483648} : int64
    %91 = arith.cast %s : int64
    %92 = arith.sub %91, %far : int64
    %93 = arith.cast %i : tensor<16x1xint64>
    %p = arith.sub %92, %93 : tensor<16x1xint64>
    %x = tile.load %A[%p, %p] {guarded = true} : tensor<16x1xint32>
    tile.store %x, %A[%i, %c0] {guarded = true}"""
    assert lines(lower("64*128*int32, global", body))[5:13] == [
        "%3 = arith.constant {value = 129} : int32",
        "%4 = arith.mul %s_1, %3 : int32",
        "%5 = arith.constant {value = -2147483648} : int32",  # of 129 * 2**31
        "%6 = arith.sub %4, %5 : int32",
        "%7 = triton.addptr %A_1, %6 : *int32",
        "%8 = arith.constant {value = -129} : int32",
        "%9 = arith.mul %i, %8 : tensor<16x1xint32>",
        "%10 = triton.addptr %7, %9 : tensor<16x1x*int32>",
    ]


def test_masks_and_shapes() -> None:
    body = """%ok = arith.cmp %i, %s {predicate = "lt"} : tensor<16x1xbool>
    %x = tile.load %A[%s, %t] mask=%ok {guarded = true} : tensor<16x1xfloat16>
    %y = tile.load %A[%s, %t] {guarded = true} : float16
    tile.store %y, %A[%i, %j] mask=%ok {guarded = true}"""
    assert lines(lower("64*128*float16, global", body)) == [
        '%ok = arith.cmp %i, %s_1 {predicate = "lt"} : tensor<16x1xbool>',
        "%0 = arith.constant {value = 128} : int32",
        "%1 = arith.mul %s_1, %0 : int32",
        "%2 = arith.add %1, %t_1 : int32",
        "%3 = triton.addptr %A_1, %2 : *float16",
        "%4 = tensor.broadcast %3 : tensor<16x1x*float16>",
        "%5 = arith.constant {value = 0.0} : float16",
        "%x = triton.load %4 mask=%ok other=%5 : tensor<16x1xfloat16>",
        "%6 = arith.add %1, %t_1 : int32",
        "%7 = triton.addptr %A_1, %6 : *float16",
        "%y = triton.load %7 : float16",
        "%8 = arith.mul %i, %0 : tensor<16x1xint32>",
        "%9 = arith.add %8, %j : tensor<16x16xint32>",
        "%10 = triton.addptr %A_1, %9 : tensor<16x16x*float16>",
        "triton.store %10, %y mask=%ok",
    ]


def test_terms_that_are_subtracted_come_last() -> None:
    body = """%d = arith.mul %by, %c16 : int32
    %0 = arith.sub %i, %d : tensor<16x1xint32>
    %p = arith.add %0, %bx : tensor<16x1xint32>
    tile.store %c0, %A[%p, %c1] {guarded = true}"""
    assert lines(lower("M*128*int32, global", body, index_bits=32, symbols="M"))[3:] == [
        "%1 = arith.constant {value = 128} : int32",
        "%2 = arith.mul %bx, %1 : int32",
        "%3 = arith.constant {value = 1} : int32",
        "%4 = arith.add %2, %3 : int32",
        "%5 = arith.mul %d, %1 : int32",
        "%6 = arith.sub %4, %5 : int32",
        "%7 = triton.addptr %A_1, %6 : *int32",
        "%8 = arith.mul %i, %1 : tensor<16x1xint32>",
        "%9 = triton.addptr %7, %8 : tensor<16x1x*int32>",
        "triton.store %9, %c0",
    ]


def test_what_is_subtracted_in_64_bits_moves_the_pointer_by_itself() -> None:
    body = """%0 = arith.sub %bx, %by : int32
    %1 = arith.sub %0, %c16 : int32
    tile.store %c0, %A[%1] {guarded = true}"""
    assert lines(lower("64*int32, global", body, index_bits=64))[2:] == [
        "%2 = arith.cast %bx : int64",
        "%3 = arith.constant {value = 16} : int64",
        "%4 = arith.sub %2, %3 : int64",
        "%5 = triton.addptr %A_1, %4 : *int32",
        "%6 = arith.cast %by : int64",
        "%7 = arith.constant {value = -1} : int64",
        "%8 = arith.mul %6, %7 : int64",
        "%9 = triton.addptr %5, %8 : *int32",
        "triton.store %9, %c0",
    ]


@pytest.mark.parametrize(
    ("target", "warps"),
    [
        (None, [1, 1, 1, 2, 8, 32]), (Target("cuda", 90), [1, 1, 1, 2, 8, 32]),
        (Target("interpret"), [1, 1, 1, 2, 8, 32]),
        (Target("hip", "gfx942"), [1, 1, 1, 1, 4, 16]), (Target("hip", "gfx1100"), [1, 1, 1, 2, 8, 32]),
    ],
)  # fmt: skip
def test_warps_are_a_power_of_two(target: Target | None, warps: list[int]) -> None:
    """Of as many threads as the target's warps have; 32 as long as there is no target."""
    found = []
    for threads in (16, 32, 63, 96, 384, 1024):
        program = lower("64*128*float16, global", ROWS, kernel=f"threads = {threads}", target=target)
        (launch,) = [op for op in program.root.walk() if isinstance(op, triton.LaunchOp)]
        found.append(dict(launch.options)["num_warps"])
    assert found == warps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"index_bits": 16}, "lower-to-triton.index_bits is 16; it must be 32, 64, or 0 to choose for each access"),
        ({"index_bits": 31}, "index_bits is 31"), ({"index_bits": -32}, "index_bits is -32"),
        ({"num_warps": 3}, "num_warps is 3; it must be a power of two from 1 to 32, or 0 as T.Kernel says"),
        ({"num_stages": -1}, "lower-to-triton.num_stages is -1; it must be at least 1, or 0 as T.Kernel says"),
        ({"maxnreg": 256}, "lower-to-triton.maxnreg is 256; it must be a number from 1 to 255, or 0 as T.Kernel says"),
    ],
)  # fmt: skip
def test_options_that_mean_nothing_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(TileError, match=re.escape(message)):
        LowerToTriton(**options).run(lower("64*128*float16, global", ROWS))


def test_launch_is_isolated() -> None:
    program = lower("M*N*float16, global", ROWS, symbols="M N", kernel='threads = 384, options = (("maxnreg", 128),)')
    launch = next(op for op in program.root.walk() if isinstance(op, triton.LaunchOp))
    assert [value.name for value in launch.arguments] == ["A", "N"]
    assert launch.sym_name == "f_kernel"
    assert launch.options == (("num_warps", 8), ("num_stages", 1), ("maxnreg", 128))
    inside = set(launch.body.args)
    for op in launch.body.walk():
        assert all(value in inside for value in op.operands)
        inside |= {*op.results, *(arg for region in op.regions for arg in region.args)}


@pytest.mark.parametrize(
    ("target", "option", "message"),
    [
        (Target("hip", "gfx942"), ("num_warps", 32), "num_warps is 32; hip:gfx942 has at most 16 warps in a block"),
        (
            Target("hip", "gfx942"),
            ("num_ctas", 2),
            "but hip:gfx942 has no clusters of blocks; it must be 1",
        ),
        (Target("cuda", 80), ("num_ctas", 2), "num_ctas is 2, but cuda:80 has no clusters of blocks; it must be 1"),
    ],
)
def test_launches_that_the_target_does_not_have(target: Target, option: tuple[str, int], message: str) -> None:
    name, value = option
    options = f'options = (("{name}", {value}),)'
    with pytest.raises(TileError, match=message):
        lower("64*128*float16, global", ROWS, kernel=options, target=target)
    lower("64*128*float16, global", ROWS, kernel=options, target=Target("interpret"))


def test_views_share_or_are_made_by_the_host() -> None:
    body = """%flat = tile.view %A : buffer<8192*float16, global>
    %bits = tile.view %flat : buffer<8192*int16, global>
    %x = tile.load %flat[%s] {guarded = true} : float16
    %b = tile.load %bits[%s] {guarded = true} : int16
    tile.store %x, %A[%s, %t] {guarded = true}
    tile.store %b, %bits[%t] {guarded = true}"""
    made = lower("64*128*float16, global", body)
    launch = next(op for op in made.root.walk() if isinstance(op, triton.LaunchOp))
    assert [(arg.name, arg.dtype) for arg in launch.body.args if arg.dtype.startswith("*")] == [
        ("A", "*float16"),
        ("bits", "*int16"),
    ]
    assert lines(made) == [
        "%0 = triton.addptr %A_1, %s_1 : *float16",
        "%x = triton.load %0 : float16",
        "%1 = triton.addptr %bits_1, %s_1 : *int16",
        "%b = triton.load %1 : int16",
        "%2 = arith.constant {value = 128} : int32",
        "%3 = arith.mul %s_1, %2 : int32",
        "%4 = arith.add %3, %t_1 : int32",
        "%5 = triton.addptr %A_1, %4 : *float16",
        "triton.store %5, %x",
        "%6 = triton.addptr %bits_1, %t_1 : *int16",
        "triton.store %6, %b",
    ]


def test_on_chip_buffers_are_refused() -> None:
    body = """%B = tile.alloc : buffer<16*16*float16, shared>
    %x = tile.load %B[%i, %j] : tensor<16x16xfloat16>"""
    with pytest.raises(AssertionError, match="shared> is left; promote-buffers removes it"):
        lower("64*128*float16, global", body)


INDICES = [
    "%r = arith.add %i, %s : tensor<16x1xint32>",
    "%a = arith.mul %i, %s : tensor<16x1xint32>\n %r = arith.sub %a, %t : tensor<16x1xint32>",
    "%a = arith.add %i, %bx : tensor<16x1xint32>\n %r = arith.mul %a, %t : tensor<16x1xint32>",
    "%a = arith.sub %s, %i : tensor<16x1xint32>\n %b = arith.neg %a : tensor<16x1xint32>\n"
    "%d = arith.mul %b, %c16 : tensor<16x1xint32>\n %r = arith.add %d, %by : tensor<16x1xint32>",
    "%a = arith.truncdiv %i, %c16 : tensor<16x1xint32>\n %r = arith.add %a, %by : tensor<16x1xint32>",
    "%a = arith.sub %i, %bx : tensor<16x1xint32>\n %r = arith.sub %a, %c16 : tensor<16x1xint32>",
]


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("buffer", ["64*128*float16, global", "M*N*float16, global", "99999*99999*float16, global"])
def test_offsets_are_exact(index: str, buffer: str) -> None:
    symbols = "M N" if "M" in buffer else ""
    width = {"M": 777, "9": 99999, "6": 128}[buffer[0]]
    program = lower(buffer, index + "\n %x = tile.load %A[%r, %j] {guarded = true} : tensor<16x16xfloat16>", 0, symbols)
    load = next(op for op in program.root.walk() if isinstance(op, triton.LoadOp))
    for s, t, bx, by in [(3, 5, 2, 1), (0, 7, 7, 3), (11, 1, 0, 0)]:
        scalars = {"s": s, "t": t, "bx": bx, "by": by, "M": 10, "N": width, "A": 0}
        for i, j in itertools.product((0, 7, 15), (0, 9)):
            value = {0: i + s, 1: i * s - t, 2: (i + bx) * t, 3: (i - s) * 16 + by, 4: i // 16 + by, 5: i - bx - 16}[
                INDICES.index(index)
            ]
            assert evaluate(load.pointer, scalars, (i, j)) == value * width + j


def evaluate(value: Value, scalars: dict[str, int], point: tuple[int, int]) -> Any:
    """One element of an index expression; int32 results must not overflow."""
    op = value.op
    if op is None or isinstance(op, triton.ProgramIdOp):
        return scalars[value.name]
    operands = [evaluate(each, scalars, point) for each in op.operands]
    if isinstance(op, arith.ConstantOp):
        return op.value
    if isinstance(op, tensor.IotaOp):
        return point[op.axis]
    if isinstance(op, triton.AddPtrOp):
        return sum(operands)
    if isinstance(op, arith.NegOp):
        return -operands[0]
    if isinstance(op, (arith.CastOp, tensor.BroadcastOp)):
        return operands[0]
    assert isinstance(op, arith.BinaryOp), op
    out = op.compute(*operands)
    assert value.dtype == "int64" or -(1 << 31) <= out < 1 << 31
    return out


def test_bounds() -> None:
    program = lower(
        "64*128*float16, global",
        """%r = scf.for %c0, %c16, %c1[%c0] : int32 (%k: int32, %acc: int32) {
      %q = arith.truncdiv %k, %c16 : int32
      %e = arith.add %q, %i : tensor<16x1xint32>
      %f = arith.add %e, %bx : tensor<16x1xint32>
      %x = tile.load %A[%f, %j] {guarded = true} : tensor<16x16xfloat16>
      scf.yield [%acc]
    }""",
    )
    known: dict[str, Any] = {value.name: bounds(value) for op in program.root.walk() for value in op.results}
    loop = next(op for op in program.root.walk() if isinstance(op, scf.ForOp))
    assert bounds(loop.index) == (0, 15) and known["q"] == (0, 0) and known["e"] == (0, 15) and known["f"] == (0, 22)
    assert bounds(loop.body.args[1]) == (0, 0)  # handed on as it is


def test_linear_form_keeps_named_scalars() -> None:
    program = lower("64*128*float16, global", ROWS)
    rows = next(value for op in program.root.walk() for value in op.results if value.name == "rows")
    names = {factors[0].name: coefficient for factors, coefficient in linear_form(rows).terms.items()}
    assert names == {"i": 1, "m": 1}


def test_what_the_host_divides_upwards_and_what_it_counts() -> None:
    program = parse_program(
        """
        tile.func {sym_name = "f", parameters = ("A", "n")} (%A: buffer<64*float32, global>, %n: int32) {
          %c7 = arith.constant {value = 7} : int32
          %c8 = arith.constant {value = 8} : int32
          %sum = arith.add %n, %c7 : int32
          %blocks = arith.truncdiv %sum, %c8 : int32
          %less = arith.add %n, %c8 : int32
          %other = arith.truncdiv %less, %c8 : int32
          %before = arith.sub %n, %c7 : int32
          %down = arith.truncdiv %before, %c8 : int32
          %sms = triton.multiprocessors : int32
          %most = arith.min %sms, %blocks : int32
          tile.kernel [%most] (%bx: int32) {
            %x = tile.load %A[%blocks] {guarded = true} : float32
            tile.store %x, %A[%most] {guarded = true}
            tile.store %x, %A[%other] {guarded = true}
            tile.store %x, %A[%down] {guarded = true}
            scf.yield
          }
          scf.yield
        }"""
    )
    LowerToTriton().run(program)
    host = [line.strip() for line in print_op(program.root).splitlines()]
    assert [line for line in host if " arith.ceildiv " in line or " arith.truncdiv " in line] == [
        "%blocks = arith.ceildiv %n, %c8 : int32",
        "%other = arith.truncdiv %less, %c8 : int32",
        "%down = arith.truncdiv %before, %c8 : int32",
    ]
    (launch,) = [op for op in program.root.body if isinstance(op, triton.LaunchOp)]
    assert [launch.arguments[number].name for number in launch.unspecialized] == ["most"]
    assert len(launch.arguments) == 5 and not any("%sum" in line for line in host)


@pytest.mark.parametrize(
    ("target", "kept"),
    [(None, False), (Target("cuda", 80), False), (Target("cuda", 90), True), (Target("interpret"), False)],
)
def test_dependent_launches_are_a_hint_for_targets_that_have_them(target: Target | None, kept: bool) -> None:
    program = lower("64*128*float16, global", ROWS, kernel='options = (("launch_pdl", 1),)', target=target)
    (launch,) = [op for op in program.root.walk() if isinstance(op, triton.LaunchOp)]
    assert ("launch_pdl" in dict(launch.options)) is kept


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((4, 8), (0, 2)), ((8, 4), (2, 0)), ((8,), (2,)), ((1, 8), (-1, 2)), ((4, 1, 8), (1, -1, 2)),
        ((2, 4, 8), (0, 1, 2)), ((4, 8, 2), (1, 2, 0)), ((8, 1, 4), (2, -1, 0)), ((8, 2, 4), (2, 0, 1)),
    ],
)  # fmt: skip
def test_blocks_through_descriptors_hold_the_same_elements(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """Loaded from one place, also beyond the end, and stored to another; the dimensions of a tile in any order."""
    starts, kind = "%c1, %bx, %c4", f"tensor<{'x'.join(map(str, shape))}xfloat32>"
    body = f"""%x = tile.load_block %A[{starts}] {{axes = {axes}}} : {kind}
      %y = tile.load_block %A[%c0, %bx, %c0] {{axes = {axes}}} : {kind}
      %z = arith.add %x, %y : {kind}
      tile.store_block %z, %B[%bx, %c0, %c4] {{axes = {axes}}}"""
    func = kernel("A: 4*6*12*float32, B: 5*9*12*float32", body)
    made = check_pass(LowerToTriton(), func, inputs_for(func))
    descriptors = [op for op in made.walk() if isinstance(op, triton.DescriptorOp)]
    assert len(descriptors) == 2  # one for each buffer
    assert not any(isinstance(op, (tile.LoadBlockOp, tile.StoreBlockOp)) for op in made.walk())


@pytest.mark.parametrize(
    ("type", "most"),
    [
        ("buffer<4*6*float32, global>", 23), ("buffer<m*6*float32, global>", 1 << 31),
        ("buffer<4*6*float32, global, strides(8, 1)>", 29), ("buffer<m*6*float32, global, strides(8, 1)>", 1 << 31),
        ("buffer<4*6*float32, global, strides(m, 1)>", 1 << 31), ("buffer<1*6*float32, global, strides(99, 2)>", 10),
    ],
)  # fmt: skip
def test_the_offset_of_the_last_element(type: str, most: int) -> None:
    buffer = parse_type(type)
    assert isinstance(buffer, BufferType) and _max_offset(buffer) == most


def test_kernels_of_one_name_are_numbered_from_1() -> None:
    names = ("kernel", "own", "kernel", "own", "f", "own_2")
    body = "\n".join(f'tile.kernel [%n] {{sym_name = "{name}"}} (%bx: int32) {{\nscf.yield\n}}' for name in names)
    program = parse_program(
        f"""tile.func {{sym_name = "f", parameters = ("n",)}} (%n: int32) {{\n{body}\nscf.yield\n}}"""
    )
    LowerToTriton().run(program)
    found = [op.sym_name for op in program.root.body if isinstance(op, triton.LaunchOp)]
    assert found == ["f_kernel_1", "own_1", "f_kernel_2", "own_2", "f_1", "own_2_1"]


@pytest.mark.parametrize(
    ("options", "stages"), [("", 1), ('("num_stages", 3),', 3), ('("num_stages", 1),', 1), ('("num_warps", 2),', 1)]
)
def test_stages_of_a_launch_are_those_that_the_kernel_asks_for_or_one(options: str, stages: int) -> None:
    program = lower("64*float32, global", "scf.yield", kernel=f"options = ({options})")
    (launch,) = [op for op in program.root.body if isinstance(op, triton.LaunchOp)]
    assert dict(launch.options)["num_stages"] == stages


def test_how_a_load_is_cached_stays() -> None:
    load = "tile.load %A[%s] {guarded = true, HOW} : float16"
    for how in ('cache = ".cg"', 'eviction = "evict_first"'):
        (line,) = (
            each
            for each in lines(lower("64*float16, global", f"%x = {load.replace('HOW', how)}"))
            if "triton.load" in each
        )
        assert how in line


def test_an_axis_of_one_block_has_no_index() -> None:
    """Its index is 0, of which nothing needs to be computed."""
    program = parse_program(
        """tile.func {sym_name = "f", parameters = ("A",)} (%A: buffer<4*8*float32, global>) {
  %one = arith.constant {value = 1} : int32
  %four = arith.constant {value = 4} : int32
  tile.kernel [%one, %four] {threads = 32} (%bx: int32, %by: int32) {
    %x = arith.cast %bx : float32
    tile.store %x, %A[%by, %bx]
  }
}"""
    )
    LowerToTriton().run(program)
    verify(program.root)
    assert [op.axis for op in program.root.walk() if isinstance(op, triton.ProgramIdOp)] == [1]
