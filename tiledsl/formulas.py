"""Dimensions that are computed from others: `T.Tensor((n + 1,), ...)`, as plain tuples that files and checks can hold.

A formula is a whole number, the name of a size, or (operation, formula, formula).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_OPERATIONS: dict[str, tuple[Callable[[int, int], int], str]] = {
    "add": (lambda a, b: a + b, "({} + {})"),
    "sub": (lambda a, b: a - b, "({} - {})"),
    "mul": (lambda a, b: a * b, "({} * {})"),
    "floordiv": (lambda a, b: a // b, "({} // {})"),
    "floormod": (lambda a, b: a % b, "({} % {})"),
    "max": (max, "max({}, {})"),
    "min": (min, "min({}, {})"),
}


def is_operation(kind: str) -> bool:
    """Whether a formula may have this operation."""
    return kind in _OPERATIONS


def checked(formula: Any) -> Any:
    """A formula of lists, as JSON has it, or of tuples. ValueError for what is none."""
    if type(formula) is int or (isinstance(formula, str) and formula.isidentifier()):
        return formula
    if not isinstance(formula, list | tuple) or len(formula) != 3 or not is_operation(str(formula[0])):
        raise ValueError(f"{str(formula)[:40]!r} is no formula")
    return (str(formula[0]), checked(formula[1]), checked(formula[2]))


def value_of(formula: Any, sizes: Mapping[str, int]) -> int | None:
    """What it gives of these sizes; None where one is missing, or it divides by 0."""
    if isinstance(formula, tuple):
        values = [value_of(part, sizes) for part in formula[1:]]
        if None in values or (formula[0] in ("floordiv", "floormod") and values[1] == 0):
            return None
        return _OPERATIONS[formula[0]][0](*values)  # type: ignore[arg-type]
    return sizes.get(formula) if isinstance(formula, str) else int(formula)


def solved(formula: Any, value: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """The size, by its name, for which it gives `value`: the only one that is missing, of which it is a multiple plus a
    constant. Nothing where that is not so."""
    missing = names_in(formula) - sizes.keys()
    if len(missing) != 1:
        return {}
    (name,) = missing
    first, second, third = (value_of(formula, {**sizes, name: number}) for number in (0, 1, 2))
    if first is None or second is None or third is None or not second - first == third - second != 0:
        return {}
    number = (value - first) // (second - first)
    return {name: number} if value_of(formula, {**sizes, name: number}) == value else {}


def names_in(formula: Any) -> set[str]:
    """The sizes that it is computed from."""
    if isinstance(formula, tuple):
        return names_in(formula[1]) | names_in(formula[2])
    return {formula} if isinstance(formula, str) else set()


def text_of(formula: Any, spelling: Mapping[str, str]) -> str:
    """It as Python, with the names spelt as given; without parentheses around the whole."""
    made = _text(formula, spelling)
    return made[1:-1] if made.startswith("(") else made


def _text(formula: Any, spelling: Mapping[str, str]) -> str:
    if isinstance(formula, tuple):
        return _OPERATIONS[formula[0]][1].format(*(_text(part, spelling) for part in formula[1:]))
    return spelling[formula] if isinstance(formula, str) else str(formula)


def polynomial(formula: Any, known: Mapping[str, Any]) -> dict[tuple[str, ...], int] | None:
    """A formula as coefficients of products of sizes, with `known` formulas for some of them; None where it divides."""
    if isinstance(formula, str):
        return polynomial(known[formula], known) if formula in known else {(formula,): 1}
    if not isinstance(formula, tuple):
        return {(): int(formula)} if formula else {}
    a, b = (polynomial(part, known) for part in formula[1:])
    if a is None or b is None or formula[0] not in ("add", "sub", "mul"):
        return None
    terms: dict[tuple[str, ...], int] = {}
    if formula[0] == "mul":
        products = [((*one, *two), x * y) for one, x in a.items() for two, y in b.items()]
    else:
        products = [*a.items(), *((two, y if formula[0] == "add" else -y) for two, y in b.items())]
    for factors, number in products:
        key = tuple(sorted(factors))
        terms[key] = terms.get(key, 0) + number
    return {key: number for key, number in terms.items() if number}
