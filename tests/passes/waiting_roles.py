"""Warps that wait for each other, in short forms, for tests of merge-roles; and what it says of them."""

from __future__ import annotations

import re

import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.errors import TileError
from tiledsl.ir.pass_manager import Program
from tiledsl.ir.printer import print_op
from tiledsl.passes.merge_roles import MergeRoles

PARAMETERS = "X: 16*float32, Y: 16*float32, I: 64*int32, n: int32"
WHOLE = "{shape = (16,), source_axes = (0,), target_axes = (0,)}"
SHORT = {
    r"put (\S+)": rf"tile.copy %X, %\1 {WHOLE}",
    r"fill (\S+)": r"tile.fill %c1.0, %\1",
    r"get (\S+)": rf"tile.copy %\1, %Y {WHOLE}",
    r"start (\S+) (\S+)": rf"thread.async [%\2], [%c0] {{ tile.copy %X, %\1 {WHOLE} }}",
    r"begin (\S+)": rf"thread.async [], [] {{ tile.copy %X, %\1 {WHOLE} }}",
    r"arrive (\S+)": r"thread.arrive %\1, %c0",
    r"wait (\S+) (\S+)": r"thread.wait %\1, %c0, %\2",
    r"write (\S+) (\S+)": r"tile.store %c1.0, %\1[%\2]",
    r"read (\S+) (\S+)": r"%v\2 = tile.load %\1[%\2] : float32 ; tile.store %v\2, %Y[%\2]",
    r"loop (\S+)": r"scf.for %c0, %\1, %c1 (%k: int32) {",
    r"parity (\S+)": r"%even = arith.floormod %k, %c2 : int32 ; %next = arith.add %k, %c1 : int32 ; "
    r"%odd = arith.floormod %next, %c2 : int32",
    r"end": "scf.yield }",
}


def lines(text: str, line: int) -> str:
    """Statements with short forms, separated by `;`, on lines of their own from `line` on."""
    made = []
    for number, each in enumerate(text.split(";"), line):
        for short, full in SHORT.items():
            each = re.sub(rf"^\s*{short}\s*$", full, each)
        for one in each.split(" ; "):
            place = "" if one.strip().endswith("{") or not one.strip() else f' loc("t" {number} 1 {number} 2)'
            made.append(one.strip().replace("} }", f"}}{place} }}") + place)
    return "\n".join(made)


def roles(
    *texts: str, counts: tuple[int, ...] = (32,), name: str = "one", before: str = "", behind: str = ""
) -> Program:
    """Warps that each do a text, the first on lines 1, 2, ..., the second on lines 11, ...; lines 91 are of all."""
    branches = "\n".join(
        f"""%from{at} = arith.cmp %tx, %c{32 * at} {{predicate = "ge"}} : bool
        %to{at} = arith.cmp %tx, %c{32 * at + 32} {{predicate = "lt"}} : bool
        %is{at} = arith.and %from{at}, %to{at} : bool
        scf.if %is{at} {{ {lines(text, 10 * at + 1)}
        scf.yield }} {{ scf.yield }}"""
        for at, text in enumerate(texts)
    )
    made = program(
        f"""
        %s = tile.alloc : buffer<16*float32, shared>
        %t = tile.alloc : buffer<16*float32, shared>
        %ga = tile.alloc : buffer<16*16*float32, shared>
        %gb = tile.alloc : buffer<16*16*float32, shared>
        %gc = tile.alloc : buffer<16*16*float32, shared>
        %one = tile.alloc : buffer<{len(counts)}*uint64, shared>
        %two = tile.alloc : buffer<1*uint64, shared>
        tile.parallel {{extents = ({32 * len(texts)},), lockstep = true}} (%tx: int32) {{
          thread.init_barriers %one {{counts = {counts}}}
          thread.init_barriers %two {{counts = (32,)}}
          {lines(before, 81)}
          {branches}
          {lines(behind, 91)}
        }}""",
        parameters=PARAMETERS,
        grid=(1,),
    )
    kernel = kernel_of(made)
    kernel.set_attribute("threads", 32 * len(texts))
    end = kernel.regions[0].last
    assert end is not None
    end.erase()
    return made


def merged(made: Program) -> list[str]:
    MergeRoles().run(made)
    found = [line.strip() for line in print_op(kernel_of(made)).splitlines()[1:-1]]
    return [line for line in found if "arith.constant" not in line and "tile.alloc" not in line]


def refused(made: Program) -> list[object]:
    """The message and line of the error, then those of its notes."""
    with pytest.raises(TileError) as caught:
        MergeRoles().run(made)
    error = caught.value
    assert error.code == "warp-roles"
    notes = [each if isinstance(each, str) else (each[0], each[1].line) for each in error.notes]
    return [error.message, error.loc and error.loc.line, *notes]


def never(parity: int, barrier: str, arrivals: str, turn: str = "") -> str:
    return (
        "this wait is not implied: nothing that comes before it, or that other roles do in the same turn, completes "
        f"the phase of parity {parity} of {barrier}{turn}; {arrivals} arrivals have come"
    )


def race(who: str, does: str, tile: str, other: str, did: str, turn: str = "") -> str:
    return f"{who}: this {does} {tile}{turn}, and nothing orders it against what {other} {did} there: a wait is missing"


A, B = "threads 0 to 31", "threads 32 to 63"
HERE = "threads arrive here"
COUNTS = "T.alloc_barrier takes the number of threads that arrive"
ONCE = "1 phases were complete then; a wait for the last one has the parity 0"
OF_THREAD = "%i = tile.load %I[%tx] : int32"
OF_DATA = "%m = tile.load %I[%c3] : int32;%o = arith.floormod %m, %c2 : int32"
PRODUCER = "parity k;wait two odd;put s;arrive one;end"
CONSUMER = "parity k;wait one even;get s;arrive two;end"
VARIABLE = (
    "%st = tile.alloc : buffer<int32, local>;tile.store %c0, %st[];loop c4;%p = tile.load %st[] : int32;"
    "%q = arith.sub %c1, %p : int32;wait two q;put s;arrive one"
)
MANY = '%b = arith.cmp %n, %c{} {{predicate = "gt"}} : bool'
FOURTHS = "%m = arith.floordiv %n, %c4 : int32;loop m"
EIGHTHS = "%m = arith.mul %n, %c8 : int32;loop m"  # of which there are never six
OF_VARIABLE = (
    "%st = tile.alloc : buffer<int32, local>;%more = arith.add %n, %c3 : int32;tile.store %more, %st[];"
    "%p = tile.load %st[] : int32;%m = arith.floordiv %p, %c4 : int32;loop m"
)
OF_LOADED = "%v = tile.load %I[%c3] : int32;%m = arith.floordiv %v, %c4 : int32;loop m"
NEGATIVE = (
    '%g = arith.neg %n : int32;%b = arith.cmp %g, %c0 {{predicate = "gt"}} : bool;scf.if %b {{;{};scf.yield }} '
    "{{ scf.yield }}"
)
BEHIND = "%o = arith.floormod {}, %c2 : int32;%w = arith.sub %c1, %o : int32;wait two w"
HALF = "{shape = (8,), source_axes = (0,), target_axes = (0,)}"
