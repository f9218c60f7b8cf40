"""Which comparisons hold where another one does, against all numbers."""

from __future__ import annotations

import itertools

from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.implications import Known
from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects.arith import INVERTED, PREDICATES
from tiledsl.ir.core import Value


def made(body: str) -> tuple[Ranges, dict[str, Value]]:
    whole = program(body)
    return Ranges(whole.root), {value.name: value for op in kernel_of(whole).walk() for value in op.results}


def test_comparisons_of_one_index_with_numbers() -> None:
    """All that follows is found, but for inequalities."""
    atoms = list(itertools.product(("lt", "le", "gt", "ge", "eq", "ne"), range(-1, 3)))
    ranges, named = made("\n".join(f'%q{place} = arith.cmp %s, %c{number} {{predicate = "{name}"}} : bool'
                                   for place, (name, number) in enumerate(atoms)))  # fmt: skip
    for (a, (one, x)), (b, (other, y)) in itertools.product(enumerate(atoms), repeat=2):
        for truth, wanted in itertools.product((True, False), repeat=2):
            found = Known.of(named[f"q{a}"], ranges, truth).implies(named[f"q{b}"], wanted)
            follows = all(PREDICATES[other](s, y) is wanted for s in range(-4, 6) if PREDICATES[one](s, x) is truth)
            seen = (other if wanted else INVERTED[other]) != "ne" or a == b
            assert found is (follows and seen), (one, x, truth, other, y, wanted)


def test_how_deep_conditions_are_looked_into() -> None:
    levels = [*(f"%q{n} = arith.not %q{n - 1} : bool" for n in range(1, 2001))]
    ranges, named = made('%q0 = arith.cmp %s, %c0 {predicate = "ge"} : bool\n' + "\n".join(levels))
    for level, implied in ((99, True), (100, True), (101, False), (102, False), (2000, False)):
        assert Known.of(named["q0"], ranges).implies(named[f"q{level}"], level % 2 == 0) is implied


def test_indices_of_both_widths() -> None:
    ranges, named = made("""
    %w = arith.cast %s : int64
    %n = arith.cast %l : int32
    %zero = arith.constant {value = 0} : int64
    %a = arith.cmp %s, %c0 {predicate = "ge"} : bool
    %wide = arith.cmp %w, %zero {predicate = "ge"} : bool
    %b = arith.cmp %l, %zero {predicate = "ge"} : bool
    %narrow = arith.cmp %n, %c0 {predicate = "ge"} : bool""")
    assert Known.of(named["a"], ranges).implies(named["wide"]) and Known.of(named["wide"], ranges).implies(named["a"])
    assert not Known.of(named["b"], ranges).implies(named["narrow"])
