"""drop-repeated-masks: selects beside the masks of loads and stores."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.passes.ir_cases import after, filecheck, kernel
from tests.support.programs import check_pass
from tiledsl.passes.drop_repeated_masks import DropRepeatedMasks

PARAMETERS = "A: 64*96*float32, C: 64*96*float32, H: 64*96*float16, P: 96*bool, n: int32, s: int32"
HEAD = """
%zero = arith.constant {value = 0.0} : float32
%rows = tensor.iota {axis = 0} : tensor<16x1xint32>
%columns = tensor.iota {axis = 1} : tensor<1x16xint32>
%first = arith.mul %bx, %c16 : int32
%at = arith.add %first, %columns : tensor<1x16xint32>
%wide = tensor.broadcast %rows : tensor<16x16xint32>
%p = tile.load %P[%columns] {guarded = true} : tensor<1x16xbool>
%low = arith.cmp %rows, %n {predicate = "lt"} : tensor<16x1xbool>
%near = arith.cmp %at, %c20 {predicate = "lt"} : tensor<1x16xbool>
%both = arith.and %low, %near : tensor<16x16xbool>
"""
LOAD = "%x = tile.load %A[%rows, %columns] mask=%both {guarded = true} : tensor<16x16xfloat32>\n"
STORE = "tile.store %y, %C[%rows, %columns] {guarded = true}\n"


def of(condition: str, shape: str = "16x16", *, select: str = "%x, %zero", load: str = LOAD, store: str = STORE) -> str:
    chosen = f"%y = arith.select %c, {select} : tensor<16x16xfloat32>\n"
    return f"{HEAD}{load}%c = {condition} : tensor<{shape}xbool>\n{chosen}{store}"


def is_kept(text: str) -> bool:
    """Whether all selects stay; the meaning stays in any case."""
    generator = np.random.default_rng(0)
    tiles = [generator.integers(1, 9, (64, 96)).astype(dtype) for dtype in (np.float32, np.float32, np.float16)]
    for n in (0, 5, 16):
        check_pass(DropRepeatedMasks(), kernel(PARAMETERS, text), [*tiles, generator.random(96) < 0.5, n, 3])
    lines = after(DropRepeatedMasks(), text, parameters=PARAMETERS)
    return sum("arith.select" in line for line in lines) == text.count("arith.select")


def compared(lhs: str, predicate: str, rhs: str) -> str:
    return f'arith.cmp {lhs}, {rhs} {{predicate = "{predicate}"}}'


@pytest.mark.parametrize(
    ("condition", "shape"),
    [
        ("arith.and %near, %low", "16x16"),
        (compared("%rows", "lt", "%n"), "16x1"),
        (compared("%n", "gt", "%rows"), "16x1"),
        (compared("%wide", "lt", "%n"), "16x16"),
        (compared("%at", "le", "%c19"), "1x16"),
        (compared("%at", "lt", "%c25"), "1x16"),
        ("arith.or %p, %low", "16x16"),
    ],
)
def test_the_condition_holds_in_the_mask(condition: str, shape: str) -> None:
    text = of(condition, shape)
    assert not is_kept(text)
    filecheck(
        after(DropRepeatedMasks(), text, parameters=PARAMETERS)[-2:],
        """
        %x = tile.load %A[%rows, %columns] mask=%both {guarded = true} : tensor<16x16xfloat32>
        tile.store %x, %C[%rows, %columns] {guarded = true}
        """,
    )


@pytest.mark.parametrize(
    ("condition", "shape"),
    [
        (compared("%rows", "lt", "%s"), "16x1"),
        (compared("%rows", "le", "%c4"), "16x1"),
        (compared("%rows", "ge", "%n"), "16x1"),
        (compared("%at", "lt", "%c19"), "1x16"),
        (compared("%at", "ne", "%c19"), "1x16"),
        (compared("%at", "eq", "%c19"), "1x16"),
        ("arith.and %p, %low", "16x16"),
        ("arith.not %low", "16x1"),
    ],
)
def test_the_condition_may_fail_in_the_mask(condition: str, shape: str) -> None:
    assert is_kept(of(condition, shape))


@pytest.mark.parametrize(
    ("condition", "select", "kept"),
    [
        (compared("%rows", "ge", "%n"), "%zero, %x", False),
        (compared("%rows", "ge", "%n"), "%x, %zero", True),
        (compared("%rows", "lt", "%n"), "%zero, %x", True),
        (compared("%rows", "lt", "%n"), "%x, %c1.0", True),
        (compared("%rows", "lt", "%n"), "%x, %c-0.0", True),
        (compared("%rows", "lt", "%n"), "%x, %x", False),
    ],
)
def test_sides_and_fillers(condition: str, select: str, kept: bool) -> None:
    text = of(condition, "16x1", select=select)
    assert is_kept(text) is kept or select == "%x, %x"


def test_other_is_what_the_load_gives() -> None:
    load = LOAD.replace("mask=%both", "mask=%both other=%zero")
    assert not is_kept(of("arith.and %near, %low", load=load))
    assert is_kept(of("arith.and %near, %low", load=load.replace("other=%zero", "other=%c2.0")))


def test_casts_keep_zeros_and_sums_do_not() -> None:
    load = "%h = tile.load %H[%rows, %columns] mask=%both {guarded = true} : tensor<16x16xfloat16>\n"
    assert not is_kept(of("arith.and %near, %low", load=load + "%x = arith.cast %h : tensor<16x16xfloat32>\n"))
    assert is_kept(
        of(
            "arith.and %near, %low",
            load=LOAD.replace("%x", "%w") + "%x = arith.add %w, %c1.0 : tensor<16x16xfloat32>\n",
        )
    )


def test_sums_that_may_wrap_are_not_compared() -> None:
    # far < 20 with far = s + columns says of s + columns + 5 < 25 nothing if that may wrap.
    load = f"""%far = arith.add %columns, %s : tensor<1x16xint32>
%more = arith.add %far, %c5 : tensor<1x16xint32>
%m = {compared("%far", "lt", "%c20")} : tensor<1x16xbool>
%x = tile.load %A[%rows, %columns] mask=%m {{guarded = true}} : tensor<16x16xfloat32>
"""
    assert is_kept(of(compared("%more", "lt", "%c25"), "1x16", load=load))
    assert not is_kept(of(compared("%far", "lt", "%c20"), "1x16", load=load))
    within = load.replace("%columns, %s", "%at, %c7")
    assert not is_kept(of(compared("%more", "lt", "%c25"), "1x16", load=within))
    assert is_kept(of(compared("%more", "lt", "%c24"), "1x16", load=within))


def test_conditions_of_conditions_take_no_time() -> None:
    """Each is asked once, however often it is used, and deep ones are left alone."""
    lines = [f"%d0 = {compared('%rows', 'lt', '%n')} : tensor<16x1xbool>"]
    for number in range(1, 601):
        word, last = ("and", "or")[number % 2], number - 1
        lines.append(f"%d{number} = arith.{word} %d{last}, %d{max(0, number - 2)} : tensor<16x1xbool>")
    head = "\n".join(lines) + "\n" + LOAD
    assert is_kept(of("arith.and %d600, %d599", "16x1", load=head))
    assert not is_kept(of("arith.and %d40, %d39", "16x1", load=head))
    assert not is_kept(
        of(
            "arith.and %low, %near",
            load=head.replace("mask=%both", "mask=%deep").replace(
                "%x =", "%deep = arith.and %both, %d600 : tensor<16x16xbool>\n%x ="
            ),
        )
    )


COMPUTED = "%z = arith.select %c, %x, %c7.0 : tensor<16x16xfloat32>\n%y = arith.mul %z, %z : tensor<16x16xfloat32>\n"
MASKED = "tile.store %y, %C[%rows, %columns] mask=%both {guarded = true}\n"


@pytest.mark.parametrize(
    ("rest", "kept"),
    [
        (COMPUTED + MASKED, False),
        (COMPUTED + MASKED + MASKED, True),
        (COMPUTED + STORE, True),
        (COMPUTED + MASKED + STORE, True),
        (COMPUTED + MASKED.replace("%both", "%p"), True),
        (COMPUTED.replace("%c, %x, %c7.0", "%c, %c7.0, %x") + MASKED, False),
    ],
)
def test_what_one_write_masks(rest: str, kept: bool) -> None:
    unmasked = "%x = tile.load %A[%rows, %columns] {guarded = true} : tensor<16x16xfloat32>\n"
    text = f"{HEAD}{unmasked}%c = {compared('%rows', 'lt', '%n')} : tensor<16x1xbool>\n{rest}"
    assert is_kept(text) is kept


def test_divisors_keep_their_selects() -> None:
    text = f"""{HEAD}%c = {compared("%rows", "lt", "%n")} : tensor<16x1xbool>
%z = arith.select %c, %c3, %c1 : tensor<16x1xint32>
%q = arith.KIND %at, %z : tensor<16x16xint32>
%y = arith.cast %q : tensor<16x16xfloat32>
{MASKED}"""
    assert is_kept(text.replace("KIND", "truncdiv"))
    assert not is_kept(text.replace("KIND", "mul"))


def test_an_if_and_its_else_leave_no_old_tile() -> None:
    text = f"""{HEAD}%start = arith.constant {{value = 0.0}} : tensor<16x16xfloat32>
%r, %sum = scf.for %c0, %c4, %c1[%start, %start] : tensor<16x16xfloat32>, tensor<16x16xfloat32> (%k: int32, %old: tensor<16x16xfloat32>, %part: tensor<16x16xfloat32>) {{
  %far = arith.add %columns, %k : tensor<1x16xint32>
  %in = {compared("%far", "lt", "%c17")} : tensor<1x16xbool>
  %out = {compared("%far", "ge", "%c17")} : tensor<1x16xbool>
  %x = tile.load %A[%rows, %far] mask=%in {{guarded = true}} : tensor<16x16xfloat32>
  %then = arith.select %in, %x, %old : tensor<16x16xfloat32>
  %else = arith.select %out, FILLER, %then : tensor<16x16xfloat32>
  %more = arith.add %part, %else : tensor<16x16xfloat32>
  scf.yield [%else, %more]
}}
tile.store %sum, %C[%rows, %columns] {{guarded = true}}
"""  # noqa: E501
    assert not is_kept(text.replace("FILLER", "%zero"))
    lines = after(DropRepeatedMasks(), text.replace("FILLER", "%zero"), parameters=PARAMETERS)
    filecheck(
        lines[next(n for n, line in enumerate(lines) if "scf.for" in line) :],
        """
        %sum = scf.for %c0, %c4, %c1[%c0p0] : tensor<16x16xfloat32> (%k: int32, %part: tensor<16x16xfloat32>) {
        %far = arith.add %columns, %k : tensor<1x16xint32>
        %in = arith.cmp %far, %c17 {predicate = "lt"} : tensor<1x16xbool>
        %x = tile.load %A[%rows, %far] mask=%in {guarded = true} : tensor<16x16xfloat32>
        %more = arith.add %part, %x : tensor<16x16xfloat32>
        scf.yield [%more]
        }
        tile.store %sum, %C[%rows, %columns] {guarded = true}
        """,
    )
    assert not is_kept(text.replace("FILLER", "%c2.0"))  # the inner one goes
    lines = after(DropRepeatedMasks(), text.replace("FILLER", "%c2.0"), parameters=PARAMETERS)
    assert sum("arith.select %out, %c2p0, %x" in line for line in lines) == 1 and "%old" not in "\n".join(lines)


@pytest.mark.parametrize("seed", range(40))
def test_random_masks(seed: int) -> None:
    """Any mask and any condition: the meaning stays."""
    generator = random.Random(seed)
    lines, conditions = [], ["%low", "%near", "%both", "%p"]

    def condition() -> str:
        name = f"%m{len(lines)}"
        kind = generator.choice(["cmp", "cmp", "and", "or", "not"])
        if kind == "cmp":
            sides = generator.sample(["%rows", "%columns", "%at", "%n", "%s", "%c3", "%c9", "%c20"], 2)
            text = compared(sides[0], generator.choice(["lt", "le", "gt", "ge", "eq", "ne"]), sides[1])
            rows, columns = "%rows" in sides, "%columns" in sides or "%at" in sides
        else:
            chosen = [generator.choice(conditions) for _ in range(1 if kind == "not" else 2)]
            text, rows, columns = f"arith.{kind} {', '.join(chosen)}", True, True
            chosen_shapes = [shapes[each] for each in chosen]
            rows, columns = any(each[0] for each in chosen_shapes), any(each[1] for each in chosen_shapes)
        type = f"tensor<{16 if rows else 1}x{16 if columns else 1}xbool>" if rows or columns else "bool"
        lines.append(f"{name} = {text} : {type}")
        shapes[name] = (rows, columns)
        conditions.append(name)
        return name

    shapes = {"%low": (True, False), "%near": (False, True), "%both": (True, True), "%p": (False, True)}
    for _ in range(5):
        condition()
    mask, first, second, third = (generator.choice(conditions) for _ in range(4))
    text = (
        "\n".join(lines)
        + f"""
%x = tile.load %A[%rows, %columns] mask={mask} {{guarded = true}} : tensor<16x16xfloat32>
%u = arith.select {first}, %x, %zero : tensor<16x16xfloat32>
%v = arith.select {second}, %c2.0, %u : tensor<16x16xfloat32>
%y = arith.select {third}, %v, %c3.0 : tensor<16x16xfloat32>
tile.store %y, %C[%rows, %columns] mask={generator.choice(conditions)} {{guarded = true}}
"""
    )
    is_kept(HEAD + text)


@pytest.mark.parametrize("dropped", [False, True])
def test_a_program_is_cleaned_up_where_something_was_dropped(dropped: bool) -> None:
    text = of(compared("%rows", "lt", "%n" if dropped else "%s"), "16x1") + "%more = arith.add %s, %c0 : int32\n"
    lines = after(
        DropRepeatedMasks(), f"{text}tile.store %zero, %A[%more, %c0] {{guarded = true}}", parameters=PARAMETERS
    )
    assert ("%more = arith.add %s, %c0 : int32" in lines) is not dropped
