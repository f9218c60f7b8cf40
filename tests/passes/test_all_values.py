"""The rules about integers, held against all values of 4-bit types; those about floats, against all of 8-bit ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from tests.passes import prove_ranges
from tests.passes.prove_ranges import Refuted, counting, prove_claims, prove_rewrites, rewrites
from tests.support import executor
from tests.support.all_values import SIGNED, UNSIGNED, Memo, four_bits
from tiledsl.analysis.ranges import Ranges
from tiledsl.ir.parser import parse_op
from tiledsl.ir.pass_manager import parse_program
from tiledsl.ir.rewrite import apply_patterns
from tiledsl.ir.verifier import verify
from tiledsl.passes.canonicalize import CANONICAL_PATTERNS
from tiledsl.passes.legalize_arith import _patterns
from tiledsl.passes.simplify_ranges import RANGE_PATTERNS

SHARE = 400  # of the expressions of two operations; `make prove-ranges` takes all
# How many claims of each kind there are, for these programs.
CLAIMS = {"interval": 52511, "at least 0": 42356, "no wrap": 2911, "bounds": 16710, "below": 28496, "sums": 15150}

FLOATS = """
tile.func {sym_name = "f", parameters = ("A", "B", "O")}
          (%A: buffer<256*DTYPE, global>, %B: buffer<256*DTYPE, global>, %O: buffer<256*OUT, global>) {
  %c1 = arith.constant {value = 1} : int32
  tile.kernel [%c1] (%bx: int32) {
    %i = tensor.iota {axis = 0} : tensor<256xint32>
    %a = tile.load %A[%i] : tensor<256xDTYPE>
    %b = tile.load %B[%i] : tensor<256xDTYPE>
    BODY
    tile.store %y, %O[%i]
    scf.yield
  }
  scf.yield
}"""
OF_FLOATS = [
    *(f"%y = arith.{op} %a, %b : tensor<256xT>" for op in ("add", "sub", "mul", "max", "min")),
    *(f'%y = arith.math [%a] {{function = "{name}"}} : tensor<256xT>' for name in ("abs", "floor", "rint")),
    "%m = tensor.reshape %a : tensor<256x1xT>\n%n = tensor.reshape %b : tensor<256x1xT>\n"
    "%z = arith.sub %m, %n : tensor<256x1xT>\n%y = tensor.reshape %z : tensor<256xT>",
    '%y = arith.math [%a, %b, %a] {function = "clamp"} : tensor<256xT>',
    '%c = arith.math [%a] {function = "isnan"} : tensor<256xbool>\n%y = arith.select %c, %b, %a : tensor<256xT>',
    '%c = arith.cmp %a, %b {predicate = "lt"} : tensor<256xbool>\n%d = arith.not %c : tensor<256xbool>\n'
    "%y = arith.select %d, %b, %a : tensor<256xT>",
    '%c = arith.cmp %a, %b {predicate = "eq"} : tensor<256xbool>\n%d = arith.not %c : tensor<256xbool>\n'
    "%y = arith.select %d, %b, %a : tensor<256xT>",
    *(f"%w = arith.cast %a : tensor<256x{wide}>\n%y = arith.cast %w : tensor<256xT>"
      for wide in ("bool", "int8", "int32", "float16", "bfloat16", "float32", "float64", "float8_e5m2")),
    "%n = arith.neg %b : tensor<256xT>\n%y = arith.add %a, %n : tensor<256xT>",
    "%n = arith.neg %b : tensor<256xT>\n%y = arith.neg %n : tensor<256xT>",
]  # fmt: skip
OF_BYTES = [
    *(f'%y = arith.math [%a] {{function = "{name}"}} : tensor<256xT>' for name in ("popcount", "clz")),
    *(f'%m = tensor.reshape %a : tensor<16x16xT>\n%r = tensor.reduce %m {{kind = "{kind}", axis = 1}} : tensor<16xT>\n'
      "%w = tensor.reshape %r : tensor<16x1xT>\n%z = tensor.broadcast %w : tensor<16x16xT>\n"
      "%y = tensor.reshape %z : tensor<256xT>" for kind in ("sum", "max", "min")),
    *(f'%y = tensor.scan %a {{kind = "{kind}", axis = 0}} : tensor<256xT>' for kind in ("sum", "max")),
    *(f"%m = tensor.reshape %a : tensor<16x16xT>\n%n = tensor.reshape %b : tensor<16x16xT>\n"
      f"%z = arith.constant {{value = 3}} : tensor<16x16x{total}>\n%d = tensor.dot %m, %n, %z : tensor<16x16x{total}>\n"
      f"%h = arith.constant {{value = 9}} : tensor<16x16x{total}>\n%u = arith.shr %d, %h : tensor<16x16x{total}>\n"
      "%e = arith.xor %d, %u : tensor<16x16x" f"{total}>\n"
      "%f = arith.cast %e : tensor<16x16xT>\n%y = tensor.reshape %f : tensor<256xT>"
      for total in ("int16", "int32", "int64", "uint32")),
    *(f"%t = arith.constant {{value = {mask}}} : tensor<256xbool>\n"
      '%q = tile.atomic %a, %B[%i] mask=%t {kind = "add"} : tensor<256xT>\n'
      "%r = tile.load %B[%i] : tensor<256xT>\n%y = arith.xor %q, %r : tensor<256xT>" for mask in ("true", "false")),
    *(f"%t = arith.constant {{value = {mask}}} : tensor<256xbool>\n%c = arith.constant {{value = 7}} : DTYPE\n"
      f"%y = tile.load %B[%i] mask=%t {other}: tensor<256xT>"
      for mask in ("true", "false") for other in ("", "other=%c ")),
    *(f'%t = arith.cmp %a, %b {{predicate = "lt"}} : tensor<256xbool>\n'
      f'%q = tile.atomic %a, %B[%i] {mask}compare=%b {{kind = "cas"}} : tensor<256xT>\n'
      "%r = tile.load %B[%i] : tensor<256xT>\n%y = arith.xor %q, %r : tensor<256xT>" for mask in ("", "mask=%t ")),
    "%k = arith.constant {value = 15} : tensor<256xT>\n%m = arith.and %a, %k : tensor<256xT>\n"
    "%f = arith.cast %m : tensor<256xfloat16>\n%c = arith.constant {value = -3.0} : tensor<256xfloat16>\n"
    "%g = arith.sub %f, %c : tensor<256xfloat16>\n%y = arith.cast %g : tensor<256xT>",
]  # fmt: skip
INFINITY = "%inf = arith.constant {value = inf} : tensor<256xT>\n%y = arith.min %a, %inf : tensor<256xT>"
EXPONENTIAL = """
%c = arith.constant {value = 0.5} : tensor<256xT>
%p = arith.mul %a, %c : tensor<256xT>
%q = arith.mul %b, %c : tensor<256xT>
%d = arith.sub %p, %q : tensor<256xT>
%y = arith.math [%d] {function = "exp2"} : tensor<256xT>"""


def float_programs() -> Iterator[tuple[str, str, float]]:
    """Text, element type, and the tolerance of what a program of 8-bit integers or of floats computes."""
    for dtype in ("int8", "uint8"):
        for body in OF_BYTES:
            yield FLOATS.replace("BODY", body.replace("xT", f"x{dtype}")), dtype, 0.0
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        for body in (*OF_FLOATS, *([INFINITY] if dtype == "float8_e5m2" else [])):
            yield FLOATS.replace("BODY", body.replace("xT", f"x{dtype}")), dtype, 0.0
    yield FLOATS.replace("BODY", EXPONENTIAL.replace("xT", "xfloat32")), "float32", 1e-6


def prove_floats(fired: Counter[str]) -> None:
    passes = rewrites(fired)
    on_hip = counting(_patterns("hip", "gfx942"), fired)
    passes["legalize-arith for hip"] = lambda root: apply_patterns(root, on_hip, analysis=Ranges(root))
    for text, dtype, tolerance in float_programs():
        func = parse_program(text.replace("DTYPE", dtype).replace("OUT", dtype)).root
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        if dtype == "float32":
            every = np.linspace(-40, 40, 256).astype(np.float32)
            every[:2] = -1e30
        else:
            every = np.arange(256, dtype=np.uint8).view(kind)
        made = {}
        for name, run in passes.items():
            made[name] = func.clone({})
            run(made[name])
            verify(made[name])
        for shift in (0, 1, 128, 77):
            arguments = [every, np.roll(every, shift)]
            wanted, found = (np.zeros(256, kind) for _ in range(2))
            executor.run(func, [*map(np.copy, arguments), wanted])
            for name, after in made.items():
                executor.run(after, [*map(np.copy, arguments), found])
                a, b = wanted.astype(np.float64), found.astype(np.float64)
                np.testing.assert_allclose(b, a, rtol=tolerance, err_msg=f"{name}\n{text}")


def test_every_pattern_was_proved() -> None:
    """All in one test: each fires in one proof of everything."""
    with four_bits():
        _, claims, fired = prove_ranges.prove((SIGNED, UNSIGNED), SHARE)
    # Claims are no weaker than they were: fewer numbers in intervals and more of the others are better.
    assert claims["numbers in intervals"] <= 263503
    weaker = {kind: claims[kind] for kind, number in CLAIMS.items() if claims[kind] < number}
    assert not weaker, weaker
    prove_floats(fired)
    named = {
        each.__name__  # type: ignore[attr-defined]
        for patterns in (CANONICAL_PATTERNS, RANGE_PATTERNS, _patterns("cuda", 90), _patterns("interpret", None))
        for each in patterns.every
    }
    assert {name for name in named if not fired[name]} == set()


WRONG = """
tile.func {sym_name = "f", parameters = ("x", "y")} (%x: T, %y: T) {
  %c3 = arith.constant {value = 3} : T
  %d = arith.sub %c3, %x : T
  %r = arith.floormod %d, %c3 : T
  tile.print [%r] {message = "r"}
  scf.yield
}"""


@pytest.mark.parametrize("dtype", [SIGNED, UNSIGNED])
def test_a_difference_that_wraps_is_not_below(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with four_bits():
        func = parse_op(WRONG.replace(": T", f": {dtype}"))
        prove_claims(func, Memo())
        prove_rewrites(func, rewrites(Counter()), Memo())
        monkeypatch.setattr("tiledsl.analysis.ranges.Ranges.never_wraps", lambda self, op: True)
        if dtype == UNSIGNED:
            with pytest.raises(Refuted):
                prove_claims(func, Memo())
        with pytest.raises(Refuted):
            monkeypatch.setattr("tiledsl.analysis.ranges.Ranges.is_nonnegative", lambda self, value: True)
            prove_rewrites(func, rewrites(Counter()), Memo())
            prove_claims(func, Memo())
