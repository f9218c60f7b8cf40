"""Builder, rewriter and the pattern driver."""

from __future__ import annotations

import pytest

from tests.support.programs import gemm
from tiledsl.dialects import arith, scf, tile
from tiledsl.ir.core import Operation, Region
from tiledsl.ir.pass_manager import parse_program
from tiledsl.ir.printer import print_op
from tiledsl.ir.rewrite import Builder, NoFixpointError, Patterns, Rewriter, apply_patterns, pattern
from tiledsl.ir.types import INT32, TensorType
from tiledsl.ir.verifier import verify
from tiledsl.location import Loc

PLACE = Loc("kernel.py", 3, 1, 3, 9)


def program(body: str) -> Operation:
    arguments = "%n: int32, %A: buffer<8*int32, global>"
    return parse_program(f"""tile.func {{sym_name = "f", parameters = ("n", "A")}} ({arguments}) {{
      {body}
      scf.yield
    }}""").root


@pattern(arith.MulOp)
def double_by_adding(op: arith.MulOp, rw: Rewriter) -> bool:
    if arith.constant_of(op.rhs) != 2:
        return False
    rw.replace(op, [rw.insert(arith.AddOp(op.lhs, op.lhs)).out])
    return True


def test_a_pattern_fires_everywhere() -> None:
    root = program("""%2 = arith.constant {value = 2} : int32
      %a = arith.mul %n, %2 : int32
      %b = arith.mul %a, %2 : int32
      tile.parallel {extents = (8,)} (%i: int32) {
        %c = arith.mul %b, %2 : int32
        tile.store %c, %A[%i]
        scf.yield
      }""")
    assert apply_patterns(root, Patterns([double_by_adding])) == 3
    verify(root)
    text = print_op(root)
    assert "arith.mul" not in text and text.count("arith.add") == 3 and "%c = arith.add %b, %b" in text
    assert apply_patterns(root, Patterns([double_by_adding])) == 0


def test_a_pattern_that_replaces_an_operation_must_say_so() -> None:
    @pattern(arith.MulOp)
    def replace_silently(op: arith.MulOp, rw: Rewriter) -> bool:
        rw.replace(op, [op.lhs])
        return False

    with pytest.raises(AssertionError, match=r"replace_silently.* erased arith\.mul and says that it changed nothing"):
        apply_patterns(program("%a = arith.mul %n, %n : int32"), Patterns([replace_silently]))


def test_fold_and_dead_code() -> None:
    root = program("""%2 = arith.constant {value = 2} : int32
      %3 = arith.constant {value = 3} : int32
      %six = arith.mul %2, %3 : int32
      %1 = arith.constant {value = 1} : int32
      %unused = arith.add %n, %six : int32
      %same = arith.mul %n, %1 : int32
      %unread = tile.load %A[%n] : int32
      scf.for %2, %3, %1 (%i: int32) { scf.yield }
      tile.store %six, %A[%same]""")
    apply_patterns(root, Patterns([]), fold=True)
    verify(root)
    lines = [line.strip() for line in print_op(root).splitlines()[1:-1]]
    shown = [line.split(" = ")[-1].split("}")[0] for line in lines]
    assert shown == ["6", "tile.load %A[%n] : int32", "tile.store %six, %A[%n]", "scf.yield"]
    assert apply_patterns(root, Patterns([]), fold=True) == 0


def test_fold_keeps_tensors_tensors() -> None:
    region = Region()
    builder = Builder(region, loc=PLACE)
    two = builder.constant(2, TensorType((4,), "int32"))
    total = builder.insert(arith.AddOp(two, two)).out
    index = builder.insert(tile.AllocOp(result_types=[parse_buffer()])).out
    builder.insert(tile.WriteOp(total, index))
    root = tile.FuncOp(sym_name="f", parameters=(), regions=[scf.yielding(region)])
    apply_patterns(root, Patterns([]), fold=True)
    verify(root)
    made = next(op for op in root.walk() if op.name == "arith.constant")
    assert made.attributes["value"] == 4 and made.results[0].shape == (4,) and made.loc == PLACE


def parse_buffer() -> object:
    from tiledsl.ir.types import BufferType

    return BufferType((4,), "int32", "shared")


@pattern(arith.AddOp)
def swap_for_ever(op: arith.AddOp, rw: Rewriter) -> bool:
    op.set_operands([op.rhs, op.lhs])
    return True


def test_no_fixpoint_names_the_pattern() -> None:
    root = program("%1 = arith.constant {value = 1} : int32\n%x = arith.add %n, %1 : int32")
    with pytest.raises(NoFixpointError, match="swap_for_ever fired"):
        apply_patterns(root, Patterns([double_by_adding, swap_for_ever]))


def test_patterns_for_any_operation_and_changes_in_place() -> None:
    seen = []

    def look(op: Operation, rw: Rewriter) -> bool:
        seen.append(op.name)
        return False

    @pattern(arith.ConstantOp)
    def raise_to_seven(op: arith.ConstantOp, rw: Rewriter) -> bool:
        if op.value >= 7:
            return False
        op.set_attribute("value", op.attributes["value"] + 1)
        rw.changed(op)
        return True

    root = program("%1 = arith.constant {value = 5} : int32\n%x = arith.add %n, %1 : int32")
    assert apply_patterns(root, Patterns([raise_to_seven, look])) == 2
    assert seen.count("arith.add") >= 1 and "value = 7" in print_op(root)


def test_erase_inside_a_pattern_drops_the_operations_inside() -> None:
    @pattern(tile.KernelOp)
    def remove(op: tile.KernelOp, rw: Rewriter) -> bool:
        rw.erase(op)
        return True

    root = gemm()
    assert apply_patterns(root, Patterns([remove, double_by_adding]), fold=True) > 1
    verify(root)
    assert [op.name for op in root.walk()] == ["tile.func", "scf.yield"]


def test_builder_places_and_locates() -> None:
    root = program("%x = arith.add %n, %n : int32")
    first = root.regions[0].first
    assert first is not None
    first.loc = PLACE
    builder = Builder.at(first)
    made = builder.constant(1, INT32).op
    kept = builder.insert(arith.NegOp(first.operands[0], loc=Loc("other.py", 1, 1, 1, 2)))
    assert made is not None and made.loc == PLACE and kept.loc.file == "other.py"
    assert [op.name for op in root.regions[0]] == ["arith.constant", "arith.neg", "arith.add", "scf.yield"]
