"""Floats as exact symbols: each element has a concrete value, and a fingerprint modulo 2**61 - 1 of how it came about.

The value, a float64, decides comparisons, maxima, selections and conversions to integers. The fingerprint says what is
computed: constants are exact fractions, widening is the identity, and what is no polynomial (functions, division,
conversions that round) is a pseudo-random function of its name and its exact arguments. Two programs whose outputs have
equal fingerprints on random inputs compute the same, but with a probability near 2**-61 for each element.

Without an allowance, additions, products, dots, sums and scans are such symbols too, of their operands in order: then
equal fingerprints mean the same rounded operations in the same order, bit for bit. Only what IEEE arithmetic promises
holds: operands of sums and products commute, signs pass through, x + 0, x * 1, x * 0, x * 2**n are exact, zeros add
nothing to a sum. ALLOWANCES name what may make a difference to bits; with them arithmetic is that of the field.

Integers and booleans are NumPy's, as in Algebra. An operation in a type narrower than float32 is the float32 operation,
rounded, which is how hardware and Triton compute it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tiledsl.certificate import modular
from tiledsl.certificate.algebra import (
    COMPARE,
    Algebra,
    ExecutorError,
    Function,
    Unsupported,
    saturated,
    scalar,
)
from tiledsl.certificate.formats import decoded, encoded, rounded
from tiledsl.certificate.remembered import Remembered
from tiledsl.ir.types import ELEMENTS, is_float
from tiledsl.math_functions import MATH_FUNCTIONS

# An element is a complex number, which NumPy moves much faster than a structure: its real part is the value, and the
# bits of the imaginary one, which are never those of a NaN, are the fingerprint.
EXACT = np.dtype(np.complex128)

ALLOWANCES = {
    "reassociation": "sums in another order, or in parts",
    "contraction": "a product and a sum rounded once",
    "reciprocal": "a division as the product with a reciprocal",
    "rescaling": "powers relative to another maximum, rounded there",
    "recurrence": "factors of a linear recurrence multiplied with each other first, which may overflow",
    "masking": "what -inf is added to is -inf, infinities and NaN too",
}
# What values as float64 hold hardly differs by these, narrower roundings included, which are of what is equal.
KEEP_VALUES = frozenset({"contraction", "reassociation", "reciprocal"})
# Fingerprints do not know that 2**(a + b) = 2**a * 2**b: with "rescaling", values are compared, and not rounded.
CLOSE = 1e-9
_AS_A_FIELD = frozenset({"reassociation", "contraction", "rescaling", "recurrence"})

_P = np.uint64(modular.P)
_KNOWN = np.uint64(1 << 63)  # beside a fingerprint: the element is a number that the program names
_ZERO, _ONE = np.uint64(0), np.uint64(1)
with np.errstate(over="ignore"):
    _NAN, _INFINITY = modular.symbol("nan", _ZERO), modular.symbol("infinity", _ZERO)
_TF32_BITS = 11  # of the significand


def made(value: Any, fingerprint: Any) -> Any:
    """Elements; all that are not finite have one fingerprint each: NaN, infinity and its negative."""
    value = np.asarray(value, np.float64)
    finite = np.isfinite(value)
    if not finite.all():
        signed = np.where(value > 0, _INFINITY, _P - _INFINITY)
        fingerprint = np.where(finite, fingerprint, np.where(np.isnan(value), _NAN, signed))
    both = np.empty(value.shape, EXACT)
    both.real, both.imag = value, np.asarray(fingerprint, np.uint64).view(np.float64)
    return scalar(both)


def _prints(x: Any) -> Any:
    """The fingerprints of elements, with the bit that says which are known."""
    return x.imag.view(np.uint64)


def fingerprints(x: Any) -> Any:
    """The fingerprints of elements."""
    return _prints(x) & _P


def anonymous(x: Any) -> Any:
    """The same elements as numbers that no program names."""
    return made(x.real, fingerprints(x))


def _is_known(x: Any) -> Any:
    return (_prints(x) & _KNOWN) != _ZERO


def _fractions(value: Any) -> Any:
    """The fingerprints of known numbers: the fractions that they are."""
    return modular.of_numbers(np.where(np.isfinite(value), value, 0.0)) | _KNOWN


def numbers(value: Any) -> Any:
    """Known numbers. What is computed of such is known too, as the compiler may compute it."""
    value = np.asarray(value, np.float64)
    return made(value, _fractions(value))


def unknowns(values: Any, seed: str) -> Any:
    """Elements of these values of which nothing is known: fingerprints depend on the seed and the element's indices."""
    places: list[Any] = [np.asarray(axis, np.uint64) for axis in np.ogrid[tuple(map(slice, np.shape(values)))]]
    return made(values, np.broadcast_to(modular.symbol(seed, *(places or [_ZERO])), np.shape(values)))


def _odd(name: str, x: Any) -> Any:
    """A symbol through which a sign passes."""
    size = _size(x)
    return modular.symbol(name, size) ^ _sign(x, size)


def _size(x: Any) -> Any:
    """The same for a residue and its negative."""
    return np.minimum(x, x ^ _P)


def _sign(x: Any, size: Any) -> Any:
    """What turns the one into the other by an exclusive or: p where they are each other's negatives, else 0."""
    return x ^ size


def _mended(found: Any, *cases: tuple[Any, Callable[[], Any]]) -> Any:
    """What was found, but another thing in some places, which are few or none. Of two cases the later one counts."""
    for places, instead in cases:
        if np.any(places):
            found = np.where(places, instead(), found)
    return found


def _opposite(fingerprint: Any) -> Any:
    return modular.negative(fingerprint & _P) | (fingerprint & _KNOWN)


def _collapsed(x: Any) -> Any:
    """A value without what is known to be the same along an axis: with 1 element there, or as the one that it is."""
    if not isinstance(x, np.ndarray) or not x.size:
        return x
    longer = [size > 1 for size in x.shape]
    if not any(step for step, is_longer in zip(x.strides, longer) if is_longer):
        return x[(0,) * x.ndim]
    if all(x.strides):
        return x
    return x[tuple(slice(None) if step else slice(1) for step in x.strides)]


def _collapsing(function: Function) -> Function:
    """A function of elements, which computes once what is the same along an axis."""

    def apply(*operands: Any) -> Any:
        found = function(*map(_collapsed, operands))
        shapes = [np.shape(each) for each in operands]
        shape = shapes[0] if all(each in (shapes[0], ()) for each in shapes) else np.broadcast_shapes(*shapes)
        return found if np.shape(found) == shape else np.broadcast_to(found, shape)

    return apply


class ExactAlgebra(Algebra):
    """`allowed`: names of ALLOWANCES. `rounds32`: whether values of float32 are rounded, as programs with float64 need,
    which convert back and forth. `remembered` may be shared by several."""

    def __init__(
        self,
        allowed: Iterable[str] = (),
        *,
        rounds32: bool = False,
        remembered: Remembered | None = None,
    ) -> None:
        self.allowed = frozenset(allowed)
        assert self.allowed <= ALLOWANCES.keys(), self.allowed
        self.is_field = bool(self.allowed & _AS_A_FIELD)
        self.by_value = "rescaling" in self.allowed  # of fingerprints it only counts which numbers are known
        self.rounds32 = rounds32
        self.remembered = remembered or Remembered()
        self.spelled = {dtype: Spelled() for dtype in ELEMENTS if is_float(dtype)}

    def _remembering(self, function: Function, *key: Any) -> Function:
        divides = "reciprocal" in self.allowed and "div" in key  # to nothing else this makes a difference
        masks = "masking" in self.allowed
        key = self.is_field, self.by_value, divides, masks, self.rounds32, *key

        def apply(*operands: Any) -> Any:
            if any(map(np.ndim, operands)):
                return self.remembered.compute(key, function, operands)
            return function(*operands)

        return apply

    def dtype(self, dtype: str) -> np.dtype[Any]:
        return EXACT if is_float(dtype) else super().dtype(dtype)

    def constant(self, number: Any, dtype: str) -> Any:
        if not is_float(dtype):
            return super().constant(number, dtype)
        if isinstance(number, (np.complexfloating, np.ndarray)):
            return number
        return numbers(rounded(np.float64(number), dtype))

    def view(self, array: np.ndarray, source: str, target: str) -> np.ndarray:
        if source != target and (is_float(source) or is_float(target)):
            raise Unsupported(f"memory of {source} is seen as {target}")
        return super().view(array, source, target)

    # Elementwise

    def _rounded(self, value: Any, fingerprint: Any, dtype: str) -> Any:
        """What float32 arithmetic gave, as an element type holds it. Known numbers are what they are rounded to."""
        if ELEMENTS[dtype].bits < 32:
            return self._narrowed(value, fingerprint, dtype)
        known = (fingerprint & _KNOWN) != _ZERO
        if np.any(known):
            value = np.where(known, rounded(value, dtype), value)
            fingerprint = np.where(known, _fractions(value), fingerprint)
        return made(rounded(value, dtype) if self.rounds32 else value, fingerprint)

    def _narrowed(self, value: Any, fingerprint: Any, dtype: str) -> Any:
        if self.by_value:
            return made(value, fingerprint)
        nearest = rounded(value, dtype)
        known = (fingerprint & _KNOWN) != _ZERO
        if np.any(known):
            nearest = np.where(known, rounded(rounded(value, "float32"), dtype), nearest)
            fingerprint = np.where(known, _fractions(nearest), fingerprint)
        # What the type can hold stays as it is. Fingerprints of computed values are not asked: all their bits count.
        fingerprint = np.where((nearest == value) | known, fingerprint, _odd(dtype, fingerprint & _P))
        return made(nearest, fingerprint)

    def _elementwise(self, name: str, compute: Function, concrete: Function, dtype: str) -> Function:
        """A function of elements: `compute` gives fingerprints from values and fingerprints, `concrete` values."""

        def elements(*operands: Any) -> Any:
            values, prints = [each.real for each in operands], [_prints(each) for each in operands]
            value = np.asarray(concrete(*values), np.float64)
            fingerprint = _ZERO if self.by_value else compute(*[each & _P for each in prints], *values)
            if name in ("mul", "div") and not self.is_field:
                fingerprint = _scaled(name, prints, fingerprint)
            finite, known = np.isfinite(values[0]), prints[0]
            for each, fraction in zip(values[1:], prints[1:], strict=True):
                finite, known = finite & np.isfinite(each), known & fraction
            known = known & _KNOWN
            if not np.all(finite):  # exp(-inf) is 0, and so on
                known = np.where(np.isfinite(value) & ~finite, _KNOWN, known)
            return self._rounded(value, fingerprint | known, dtype)

        return _collapsing(self._remembering(elements, name, dtype))

    def _added(self, a: Any, b: Any) -> Any:
        """The values of sums of two."""
        if "masking" in self.allowed:
            return np.where((a == -np.inf) | (b == -np.inf), -np.inf, np.add(a, b))
        return np.add(a, b)

    def _add(self, a: Any, b: Any, *_: Any) -> Any:
        if self.is_field:
            return modular.add(a, b)
        # Of (a, b) and (-a, -b), the pair with the smaller element is taken, and its sign put back.
        total = a + b
        sign = (total > _P) * _P
        one, other = a ^ sign, b ^ sign
        found = modular.symbol("add", np.minimum(one, other), np.maximum(one, other)) ^ sign
        return _mended(
            found,
            (a == b, lambda: modular.shifted(a, 1)),
            (total == _P, lambda: _ZERO),
            (a == _ZERO, lambda: b),
            (b == _ZERO, lambda: a),
        )

    def _multiply(self, a: Any, b: Any, *_: Any) -> Any:
        if self.is_field:
            return modular.multiply(a, b)
        for one, other in ((a, b), (b, a)):
            if not np.ndim(one):
                places = _power_of_two(one)
                if places is not None:
                    found = modular.shifted(other, places[0])
                    return modular.negative(found) if places[1] else found
        size_a, size_b = _size(a), _size(b)
        sign = _sign(a, size_a) ^ _sign(b, size_b)
        found = modular.symbol("mul", np.minimum(size_a, size_b), np.maximum(size_a, size_b)) ^ sign
        return _mended(
            found,
            (size_b == _ONE, lambda: size_a ^ sign),
            (size_a == _ONE, lambda: size_b ^ sign),
            ((a == _ZERO) | (b == _ZERO), lambda: _ZERO),
        )

    def _divide(self, a: Any, b: Any, *_: Any) -> Any:
        if "reciprocal" in self.allowed:
            return self._multiply(a, modular.inverse(b) if self.is_field else _odd("reciprocal", b))
        if not np.ndim(b) and (places := _power_of_two(b)) is not None:
            found = modular.shifted(a, -places[0])
            return modular.negative(found) if places[1] else found
        size_a, size_b = _size(a), _size(b)
        sign = _sign(a, size_a) ^ _sign(b, size_b)
        found = modular.symbol("div", size_a, size_b) ^ sign
        return _mended(found, (size_b == _ONE, lambda: size_a ^ sign), (a == _ZERO, lambda: _ZERO))

    def _fma(self, a: Any, b: Any, c: Any, *_: Any) -> Any:
        product = self._multiply(a, b)
        if self.is_field:
            return modular.add(product, c)
        found = modular.symbol("fma", product, c)
        return _mended(found, (product == _ZERO, lambda: c), (c == _ZERO, lambda: product))

    def binary(self, name: str, dtype: str) -> Function:
        if not is_float(dtype):
            return super().binary(name, dtype)
        if name in ("max", "min"):
            return _extremum(name)
        compute = {
            "add": self._add,
            "sub": lambda a, b, *_: self._add(a, modular.negative(b)),
            "mul": self._multiply,
            "div": self._divide,
        }[name]
        values: dict[str, Function] = {
            "add": self._added, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
        }  # fmt: skip
        return self._elementwise(name, compute, values[name], dtype)

    def compare(self, predicate: str, dtype: str) -> Function:
        compare = COMPARE[predicate]
        return (lambda a, b: compare(a.real, b.real)) if is_float(dtype) else compare

    def negate(self, dtype: str) -> Function:
        if not is_float(dtype):
            return super().negate(dtype)
        return lambda x: made(-x.real, _opposite(_prints(x)))

    def cast(self, source: str, target: str) -> Function:
        if source == target or not (is_float(source) or is_float(target)):
            return super().cast(source, target)
        if target == "bool":
            return lambda x: x.real != 0
        if not is_float(target):
            to = self.dtype(target)
            return lambda x: saturated(x.real, target, to)
        if not is_float(source):
            return lambda x: numbers(rounded(np.asarray(x).astype(np.float64), target))
        if target == "float64" or (target == "float32" and source != "float64"):
            return lambda x: x
        if source == "float64" and target != "float32":  # legalize-arith takes the bits apart, which are known numbers
            return lambda x: numbers(rounded(x.real, target))
        narrowed = self._remembering(lambda x: self._narrowed(x.real, _prints(x), target), "cast", source, target)
        return _collapsing(narrowed)

    def bitcast(self, source: str, target: str) -> Function:
        if not (is_float(source) or is_float(target)) or source == target:
            return super().bitcast(source, target)
        bits = f"uint{ELEMENTS[source].bits}"
        whole: Function = super().bitcast(source, bits) if not is_float(source) else lambda x: x
        to_bits: Function = (lambda x: self._bits(x, source)) if is_float(source) else whole
        if is_float(target):
            return lambda x: self._of_bits(to_bits(x), target)
        from_bits: Function = super().bitcast(bits, target)
        return lambda x: from_bits(to_bits(x))

    def _bits(self, x: Any, dtype: str) -> Any:
        bits = encoded(x.real, dtype)
        if not _is_known(x).all():
            self.spelled[dtype].add(bits, x)
        return bits

    def _of_bits(self, bits: Any, dtype: str) -> Any:
        """What the bits were taken of, in this run of the program, else numbers."""
        return scalar(self.spelled[dtype].found(bits, np.asarray(numbers(decoded(bits, dtype)))))

    def math(self, name: str, dtype: str, target: str) -> Function:
        if not is_float(dtype):
            return super().math(name, dtype, target)
        record = MATH_FUNCTIONS[name]
        concrete = record.on_arrays
        if record.takes == "test":
            return lambda x: concrete(x.real)
        if name == "clamp":
            return lambda x, low, high: _extremum("min")(_extremum("max")(x, low), high)
        if name == "abs":
            return lambda x: made(np.abs(x.real), np.where(np.signbit(x.real), _opposite(_prints(x)), _prints(x)))
        if name == "sigmoid":
            return self._sigmoid(dtype)
        if record.takes in ("bits", "wide ints"):
            raise ExecutorError(f"{name} of {dtype}")
        if name == "fma":
            return self._elementwise(name, self._fma, concrete, dtype)
        if name == "ldexp":
            return lambda x, n: made(
                np.ldexp(x.real, np.asarray(n).astype(np.int32)),
                modular.shifted(fingerprints(x), np.asarray(n).astype(np.int64)),
            )

        def compute(*arguments: Any) -> Any:
            prints, values = arguments[: len(arguments) // 2], arguments[len(arguments) // 2 :]
            found = modular.symbol(name, *prints)
            if record.takes == "rounding":
                return np.where(values[0] == np.rint(values[0]), prints[0], found)
            return found

        return self._elementwise(name, compute, concrete, dtype)

    def _sigmoid(self, dtype: str) -> Function:
        wide = "float64" if dtype == "float64" else "float32"
        exponential, negate = self.math("exp", wide, wide), self.negate(wide)
        add, divide, one = self.binary("add", wide), self.binary("div", wide), self.constant(1, wide)

        def compute(x: Any) -> Any:
            made = divide(one, add(exponential(negate(x)), one))
            return self._rounded(made.real, _prints(made), dtype)

        return compute

    # Combinations of elements

    def combine(self, kind: str, dtype: str, propagate_nan: bool = False) -> Function:
        if not is_float(dtype):
            return super().combine(kind, dtype, propagate_nan)
        if kind in ("max", "min", "absmax"):
            return _extremum("min" if kind == "min" else "max", propagate_nan)
        if kind not in ("sum", "abssum", "prod"):
            raise ExecutorError(f"a reduction {kind} of {dtype}")
        return self.binary("mul" if kind == "prod" else "add", dtype)

    def atomic(self, kind: str, dtype: str) -> Function:
        if not is_float(dtype):
            return super().atomic(kind, dtype)
        if kind == "add":  # in any order
            return lambda old, new: made(old.real + new.real, modular.add(fingerprints(old), fingerprints(new)))
        if kind not in ("max", "min"):
            raise ExecutorError(f"an atomic {kind} of {dtype}")
        return _extremum(kind)

    def reduce(self, kind: str, axis: int, dtype: str, propagate_nan: bool = False) -> Function:
        if not is_float(dtype):
            return super().reduce(kind, axis, dtype, propagate_nan)
        absolute = self.math("abs", dtype, dtype) if kind.startswith("abs") else None

        def compute(x: Any) -> Any:
            if x.shape[axis] == 0:
                raise ExecutorError("a reduction of nothing")
            x = x if absolute is None else absolute(x)
            values, prints, are_known = x.real, fingerprints(x), _is_known(x).all(axis)
            if kind in ("max", "absmax", "min"):
                lowest = kind == "min"
                combine = (np.minimum if lowest else np.maximum) if propagate_nan else (np.fmin if lowest else np.fmax)
                value = combine.reduce(values, axis=axis)
                chosen = values == np.expand_dims(value, axis)
                return made(value, np.where(chosen, _prints(x), _ZERO).max(axis))
            if kind == "prod":
                steps = np.moveaxis(x, axis, 0)
                total = steps[0]
                for step in steps[1:]:
                    total = self.binary("mul", "float64" if dtype == "float64" else "float32")(total, step)
                return self._rounded(total.real, _prints(total), dtype)
            if kind not in ("sum", "abssum"):
                raise ExecutorError(f"a reduction {kind} of {dtype}")
            prints = self._sum(prints, axis, modular.sums, np.sum)
            total = np.add.reduce(values, axis, initial=-0.0)  # with 0.0, a sum of -0.0 would lose its sign
            return self._rounded(total, np.where(are_known, prints | _KNOWN, prints), dtype)

        return self._remembering(compute, "reduce", kind, axis, dtype, propagate_nan)

    def _sum(self, prints: Any, axis: int, total: Function, count: Function) -> Any:
        """Fingerprints of sums: of all elements along an axis, or of all prefixes, as `total` and `count` add up. Terms
        are told apart by how many there are before them: zeros, with which tiles are padded, are none."""
        plain = total(prints, axis)
        if self.is_field:  # as values alone are
            return plain
        present = prints != _ZERO
        places = np.cumsum(present, axis, dtype=np.uint64)
        terms = np.where(present, modular.symbol("term", places, prints), _ZERO)
        found = modular.symbol("sum", total(terms, axis))
        return np.where(count(present, axis=axis, dtype=np.int64) < 2, plain, found)

    def scan(self, kind: str, axis: int, reverse: bool, dtype: str) -> Function:
        if not is_float(dtype):
            return super().scan(kind, axis, reverse, dtype)
        wide = "float64" if dtype == "float64" else "float32"

        def compute(x: Any) -> Any:
            x = np.flip(x, axis) if reverse else x
            if kind == "sum":
                prints = self._sum(fingerprints(x), axis, modular.prefix_sums, np.cumsum)
                known = np.logical_and.accumulate(_is_known(x), axis)
                prints = np.where(known, prints | _KNOWN, prints)
                result = np.asarray(self._rounded(np.cumsum(x.real, axis), prints, dtype))
            else:
                combine, steps = self.combine(kind, wide), [np.moveaxis(x, axis, 0)[0]]
                for each in np.moveaxis(x, axis, 0)[1:]:
                    steps.append(combine(steps[-1], each))
                whole = np.moveaxis(np.stack([np.asarray(each) for each in steps]), 0, axis)
                result = np.asarray(self._rounded(whole.real, _prints(whole), dtype))
            return np.flip(result, axis) if reverse else result

        return self._remembering(compute, "scan", kind, axis, reverse, dtype)

    def dot(self, a: str, b: str, dtype: str, precision: str = "default") -> Function:
        if not is_float(a) and not is_float(b):
            if not is_float(dtype):
                return super().dot(a, b, dtype, precision)
            whole = super().dot(a, b, "int32", precision)
            convert, add = self.cast("int32", dtype), self.binary("add", dtype)
            return lambda x, y, c: convert(whole(x, y, None)) if c is None else add(c, convert(whole(x, y, None)))
        if not (is_float(a) and is_float(b) and is_float(dtype)):
            raise ExecutorError(f"a product of {a} and {b} in {dtype}")
        name = f"dot {precision if {a, b} == {'float32'} and precision != 'default' else 'ieee'}"
        factors = [self._factor_rounding(each, precision) for each in (a, b)]
        through64 = "float64" in (a, b) and dtype == "float32"

        def compute(x: Any, y: Any, c: Any) -> Any:
            values = np.ascontiguousarray(x.real) @ np.ascontiguousarray(y.real)
            if self.by_value:
                prints = np.zeros(values.shape, np.uint64)
            elif self.is_field:
                prints = modular.dot(fingerprints(x), fingerprints(y))
                prints = prints if c is None else modular.add(prints, fingerprints(c))
            else:
                prints = _dot(name, factors[0](x), factors[1](y), _ZERO | _KNOWN if c is None else _prints(c))
            values = values if c is None else self._added(values, c.real)
            known = _is_known(x).all(1)[:, None] & _is_known(y).all(0) & (True if c is None else _is_known(c))
            prints = _mended(prints, (known, lambda: prints | _KNOWN))
            if through64:
                return self._narrowed(values, prints, "float32")
            return self._rounded(values, prints, dtype)

        return self._remembering(compute, name, a, b, dtype)

    def _factor_rounding(self, dtype: str, precision: str) -> Function:
        """The fingerprints of a product's operand as hardware takes it: by default, float32 is rounded to tf32."""
        if dtype != "float32" or precision != "default":
            return fingerprints

        def compute(x: Any) -> Any:
            value, prints = x.real, fingerprints(x)
            step = np.ldexp(1.0, np.frexp(value)[1] - _TF32_BITS)
            return np.where(np.rint(value / step) * step == value, prints, _odd("tf32", prints))

        return compute


def _dot(name: str, x: Any, y: Any, start: Any) -> Any:
    """Fingerprints of what a product adds to others: of the factors from both sides, each with its place along the
    inner dimension, where neither is 0."""
    places = np.arange(len(y), dtype=np.uint64)
    rows = modular.chosen_sums(_present(modular.symbol("factor", places, x), x), y != _ZERO)
    columns = modular.chosen_sums(_present(modular.symbol("factor", places, y.T), y.T), x.T != _ZERO).T
    found = modular.symbol(name, np.minimum(rows, columns), np.maximum(rows, columns), start & _P)
    return _mended(found, ((rows == _ZERO) | (columns == _ZERO), lambda: start))


class Spelled:
    """Elements of which bits were taken, to be had back for the same bits: a sort moves floats by xor."""

    def __init__(self) -> None:
        self.bits: Any = np.empty(0, np.uint64)  # ascending
        self.elements: Any = np.empty(0, EXACT)
        self.are_several: Any = np.empty(0, bool)  # expressions of these bits

    def add(self, bits: Any, elements: Any) -> None:
        bits = np.concatenate([self.bits, np.ravel(bits).astype(np.uint64)])
        elements = np.concatenate([self.elements, np.ravel(elements)])
        self.bits, first, place = np.unique(bits, return_index=True, return_inverse=True)
        unlike = fingerprints(elements) != fingerprints(elements[first])[place]
        unlike[: len(self.are_several)] |= self.are_several
        self.elements, self.are_several = elements[first], np.bincount(place, unlike) > 0

    def found(self, bits: Any, numbers: Any) -> Any:
        if not len(self.bits):
            return numbers
        wanted = np.asarray(bits).astype(np.uint64)
        place = np.minimum(np.searchsorted(self.bits, wanted), len(self.bits) - 1)
        is_there = self.bits[place] == wanted
        if np.any(is_there & self.are_several[place]):
            raise Unsupported("bits of which several expressions are, of the same value")
        return np.where(is_there, self.elements[place], numbers)


def _present(found: Any, prints: Any) -> Any:
    return _mended(found, (prints == _ZERO, lambda: _ZERO))


def _extremum(name: str, propagate_nan: bool = False) -> Callable[[Any, Any], Any]:
    """max or min: one of the two, as their values decide; of equal ones the greater fingerprint."""

    def compute(a: Any, b: Any) -> Any:
        x, y = a.real, b.real
        first = (x > y) if name == "max" else (x < y)
        first = first | ((x == y) & (_prints(a) >= _prints(b)))
        if propagate_nan:
            first = (first & ~np.isnan(y)) | np.isnan(x)
        else:
            first = (first & ~np.isnan(x)) | np.isnan(y)
        return scalar(np.where(first, a, b))

    return compute


def _scaled(name: str, prints: list[Any], result: Any) -> Any:
    """Fingerprints of products and quotients, mended where an operand is known to be a power of two. Scalars, which are
    most of these, are seen to by the product itself."""
    for at in (0, 1) if name == "mul" else (1,):
        are_known = (prints[at] & _KNOWN) != _ZERO
        if not np.ndim(are_known) or not are_known.any():
            continue
        number = prints[at] & _P
        opposite = number ^ _P
        is_negative = (opposite & (opposite - _ONE)) == _ZERO
        size = np.where(is_negative, opposite, number)
        is_power = are_known & (number != _ZERO) & ((size & (size - _ONE)) == _ZERO)
        places = np.frexp(size.astype(np.float64))[1] - 1
        exact = modular.shifted(prints[1 - at] & _P, places if name == "mul" else -places)
        result = np.where(is_power, np.where(is_negative, modular.negative(exact), exact), result)
    return result


_POWERS = {int(modular.shifted(_ONE, places)): places for places in range(-30, 31)}


def _power_of_two(fingerprint: Any) -> tuple[int, bool] | None:
    """n and False where a fingerprint is that of 2**n, n and True for -2**n; None for others, and for large n."""
    number = int(fingerprint)
    if number in _POWERS:
        return _POWERS[number], False
    return (_POWERS[modular.P - number], True) if modular.P - number in _POWERS else None
