"""Local variables of a T.Parallel that carry no value from point to point, or out of it."""

from __future__ import annotations

import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.parallel_locals import check_locals
from tiledsl.analysis.parallel_variance import Variance
from tiledsl.dialects import tile
from tiledsl.errors import TileError

READ, WRITE = "%x = tile.load %l[%c0] : int32", "tile.store %i, %l[%c0]"
KEEPS = "l keeps a value from one iteration to the next"


def loop(lower: str, upper: str, step: str = "%c1", body: str = WRITE) -> str:
    return f"scf.for {lower}, {upper}, {step} (%k: int32) {{ {body} scf.yield }}"


def checked(body: str, after: str = "") -> str:
    """What is wrong with the locals of a body; nothing, where they are private to its points."""
    text = f"""%l = tile.alloc : buffer<1*int32, local>
    %t = arith.cmp %s, %c2 {{predicate = "lt"}} : bool
    tile.parallel {{extents = (4,)}} (%i: int32) {{ {body} }} {after}"""
    parallel = next(op for op in kernel_of(program(text)).walk() if isinstance(op, tile.ParallelOp))
    try:
        check_locals(Variance(parallel))
    except TileError as error:
        return error.message.removeprefix("T.Parallel: ")
    return ""


@pytest.mark.parametrize(
    ("body", "is_private"),
    [
        (f"{WRITE} {READ}", True),
        (f"{READ} {WRITE}", False),
        (f"{WRITE.replace('%c0]', '%c0] mask=%t')} {READ}", False),
        (f"scf.if %t {{ {WRITE} scf.yield }} {{ {WRITE} scf.yield }} {READ}", True),
        (f"scf.if %t {{ {WRITE} scf.yield }} {{ scf.yield }} {READ}", False),
        (f"scf.if %t {{ scf.yield }} {{ {WRITE} scf.yield }} {READ}", False),
        (f"{WRITE} scf.if %t {{ {READ} scf.yield }} {{ scf.yield }}", True),
        (f"scf.if %t {{ {READ} scf.yield }} {{ scf.yield }} {WRITE}", False),
        (f"scf.if %t {{ scf.yield }} {{ {READ} scf.yield }} {WRITE}", False),
        # loops that run at least once have written, and others may not
        (f"{loop('%c0', '%c3')} {READ}", True),
        (f"{loop('%c3', '%c3')} {READ}", False),
        (f"{loop('%c3', '%c0')} {READ}", False),
        (f"{loop('%c3', '%c0', '%c-1')} {READ}", True),
        (f"{loop('%s', '%c3')} {READ}", False),
        (f"{loop('%c0', '%s')} {READ}", False),
        (f"{loop('%c0', '%c3', '%s')} {READ}", False),
        (f"{loop('%c0', '%s', '%c1', f'{WRITE} {READ}')}", True),
        (f"{loop('%c0', '%c3', '%c1', f'{READ} {WRITE}')}", False),
        # so has the condition of a while loop, and its body may not
        (f"scf.while {{ {WRITE} scf.condition %t }} {{ scf.yield }} {READ}", True),
        (f"scf.while {{ {WRITE} scf.condition %t }} {{ {READ} scf.yield }}", True),
        (f"scf.while {{ scf.condition %t }} {{ {WRITE} scf.yield }} {READ}", False),
        (f"scf.while {{ {READ} scf.condition %t }} {{ {WRITE} scf.yield }}", False),
        (f"scf.while {{ scf.condition %t }} {{ {READ} {WRITE} scf.yield }}", False),
        (f"scf.while {{ scf.condition %t }} {{ {WRITE} {READ} scf.yield }}", True),
        (f"tile.parallel {{extents = (2,)}} (%j: int32) {{ {WRITE} }} {READ}", True),
        (f"tile.parallel {{extents = (2,)}} (%j: int32) {{ {READ} }} {WRITE}", False),
        # what is the same in all points, and what is allocated for each, may be handed on
        (f"{READ} {WRITE.replace('%i', '%s')}", True),
        (f"%m = tile.alloc : buffer<1*int32, local> {READ.replace('%l', '%m')} {WRITE.replace('%l', '%m')}", True),
        (
            f"%m = tile.alloc : buffer<1*int32, local> {READ.replace('%l', '%m')} {WRITE} {READ.replace('%x', '%y')}",
            True,
        ),
    ],
)
def test_values_from_one_iteration_to_the_next(body: str, is_private: bool) -> None:
    assert checked(body) == ("" if is_private else KEEPS)


def within(body: str, extent: int = 4) -> str:
    return f"tile.parallel {{extents = ({extent},)}} (%j: int32) {{ {body} }}"


OWN = "%m = tile.alloc : buffer<1*int32, local>"
READ_M, SAME_M, OTHER_M = "%y = tile.load %m[%c0] : int32", "tile.store %i, %m[%c0]", "tile.store %j, %m[%c0]"
STAYS = "m keeps a value from one iteration to the next"
ENDS = "m has a value for each iteration of T.Parallel, so none after it"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"{OWN} {SAME_M} {within(READ_M)}", ""),
        (f"{OWN} {within(SAME_M)} {READ_M}", ""),  # all points of the inner one write the same
        (f"{OWN} {within(f'{OTHER_M} {READ_M}')} {within(f'{OTHER_M} {READ_M}')}", ""),
        (f"{OWN} {within(OTHER_M)} {SAME_M} {READ_M} {within(READ_M)}", ""),
        (f"{OWN} {SAME_M} {READ_M} {within(OTHER_M)}", ""),
        (f"{within(f'{OWN} {OTHER_M}')}", ""),
        (f"{OWN} {within(OTHER_M)} {READ_M}", ENDS),
        (f"{OWN} {SAME_M} {within(OTHER_M)} {READ_M}", ENDS),
        (f"{OWN} {within(OTHER_M)} {within(READ_M)}", ENDS),
        (f"{OWN} {within(OTHER_M)} {within(READ_M, 5)}", ENDS),
        (f"{OWN} {SAME_M} {within(f'{READ_M} {OTHER_M}')}", STAYS),
        (f"{OWN} {SAME_M} {loop('%c0', '%c3', body=f'{READ_M} {within(OTHER_M)}')}", ENDS),
        (f"{OWN} {SAME_M} {loop('%c0', '%c3', body=f'{within(OTHER_M)} {SAME_M} {READ_M}')} {READ_M}", ""),
        (f"{OWN} {SAME_M} {loop('%c0', '%c3', body=within(OTHER_M))} {READ_M}", ENDS),
        (f"{OWN} {SAME_M} scf.while {{ {READ_M} scf.condition %t }} {{ {within(OTHER_M)} scf.yield }}", ENDS),
        (f"{OWN} {SAME_M} scf.if %t {{ {within(OTHER_M)} scf.yield }} {{ scf.yield }} {READ_M}", ENDS),
    ],
)
def test_values_of_the_points_of_an_inner_parallel(body: str, message: str) -> None:
    assert checked(body) == message


@pytest.mark.parametrize(
    ("after", "is_read"),
    [
        ("", False),
        (READ, True),
        (f"scf.if %b {{ {READ} scf.yield }} {{ scf.yield }}", True),
        (f"tile.store %s, %l[%c0] {READ}", False),
        (f"%y = arith.add %s, %c1 : int32 {READ}", True),
        (f"tile.parallel {{extents = (4,)}} (%j: int32) {{ {READ} }}", False),  # which is checked by itself
    ],
)
def test_values_after_all_iterations(after: str, is_read: bool) -> None:
    assert checked(WRITE, after) == ("l has a value for each iteration of T.Parallel, so none after it" * is_read)
