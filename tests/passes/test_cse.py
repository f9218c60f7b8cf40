from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.ir_cases import after, filecheck, program
from tests.support.programs import check_pass, inputs_for, programs
from tiledsl.dialects.arith import ConstantOp
from tiledsl.dialects.triton import DescriptorOp
from tiledsl.ir.core import Region
from tiledsl.ir.types import INT32, BufferType
from tiledsl.passes.cse import Cse
from tiledsl.passes.guard_accesses import GuardAccesses
from tiledsl.passes.lower_to_triton import LowerToTriton


def test_equal_operations_are_merged_also_with_operands_swapped_and_in_inner_regions() -> None:
    body = """
    %x = arith.add %s, %bx : int32
    %y = arith.add %bx, %s : int32
    scf.if %b {
      %z = arith.add %s, %bx : int32
      tile.store %z, %N[%y]
      scf.yield
    } { scf.yield }"""
    filecheck(
        after(Cse(), body),
        """
        %x = arith.add %s, %bx : int32
        scf.if %b {
        tile.store %x, %N[%x]
        scf.yield
        } {
        scf.yield
        }
        """,
    )


def test_regions_do_not_see_each_other() -> None:
    body = """
    scf.if %b {
      %x = arith.add %s, %bx : int32
      tile.store %x, %N[%bx]
      scf.yield
    } {
      %y = arith.add %s, %bx : int32
      tile.store %y, %N[%bx]
      scf.yield
    }"""
    assert len([line for line in after(Cse(), body) if "arith.add" in line]) == 2


def test_a_kernel_does_not_use_the_hosts_constants() -> None:
    lines = after(
        Cse(), "%c = arith.constant {value = 8} : int32\n%x = arith.add %c, %bx : int32\ntile.store %x, %N[%bx]"
    )
    assert lines[0] == "%x = arith.add %c8, %bx : int32"


def test_attributes_of_different_types_differ() -> None:
    values = [1, 1.0, True, 0.0, -0.0, "1", (1,), (1.0,), None, float("nan")]
    signatures = {ConstantOp(value=value, result_types=[INT32]).signature for value in values}
    assert len(signatures) == len(values)


def test_attributes_given_in_another_order_are_told_apart_by_their_names() -> None:
    region = Region([BufferType((4, 4), "float32", "global")])
    one = DescriptorOp(region.args[0], block=(0, 1), dims=(1, 0))
    other = DescriptorOp(region.args[0], dims=(0, 1), block=(1, 0))
    assert one.signature != other.signature
    assert one.signature == DescriptorOp(region.args[0], block=(0, 1), dims=(1, 0)).signature


def test_a_store_through_a_pointer_may_write_what_any_other_reads() -> None:
    made = program("""
    %x = tile.load %N[%bx] : int32
    %y = tile.load %N[%bx] : int32
    %z = arith.add %x, %y : int32
    tile.store %z, %N[%s]
    %u = tile.load %N[%bx] : int32
    tile.store %u, %N[%s]""")
    for each in (GuardAccesses(enabled=False), LowerToTriton(), Cse()):
        each.run(made)
    names = [op.name for op in made.root.walk() if op.name in ("triton.load", "triton.store")]
    assert names == ["triton.load", "triton.store", "triton.load", "triton.store"]


def test_subtraction_is_not_symmetric() -> None:
    body = """
    %x = arith.sub %s, %bx : int32
    %y = arith.sub %bx, %s : int32
    tile.store %x, %N[%y]"""
    assert len(after(Cse(), body)) == 3


def test_loads_are_merged_until_something_writes() -> None:
    body = """
    %x = tile.load %N[%bx] : int32
    %y = tile.load %N[%bx] : int32
    %z = arith.add %x, %y : int32
    tile.store %z, %N[%s]
    %u = tile.load %N[%bx] : int32
    tile.store %u, %N[%s]"""
    filecheck(
        after(Cse(), body),
        """
        %x = tile.load %N[%bx] : int32
        %z = arith.add %x, %x : int32
        tile.store %z, %N[%s]
        %u = tile.load %N[%bx] : int32
        tile.store %u, %N[%s]
        """,
    )
    assert len(after(Cse(loads=False), body)) == 6


@pytest.mark.parametrize(
    ("between", "loads"),
    [
        ("tile.store %f, %A[%bx, %bx]", 2),
        ("tile.store %f, %B[%bx, %bx]", 2),  # B may be A
        ('%o = tile.atomic %f, %B[%bx, %bx] {kind = "add"} : float32', 2),
        ("tile.store %f, %on_chip[%bx]", 1),
        ("%o = tile.load %B[%bx, %bx] : float32", 1),
        ("scf.if %b { tile.store %f, %B[%bx, %bx]\nscf.yield } { scf.yield }", 2),
        ("scf.if %b { tile.store %f, %on_chip[%bx]\nscf.yield } { scf.yield }", 1),
    ],
)
def test_a_write_forgets_what_it_may_change(between: str, loads: int) -> None:
    body = f"""
    %on_chip = tile.alloc : buffer<8*float32, shared>
    %x = tile.load %A[%bx, %bx] : float32
    {between}
    %y = tile.load %A[%bx, %bx] : float32
    %z = arith.add %x, %y : float32
    tile.store %z, %A[%s, %s]"""
    assert sum("tile.load %A" in line for line in after(Cse(), body)) == loads


def test_an_on_chip_buffer_is_loaded_again_after_its_own_writes_only() -> None:
    body = """
    %one = tile.alloc : buffer<8*float32, shared>
    %two = tile.alloc : buffer<8*float32, shared>
    %x = tile.load %one[%bx] : float32
    tile.store %f, %{written}
    %y = tile.load %one[%bx] : float32
    %z = arith.add %x, %y : float32
    tile.store %z, %A[%s, %s]"""
    for written, loads in (("one[%s]", 2), ("two[%s]", 1), ("A[%s, %s]", 1)):
        lines = after(Cse(), body.replace("{written}", written))
        assert sum("tile.load %one" in line for line in lines) == loads, written


def test_a_load_in_a_while_condition_is_repeated() -> None:
    body = """
    %x = tile.load %N[%bx] : int32
    scf.while (){
      %y = tile.load %N[%bx] : int32
      %more = arith.cmp %y, %x {predicate = "ne"} : bool
      scf.condition %more
    } {
      scf.yield
    }
    %z = tile.load %N[%bx] : int32
    tile.store %z, %N[%x]"""
    assert len([line for line in after(Cse(), body) if "tile.load" in line]) == 3


@settings(max_examples=40)
@given(programs(), st.integers(0, 99))
def test_meaning_stays(func, seed) -> None:  # type: ignore[no-untyped-def]
    check_pass(Cse(), func, inputs_for(func, seed))
