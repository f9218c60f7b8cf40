"""Which axes quotients and remainders take apart, and that the sums of digits are the indices, over all points."""

from __future__ import annotations

import random
from math import prod
from typing import Any

import numpy as np
import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.digit_axes import DigitAxes, digit_axes
from tiledsl.analysis.linear import LinearForm
from tiledsl.ir.core import Value

ROWS, COLUMNS = 24, 16
SHAPES = ("", f"{ROWS}x1", f"1x{COLUMNS}", f"{ROWS}x{COLUMNS}")  # by the axes along which a value varies
SIGNS = {"floordiv": "//", "floormod": "%", "add": "+", "sub": "-", "mul": "*", "shr": ">>", "and": "&"}


def values_of(*steps: str) -> dict[str, Value]:
    """The values of steps such as "a floordiv i 8", of what was named before, i and j among it, and of numbers."""
    axes = {"i": 1, "j": 2}
    lines = [f"%i = tensor.iota {{axis = 0}} : tensor<{SHAPES[1]}xint32>",
             f"%j = tensor.iota {{axis = 1}} : tensor<{SHAPES[2]}xint32>"]  # fmt: skip
    for step in steps:
        name, kind, *operands = step.split()
        axes[name] = axes.get(operands[0], 0) | axes.get(operands[1], 0)
        texts = [f"%{each}" if each in axes or each.isalpha() else f"%c{each}" for each in operands]
        shape = SHAPES[axes[name]]
        lines.append(f"%{name} = arith.{kind} {', '.join(texts)} : {f'tensor<{shape}xint32>' if shape else 'int32'}")
    ops = kernel_of(program("\n".join(lines))).walk()
    return {value.name: value for op in ops for value in op.results}


def evaluated(made: DigitAxes, form: LinearForm) -> Any:
    """A form at all points."""
    env: dict[Value, Any] = {}
    for axis, (place, sizes) in enumerate(zip(np.indices((ROWS, COLUMNS)), made.sizes, strict=True)):
        for number in reversed(range(len(sizes))):
            place, env[made.digits[axis, number]] = np.divmod(place, sizes[number])
    return sum(n * prod(env[each] for each in factors) for factors, n in form.terms.items())


def test_sums_of_digits_are_the_indices() -> None:
    apart = 0
    for seed in range(400):
        rng = random.Random(seed)
        steps: list[str] = []
        texts = {"i": "i", "j": "j"}
        for number in range(4):
            kind = rng.choice((*SIGNS, "floordiv", "floormod"))
            numbers = {"shr": ["1", "2", "3"], "and": ["1", "3", "7"]}.get(kind, ["2", "3", "4", "6", "8", "12"])
            first = rng.choice(list(texts))
            other = rng.choice([*texts, *numbers] if kind in ("add", "sub") else numbers)
            steps.append(f"t{number} {kind} {first} {other}")
            texts[f"t{number}"] = f"({texts[first]} {SIGNS[kind]} {texts.get(other, other)})"
        values = values_of(*steps)
        for names in [[each] for each in texts] + [rng.sample(list(texts), 2) for _ in range(3)]:
            made = digit_axes([values[each] for each in names])
            if made is None:
                continue
            apart += 1
            assert [prod(each) for each in made.sizes] == [
                size if any(values[each].shape[axis] > 1 for each in names) else 1
                for axis, size in enumerate((ROWS, COLUMNS))
            ]
            rows, columns = np.indices((ROWS, COLUMNS))
            for each, form in zip(names, made.forms, strict=True):
                expected = eval(texts[each], {"i": rows, "j": columns})
                assert (evaluated(made, form) == expected).all(), (seed, texts[each])
    assert apart > 600


@pytest.mark.parametrize(
    ("steps", "sizes"),
    [
        (("a floordiv i 8", "b floormod i 8"), [(3, 8), (1,)]),
        (("a floordiv i 8", "b floormod j 4"), [(3, 8), (4, 4)]),
        (("a floordiv i 8", "b add j 0"), [(3, 8), (16,)]),
        (("q floordiv i 2", "a floormod q 4", "b floormod i 2"), [(3, 4, 2), (1,)]),
        # of a sum of both indices, a digit of one
        (("m mul i 16", "s add m j", "a floordiv s 4", "b floormod s 4"), [(24,), (4, 4)]),
        (("m sub 23 i", "a floordiv m 8", "b floormod m 8"), [(3, 8), (1,)]),
        # a multiple of an index, whose divisor is larger than its digits are many
        (("m mul i 4", "a floordiv m 16", "b floormod m 16"), [(6, 4), (1,)]),
        # sizes that do not go into one another, or into the axis
        (("a floordiv i 4", "b floormod i 6"), None),
        (("a floordiv j 3", "b floormod j 3"), None),
        (("a shr i -1", "b floormod i 8"), None),
        (("a shr i 31", "b floormod i 8"), None),
        (("a shr i 30", "b floormod i 8"), [(3, 8), (1,)]),
        # bits that are no remainder
        (("a floordiv i 6", "b and i 5"), None),
        # a carry, what is negative, and what is not known
        (("m add i 4", "a floordiv m 8", "b floormod i 4"), None),
        (("m sub i 8", "a floordiv m 8", "b floormod i 8"), None),
        (("m mul i 8", "e sub m 1", "a floordiv e 8", "b floormod e 8"), None),
        (("m add i s", "a floordiv m 8", "b floormod i 8"), None),
        (("a mul i 8", "b add j 8"), None),
        # what int32 holds, to its ends, and what wraps
        (("m mul i 93368854", "a add m 5", "b floordiv i 8"), [(3, 8), (1,)]),
        (("m mul i 93368854", "a add m 6", "b floordiv i 8"), None),
        (("m mul i -93368854", "a sub m 6", "b floordiv i 8"), [(3, 8), (1,)]),
        (("m mul i -93368854", "a sub m 7", "b floordiv i 8"), None),
        # beside a scalar with bounds: whole multiples of it, and others
        (("t floormod s 4", "m mul t 24", "e add i m", "a floordiv e 8", "b floormod e 8"), [(3, 8), (1,)]),
        (("t floormod s 4", "e add i t", "a floordiv e 8", "b floormod e 8"), None),
        (("t floormod s 4", "m mul t 8", "e sub i m", "a floordiv e 8", "b floormod e 8"), None),
    ],
)
def test_the_axes_that_are_taken_apart(steps: tuple[str, ...], sizes: list[tuple[int, ...]] | None) -> None:
    values = values_of(*steps)
    made = digit_axes([values["a"], values["b"]])
    assert (None if made is None else made.sizes) == sizes


def test_digits_of_what_is_cast_and_broadcast() -> None:
    body = f"""%i = tensor.iota {{axis = 0}} : tensor<{SHAPES[1]}xint32>
    %n = arith.constant {{value = 8}} : int64
    %w = arith.cast %i : tensor<{SHAPES[1]}xint64>
    %a = arith.floordiv %w, %n : tensor<{SHAPES[1]}xint64>
    %r = arith.floormod %w, %n : tensor<{SHAPES[1]}xint64>
    %b = tensor.broadcast %r : tensor<{SHAPES[3]}xint64>"""
    values = {value.name: value for op in kernel_of(program(body)).walk() for value in op.results}
    made = digit_axes([values["a"], values["b"]])
    assert made is not None and made.sizes == [(3, 8), (16,)]
    assert [list(form.terms.items()) for form in made.forms] == [
        [((made.digits[0, 0],), 1)], [((made.digits[0, 1],), 1)],
    ]  # fmt: skip


def test_a_scalar_beside_the_digits_stays_a_term() -> None:
    values = values_of("q floordiv i 8", "r floormod i 8", "a add q s")
    made = digit_axes([values["a"], values["r"]])
    assert made is not None
    (scalar,) = [factors[0] for factors in made.forms[0].terms if factors[0] not in made.digits.values()]
    assert scalar.name == "s" and made.forms[0].terms == {(made.digits[0, 0],): 1, (scalar,): 1}
    assert made.forms[1].terms == {(made.digits[0, 1],): 1}


def test_a_quotient_that_needs_no_digits() -> None:
    # e = t * 384 + i * 16 + j, as a loop's index beside two of threads
    places = ("m mul i 16", "p add m j", "t floormod s 4", "o mul t 384", "e add p o")
    values = values_of(*places, "a floordiv e 16", "b floormod e 16")
    made = digit_axes([values["a"], values["b"]])
    assert made is not None and made.sizes == [(24,), (16,)]
    assert made.forms[0].terms == {(made.digits[0, 0],): 1, (values["t"],): 24}
    assert made.forms[1].terms == {(made.digits[1, 0],): 1}
