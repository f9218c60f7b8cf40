"""Values, operations, regions and the verifier."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tiledsl
import tiledsl.passes
from tests.support.programs import NAMED, gemm
from tiledsl.dialects import arith, scf, tile
from tiledsl.ir.core import OPERATIONS, Operation, Region, Value
from tiledsl.ir.fields import operand
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.parser import parse_op
from tiledsl.ir.printer import print_op
from tiledsl.ir.types import (
    BufferType,
    ScalarType,
    TensorType,
    broadcast_shapes,
    is_float,
    is_integer,
    with_shape,
)
from tiledsl.ir.verifier import VerifyError, verify

I32 = ScalarType("int32")


def constant(number: int = 1) -> arith.ConstantOp:
    return arith.ConstantOp(value=number, result_types=[I32])


def func(region: Region) -> tile.FuncOp:
    return tile.FuncOp(sym_name="f", parameters=("a",) * len(region.args), regions=[region])


def names(region: Region) -> list[int]:
    forward = [op.attributes["value"] for op in region]
    assert [op.attributes["value"] for op in reversed(region)] == forward[::-1]
    return forward


def test_operations_of_some_classes_in_order() -> None:
    one, two = constant(1), constant(2)
    total = arith.AddOp(one.out, two.out)
    assert of_kinds([one, total, two], arith.ConstantOp) == [one, two]
    assert of_kinds([one, total, two], arith.AddOp, arith.ConstantOp) == [one, total, two]
    assert of_kinds([one, total, two], arith.BinaryOp) == []  # of exactly the classes given


def test_insert_move_detach_and_erase() -> None:
    region = Region()
    one, two, three = (constant(number) for number in (1, 2, 3))
    for op in (one, three):
        region.insert(op)
    region.insert(two, three)
    assert names(region) == [1, 2, 3]
    assert one.next is two and three.next is None and func(region).next is None
    three.move_before(one)
    assert names(region) == [3, 1, 2] and region.first is three and region.last is two
    assert one.detach().parent is None
    assert names(region) == [3, 2]
    region.insert(one)
    two.erase()
    three.erase()
    assert names(region) == [1] and region.first is region.last is one
    with pytest.raises(AssertionError, match="already stands"):
        region.insert(one)


def test_the_current_operation_may_be_erased_while_iterating() -> None:
    region = Region()
    for number in range(4):
        region.insert(constant(number))
    for op in region:
        if op.attributes["value"] % 2:
            op.erase()
    assert names(region) == [0, 2]


def test_uses_are_counted_by_operation() -> None:
    a, b = constant(), constant()
    add = arith.AddOp(a.out, a.out)
    assert a.out.uses == {add: 2}
    add.set_field("rhs", [b.out])
    assert a.out.uses == {add: 1} and b.out.uses == {add: 1}
    a.out.name = "a"
    a.out.replace_with(b.out)
    assert not a.out.uses and b.out.uses == {add: 2} and b.out.name == "a"
    b.out.replace_with(b.out)
    assert b.out.uses == {add: 2}
    with pytest.raises(AssertionError, match="while its result is used"):
        b.erase()
    add.erase()
    assert not b.out.uses


def test_fields_read_by_segments() -> None:
    index, buffer = constant().out, tile.AllocOp(result_types=[BufferType((4, 4), "float32", "shared")]).out
    mask = arith.CmpOp(index, index, predicate="eq").out
    load = tile.LoadOp(
        buffer, [index, index], None, arith.ConstantOp(value=0.0, result_types=[ScalarType("float32")]).out
    )
    assert load.segments == (1, 2, 0, 1)
    assert (
        load.indices == [index, index] and load.mask is None and load.other is not None and load.out.dtype == "float32"
    )
    load.set_field("mask", [mask])
    assert load.mask is mask and load.indices == [index, index] and load.other.dtype == "float32"
    load.set_field("other", [])
    assert load.segments == (1, 2, 1, 0) and load.other is None
    assert [field.name for field in tile.LoadOp.operand_fields if isinstance(field, operand)] == ["buffer"]


def test_attributes_must_be_given_and_have_defaults() -> None:
    with pytest.raises(AssertionError, match="value is missing"):
        arith.ConstantOp(result_types=[I32])
    with pytest.raises(AssertionError, match="result_types"):
        arith.ConstantOp(value=1)
    assert scf.ForOp(*[constant().out] * 3, regions=[scf.yielding(Region([I32]))]).num_stages == 0


def test_erasing_an_operation_drops_the_uses_inside() -> None:
    region, inner = Region(), Region([I32])
    one = constant()
    region.insert(one)
    inner.insert(arith.AddOp(one.out, inner.args[0]))
    loop = scf.ForOp(one.out, one.out, one.out, regions=[scf.yielding(inner)])
    region.insert(loop)
    assert len(one.out.uses) == 2 and [op.name for op in loop.walk()] == ["scf.for", "arith.add", "scf.yield"]
    loop.erase()
    assert not one.out.uses


@pytest.mark.parametrize("name", NAMED)
def test_clone(name: str) -> None:
    original = NAMED[name]()
    text = print_op(original)
    mapping: dict[Value, Value] = {}
    twin = original.clone(mapping)
    verify(twin)
    assert print_op(twin) == text
    mine = set(original.walk())
    assert not mine & set(twin.walk())
    for op in twin.walk():
        assert all(user not in mine for value in op.results for user in value.uses)
    twin.erase()
    verify(original)
    assert print_op(original) == text


def test_clone_with_a_mapping_takes_other_operands() -> None:
    a, b = constant(), constant()
    add = arith.AddOp(a.out, a.out)
    twin = add.clone({a.out: b.out})
    assert twin.operands == [b.out, b.out] and b.out.uses == {twin: 2} and a.out.uses == {add: 2}


def test_purity_looks_into_regions() -> None:
    kernel = next(op for op in gemm().walk() if op.name == "tile.kernel")
    loop = next(op for op in kernel.walk() if op.name == "scf.for")
    assert not loop.is_pure and constant().is_pure
    assert scf.ForOp(*[constant().out] * 3, regions=[scf.yielding(Region([I32]))]).is_pure
    assert not scf.YieldOp([]).is_pure


# The verifier


def expect(root: Operation, message: str) -> None:
    with pytest.raises(VerifyError, match=message) as caught:
        verify(root)
    assert caught.value.op.name in str(caught.value)


def test_verify_dominance() -> None:
    region = Region()
    one = constant()
    region.insert(arith.AddOp(one.out, one.out))
    region.insert(one)
    expect(func(region), "used where it is not defined")


def test_verify_visibility_ends_with_the_region() -> None:
    text = """tile.func {sym_name = "f", parameters = ()} {
      %1 = arith.constant {value = 1} : int32
      tile.parallel {extents = (4,)} (%i: int32) {
        %x = arith.add %i, %1 : int32
        scf.yield
      }
      %y = arith.add %x, %1 : int32
      scf.yield
    }"""
    expect(parse_op(text), "used where it is not defined")


NESTED = """tile.func {sym_name = "f", parameters = ("n",)} (%n: int32) {
  %a = arith.constant {value = 1} : int32
  %b = arith.add %a, %n : int32
  %r = scf.for %a, %b, %a[%n] : int32 (%i: int32, %s: int32) {
    %c = arith.add %i, %s : int32
    %t = scf.for %a, %c, %a[%s] : int32 (%j: int32, %u: int32) {
      %d = arith.add %j, %c : int32
      scf.yield [%d]
    }
    %e = arith.add %t, %i : int32
    scf.yield [%e]
  }
  %f = arith.add %r, %b : int32
  scf.yield
}"""


def sees_its_operands(region: Region, seen: set[Value]) -> bool:
    """Whether every operation comes after its operands, by going through them in order."""
    for op in region:
        if not seen.issuperset(op.operands):
            return False
        if not all(sees_its_operands(inner, seen | set(inner.args)) for inner in op.regions):
            return False
        seen = seen | set(op.results)
    return True


def edits() -> list[tuple[int, str, int, int]]:
    """Every operand of every operation replaced by every value; every operation moved before every other one."""
    ops = list(parse_op(NESTED).walk())[1:]
    values = len(every_value(parse_op(NESTED)))
    found = [(at, "use", p, v) for at, op in enumerate(ops) for p in range(len(op.operands)) for v in range(values)]
    return found + [
        (at, "move", to, 0)
        for at, op in enumerate(ops)
        for to, other in enumerate(ops)
        if not op.is_terminator and other not in list(op.walk())
    ]


def every_value(root: Operation) -> list[Value]:
    return [
        value for op in root.walk() for each in (op.results, *(inner.args for inner in op.regions)) for value in each
    ]


@pytest.mark.parametrize("everything", [True, False])
def test_verify_against_going_through_all_operations_after_every_edit(everything: bool) -> None:
    refused = 0
    for at, kind, first, second in edits():
        root = parse_op(NESTED)
        verify(root)
        ops = list(root.walk())[1:]
        if kind == "use":
            operands = ops[at].operands.copy()
            operands[first] = every_value(root)[second]
            ops[at].set_operands(operands)
        else:
            ops[at].move_before(ops[first])
        sound = sees_its_operands(root.regions[0], set(root.regions[0].args))
        if sound:
            verify(root, everything=everything)
        else:
            with pytest.raises(VerifyError, match="used where it is not defined"):
                verify(root, everything=everything)
        refused += not sound
    assert 0 < refused < len(edits())


def test_verify_stale_uses() -> None:
    region = Region()
    one = constant()
    add = arith.AddOp(one.out, one.out)
    for op in (one, add):
        region.insert(op)
    one.out.uses.clear()
    expect(func(region), "does not list its use")


def test_verify_types_of_operands_and_results() -> None:
    region = Region([BufferType((4,), "float32", "shared")])
    region.insert(arith.NegOp(region.args[0], result_types=[I32]))
    expect(func(region), "source is of type buffer")
    region = Region([I32])
    region.insert(tile.FillOp(region.args[0], region.args[0]))
    expect(func(region), "target is of type int32")


def test_verify_numbers_of_operands_results_and_regions() -> None:
    region = Region([I32])
    region.insert(arith.NegOp(result_types=[I32]))
    expect(func(region), "source has 0 values")
    expect(arith.NegOp(result_types=[I32]), "source has 0 values")
    region = Region([I32])
    region.insert(arith.NegOp(region.args[0], result_types=[I32]))
    region.first.operands = [region.args[0]] * 2  # type: ignore[union-attr]
    region.args[0].uses[region.first] = 2  # type: ignore[index]
    expect(func(region), "2 operands instead of 1")
    region = Region([I32])
    add = arith.NegOp(region.args[0], result_types=[I32, I32])
    region.insert(add)
    expect(func(region), "2 results instead of 1")
    region = Region()
    region.insert(tile.ParallelOp(extents=()))
    expect(func(region), "0 regions instead of 1")


def test_verify_terminators() -> None:
    region = scf.yielding(Region())
    region.insert(constant())
    expect(func(region), "stands before the end")


def test_verify_owners() -> None:
    region = Region()
    one = constant()
    region.insert(one)
    root = func(region)
    one.parent = None
    expect(root, "does not know its region")
    one.parent = region
    region.parent = None
    expect(root, "does not know its owner")


@pytest.mark.parametrize("text", ["int32", "tensor<1xint32>", "buffer<1*int32, local>"])
def test_results_are_checked_against_their_declaration(text: str) -> None:
    region = Region([I32])
    region.insert(tile.AllocOp(result_types=[parse_op_type(text)]))
    if text.startswith("buffer"):
        verify(func(region))
    else:
        expect(func(region), "out is of type")


def parse_op_type(text: str) -> object:
    return parse_op(f'tile.func {{sym_name = "f", parameters = ("a",)}} (%a: {text}) {{\n}}').regions[0].args[0].type


# Types


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(), ()], ()),
        ([(4,), ()], (4,)),
        ([(4, 1), (1, 3)], (4, 3)),
        ([(4, 1), (), (4, 3), (1, 1)], (4, 3)),
        ([(1,), (1,)], (1,)),
        ([(4,), (4, 1)], None),
        ([(4,), (3,)], None),
    ],
)
def test_broadcast_shapes(shapes: list[tuple[int, ...]], expected: tuple[int, ...] | None) -> None:
    assert broadcast_shapes(*shapes) == expected
    assert broadcast_shapes(*reversed(shapes)) == expected


def test_types() -> None:
    assert with_shape((), "int8") == ScalarType("int8") and with_shape((2,), "int8") == TensorType((2,), "int8")
    assert is_float("bfloat16") and not is_float("*float16")
    assert is_integer("uint8") and not is_integer("bool")
    dynamic = BufferType(("M", 4), "float16", "global", ("s", 1))
    assert str(dynamic) == "buffer<M*4*float16, global, strides(s, 1)>" and dynamic.numel() is None
    assert BufferType((3, 4), "float16", "shared").numel() == 12


def test_operations_are_registered_once() -> None:
    assert all(op_type.name == name for name, op_type in OPERATIONS.items())
    with pytest.raises(AssertionError, match="two operations"):

        class Twin(Operation):
            name = "arith.add"

    assert OPERATIONS["arith.add"] is arith.AddOp


def test_types_change_through_set_type_alone() -> None:
    # The verifier looks again only at operations that were changed, and set_type says which these are.
    sources = [path for path in Path(tiledsl.__file__).parent.rglob("*.py") if path.name != "interpreter_speed.py"]
    sources += Path(tiledsl.passes.__file__).parent.rglob("*.py")
    assigned = [
        f"{path.name}:{node.lineno}"
        for path in sources
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "type" and isinstance(node.ctx, ast.Store)
        if not (isinstance(node.value, ast.Name) and node.value.id == "self")
    ]
    assert len(sources) > 80 and assigned == []


def test_insertions_at_one_place_keep_their_order() -> None:
    region = Region()
    first, last = constant(), constant()
    region.insert(first)
    region.insert(last)
    root = tile.FuncOp(sym_name="f", parameters=(), regions=[region])
    for number in range(100):  # more often than a float can be halved
        region.insert(arith.AddOp(first.out, region.ops[number].results[0]), last)
        if number % 40 == 0:
            verify(root, everything=False)
    verify(root, everything=False)
    orders = [op.order for op in region]
    assert orders == sorted(set(orders)) and region.ops[0] is first and region.last is last
