from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.ir_cases import after, filecheck
from tests.support.programs import attention, check_pass, gather_rows, inputs_for, layer_norm, programs, ragged_gemm
from tiledsl.passes.guard_accesses import GuardAccesses

# The passes that come first
from tiledsl.passes.lower_tile_ops import LowerTileOps
from tiledsl.passes.promote_buffers import PromoteBuffers
from tiledsl.passes.unroll_loops import UnrollLoops
from tiledsl.passes.vectorize_parallel import VectorizeParallel

TO_VALUES = [UnrollLoops(), LowerTileOps(), VectorizeParallel(), PromoteBuffers()]
TILE = """
%i = tensor.iota {axis = 0} : tensor<16x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x96xint32>
%o = arith.mul %bx, %c16 : int32
%p = arith.add %o, %i : tensor<16x1xint32>
"""


def test_an_access_inside_needs_no_mask() -> None:
    lines = after(GuardAccesses(), TILE + "%x = tile.load %A[%p, %j] : tensor<16x96xfloat32>", grid=(4,))
    assert lines[-1] == "%x = tile.load %A[%p, %j] {guarded = true} : tensor<16x96xfloat32>"


def test_each_dimension_is_compared_in_its_own_shape_and_once() -> None:
    body = (
        TILE
        + """
    %q = arith.add %j, %c1 : tensor<1x96xint32>
    %x = tile.load %A[%p, %q] : tensor<16x96xfloat32>
    tile.store %x, %B[%p, %q]"""
    )
    filecheck(
        after(GuardAccesses(), body, grid=(5,))[5:],
        """
        %0 = arith.cmp %p, %c64 {predicate = "lt"} : tensor<16x1xbool>
        %1 = arith.cmp %q, %c96 {predicate = "lt"} : tensor<1x96xbool>
        %2 = arith.and %0, %1 : tensor<16x96xbool>
        %x = tile.load %A[%p, %q] mask=%2 {guarded = true} : tensor<16x96xfloat32>
        %3 = arith.and %0, %1 : tensor<16x96xbool>
        tile.store %x, %B[%p, %q] mask=%3 {guarded = true}
        """,
    )


def test_unknown_indices_are_checked_at_both_ends_also_scalars_and_symbols() -> None:
    body = """
    %x = tile.load %D[%l] : float32
    %y = tile.atomic %x, %D[%s] {kind = "add"} : float32
    """
    filecheck(
        after(GuardAccesses(), body),
        """
        %0 = arith.cmp %l, %c0 {predicate = "ge"} : bool
        %1 = arith.cast %m : int64
        %2 = arith.cmp %l, %1 {predicate = "lt"} : bool
        %3 = arith.and %0, %2 : bool
        %x = tile.load %D[%l] mask=%3 {guarded = true} : float32
        %4 = arith.cmp %s, %c0 {predicate = "ge"} : bool
        %5 = arith.cmp %s, %m {predicate = "lt"} : bool
        %6 = arith.and %4, %5 : bool
        %y = tile.atomic %x, %D[%s] mask=%6 {kind = "add", guarded = true} : float32
        """,
    )


def test_a_condition_of_the_program_is_not_repeated_and_its_mask_stays() -> None:
    body = """
    %i = tensor.iota {axis = 0} : tensor<16xint32>
    %o = arith.mul %bx, %c16 : int32
    %p = arith.add %o, %i : tensor<16xint32>
    %c = arith.cmp %p, %m {predicate = "lt"} : tensor<16xbool>
    %x = tile.load %D[%p] mask=%c other=%f : tensor<16xfloat32>"""
    assert (
        after(GuardAccesses(), body)[-1]
        == "%x = tile.load %D[%p] mask=%c other=%f {guarded = true} : tensor<16xfloat32>"
    )


def test_a_check_joins_the_condition_of_the_program() -> None:
    """The store runs only where both hold: without the first it would write what the program does not."""
    body = """
    %i = tensor.iota {axis = 0} : tensor<16xint32>
    %r = arith.floormod %i, %c2 : tensor<16xint32>
    %even = arith.cmp %r, %c0 {predicate = "eq"} : tensor<16xbool>
    tile.store %f, %D[%i] mask=%even
    %y = tile.atomic %f, %D[%s] mask=%b {kind = "add"} : float32
    """
    filecheck(
        after(GuardAccesses(), body)[3:],
        """
        %0 = arith.cmp %i, %m {predicate = "lt"} : tensor<16xbool>
        %1 = arith.and %even, %0 : tensor<16xbool>
        tile.store %f, %D[%i] mask=%1 {guarded = true}
        %2 = arith.cmp %s, %c0 {predicate = "ge"} : bool
        %3 = arith.cmp %s, %m {predicate = "lt"} : bool
        %4 = arith.and %b, %2 : bool
        %5 = arith.and %4, %3 : bool
        %y = tile.atomic %f, %D[%s] mask=%5 {kind = "add", guarded = true} : float32
        """,
    )


BOUNDARIES = [  # a condition on %s, and which comparisons with 0 and 64 remain to be made
    ('arith.cmp %s, %c0 {predicate = "ge"}', ["lt"]),
    ('arith.cmp %s, %c-1 {predicate = "ge"}', ["ge", "lt"]),
    ('arith.cmp %s, %c-1 {predicate = "gt"}', ["lt"]),
    ('arith.cmp %s, %c-2 {predicate = "gt"}', ["ge", "lt"]),
    ('arith.cmp %s, %c64 {predicate = "lt"}', ["ge"]),
    ('arith.cmp %s, %c65 {predicate = "lt"}', ["ge", "lt"]),
    ('arith.cmp %s, %c63 {predicate = "le"}', ["ge"]),
    ('arith.cmp %s, %c64 {predicate = "le"}', ["ge", "lt"]),
    ('arith.cmp %s, %c63 {predicate = "ge"}', ["lt"]),
    ('arith.cmp %s, %c7 {predicate = "lt"}', ["ge"]),
    ('arith.cmp %c64, %s {predicate = "gt"}', ["ge"]),
    ('arith.cmp %s, %c5 {predicate = "eq"}', []),
    ('arith.cmp %s, %c64 {predicate = "ne"}', ["ge", "lt"]),
]


@pytest.mark.parametrize(("condition", "made"), BOUNDARIES)
def test_what_a_condition_leaves_to_check(condition: str, made: list[str]) -> None:
    body = f"%c = {condition} : bool\n%x = tile.load %A[%s, %c0] mask=%c : float32"
    lines = after(GuardAccesses(), body)
    assert [line.split('"')[1] for line in lines[1:] if "arith.cmp" in line] == made


def test_one_of_two_conditions_leaves_all_to_check_and_both_leave_nothing() -> None:
    for op, made in (("or", ["lt", "ge", "ge", "lt"]), ("xor", ["lt", "ge", "ge", "lt"]), ("and", ["lt", "ge"])):
        body = f"""
        %low = arith.cmp %s, %c0 {{predicate = "ge"}} : bool
        %high = arith.cmp %s, %c64 {{predicate = "lt"}} : bool
        %c = arith.{op} %high, %low : bool
        %x = tile.load %A[%s, %c0] mask=%c : float32"""
        lines = after(GuardAccesses(), body)
        assert sorted(line.split('"')[1] for line in lines if "arith.cmp" in line) == sorted(made)


def test_switched_off_it_trusts_the_program() -> None:
    filecheck(
        after(GuardAccesses(enabled=False), "%x = tile.load %D[%s] : float32"),
        """
        %x = tile.load %D[%s] {guarded = true} : float32
        """,
    )


@pytest.mark.parametrize("func", [ragged_gemm(), attention(), layer_norm(), gather_rows()], ids=lambda f: f.sym_name)
def test_ragged_programs_keep_their_meaning(func) -> None:  # type: ignore[no-untyped-def]
    check_pass([*TO_VALUES, GuardAccesses()], func, inputs_for(func, 0), tolerance=1e-5)


@settings(max_examples=40)
@given(programs(), st.integers(0, 99))
def test_meaning_stays(func, seed) -> None:  # type: ignore[no-untyped-def]
    check_pass([*TO_VALUES, GuardAccesses()], func, inputs_for(func, seed), tolerance=1e-5)


def test_a_condition_that_is_spread_over_a_tile_is_not_repeated() -> None:
    body = """
    %i = tensor.iota {axis = 0} : tensor<16x1xint32>
    %j = tensor.iota {axis = 1} : tensor<1x96xint32>
    %row = arith.add %s, %i : tensor<16x1xint32>
    %above = arith.cmp %row, %c0 {predicate = "ge"} : tensor<16x1xbool>
    %below = arith.cmp %row, %c64 {predicate = "lt"} : tensor<16x1xbool>
    %rows = arith.and %above, %below : tensor<16x1xbool>
    %inside = tensor.broadcast %rows : tensor<16x96xbool>
    %x = tile.load %A[%row, %j] mask=%inside : tensor<16x96xfloat32>"""
    lines = after(GuardAccesses(), body)
    assert lines[-1] == "%x = tile.load %A[%row, %j] mask=%inside {guarded = true} : tensor<16x96xfloat32>"
    assert len([line for line in lines if "arith.cmp" in line]) == 2


@pytest.mark.parametrize(
    ("index", "ends"),
    [
        ("%i = arith.floormod %s, %m : int32", ""),
        ("%w = arith.sub %m, %c1 : int32\n%i = arith.min %s, %w : int32", "ge"),
        ("%i = arith.max %s, %c0 : int32", "lt"),
        ("%i = arith.mul %m, %c1 : int32", "lt"),
    ],
)
def test_ranges_prove_ends_of_dynamic_sizes(index: str, ends: str) -> None:
    lines = after(GuardAccesses(), f"{index}\n%x = tile.load %D[%i] : float32")
    mask = "mask=%0 " if ends else ""
    assert lines[-1] == f"%x = tile.load %D[%i] {mask}{{guarded = true}} : float32"
    assert [line for line in lines if "arith.cmp" in line] == (
        [f'%0 = arith.cmp %i, {"%c0" if ends == "ge" else "%m"} {{predicate = "{ends}"}} : bool'] if ends else []
    )


def test_loops_over_a_dynamic_size_need_no_masks() -> None:
    body = "scf.for %c0, %m, %c1 (%i: int32) {\n%x = tile.load %D[%i] : float32\ntile.store %x, %D[%i]\nscf.yield\n}"
    filecheck(
        after(GuardAccesses(), body),
        """
        scf.for %c0, %m, %c1 (%i: int32) {
        %x = tile.load %D{{.}}%i] {guarded = true} : float32
        tile.store %x, %D{{.}}%i] {guarded = true}
        scf.yield
        }
        """,
    )
