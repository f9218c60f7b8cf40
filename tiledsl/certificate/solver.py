"""Questions about integers: is there a block, an iteration, a size for which this holds?

Answered by z3 (the extra `tiledsl[verify]`) over the integers; wrapping, truncation and bits are written out exactly.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tiledsl.certificate import terms
from tiledsl.certificate.terms import Term, Variable

MISSING = "the solver is missing: pip install 'tiledsl[verify]'"
# Sizes that are tried where the question with every size is too hard for the solver; they only ever refute.
_SIZES = (1, 2, 17, 33, 64, 100, 257, 1000, 4097)


# Beyond these, sizes and scalars are no ordinary ones; what is wrong only there is not called wrong.
_ORDINARY = (4096, 2**24)


@dataclass(frozen=True)
class Answer:
    """`values` satisfy the question; without any, `reason` says why it is open, or is empty: nothing satisfies it.

    `extreme`: what the values have that is not ordinary, a size or scalar; empty if they are ordinary.
    """

    values: dict[Variable, int] | None = None
    reason: str = ""
    extreme: str = ""

    @property
    def never(self) -> bool:
        return self.values is None and not self.reason

    @property
    def known(self) -> dict[Variable, int]:
        """The values, of an answer that is neither open nor that nothing satisfies the question."""
        assert self.values is not None, self.reason
        return self.values


NEVER = Answer()


@cache
def z3() -> Any:
    """The module, or None where it is not installed."""
    try:
        import z3 as found
    except ImportError:
        return None
    return found


class Solver:
    """Answers questions, with a time limit for each and one for all of them."""

    def __init__(self, seconds_each: float = 1.0, seconds: float = 4.0) -> None:
        self.seconds_each = seconds_each
        self.end = time.monotonic() + seconds

    def find(self, conditions: Sequence[Term], sizes: Sequence[Variable] = ()) -> Answer:
        """Values for which all conditions hold, and those on the variables too.

        `sizes`: variables that are tried at a few values where the question is open otherwise.
        """
        if any(each.number == 0 for each in conditions):
            return NEVER
        if z3() is None:
            return Answer(reason=MISSING)
        found = self._ask(conditions, self.seconds_each)
        if found.reason and sizes:
            found = self._at_sizes(conditions, sizes) or found
        return found if found.values is None else self._ordinary(conditions, found)

    def _ordinary(self, conditions: Sequence[Term], answer: Answer) -> Answer:
        """Values with small sizes and scalars, where there are some; else the ones that were found, and what is
        extreme about them."""
        sizes = [each for each in answer.known if each.role == "size"]
        limit, smaller = 0, answer
        for limit in _ORDINARY:
            if all(abs(answer.known[each]) <= limit for each in sizes):
                return answer
            near = [terms.compare("le", each, terms.constant(limit)) for each in sizes]
            near += [terms.compare("ge", each, terms.constant(-limit)) for each in sizes]
            smaller = self._ask([*conditions, *near], self.seconds_each)
            if smaller.values is not None:
                return smaller
        if smaller.reason:
            return answer
        return replace(answer, extreme=f"only where sizes or scalars pass {limit}: ")

    def _at_sizes(self, conditions: Sequence[Term], sizes: Sequence[Variable]) -> Answer | None:
        for number in _SIZES:
            chosen = {each: terms.constant(max(each.lo, number)) for each in sizes}
            others, twins = terms.another(conditions, lambda each: each.role == "size" and each not in sizes)
            fixed = {twins.get(each, each): to for each, to in chosen.items()}
            fresh = [each for each in twins.values() if each not in fixed]
            for each in fresh:
                each.where = tuple(terms.substitute(each.where, fixed))
            found = self._ask(terms.substitute(others, fixed), self.seconds_each / 4)
            if found.values is not None:
                values = {old: found.values[new] for old, new in twins.items() if new in found.values}
                return Answer({**values, **{each: int(to.number or 0) for each, to in chosen.items()}})
        return None

    def _ask(self, conditions: Sequence[Term], seconds: float) -> Answer:
        left = self.end - time.monotonic()
        if left <= 0:
            return Answer(reason="the time for this kernel is up")
        library = z3()
        solver = library.Solver()
        solver.set("timeout", max(1, int(min(left, seconds) * 1000)))
        writer = _Writer(library)
        variables = terms.variables(conditions)
        for variable in variables:
            solver.add(*map(writer.condition, variable.where))
        solver.add(*map(writer.condition, conditions))
        solver.add(*writer.definitions)
        outcome = str(solver.check())
        if outcome == "unsat":
            return NEVER
        if outcome == "unknown":
            return Answer(reason=f"the solver found no answer within {seconds:g} s")
        model = solver.model()
        values = {}
        for variable in variables:
            value = model.eval(writer.integer(variable), model_completion=True)
            values[variable] = value.as_long()
        return Answer(values)


class _Writer:
    """Terms as z3's expressions, and what must hold of the names that were introduced on the way."""

    def __init__(self, library: Any) -> None:
        self.z3 = library
        self.definitions: list[Any] = []
        self._integers: dict[Term, Any] = {}
        self._conditions: dict[Term, Any] = {}
        self._bits: dict[Term, list[Any]] = {}
        self._count = 0

    def integer(self, term: Term) -> Any:
        """An integer expression; a truth value becomes 0 or 1."""
        found = self._integers.get(term)
        if found is None:
            found = self._integers[term] = self._integer(term)
        return found

    def _integer(self, term: Term) -> Any:
        if term.number is not None:
            return self.z3.IntVal(term.number)
        if isinstance(term, Variable):
            return self.fresh(term.lo, term.hi)
        if term.kind in _CONDITIONS:
            return self.z3.If(self.condition(term), self.z3.IntVal(1), self.z3.IntVal(0))
        if term.kind == "select":
            condition, a, b = term.terms
            return self.z3.If(self.condition(condition), self.integer(a), self.integer(b))
        if term.kind == "wrap":
            (value,) = term.terms
            kept = self.integer(value) - self.fresh() * (term.hi - term.lo + 1)
            self.definitions += [kept >= term.lo, kept <= term.hi]
            return kept
        a, b = map(self.integer, term.terms)
        if term.kind in ("div", "mod"):
            return self._division(term, a, b)
        if term.kind.startswith("bit"):
            return self._bitwise(term)
        if term.kind == "min":
            return self.z3.If(a <= b, a, b)
        if term.kind == "max":
            return self.z3.If(a >= b, a, b)
        return a + b if term.kind == "add" else a - b if term.kind == "sub" else a * b

    def _division(self, term: Term, a: Any, b: Any) -> Any:
        divisor = term.terms[1]
        if divisor.number is not None and divisor.number > 0:
            return a / b if term.kind == "div" else a % b  # for a positive divisor, z3 rounds down
        key = Term("division", term.terms, 0, 0)
        if key not in self._bits:
            quotient, remainder = self.fresh(), self.fresh()
            self._bits[key] = [quotient, remainder]
            self.definitions += [
                self.z3.Implies(b > 0, self.z3.And(a == quotient * b + remainder, remainder >= 0, remainder < b)),
                self.z3.Implies(b < 0, self.z3.And(a == quotient * b + remainder, remainder <= 0, remainder > b)),
            ]
            # Follows from the above, but spares the solver products of unknowns.
            numerator = term.terms[0]
            if divisor.lo > 0 and numerator.lo >= 0:
                self.definitions += [quotient >= 0, quotient <= a, remainder <= a]
        quotient, remainder = self._bits[key]
        return quotient if term.kind == "div" else remainder

    def _bitwise(self, term: Term) -> Any:
        a, b = term.terms
        reach = max(abs(each) for each in (a.lo, a.hi, b.lo, b.hi))
        count = reach.bit_length() + (1 if min(a.lo, b.lo) < 0 else 0)
        both = {"bitand": self.z3.And, "bitor": self.z3.Or, "bitxor": self.z3.Xor}[term.kind]
        total = self.z3.IntVal(0)
        signed = min(a.lo, b.lo) < 0
        for place, (x, y) in enumerate(zip(self._as_bits(a, count, signed), self._as_bits(b, count, signed))):
            worth = -(1 << place) if signed and place == count - 1 else 1 << place
            total = total + self.z3.If(both(x, y), worth, 0)
        return total

    def _as_bits(self, term: Term, count: int, signed: bool) -> list[Any]:
        key = Term("bits", (term, count, int(signed)), 0, 0)
        if key not in self._bits:
            self._count += 1
            bits = [self.z3.Bool(f"b{self._count}_{place}") for place in range(count)]
            worth = [1 << place for place in range(count)]
            if signed:
                worth[-1] = -worth[-1]
            self.definitions.append(
                self.integer(term) == self.z3.Sum([self.z3.If(bit, each, 0) for bit, each in zip(bits, worth)])
            )
            self._bits[key] = bits
        return self._bits[key]

    def condition(self, term: Term) -> Any:
        """A truth value."""
        found = self._conditions.get(term)
        if found is None:
            found = self._conditions[term] = self._condition(term)
        return found

    def _condition(self, term: Term) -> Any:
        if term.number is not None:
            return self.z3.BoolVal(bool(term.number))
        if term.kind == "and":
            return self.z3.And(*map(self.condition, term.terms))
        if term.kind == "not":
            return self.z3.Not(self.condition(term.terms[0]))
        if term.kind == "select":
            condition, a, b = map(self.condition, term.terms)
            return self.z3.If(condition, a, b)
        if term.kind in ("lt", "le", "eq"):
            a, b = map(self.integer, term.terms)
            return a < b if term.kind == "lt" else a <= b if term.kind == "le" else a == b
        return self.integer(term) != 0

    def fresh(self, lo: int | None = None, hi: int | None = None) -> Any:
        """A new unknown in an interval."""
        self._count += 1
        made = self.z3.Int(f"v{self._count}")
        if lo is not None and hi is not None:
            self.definitions += [made >= lo, made <= hi]
        return made


_CONDITIONS = frozenset(["and", "not", "lt", "le", "eq"])


def shown(values: dict[Variable, int], wanted: Iterable[Variable]) -> str:
    """`bx = 3, k = 2, M = 33`, of those variables that have a value, for people."""
    return ", ".join(f"{each.name} = {values[each]}" for each in dict.fromkeys(wanted) if each in values)
