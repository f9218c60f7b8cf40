"""What is rewritten for an element type gives in the interpreter what exact arithmetic gives, rounded once."""

from __future__ import annotations

import itertools
import linecache
import os
from typing import Any

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.legality import exact
from tests.legality.entries import ALL, BINARY, COMPARISONS, FLOATS, FUNCTIONS, UNARY
from tests.passes.ir_cases import program
from tests.support.programs import check_pass, inputs_for
from tiledsl import legality, math_functions
from tiledsl.ir.types import ELEMENTS
from tiledsl.passes.legalize_arith import LegalizeArith
from tiledsl.runtime.target import Target

TEXTS = {
    **BINARY, **UNARY, **{f"cmp.{name}": f"{{}} {symbol} {{}}" for name, symbol in COMPARISONS.items()},
    **{name: f"T.{name}({', '.join(['{}'] * count)})" for name, count in FUNCTIONS.items()},
    "clamp": "T.clamp({}, {}, {})", "round": "T.round({}, 'ties-away-from-zero')",
}  # fmt: skip
WHOLE_WALK = bool(os.environ.get("TILEDSL_TEST_ALL_TYPES"))
TARGET, UNITS, BLOCKS = "interpret", 16, 1  # tests/gpu/test_element_types.py has others


def supports(*dtypes: str) -> bool:
    """Whether the target has these element types."""
    return {*dtypes} <= Target.parse(TARGET).dtypes


def run(body: list[str], parameters: dict[str, torch.Tensor], name: str, blocks: int = 1) -> None:
    """Run a program whose parameters are these tensors."""
    typed = [f"{key}: T.Tensor({tuple(x.shape)}, '{str(x.dtype)[6:]}')" for key, x in parameters.items()]
    lines = "\n".join(f"        {line}" for line in body)
    text = f"@T.prim_func\ndef main({', '.join(typed)}):\n    with T.Kernel({blocks}, threads=128) as bx:\n{lines}\n"
    tag = f"<{name}>"
    linecache.cache[tag] = (len(text), None, text.splitlines(True), tag)
    space: dict[str, Any] = {"T": T}
    exec(compile(text, tag, "exec"), space)
    kernel = tiledsl.compile(space["main"], target=TARGET)
    device = "cpu" if TARGET == "interpret" else "cuda"
    placed = [x.to(device) for x in parameters.values()]
    kernel(*placed)
    for tensor, written in zip(parameters.values(), placed):
        tensor.copy_(written)


def rewritten(dtype: str) -> list[tuple[str, legality.Verdict]]:
    """The operations on elements that are rewritten for a type."""
    found = [(name, legality.verdict(name, (dtype,), "interpret")) for name in legality.operations() if name in TEXTS]
    return [(name, verdict) for name, verdict in found if verdict.rewrite]


def operands(name: str, dtype: str) -> list[np.ndarray]:
    """All pairs of values of 8 bits; of wider ones, pairs by chance; without what the operation is not defined on."""
    count = TEXTS[name].count("{}")
    values = exact.some(dtype, 1000)
    if count == 1:
        return [values]
    other = exact.some(dtype, 1000, seed=1)
    if ELEMENTS[dtype].bits == 8 and count == 2:
        x, y = (each.ravel() for each in np.meshgrid(values, other, indexing="ij"))
    else:
        rng = np.random.default_rng(2)
        x, y = np.concatenate([values, values]), np.concatenate([rng.permutation(other), rng.permutation(values)])
    if name in ("div", "floordiv", "floormod", "truncdiv", "truncmod", "fmod", "shl", "shr"):
        least = int(ELEMENTS[dtype].low)
        good = [b != 0 and not (dtype[:3] == "int" and b == -1 and a == least) for a, b in zip(x, y)]
        x, y = x[good], y[good]
    if count == 3:
        x, y = x[:4000], y[:4000]
        return [x, np.minimum(y, y[::-1]), np.maximum(y, y[::-1])] if name == "clamp" else [x, y, y[::-1]]
    return [x, y]


@pytest.mark.parametrize("dtype", ALL)
def test_elementwise(dtype: str) -> None:
    """Each operation that is rewritten for the type; functions to some units in the last place, all else exactly."""
    parameters, body, wanted = {}, [], []
    for number, (name, verdict) in enumerate(rewritten(dtype) if supports(dtype) else []):
        arrays = operands(name, dtype)
        compared = name.startswith("cmp.") or name in math_functions.names("test")
        promoted = verdict.dtype if verdict.rewrite in ("promote", "identity") and verdict.dtype else dtype
        out = "bool" if compared else promoted
        converted = [exact.rounded(each, promoted) for each in arrays]  # as the language does
        expected = exact.rounded(exact.result(name, promoted, *converted), out)
        size = len(arrays[0])
        given = [f"X{number}_{position}" for position in range(len(arrays))]
        for key, values in zip(given, arrays):
            parameters[key] = exact.tensor_of(values, dtype)
        parameters[f"R{number}"] = torch.zeros(size, dtype=getattr(torch, out))
        share = -(-size // BLOCKS)
        place = f"bx * {share} + i{number}"
        text = TEXTS[name].format(*(f"{key}[{place}]" for key in given))
        body += [f"for i{number} in T.Parallel({share}):", f"    R{number}[{place}] = {text}"]
        wanted.append((number, name, out, expected, arrays))
    if not wanted:
        return
    run(body, parameters, f"rewritten operations on {dtype}", BLOCKS)
    failed = []
    for number, name, out, expected, arrays in wanted:
        got = exact.values_of(parameters[f"R{number}"])
        if out in FLOATS:
            # Functions are right to some units in the last place of float32, which are a tie at most of shorter types.
            approximated = name in (*FUNCTIONS, "pow") and name not in exact.EXACT
            units = UNITS if ELEMENTS[out].bits >= 32 else 1
            # Approximations flush what is below the smallest normal number to 0, or by their error seems to be.
            flushed = float(np.finfo(np.float32).tiny) * (1 + UNITS * float(np.finfo(np.float32).eps))
            slack = approximated * (units * exact.ulp(expected, out) + flushed * (np.abs(expected) <= flushed))
            with np.errstate(invalid="ignore"):
                good = (got == expected) | (np.abs(got - expected) <= slack) | (np.isnan(got) & np.isnan(expected))
        else:
            good = got == expected
        if not np.all(good):
            first = int(np.argmin(good))
            failed.append(f"{name}({', '.join(str(x[first]) for x in arrays)}) is {got[first]}, not {expected[first]}")
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("source", ALL)
def test_casts(source: str) -> None:
    parameters, body, wanted = {}, [], {}
    for target in ALL:
        if not legality.verdict("cast", (source, target), "interpret").rewrite or not supports(source, target):
            continue
        values = exact.some(source, 4000)
        if target not in FLOATS and target != "bool":  # what does not fit has no defined value
            values = values[(values > ELEMENTS[target].low) & (values < ELEMENTS[target].high)]
            expected = np.trunc(values)
        elif source == "float64" and target.startswith("float8"):
            expected = values = exact.halves_of(target)
        else:
            expected = values
        parameters[f"X_{target}"] = exact.tensor_of(values, source)
        parameters[f"R_{target}"] = torch.zeros(len(values), dtype=getattr(torch, target))
        body += [f"for i_{target} in T.Parallel({len(values)}):"]
        body += [f"    R_{target}[i_{target}] = T.cast(X_{target}[i_{target}], '{target}')"]
        wanted[target] = exact.rounded(expected, target)
    if wanted:
        run(body, parameters, f"casts from {source}")
    for target, expected in wanted.items():
        np.testing.assert_array_equal(exact.values_of(parameters[f"R_{target}"]), expected, target)


FOLDS = {"sum": np.add, "max": np.maximum, "min": np.minimum, "abssum": np.add, "absmax": np.maximum}
BITS = {"bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor}


@pytest.mark.parametrize("dtype", ALL)
def test_reductions_and_scans(dtype: str) -> None:
    if not supports(dtype):
        pytest.skip(f"{TARGET} has no {dtype}")
    rows, columns = 8, 64
    rng = np.random.default_rng(0)
    values = rng.choice(exact.some(dtype), (rows, columns))
    # Sums of floats are of small integers, which nothing on the way rounds.
    small = rng.integers(-3, 4, (rows, columns)).astype(float) if dtype in FLOATS else values
    kind = ELEMENTS[dtype].kind
    parameters: dict[str, torch.Tensor] = {}
    body, wanted = [], {}
    for name, function in {**FOLDS, **({} if dtype in FLOATS else BITS)}.items():
        given = small if name.endswith("sum") else values
        taken = exact.rounded(np.abs(given), dtype) if name.startswith("abs") and kind != "bool" else given
        taken = taken.astype(object) if kind != "float" else taken
        for clear in (True, False):
            made = exact.rounded(function.reduce(taken, axis=1), dtype)
            made = made if clear else function(made, given[:, 0])
            _reduction(
                body, parameters, f"{name}_{clear}", given, dtype, f"T.reduce_{name}(t, r, dim=1, clear={clear})"
            )
            wanted[f"{name}_{clear}"] = exact.rounded(made, dtype)
        if name in ("sum", "max"):
            scanned = function.accumulate(taken, axis=1)
            _scan(body, parameters, f"cum{name}", given, dtype, f"T.cum{name}(t, dim=1)")
            wanted[f"cum{name}"] = exact.rounded(scanned, dtype)
    run(body, parameters, f"reductions of {dtype}")
    for name, expected in wanted.items():
        np.testing.assert_array_equal(exact.values_of(parameters[f"R_{name}"]), expected, name)


def _reduction(body: list[str], parameters: Any, name: str, values: np.ndarray, dtype: str, call: str) -> None:
    """Beside the rows' reductions, the old values are the rows' first elements."""
    tensor = exact.tensor_of(values, dtype)
    parameters[f"X_{name}"], parameters[f"R_{name}"] = tensor, tensor[:, 0].clone()
    body += [
        f"t_{name} = T.alloc_fragment({values.shape}, '{dtype}')",
        f"r_{name} = T.alloc_fragment(({len(values)},), '{dtype}')",
        f"T.copy(X_{name}, t_{name})", f"T.copy(R_{name}, r_{name})",
        call.replace("(t, r", f"(t_{name}, r_{name}"), f"T.copy(r_{name}, R_{name})",
    ]  # fmt: skip


def _scan(body: list[str], parameters: Any, name: str, values: np.ndarray, dtype: str, call: str) -> None:
    tensor = exact.tensor_of(values, dtype)
    parameters[f"R_{name}"] = tensor
    body += [
        f"t_{name} = T.alloc_fragment({values.shape}, '{dtype}')", f"T.copy(R_{name}, t_{name})",
        call.replace("(t,", f"(t_{name},"), f"T.copy(t_{name}, R_{name})",
    ]  # fmt: skip


def _dots() -> list[tuple[str, str, str]]:
    """Products that are rewritten; unless all are wanted, each pair of operands once, with one sum after the other."""
    every = [types for types in itertools.product(ALL, repeat=3) if legality.verdict("dot", types, "interpret").rewrite]
    if WHOLE_WALK:
        return every
    pairs: dict[tuple[str, str], list[str]] = {}
    for a, b, c in every:
        pairs.setdefault((a, b), []).append(c)
    return [(*pair, sums[number % len(sums)]) for number, (pair, sums) in enumerate(pairs.items())]


@pytest.mark.slow
def test_products() -> None:
    """Operands hold all values of 8 bits, in all pairs; integers are right to the last bit, whatever wraps."""
    failed = [f"{types}: {text}" for types in _dots() if supports(*types) and (text := _product(*types))]
    assert not failed, "\n".join(failed)


def _product(a: str, b: str, c: str, inner: int = 32) -> str:
    rng = np.random.default_rng(0)
    whole, held = a not in FLOATS, ELEMENTS[c]
    size = 256 if whole and max(ELEMENTS[a].bits, ELEMENTS[b].bits) == 8 else 64

    def operand(dtype: str) -> np.ndarray:
        values = exact.some(dtype, 300)
        if not whole:  # small numbers of few bits: no sum rounds
            return rng.integers(0 if held.kind == "uint" else -2, 3, (size, inner)).astype(np.float64)
        matrix = rng.choice(values, (size, inner))
        matrix[:, 0] = rng.choice(values, size) if len(values) < size else values[:size]
        return matrix.astype(object)

    x, y = operand(a), operand(b).T
    start = exact.rounded(rng.integers(0 if held.kind == "uint" else -5, 6, (size, size)).astype(object), c)
    tensors = {"A": exact.tensor_of(x, a), "B": exact.tensor_of(y, b), "C": exact.tensor_of(start, c)}
    body = [
        f"s = T.alloc_shared({x.shape}, '{a}')", f"u = T.alloc_shared({y.shape}, '{b}')",
        f"f = T.alloc_fragment({start.shape}, '{c}')", "T.copy(A, s)", "T.copy(B, u)", "T.copy(C, f)",
        "T.gemm(s, u, f)", "T.copy(f, C)",
    ]  # fmt: skip
    run(body, tensors, f"gemm of {a} and {b} into {c}")
    fits = whole and sum(ELEMENTS[each].bits for each in (a, b)) <= 48  # so do sums of 32 products, into int64
    product = (x.astype(np.int64) @ y.astype(np.int64)).astype(object) if fits else x @ y
    made, got = start + product, exact.values_of(tensors["C"])
    expected = exact.rounded(made, c)
    if c in FLOATS and whole:  # the sum of integers rounds where the float type does
        bound = np.abs(x).astype(np.float64) @ np.abs(y).astype(np.float64)
        with np.errstate(invalid="ignore"):
            near, held_by = (np.clip(each, held.low, held.high) for each in (expected, got))
            good = (got == expected) | (np.abs(held_by - near) <= 2 * exact.ulp(near, c) + bound * 2.0**-53)
    else:
        good = got == expected
    place = tuple(int(i) for i in np.argwhere(~good)[0]) if not good.all() else ()
    return f"{int((~good).sum())} wrong, the first at {place} is {got[place]}, not {expected[place]}" if place else ""


@pytest.mark.parametrize("name", [name for name, record in math_functions.MATH_FUNCTIONS.items() if record.instead])
def test_what_hip_lacks(name: str) -> None:
    """What is spelt out for hip alone, where no interpreter runs it: the IR before and after."""
    target = Target.parse("hip:gfx942")
    takes = math_functions.MATH_FUNCTIONS[name].takes
    for dtype in ("int32", "int64") if takes == "bits" else ("float32", "float64"):
        assert legality.verdict(name, (dtype,), "hip", "gfx942").rewrite == "spell out"
        number = "arith.mul %w, %c97409" if dtype.startswith("int") else "arith.sub %w, %c1000"
        made = program(
            f"""
            %i = tensor.iota {{axis = 0}} : tensor<1024xint32>
            %z = arith.mul %bx, %c7919 : int32
            %w = arith.add %i, %z : tensor<1024xint32>
            %v = {number} : tensor<1024xint32>
            %x = arith.cast %v : tensor<1024x{dtype}>
            %h = arith.constant {{value = {"4099" if dtype.startswith("int") else "0.0078125"}}} : {dtype}
            %y = arith.mul %x, %h : tensor<1024x{dtype}>
            %e = arith.math [%y] {{function = "{name}"}} : tensor<1024x{dtype}>
            %r = arith.cast %e : tensor<1024xfloat32>
            %p = arith.add %i, %c0 : tensor<1024xint32>
            tile.store %r, %D[%p]""",
            grid=(1,),
            target=target,
        )
        tolerance = 1e-6 if takes == "floats" else 0.0
        check_pass(LegalizeArith(), made.root, inputs_for(made.root, 1), tolerance=tolerance, target=target)
