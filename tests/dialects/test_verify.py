"""What each operation's verify refuses, one line each."""

from __future__ import annotations

import pytest

from tiledsl.errors import TileError
from tiledsl.ir.pass_manager import parse_program

TYPES = {
    "i": "int32", "h": "int16", "f": "float32", "b": "bool", "p": "*float32",
    "t": "tensor<8x4xfloat32>", "r": "tensor<4x8xfloat32>", "ti": "tensor<8x4xint32>", "tb": "tensor<8x4xbool>",
    "v": "tensor<8xfloat32>", "G": "buffer<M*4*float32, global>", "S": "buffer<8*4*float32, shared>",
    "R": "buffer<4*8*float32, shared>", "V": "buffer<8*float32, fragment>", "W": "buffer<5*float32, fragment>",
}  # fmt: skip


def program(body: str) -> str:
    arguments = ", ".join(f"%{name}: {type}" for name, type in TYPES.items())
    names = ", ".join(f'"{name}"' for name in TYPES)
    return f"""tile.func {{sym_name = "f", parameters = ({names}), symbols = ("M",)}} ({arguments}, %M: int32) {{
      {body}
      scf.yield
    }}"""


ACCEPTED = [
    "%x = arith.add %t, %f : tensor<8x4xfloat32>",
    "%x = arith.select %tb, %t, %f : tensor<8x4xfloat32>",
    "tile.copy %G[%i, %i], %S {shape = (8, 4), source_axes = (0, 1), target_axes = (0, 1)}",
    "tile.copy %G[%i, %i], %V {shape = (8,), source_axes = (0,), target_axes = (0,)}",
    "tile.gemm %S, %R, %S2",
    'tile.reduce %S, %V {kind = "sum", axis = 1}',
    'tile.scan %S, %S {kind = "max", axis = 1, reverse = true}',
    'tile.scan %S, %S factors=%S {kind = "linear", axis = 1}',
    '%x = tensor.scan %t factors=%t {kind = "linear", axis = 0} : tensor<8x4xfloat32>',
]
REFUSED = [
    ("%x = arith.constant {value = 1} : float32", "not a float"),
    ("%x = arith.constant {value = 128} : int8", "does not fit in int8"),
    ("%x = arith.constant {value = -1} : uint8", "does not fit in uint8"),
    ("%x = arith.constant {value = 1.0} : int32", "does not fit in int32"),
    ("%x = arith.constant {value = true} : int32", "does not fit in int32"),
    ("%x = arith.constant {value = 1} : bool", "not a bool"),
    ("%x = arith.add %i, %f : int32", "the operands are int32 and float32"),
    ("%x = arith.add %t, %r : tensor<8x4xfloat32>", "do not broadcast"),
    ("%x = arith.add %t, %v : tensor<8x4xfloat32>", "do not broadcast"),
    ("%x = arith.add %t, %f : float32", "the operands' shape is"),
    ("%x = arith.add %f, %f : int32", "the result is int32"),
    ("%x = arith.add %b, %b : bool", "not defined for bool"),
    ("%x = arith.add %p, %p : *float32", "not defined for"),
    ("%x = arith.div %i, %i : int32", "not defined for int32"),
    ("%x = arith.floordiv %f, %f : float32", "not defined for float32"),
    ("%x = arith.shl %f, %f : float32", "not defined for float32"),
    ("%x = arith.add %S, %S : float32", "lhs is of type buffer"),
    ('%x = arith.cmp %i, %f {predicate = "lt"} : bool', "the operands are"),
    ('%x = arith.cmp %i, %i {predicate = "<"} : bool', "predicate is '<', not one of 'eq', "),
    ('%x = arith.cmp %i, %i {predicate = "lt"} : int32', "the result is int32"),
    ("%x = arith.cmp %i, %i {predicate = 3} : bool", "predicate is 3"),
    ("%x = arith.select %i, %f, %f : float32", "is given int32"),
    ("%x = arith.select %b, %f, %i : float32", "is given bool"),
    ("%x = arith.bitcast %f : int16", "differ in width"),
    ('%x = arith.math [%f, %f] {function = "exp"} : float32', "no function 'exp' of 2"),
    ('%x = arith.math [%f] {function = "exq"} : float32', "no function 'exq'"),
    ("%x = scf.for %i, %i, %i[%f] : float32 (%k: int32, %y: int32) { scf.yield [%f] }", "carried values"),
    ("%x = scf.for %i, %i, %i[%f] : float32 (%k: int32, %y: float32) { scf.yield [%i] }", "yielded values"),
    ("%x = scf.for %i, %i, %i[%f] : int32 (%k: int32, %y: float32) { scf.yield [%f] }", "results"),
    ("scf.for %i, %i, %i (%k: int32) { }", "no terminator"),
    ("scf.if %i { scf.yield } { scf.yield }", "the condition is int32"),
    ("%x = scf.if %b : int32 { scf.yield [%i] } { scf.yield }", "yielded values"),
    ("scf.while { scf.yield } { scf.yield }", "does not end in scf.condition"),
    ("scf.yield\n%x = arith.add %i, %i : int32", "before the end of its region"),
    ("%x = tensor.iota {axis = 0} : tensor<8x4xint32>", "more than one dimension"),
    ("%x = tensor.broadcast %v : tensor<8x4xfloat32>", "cannot become"),
    ("%x = tensor.broadcast %f : float32", "out is of type float32"),
    ("%x = tensor.reshape %t : tensor<4x4xfloat32>", "cannot become"),
    ("%x = tensor.transpose %t {permutation = (0, 0)} : tensor<8x8xfloat32>", "is not a permutation"),
    ("%x = tensor.transpose %t {permutation = (1, 0)} : tensor<8x4xfloat32>", "the result is"),
    ('%x = tensor.reduce %t {kind = "mean", axis = 0} : tensor<4xfloat32>', "kind is 'mean', not one of 'sum', "),
    ('%x = tensor.reduce %t {kind = "sum", axis = 2} : tensor<4xfloat32>', "along axis 2"),
    ('%x = tensor.reduce %t {kind = "sum", axis = 0} : tensor<8xfloat32>', "does not give"),
    ('%x = tensor.scan %t {kind = "min2", axis = 0} : tensor<8x4xfloat32>', "kind is 'min2', not one of"),
    ('%x = tensor.scan %t {kind = "linear", axis = 0} : tensor<8x4xfloat32>', "with factors None"),
    ('%x = tensor.scan %t factors=%r {kind = "linear", axis = 0} : tensor<8x4xfloat32>', "with factors tensor<4x8x"),
    ('%x = tensor.scan %t factors=%t {kind = "sum", axis = 0} : tensor<8x4xfloat32>', "with factors"),
    (
        '%x = tensor.scan %t factors=%t {kind = "linear", axis = 0, reverse = true} : tensor<8x4xfloat32>',
        "a linear recurrence in reverse",
    ),
    ("%x = tensor.dot %t, %t, %t : tensor<8x4xfloat32>", "@"),
    ("%x = tensor.gather %t, %ti {axis = 2} : tensor<8x4xfloat32>", "along axis 2"),
    ("tile.kernel (%bx: int32) { scf.yield }", "0 grid dimensions"),
    ("tile.kernel [%i] { scf.yield }", "0 block indices"),
    ("tile.kernel [%i] {threads = (1,)} (%bx: int32) { scf.yield }", "threads is"),
    ("tile.copy %G, %S {shape = (8, 4), source_axes = (0, 0), target_axes = (0, 1)}", "axes"),
    ("tile.copy %G, %S {shape = (8, 4), source_axes = (0, 2), target_axes = (0, 1)}", "axes"),
    ("tile.copy %G[%i], %S {shape = (8, 4), source_axes = (0, 1), target_axes = (0, 1)}", "1 offsets"),
    ("tile.copy %G, %S {shape = 8, source_axes = (0, 1), target_axes = (0, 1)}", "shape is 8"),
    ("tile.fill %i, %S", "int32 into"),
    ("tile.gemm %S, %S, %S", "do not fit"),
    ("tile.gemm %G, %S, %S", "dynamic dimension"),
    ('tile.reduce %S, %W {kind = "sum", axis = 1}', "along axis 1"),
    ('tile.reduce %S, %V {kind = "sum", axis = 5}', "along axis 5"),
    ('tile.reduce %S, %V {kind = "avg", axis = 1}', "kind is 'avg', not one of"),
    ('tile.scan %S, %R {kind = "sum", axis = 1}', "into"),
    ("tile.parallel {extents = (4, 4)} (%x: int32) { scf.yield }", "1 indices"),
    ("tile.kernel [%b] (%x: int32) { scf.yield }", "bool> is no int32"),
    ("tile.kernel [%i] (%x: int64) { scf.yield }", "<%x: int64> is no int32"),
    ("tile.parallel {extents = (4,)} (%x: int64) { scf.yield }", "<%x: int64> is no int32"),
    ("tile.parallel {extents = (-4,)} (%x: int32) { scf.yield }", "extents (-4,)"),
    ("scf.for %i, %i, %h (%x: int32) { scf.yield }", "bounds: int32, int32, int16 instead of int32, int32, int32"),
    ("scf.for %i, %i, %i (%x: int64) { scf.yield }", "bounds: int32, int32, int32 instead of int64, int64, int64"),
    ("tile.copy %V, %V {shape = (-8,), source_axes = (0,), target_axes = (0,)}", "extents (-8,)"),
    ("tile.copy %V[%h], %V {shape = (8,), source_axes = (0,), target_axes = (0,)}", "an index is int16"),
    ("%x = tile.read %G : tensor<8x4xfloat32>", "accessed by loads and stores"),
    ("%x = tile.read %S : tensor<4x8xfloat32>", "for buffer"),
    ("tile.write %f, %S", "float32 for buffer"),
    ("%x = tile.load %G[%i] : float32", "1 indices"),
    ("%x = tile.load %G[%i, %f] : float32", "an index is float32"),
    ("%x = tile.load %G[%i, %h] : float32", "an index is int16"),
    ("%x = tile.load %G[%i, %i] mask=%tb : float32", "the indices' shape"),
    ("tile.store %i, %G[%i, %i]", "int32 into"),
    ("tile.store %t, %V[%v]", "an index is float32"),
    ('%x = tile.atomic %i, %G[%i, %i] {kind = "add"} : int32', "int32 into"),
    ('triton.launch [%i], [%S] {sym_name = "k"} { scf.yield }', "1 arguments for 0"),
    ("%x = triton.addptr %f, %i : float32", "moved by"),
    ("%x = triton.addptr %p, %f : *float32", "moved by"),
    ("%x = tile.load %G[%i, %i] : int32", "int32> is no element of float32"),
    ("%x = tile.load %G[%i, %i] mask=%i : float32", "the mask is int32"),
    ("%x = tile.load %G[%i, %i] other=%i : float32", "int32> is no element of float32"),
    ("tile.store %f, %G[%i, %i] mask=%f", "the mask is float32"),
    ('%x = tile.atomic %f, %G[%i, %i] {kind = "add"} : int32', "int32> is no element of float32"),
    ('%x = tile.atomic %f, %G[%i, %i] {kind = "add"} : tensor<8x4xfloat32>', "the indices' shape ()"),
    ('%x = tile.atomic %f, %G[%i, %i] mask=%i {kind = "add"} : float32', "the mask is int32"),
    ("%x = triton.load %f : float32", "float32 is no pointer"),
    ("%x = triton.load %p : int32", "int32> is no element of float32"),
    ("%x = triton.load %p : tensor<8x4xfloat32>", "tensor<8x4xfloat32> through *float32"),
    ("%x = triton.load %p mask=%i : float32", "the mask is int32"),
    ("%x = triton.load %p other=%i : float32", "int32> is no element of float32"),
    ("triton.store %f, %f", "float32 is no pointer"),
    ("triton.store %p, %i", "int32> is no element of float32"),
    ('%x = triton.atomic %p, %f {kind = "add"} : int32', "int32> is no element of float32"),
    ('%x = triton.atomic %p, %i {kind = "add"} : float32', "int32> is no element of float32"),
]


@pytest.mark.parametrize("line", ACCEPTED)
def test_accepted(line: str) -> None:
    line = line.replace("tile.gemm", "%S2 = tile.alloc : buffer<8*8*float32, fragment>\ntile.gemm")
    assert parse_program(program(line))


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_refused(line: str, message: str) -> None:
    with pytest.raises(TileError) as caught:
        parse_program(program(line))
    assert message in str(caught.value), str(caught.value)


def test_parameters_and_symbols_are_the_arguments() -> None:
    with pytest.raises(TileError, match="1 arguments for 2 parameters and 0 symbols"):
        parse_program('tile.func {sym_name = "f", parameters = ("a", "b")} (%a: int32) { scf.yield }')
