"""The smallest program for each entry of the table of element types: a function of the language on some types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tiledsl.ir.types import ELEMENTS

INTS = [name for name, info in ELEMENTS.items() if info.kind in ("int", "uint")]
FLOATS = [name for name, info in ELEMENTS.items() if info.kind == "float"]
ALL = list(ELEMENTS)
N = 16


@dataclass(frozen=True)
class Entry:
    """`params` are (shape, dtype); `lines` is the body of T.Kernel, where {0} stands for the first parameter.

    `tile` is what must be put in front of the lines, `alloc`."""

    key: tuple[str, ...]
    params: tuple[tuple[tuple[int, ...], str], ...]
    lines: tuple[str, ...]
    globals: dict = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        return " ".join(self.key)


def elementwise(key: tuple[str, ...], inputs: list[str], out: str, expression: str) -> Iterator[Entry]:
    params = tuple(((N,), dtype) for dtype in [*inputs, out])
    last = len(inputs)
    tile = [f"{{{number}}}[i_]" for number in range(last)]
    scalar = [f"{{{number}}}[0]" for number in range(last)]
    yield Entry(
        (*key, "tile"), params, (f"for i_ in T.Parallel({N}):", f"    {{{last}}}[i_] = {expression.format(*tile)}")
    )
    yield Entry((*key, "scalar"), params, (f"{{{last}}}[0] = {expression.format(*scalar)}",))


BINARY = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "floordiv": "{} // {}",
    "floormod": "{} % {}", "truncdiv": "T.truncdiv({}, {})", "truncmod": "T.truncmod({}, {})", "T.div": "T.div({}, {})",
    "ceildiv": "T.ceildiv({}, {})", "max": "T.max({}, {})",
    "min": "T.min({}, {})", "and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}", "shl": "{} << {}", "shr": "{} >> {}",
    "pow": "{} ** {}", "logical and": "{} and {}", "logical or": "{} or {}",
}  # fmt: skip
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
UNARY = {"neg": "-{}", "invert": "~{}", "not": "not {}", "abs": "T.abs({})", "square": "{} ** 2"}
FUNCTIONS = {
    **dict.fromkeys(
        "exp exp2 exp10 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh "
        "atanh erf sigmoid floor ceil trunc round rint nearbyint popcount clz isnan isinf isfinite".split(),
        1,
    ),
    **dict.fromkeys(["atan2", "fmod", "hypot", "copysign", "pow"], 2),
    "fma": 3,
    "clamp": 3,
}  # fmt: skip


def arithmetic() -> Iterator[Entry]:
    for dtype in ALL:
        for name, text in BINARY.items():
            out = "bool" if name.startswith("logical") else dtype
            yield from elementwise((name, dtype), [dtype, dtype], out, text)
            number = "1.5" if dtype in FLOATS else "True" if dtype == "bool" else "3"
            yield from elementwise((name, dtype, "number"), [dtype], out, text.format("{}", number))
            yield from elementwise((name, "number", dtype), [dtype], out, text.format(number, "{}"))
        for name, symbol in COMPARE.items():
            yield from elementwise((name, dtype), [dtype, dtype], "bool", f"{{}} {symbol} {{}}")
            number = "1.5" if dtype in FLOATS else "True" if dtype == "bool" else "3"
            yield from elementwise((name, dtype, "number"), [dtype], "bool", f"{{}} {symbol} {number}")
        for name, text in UNARY.items():
            yield from elementwise((name, dtype), [dtype], "bool" if name == "not" else dtype, text)
        yield from elementwise(("not as number", dtype), [dtype], "int32", "T.cast(not {}, 'int32') + 1")
        yield from elementwise(("select", dtype), ["bool", dtype, dtype], dtype, "T.if_then_else({}, {}, {})")
        number = "1.5" if dtype in FLOATS else "True" if dtype == "bool" else "3"
        yield from elementwise(("select", dtype, "number"), ["bool", dtype], dtype, f"T.if_then_else({{}}, {{}}, {number})")
        yield from elementwise(("select of", dtype), [dtype, "int32"], "int32", "T.if_then_else({}, {}, 7)")
        for name, count in FUNCTIONS.items():
            out = "bool" if name in ("isnan", "isinf", "isfinite") else dtype
            yield from elementwise((name, dtype), [dtype] * count, out, f"T.{name}({', '.join(['{}'] * count)})")
            if name in ("popcount", "clz"):
                yield from elementwise((name, dtype, "int32"), [dtype], "int32", f"T.{name}({{}})")
        yield from elementwise(("clamp", dtype, "numbers"), [dtype], dtype, "T.clamp({}, 0, 1)")
        yield Entry(
            ("var", dtype),
            (((N,), dtype), ((N,), dtype)),
            (f"x_ = T.alloc_var('{dtype}', {{0}}[0])", "x_ = {0}[1]", "{1}[0] = x_"),
        )
        yield Entry(
            ("var updated", dtype),
            (((N,), dtype), ((N,), dtype)),
            (f"x_ = T.alloc_var('{dtype}', {{0}}[0])", f"for k_ in range({N}):", "    x_ = T.max(x_, {0}[k_])",
             "{1}[0] = x_"),
        )
        yield Entry(
            ("fill", dtype),
            (((N, N), dtype), ((N,), dtype)),
            (f"t_ = T.alloc_fragment(({N}, {N}), '{dtype}')", "T.fill(t_, {1}[0])", "T.copy(t_, {0})"),
        )
        for number in ("0", "1", "-2.5" if dtype in FLOATS else "1"):
            yield Entry(
                ("fill", dtype, number),
                (((N, N), dtype),),
                (f"t_ = T.alloc_fragment(({N}, {N}), '{dtype}')", f"T.fill(t_, {number})", "T.copy(t_, {0})"),
            )
            yield Entry(("store", dtype, number), (((N,), dtype),), (f"{{0}}[1] = {number}",))
        yield Entry(
            ("transpose", dtype),
            (((N, N), dtype), ((N, N), dtype)),
            (f"t_ = T.alloc_fragment(({N}, {N}), '{dtype}')", f"u_ = T.alloc_fragment(({N}, {N}), '{dtype}')",
             "T.copy({0}, t_)", "T.transpose(t_, u_)", "T.copy(u_, {1})"),
        )
        yield Entry(
            ("gather", dtype),
            (((N,), dtype), ((N,), "int32"), ((N,), dtype)),
            (f"t_ = T.alloc_shared(({N},), '{dtype}')", "T.copy({0}, t_)", f"for i_ in T.Parallel({N}):",
             "    {2}[i_] = t_[{1}[i_] % 16]"),
        )
        yield Entry(
            ("element", dtype),
            (((N,), dtype), ((N,), "int32"), ((N,), dtype)),
            (f"t_ = T.alloc_shared(({N},), '{dtype}')", "T.copy({0}, t_)", "{2}[0] = t_[{1}[0] % 16]"),
        )


def casts() -> Iterator[Entry]:
    for source in ALL:
        for target in ALL:
            if source != target:
                yield from elementwise(("cast", source, target), [source], target, f"T.cast({{}}, '{target}')")
                if ELEMENTS[source].bits == ELEMENTS[target].bits:
                    yield from elementwise(
                        ("reinterpret", source, target), [source], target, f"T.reinterpret({{}}, '{target}')"
                    )


def mixed() -> Iterator[Entry]:
    for a in ALL:
        for b in ALL:
            if a != b:
                for name, text in (("add", "{} + {}"), ("lt", "{} < {}"), ("max", "T.max({}, {})")):
                    yield from elementwise((name, a, b), [a, b], "bool" if name == "lt" else "float32", text)
                yield from elementwise(("select", a, b), ["bool", a, b], a, "T.if_then_else({}, {}, {})")


def reductions() -> Iterator[Entry]:
    for dtype in ALL:
        for kind in "sum max min abssum absmax bitand bitor bitxor".split():
            for out in dict.fromkeys([dtype, "float32", "int32"]):
                for nan in ("", ", nan_propagate=True") if kind in ("max", "min", "absmax") and out == dtype else ("",):
                    for clear in ("", ", clear=False") if out == dtype else ("",):
                        yield Entry(
                            ("reduce", kind, dtype, out, nan[2:5] + clear[2:7]),
                            (((N, N), dtype), ((N,), out)),
                            (f"t_ = T.alloc_fragment(({N}, {N}), '{dtype}')", f"r_ = T.alloc_fragment(({N},), '{out}')",
                             "T.copy({0}, t_)", "T.copy({1}, r_)", f"T.reduce_{kind}(t_, r_, dim=1{nan}{clear})",
                             "T.copy(r_, {1})"),
                        )  # fmt: skip
        for kind in ("cumsum", "cummax"):
            for reverse in ("", ", reverse=True"):
                yield Entry(
                    (kind, dtype, reverse[2:9]),
                    (((N, N), dtype), ((N, N), dtype)),
                    (f"t_ = T.alloc_fragment(({N}, {N}), '{dtype}')", "T.copy({0}, t_)",
                     f"T.{kind}(t_, dim=1{reverse})", "T.copy(t_, {1})"),
                )  # fmt: skip
        for kind in ("any_of", "all_of"):
            yield Entry(
                (kind, dtype),
                (((N,), dtype), ((N,), "int32")),
                (f"t_ = T.alloc_fragment(({N},), '{dtype}')", "T.copy({0}, t_)", f"if T.{kind}(t_):", "    {1}[0] = 1"),
            )
        for op in ("sum", "max", "min"):
            yield Entry(
                ("reducer", op, dtype),
                (((N,), dtype), ((1,), dtype)),
                (f"r_ = T.alloc_reducer((1,), '{dtype}', op='{op}')",
                 "T.clear(r_)" if op == "sum" else f"T.fill(r_, T.{'min' if op == 'max' else 'max'}_value('{dtype}'))",
                 f"for i_ in T.Parallel({N}):",
                 {"sum": "    r_[0] += {0}[i_]", "max": "    r_[0] = T.max(r_[0], {0}[i_])",
                  "min": "    r_[0] = T.min(r_[0], {0}[i_])"}[op],
                 "T.finalize_reducer(r_)", "T.copy(r_, {1})"),
            )  # fmt: skip


def products() -> Iterator[Entry]:
    for a in ALL:
        for b in ALL:
            for c in ALL:
                for clear in (True, False):
                    yield Entry(
                        ("gemm", a, b, c, "clear" if clear else "add"),
                        (((32, 32), a), ((32, 32), b), ((32, 32), c)),
                        (f"a_ = T.alloc_shared((32, 32), '{a}')", f"b_ = T.alloc_shared((32, 32), '{b}')",
                         f"c_ = T.alloc_fragment((32, 32), '{c}')", "T.copy({0}, a_)", "T.copy({1}, b_)",
                         "T.clear(c_)" if clear else "T.copy({2}, c_)", "T.gemm(a_, b_, c_)", "T.copy(c_, {2})"),
                    )  # fmt: skip


def atomics() -> Iterator[Entry]:
    for dtype in ALL:
        for kind in ("add", "max", "min", "or"):
            for order in (None, "acq_rel"):
                tail = f", memory_order={order!r}" if order else ""
                key = ("atomic", kind, dtype, order or "relaxed")
                params = (((N,), dtype), ((N,), dtype))
                yield Entry(
                    (*key, "tile"), params,
                    (f"for i_ in T.Parallel({N}):", f"    T.atomic_{kind}({{0}}[i_], {{1}}[i_]{tail})"),
                )  # fmt: skip
                yield Entry(
                    (*key, "masked"), params,
                    (f"for i_ in T.Parallel({N}):", "    if i_ % 3 != 1:", f"        T.atomic_{kind}({{0}}[i_], {{1}}[i_]{tail})"),
                )  # fmt: skip
                yield Entry((*key, "scalar"), params, (f"T.atomic_{kind}({{0}}[0], {{1}}[0]{tail})",))
                yield Entry(
                    (*key, "previous"), params,
                    (f"for i_ in T.Parallel({N}):",
                     f"    {{1}}[i_] = T.atomic_{kind}({{0}}[i_], {{1}}[i_]{tail}, return_prev=True)"),
                )  # fmt: skip
                yield Entry((*key, "number"), params, (f"T.atomic_{kind}({{0}}[0], 1{tail})",))
                yield Entry((*key, "region"), params, (f"T.atomic_{kind}({{0}}[0:8], {{1}}[0:8]{tail})",))
        for lanes in (2, 4):
            yield Entry(("atomic", f"addx{lanes}", dtype), (((N,), dtype), ((N,), dtype)),
                        (f"T.atomic_addx{lanes}({{0}}[0], {{1}}[0])",))  # fmt: skip
        for order in ("relaxed", "acquire", "seq_cst"):
            yield Entry(("atomic", "load", dtype, order), (((N,), dtype), ((N,), dtype)),
                        (f"{{1}}[0] = T.atomic_load({{0}}[0], memory_order={order!r})",))  # fmt: skip
            yield Entry(("atomic", "load", dtype, order, "tile"), (((N,), dtype), ((N,), dtype)),
                        (f"for i_ in T.Parallel({N}):",
                         f"    {{1}}[i_] = T.atomic_load({{0}}[i_], memory_order={order!r})",))  # fmt: skip
        for order in ("relaxed", "release", "seq_cst"):
            yield Entry(("atomic", "store", dtype, order), (((N,), dtype), ((N,), dtype)),
                        (f"T.atomic_store({{0}}[0], {{1}}[0], memory_order={order!r})",))  # fmt: skip


def every() -> list[Entry]:
    return [*arithmetic(), *casts(), *mixed(), *reductions(), *atomics(), *products()]


def program_text(entries: list[Entry]) -> str:
    """One program of some entries: each has parameters, and variables, of its own."""
    params, body = [], []
    for number, entry in enumerate(entries):
        names = [f"P{number}_{position}" for position in range(len(entry.params))]
        params += [f"{name}: T.Tensor({shape}, '{dtype}')" for name, (shape, dtype) in zip(names, entry.params, strict=True)]
        for line in entry.lines:
            text = line.format(*names)
            for variable in ("i_", "k_", "x_", "t_", "u_", "r_", "a_", "b_", "c_"):
                text = _renamed(text, variable, f"{variable}{number}")
            body.append(text)
    listed = ", ".join(params)
    lines = "\n".join(f"        {line}" for line in body)
    return f"@T.prim_func\ndef main({listed}):\n    with T.Kernel(1, threads=128) as bx:\n{lines}\n"


def _renamed(text: str, name: str, new: str) -> str:
    import re

    return re.sub(rf"(?<![A-Za-z0-9_]){name}(?![A-Za-z0-9_])", new, text)
