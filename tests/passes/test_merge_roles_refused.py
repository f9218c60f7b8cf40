"""merge-roles: which waits and accesses of roles are refused, where, and what is noted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.passes.waiting_roles import (
    BEHIND,
    CONSUMER,
    COUNTS,
    EIGHTHS,
    FOURTHS,
    HALF,
    HERE,
    MANY,
    NEGATIVE,
    OF_DATA,
    OF_THREAD,
    ONCE,
    PRODUCER,
    VARIABLE,
    A,
    B,
    never,
    race,
    refused,
    roles,
)

IF = "scf.if %is0 {{;{};scf.yield }} {{ scf.yield }}"
LATE = '%b = arith.cmp %k, %c{} {{predicate = "eq"}} : bool;%e = arith.select %b, %odd, %even : int32;wait one e'


@pytest.mark.parametrize(
    ("first", "second", "options", "expected"),
    [
        # Which barrier, and which phase
        (
            f"{OF_THREAD};thread.arrive %one, %i",
            "wait one c0",
            {},
            ["which barrier of one this is, is not told by numbers and the indices of loops", 2],
        ),
        (
            "arrive one",
            f"{OF_THREAD};wait one i",
            {},
            ["the parity of this wait is not told by numbers and the indices of loops", 12],
        ),
        (
            "scf.for %c0, %c2, %c1 (%z: int32) {;put t;end;arrive one",
            "%st = tile.alloc : buffer<int32, local>;tile.store %c0, %st[];scf.for %c0, %c2, %c1 (%z: int32) {;"
            "tile.store %z, %st[];end;%p = tile.load %st[] : int32;wait one p",
            {},
            ["the parity of this wait is not told by numbers and the indices of loops", 17],
        ),
        ("thread.arrive %one, %c1", "wait one c0", {}, ["one[1] is outside of one, which has 1", 1]),
        ("thread.arrive %one, %c-1", "wait one c0", {}, ["one[-1] is outside of one, which has 1", 1]),
        (
            "loop c2;thread.arrive %one, %k;end",
            "wait one c0",
            {},
            ["one[1] is outside of one, which has 1, in turn 1", 2],
        ),
        (
            "arrive one",
            "%p = arith.add %c1, %c1 : int32;wait one p",
            {},
            ["the parity of this wait is 2; it is 0 or 1", 12],
        ),
        (
            "arrive one",
            "loop c4;%p = arith.mul %k, %c2 : int32;wait one p;end",
            {},
            ["the parity of this wait is 2, in turn 1; it is 0 or 1", 13],
        ),
        # How many arrive
        (
            "arrive one",
            "wait one c0",
            {"counts": (16,)},
            ["32 threads arrive at one, but 16 of the 16 arrivals of its phase are missing", 1, COUNTS],
        ),
        (
            "thread.arrive %one, %c1;thread.arrive %one, %c1",
            "wait one c0",
            {"counts": (32, 48)},
            ["32 threads arrive at one[1], but 16 of the 48 arrivals of its phase are missing", 2, COUNTS],
        ),
        (
            "loop c2;arrive one;end",
            "wait one c0",
            {"counts": (48,)},
            ["32 threads arrive at one, but 16 of the 48 arrivals of its phase are missing, in turn 1", 2, COUNTS],
        ),
        ("arrive one", "wait one c0", {"counts": (64,)}, [never(0, "one", "32 of its 64"), 11, (HERE, 1)]),
        # What nobody completes
        ("get s", "wait one c0", {}, [never(0, "one", "0 of its 32"), 11, "nobody arrives at one"]),
        ("arrive one", "wait one c0;wait one c1", {}, [never(1, "one", "0 of its 32"), 12, (HERE, 1), ONCE]),
        (
            "arrive one",
            "loop c3;wait one k;end",
            {},
            [never(1, "one", "0 of its 32", " in turn 1"), 12, (HERE, 1), ONCE],
        ),
        (
            "arrive one;arrive one",
            "wait one c0",
            {},
            [
                never(0, "one", "0 of its 32"),
                11,
                (HERE, 1),
                (HERE, 2),
                "2 phases were complete then; a wait for the last one has the parity 1",
            ],
        ),
        ("wait two c0;arrive one", "wait one c0;arrive two", {}, [never(0, "two", "0 of its 32"), 1, (HERE, 12)]),
        (
            "loop c4;parity k;put s;arrive one;end",
            "loop c4;parity k;wait one odd;get s;end",
            {},
            [never(1, "one", "0 of its 32", " in turn 0"), 13, (HERE, 4), ONCE],
        ),
        (
            f"{OF_DATA};thread.arrive %one, %o",
            f"{OF_DATA.replace('c3', 'c4')};thread.wait %one, %o, %c0",
            {"counts": (32, 32)},
            [never(0, "one[...]", "0 of its 32"), 13, (HERE, 3)],
        ),
        (
            f"{VARIABLE};tile.store %c0, %st[];end",
            f"loop c4;{CONSUMER}",
            {},
            [never(1, "two", "0 of its 32", " in turn 1"), 6, (HERE, 15), ONCE],
        ),
        (
            f"{MANY.format(2)};scf.if %b {{;put s;arrive one;scf.yield }} {{ scf.yield }}",
            f"{MANY.format(1)};scf.if %b {{;wait one c0;get s;scf.yield }} {{ scf.yield }}",
            {},
            [never(0, "one", "0 of its 32"), 13, (HERE, 4)],
        ),
        (
            f"{FOURTHS};{PRODUCER};{BEHIND.format('%n')}",
            f"{FOURTHS};{CONSUMER}",
            {},
            [
                never(0, "two", "0 of its 32"),
                10,
                (HERE, 16),
                "6 phases were complete then; a wait for the last one has the parity 1",
            ],
        ),
        *(
            (
                f"loop c{turns};{PRODUCER}",
                f"loop c{turns};{CONSUMER.replace('wait one even', LATE.format(turn))}",
                {},
                [
                    never(1, "one", "0 of its 32", f" in turn {turn}"),
                    15,
                    (HERE, 5),
                    f"{phases} phases were complete then; a wait for the last one has the parity 0",
                ],
            )
            for turns, turn, phases in (
                (400, 390, 151),
                (336, 330, 91),
                (335, 330, 331),
                (336, 288, 49),
            )
        ),
        (
            f"{EIGHTHS};{PRODUCER}",
            f"{EIGHTHS};{CONSUMER.replace('wait one even', LATE.format(3))}",
            {},
            [
                never(0, "one", "0 of its 32", " in turn 3"),
                16,
                (HERE, 6),
                "4 phases were complete then; a wait for the last one has the parity 1",
            ],
        ),
        (
            f"loop n;{PRODUCER}",
            f"loop n;{CONSUMER.replace('wait one even', LATE.format(20))}",
            {},
            [
                never(1, "one", "0 of its 32", " in turn 20"),
                15,
                (HERE, 5),
                "21 phases were complete then; a wait for the last one has the parity 0",
            ],
        ),
        *(
            (
                f"%g = arith.neg %n : int32;scf.for {bounds} (%k: int32) {{;{PRODUCER}",
                f"%g = arith.neg %n : int32;scf.for {bounds} (%k: int32) {{;{CONSUMER.replace('one even', 'one odd')}",
                {},
                [never(1, "one", "0 of its 32", " in turn 0"), 14, (HERE, 6), ONCE],
            )
            for bounds in ("%g, %c4, %c1", "%c0, %c4, %g")
        ),
        (
            f"%g = arith.neg %n : int32;scf.for %c0, %c4, %g (%k: int32) {{;{PRODUCER}",
            "%g = arith.neg %n : int32;scf.for %c0, %c4, %g (%k: int32) {;"
            + CONSUMER.replace("wait one even", LATE.format(1)),
            {},
            [
                never(0, "one", "0 of its 32", " in turn 1"),
                16,
                (HERE, 6),
                "2 phases were complete then; a wait for the last one has the parity 1",
            ],
        ),
        (
            NEGATIVE.format("put s;arrive one"),
            "wait one c0;get s",
            {},
            [never(0, "one", "0 of its 32"), 11, (HERE, 5)],
        ),
        # Roles that wait for each other
        (
            "loop c4;wait two c0;arrive one;end",
            "loop c4;wait one c1;arrive two;end",
            {},
            [
                "the roles wait for each other here: no order of what they do, the same in all turns of their loops, "
                "lets this go on",
                2,
                ("this comes first", 13),
                ("another one waits here", 12),
            ],
        ),
        (
            "loop c4;put s;arrive one;end;put t",
            "get t;loop c4;parity k;wait one even;get s;end",
            {},
            [
                "the roles wait for each other here: no order of what they do, the same in all turns of their loops, "
                "lets this go on",
                11,
                ("this comes first", 5),
            ],
        ),
        (
            "arrive two",
            "wait one c0",
            {"behind": f"loop c2;write s k;{IF.format('arrive two')};end;{IF.format('arrive one')}"},
            ["some threads never come here, where all do this together", 92],
        ),
        # Phases that may be missed
        (
            "loop c4;arrive one;end",
            "loop c4;parity k;wait one even;end",
            {},
            [
                f"{B} may find one one phase ahead, and wait for ever: nothing keeps the next phase from being "
                "complete before this wait, in turn 1",
                13,
                ("the last arrival of the next phase", 2),
            ],
        ),
        (
            "arrive one;arrive one",
            "wait one c1",
            {},
            [
                f"this wait may be let through by an earlier phase of one: nothing tells {B} that phase 0 is over",
                11,
                "wait for each phase, or for what who arrived has waited for",
            ],
        ),
        # Accesses
        (
            "put s;arrive one",
            "put s;wait one c0",
            {},
            [race(B, "writes", "s", A, "write"), 11, (f"{A}: this wrote s", 1)],
        ),
        (
            "put s;arrive one;put s",
            "wait one c0;get s",
            {},
            [race(B, "reads", "s", A, "write"), 12, (f"{A}: this wrote s", 3)],
        ),
        (
            "start s one;arrive one;get s",
            "wait one c0",
            {},
            [race(A, "reads", "s", A, "write"), 3, (f"{A}: this wrote s", 1)],
        ),
        (
            "begin s;arrive one",
            "wait one c0;get s",
            {},
            [race(B, "reads", "s", A, "write"), 12, (f"{A}: this wrote s", 1)],
        ),
        (
            "tile.fill %c1.0, %s;arrive one;tile.fill %c0.0, %s",
            "wait one c0;get s",
            {},
            [race(B, "reads", "s", A, "write"), 12, (f"{A}: this wrote s", 3)],
        ),
        (
            "put s;arrive one;put t;put t",
            "wait one c0;get s;get t",
            {},
            [race(B, "reads", "t", A, "write"), 13, (f"{A}: this wrote t", 4)],
        ),
        (
            f"loop c3;{PRODUCER}",
            "loop c3;parity k;wait one even;arrive two;get s;end",
            {},
            [race(A, "writes", "s", B, "read", ", in turn 1"), 4, (f"{B}: this read s", 15)],
        ),
        (
            f"loop n;{PRODUCER};put s",
            f"loop n;{CONSUMER}",
            {},
            [race(A, "writes", "s", B, "read"), 7, (f"{B}: this read s", 14)],
        ),
        (
            "loop c4;put s;arrive one;end",
            "loop c4;parity k;get s;wait one even;end",
            {},
            [race(B, "reads", "s", A, "write", ", in turn 0"), 13, (f"{A}: this wrote s", 2)],
        ),
        (
            "write s c1;arrive one;write s c2",
            "wait one c0;read s c1;read s c2",
            {},
            [race(B, "reads", "s", A, "write"), 13, (f"{A}: this wrote s", 3)],
        ),
        (
            "write s c1;arrive one;write s c2",
            "wait one c0;read s n",
            {},
            [race(B, "reads", "s", A, "write"), 12, (f"{A}: this wrote s", 3)],
        ),
        (
            f"tile.copy %X, %s[%c0] {HALF};arrive one;tile.copy %X, %s[%c8] {HALF};arrive two",
            f"wait one c0;tile.copy %s[%c0], %Y {HALF.replace('8', '9')};wait two c0;tile.copy %s[%c8], %Y {HALF}",
            {},
            [race(B, "reads", "s", A, "write"), 12, (f"{A}: this wrote s", 3)],
        ),
    ],
)
def test_refused(first: str, second: str, options: Any, expected: list[object]) -> None:
    """The mistake, its line, and what is noted."""
    assert refused(roles(first, second, **options)) == expected
