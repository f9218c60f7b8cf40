"""Integers as terms over variables: what an index is made of, exactly as the machine computes it.

A term carries the interval in which it lies. Constructors fold what the interval decides, so that a term wraps, divides
towards zero or takes a branch only where it may. Nothing here is shared with the passes' own analysis of ranges: what
that gets wrong must not be believed here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Literal

from tiledsl.analysis.dependence import reached
from tiledsl.ir.types import ELEMENTS
from tiledsl.location import UNKNOWN, Loc

# size: of a tensor, or a scalar parameter; block, loop, lane (an iteration of T.Parallel, or a position in a tile): of
# one execution; data: read from memory; unknown: computed in a way that is not followed.
Role = Literal["size", "block", "loop", "lane", "data", "unknown"]
_numbers = count()


class Term:
    """An integer, or a truth value as 0 or 1. Equal terms are equal objects in dicts."""

    __slots__ = ("args", "hash", "hi", "kind", "lo")

    def __init__(self, kind: str, args: tuple[Term | int, ...], lo: int, hi: int) -> None:
        self.kind, self.args, self.lo, self.hi = kind, args, lo, hi
        self.hash = hash((kind, args))

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Term) or self.hash != other.hash:
            return False
        return self.kind == other.kind and self.args == other.args

    @property
    def number(self) -> int | None:
        """The integer that the term always is, or None."""
        return self.lo if self.lo == self.hi else None

    @property
    def terms(self) -> tuple[Term, ...]:
        return tuple(each for each in self.args if isinstance(each, Term))

    def __repr__(self) -> str:
        return str(self.lo) if self.kind == "constant" else f"{self.kind}({', '.join(map(repr, self.args))})"


class Variable(Term):
    """An integer that may be anything in its interval for which its `where` conditions hold.

    `scope`: of what is read or computed, the variables on which it may depend; None: on any.
    """

    __slots__ = ("loc", "name", "role", "scope", "where")

    def __init__(self, name: str, role: Role, lo: int, hi: int, loc: Loc = UNKNOWN) -> None:
        super().__init__("variable", (next(_numbers),), lo, hi)
        self.name, self.role, self.loc = name, role, loc
        self.where: tuple[Term, ...] = ()
        self.scope: frozenset[Variable] | None = None

    def depends_on(self, chosen: Iterable[Variable]) -> bool:
        """Whether it may be another number where one of these variables is."""
        return self.role in ("data", "unknown") and (self.scope is None or not self.scope.isdisjoint(chosen))

    def __repr__(self) -> str:
        return self.name


def constant(number: int) -> Term:
    return Term("constant", (int(number),), int(number), int(number))


TRUE, FALSE = constant(1), constant(0)


def truth(value: bool) -> Term:
    return TRUE if value else FALSE


def add(a: Term, b: Term) -> Term:
    if a.number == 0 or b.number == 0:
        return b if a.number == 0 else a
    return _made("add", a, b, a.lo + b.lo, a.hi + b.hi)


def subtract(a: Term, b: Term) -> Term:
    if b.number == 0:
        return a
    if a == b:
        return FALSE
    return _made("sub", a, b, a.lo - b.hi, a.hi - b.lo)


def multiply(a: Term, b: Term) -> Term:
    if a.number == 1 or b.number == 1:
        return b if a.number == 1 else a
    corners = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return _made("mul", a, b, min(corners), max(corners))


def floor_divide(a: Term, b: Term) -> Term:
    """Rounds down. What it is for a divisor of 0 is left open."""
    if b.number == 1:
        return a
    if a.kind == "div" and b.number is not None and b.number > 0 and (a.terms[1].number or 0) > 0:
        return floor_divide(a.terms[0], multiply(a.terms[1], b))
    whole, rest = _multiples(a, b)
    if whole:
        return add(from_polynomial(whole), floor_divide(rest, b))
    if b.lo > 0 or b.hi < 0:
        corners = [x // y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
        return _made("div", a, b, min(corners), max(corners))
    largest = max(abs(a.lo), abs(a.hi)) + 1
    return Term("div", (a, b), -largest, largest)


def floor_modulo(a: Term, b: Term) -> Term:
    """Has the sign of the divisor. What it is for a divisor of 0 is left open."""
    if a.number is not None and b.number:
        return constant(a.number % b.number)
    whole, rest = _multiples(a, b)
    if whole:
        return floor_modulo(rest, b)
    if b.lo > 0:
        if a.lo >= 0 and a.hi < b.lo:
            return a
        if b.number is not None and a.lo // b.lo == a.hi // b.lo:
            return subtract(a, constant(a.lo // b.lo * b.lo))
        return _made("mod", a, b, 0, min(b.hi - 1, a.hi) if a.lo >= 0 else b.hi - 1)
    largest = max(abs(b.lo), abs(b.hi), abs(a.lo), abs(a.hi))
    return Term("mod", (a, b), -largest, largest)


def _multiples(a: Term, b: Term) -> tuple[dict[Monomial, int], Term]:
    """What of a sum is multiples of a number, as multiples, and the rest."""
    if a.kind not in ("add", "sub", "mul") or b.number is None or b.number <= 0:
        return {}, a
    parts = polynomial(a)
    whole = {factors: number // b.number for factors, number in parts.items() if factors and not number % b.number}
    return whole, from_polynomial({each: number for each, number in parts.items() if each not in whole})


def truncated_divide(a: Term, b: Term) -> Term:
    """Rounds towards zero."""
    if a.lo >= 0 and b.lo > 0 or b.number == 1:
        return floor_divide(a, b)
    if b.lo > 0:
        return select(compare("ge", a, FALSE), floor_divide(a, b), negate(floor_divide(negate(a), b)))
    down = select(compare("gt", b, FALSE), truncated_divide(a, maximum(b, TRUE)), FALSE)
    up = select(compare("lt", b, FALSE), negate(truncated_divide(a, maximum(negate(b), TRUE))), FALSE)
    largest = max(abs(a.lo), abs(a.hi))
    zero = select(compare("eq", b, FALSE), Variable("a quotient by 0", "unknown", -largest, largest), FALSE)
    return add(add(down, up), zero)


def truncated_modulo(a: Term, b: Term) -> Term:
    """Has the sign of the dividend."""
    if a.lo >= 0 and b.lo > 0:
        return floor_modulo(a, b)
    return subtract(a, multiply(b, truncated_divide(a, b)))


def negate(a: Term) -> Term:
    return subtract(FALSE, a)


def minimum(a: Term, b: Term) -> Term:
    if a.hi <= b.lo:
        return a
    if b.hi <= a.lo:
        return b
    return _made("min", a, b, min(a.lo, b.lo), min(a.hi, b.hi))


def maximum(a: Term, b: Term) -> Term:
    if a.lo >= b.hi:
        return a
    if b.lo >= a.hi:
        return b
    return _made("max", a, b, max(a.lo, b.lo), max(a.hi, b.hi))


def select(condition: Term, a: Term, b: Term) -> Term:
    if condition.number is not None:
        return a if condition.number else b
    return a if a == b else Term("select", (condition, a, b), min(a.lo, b.lo), max(a.hi, b.hi))


def wrap(a: Term, dtype: str) -> Term:
    """As a register of this integer type holds it."""
    info = ELEMENTS[dtype]
    return _wrapped(a, int(info.low), int(info.high))


def _wrapped(a: Term, lo: int, hi: int) -> Term:
    size = hi - lo + 1
    turn = (a.lo - lo) // size
    if turn == (a.hi - lo) // size:  # all of it wraps equally often
        return subtract(a, constant(turn * size))
    return Term("wrap", (a, lo, hi), lo, hi)


def compare(predicate: str, a: Term, b: Term) -> Term:
    """eq, ne, lt, le, gt, ge."""
    if predicate in ("gt", "ge"):
        return compare({"gt": "lt", "ge": "le"}[predicate], b, a)
    if predicate == "ne":
        return invert(compare("eq", a, b))
    if predicate == "lt":
        if a.hi < b.lo or a.lo >= b.hi:
            return truth(a.hi < b.lo)
    elif predicate == "le":
        if a.hi <= b.lo or a.lo > b.hi:
            return truth(a.hi <= b.lo)
    elif a == b or a.hi < b.lo or b.hi < a.lo:
        return truth(a == b)
    return Term(predicate, (a, b), 0, 1)


def both(*conditions: Term) -> Term:
    kept = tuple(dict.fromkeys(each for each in conditions if each.number != 1))
    if any(each.number == 0 for each in kept):
        return FALSE
    return TRUE if not kept else kept[0] if len(kept) == 1 else Term("and", kept, 0, 1)


def either(*conditions: Term) -> Term:
    return invert(both(*map(invert, conditions)))


def invert(condition: Term) -> Term:
    if condition.number is not None:
        return truth(not condition.number)
    return condition.terms[0] if condition.kind == "not" else Term("not", (condition,), 0, 1)


def bitwise(kind: str, a: Term, b: Term) -> Term:
    """and, or, xor of two's complement integers; of a constant where one is of the form 2**n - 1."""
    for number, other in ((a.number, b), (b.number, a)):
        if kind == "and" and number is not None and number >= 0 and number & (number + 1) == 0:
            return floor_modulo(other, constant(number + 1))
    if a.number is not None and b.number is not None:
        compute: Callable[[int, int], int] = {"and": int.__and__, "or": int.__or__, "xor": int.__xor__}[kind]
        return constant(compute(a.number, b.number))
    if a.lo >= 0 and b.lo >= 0:
        ones = (1 << max(a.hi, b.hi).bit_length()) - 1
        return Term(f"bit{kind}", (a, b), 0, min(a.hi, b.hi) if kind == "and" else ones)
    if kind == "and" and (a.lo >= 0 or b.lo >= 0):
        return Term("bitand", (a, b), 0, b.hi if b.lo >= 0 else a.hi)
    reach = 1 << max(abs(each) for each in (a.lo, a.hi, b.lo, b.hi)).bit_length()
    return Term(f"bit{kind}", (a, b), -reach, reach - 1)


def _made(kind: str, a: Term, b: Term, lo: int, hi: int) -> Term:
    return constant(lo) if lo == hi else Term(kind, (a, b), lo, hi)


def variables(terms: Iterable[Term]) -> list[Variable]:
    """Every variable in these terms, and in the conditions on these variables, in order of appearance."""

    def inside(term: Term) -> list[Term]:
        return [*(term.where if isinstance(term, Variable) else ()), *reversed(term.terms)]

    return [term for term in reached(list(terms)[::-1], inside) if isinstance(term, Variable)]


def substitute(terms: Iterable[Term], replaced: Mapping[Term, Term] | Mapping[Variable, Term]) -> list[Term]:
    """The terms with other terms for some variables, or for some of what they are made of."""
    known: dict[Term, Term] = {each: to for each, to in replaced.items()}  # noqa: C416
    return [_substituted(term, known) for term in terms]


def _substituted(term: Term, known: dict[Term, Term]) -> Term:
    found = known.get(term)
    if found is None:
        old = term.terms
        new = tuple(_substituted(each, known) for each in old)
        found = known[term] = term if all(a is b for a, b in zip(old, new)) else _remade(term, new)
    return found


def _remade(term: Term, new: tuple[Term, ...]) -> Term:
    if term.kind == "and":
        return both(*new)
    if term.kind in ("bitand", "bitor", "bitxor"):
        return bitwise(term.kind[3:], *new)
    if term.kind == "wrap":
        return _wrapped(new[0], term.lo, term.hi)
    if term.kind in ("lt", "le", "eq"):
        return compare(term.kind, *new)
    return _MAKERS[term.kind](*new)


_MAKERS: dict[str, Callable[..., Term]] = {
    "add": add,
    "sub": subtract,
    "mul": multiply,
    "div": floor_divide,
    "mod": floor_modulo,
    "min": minimum,
    "max": maximum,
    "select": select,
    "not": invert,
}


def another(terms: Iterable[Term], shared: Callable[[Variable], bool]) -> tuple[list[Term], dict[Variable, Variable]]:
    """The terms of a second execution: with variables of its own, but for those that are `shared`."""
    terms = list(terms)
    own = {each: Variable(each.name, each.role, each.lo, each.hi, each.loc) for each in variables(terms)}
    own = {old: old if shared(old) else new for old, new in own.items()}
    for old, new in own.items():
        if old is not new:
            new.where = tuple(substitute(old.where, own))
    return substitute(terms, own), own


Monomial = tuple[Term, ...]  # its factors, ordered


def polynomial(term: Term) -> dict[Monomial, int]:
    """A term as a sum of products, by their factors: variables, and whatever else is neither sum nor product."""
    if term.number is not None:
        return {(): term.number} if term.number else {}
    if term.kind in ("add", "sub"):
        left, right = (polynomial(each) for each in term.terms)
        sign = 1 if term.kind == "add" else -1
        return _collected([*left.items(), *((factors, sign * number) for factors, number in right.items())])
    if term.kind == "mul":
        left, right = (polynomial(each) for each in term.terms)
        return _collected((tuple(sorted((*a, *b), key=hash)), x * y) for a, x in left.items() for b, y in right.items())
    return {(term,): 1}


def _collected(parts: Iterable[tuple[Monomial, int]]) -> dict[Monomial, int]:
    total: dict[Monomial, int] = {}
    for factors, number in parts:
        total[factors] = total.get(factors, 0) + number
    return {factors: number for factors, number in total.items() if number}


def from_polynomial(parts: Mapping[Monomial, int]) -> Term:
    """The term of a sum of products."""
    total = FALSE
    for factors, number in parts.items():
        product = constant(number)
        for each in factors:
            product = multiply(product, each)
        total = add(total, product)
    return total


def conjuncts(condition: Term) -> Iterator[Term]:
    """The parts of a conjunction."""
    if condition.kind == "and":
        for each in condition.terms:
            yield from conjuncts(each)
    else:
        yield condition
