"""hold-tiles: how many turns before a tile of a loop was another one."""

from __future__ import annotations

import pytest

from tiledsl.dialects import scf, triton
from tiledsl.ir.pass_manager import parse_program
from tiledsl.passes.hold_tiles import _Tile

LOOP = """
tile.func {sym_name = "test", parameters = ("X",)} (%X_: buffer<64*16*float32, global>) {
  %groups = arith.constant {value = GROUPS} : int32
  triton.launch [%groups], [%X_] {sym_name = "kernel"} (%X: *float32) {
    NUMBERS
    %group = triton.program_id {axis = 0} : int32
    %columns = tensor.iota {axis = 0} : tensor<16xint32>
    scf.for %c0, %c8, %c1 {num_stages = 2} (%turn: int32) {
      %start = arith.mul %turn, %STEP : int32
      %row = arith.add %start, %group : int32
      %inside = arith.cmp %row, %LIMIT {predicate = "lt"} : bool
      %back = arith.sub %row, %BACK : int32
      %began = arith.cmp %row, %FROM {predicate = "ge"} : bool
      %still = arith.cmp %back, %LIMIT {predicate = "lt"} : bool
      %both = arith.and %began, %still : bool
      %new_at = arith.mul %row, %c16 : int32
      %new_offsets = arith.add %columns, %new_at : tensor<16xint32>
      %new_pointers = triton.addptr %X, %new_offsets : tensor<16x*float32>
      %new = triton.load %new_pointersNEW_MASK : tensor<16xfloat32>
      %held_at = arith.mul %back, %c16 : int32
      %held_offsets = arith.add %columns, %held_at : tensor<16xint32>
      %held_pointers = triton.addptr %X, %held_offsets : tensor<16x*float32>
      %held = triton.load %held_pointersHELD_MASK : tensor<16xfloat32>
      scf.yield
    }
  }
  scf.yield
}"""


def turns(
    *, step: int = 2, back: int = 4, first: int | None = None, mask: str = "began", new: str = "", limit: int = 12
) -> int:
    """How many turns before `new` had what `held` loads: `back` rows before, where the row is at least `first`; as many
    programs as there are rows in a turn."""
    text = LOOP.replace("GROUPS", f"{step}").replace("STEP", f"c{step}")
    for place, number in (("BACK", back), ("FROM", back if first is None else first), ("LIMIT", limit)):
        text = text.replace(place, f"c{number}".replace("-", "m"))
    for place, condition in (("NEW_MASK", new), ("HELD_MASK", mask)):
        text = text.replace(place, f" mask=%{condition} other=%z" if condition else "")
    numbers = "\n".join(
        f"%c{n}".replace("-", "m") + f" = arith.constant {{value = {n}}} : int32" for n in range(-8, 17)
    )
    root = parse_program(text.replace("NUMBERS", f"{numbers}\n%z = arith.constant {{value = 0.0}} : float32")).root
    (launch,) = (op for op in root.walk() if isinstance(op, triton.LaunchOp))
    (loop,) = (op for op in root.walk() if isinstance(op, scf.ForOp))
    made, held = (_Tile(op, loop, launch) for op in loop.body if isinstance(op, triton.LoadOp))
    return held.turns_behind(made)


@pytest.mark.parametrize(("step", "back", "expected"), [(2, 4, 2), (2, 2, 1), (1, 3, 3), (4, 8, 2)])
def test_whole_turns(step: int, back: int, expected: int) -> None:
    assert turns(step=step, back=back) == expected


@pytest.mark.parametrize("back", [3, 1, 0, -1, -2, -3, -4])
@pytest.mark.parametrize("first", [None, 4, 8])
def test_no_whole_turns_or_none_before(back: int, first: int | None) -> None:
    assert turns(back=back, first=first) == 0


@pytest.mark.parametrize(("first", "expected"), [(4, 2), (5, 2), (3, 0), (2, 0), (0, 0)])
def test_turns_before_the_first_are_masked_off(first: int, expected: int) -> None:
    """A row of turn 1 is 2 or 3: from 4 on the tile was loaded two turns before."""
    assert turns(first=first) == expected


def test_a_tile_that_is_loaded_everywhere_is_in_no_turn_before_the_first() -> None:
    assert turns(mask="") == 0 and turns(mask="still") == 0


def test_what_the_earlier_turn_left_out_is_left_out() -> None:
    """Rows below 12: of the last turn 14 and 15, and less four of them 10 and 11, which are; two less are not."""
    assert turns(new="inside") == 2 and turns(new="inside", back=2) == 0
    assert turns(new="inside", back=2, mask="both") == 1
    assert turns(new="inside", back=2, limit=13) == 0 and turns(new="inside", back=2, limit=14) == 1
