"""The smallest program for each entry of the table of element types: a function of the language on some types."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tiledsl import legality
from tiledsl.ir.types import ELEMENTS
from tiledsl.language import names
from tiledsl.math_functions import MATH_FUNCTIONS

FLOATS = [name for name, info in ELEMENTS.items() if info.kind == "float"]
ALL = list(ELEMENTS)
N = 16

Question = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Entry:
    """`asks` is what the table is asked: the program is refused where one of them is.

    `params` are shapes and element types of the parameters. `lines` is the body of T.Kernel, where {0} stands for the
    first parameter; names that end in an underscore are the program's variables. For what the language does not say,
    `lines` is one line of IR that makes %r of the tiles %x and %y.
    """

    name: str
    asks: tuple[Question, ...]
    params: tuple[tuple[tuple[int, ...], str], ...]
    lines: tuple[str, ...]
    is_ir: bool = False

    @property
    def pair(self) -> tuple[str, ...]:
        """The element types of a product's operands."""
        return self.asks[0][1][:2] if self.name.startswith("gemm") else ()

    def refusal(self, kind: str, arch: int | str | None, triton: str = "") -> Question | None:
        """What of it a target lacks; None if nothing."""
        asks = [*(("value", (dtype,)) for _, dtype in self.params), *self.asks]
        return next((ask for ask in asks if legality.verdict(*ask, kind, arch, triton).is_refused), None)


def _number(dtype: str) -> str:
    return "1.5" if dtype in FLOATS else "True" if dtype == "bool" else "3"


def _vector(dtype: str) -> tuple[tuple[int, ...], str]:
    return (N,), dtype


def _matrix(dtype: str) -> tuple[tuple[int, ...], str]:
    return (N, N), dtype


def _elementwise(name: str, asks: list[Question], inputs: list[str], out: str, text: str) -> Iterator[Entry]:
    """A function of elements, in T.Parallel and of single elements."""
    params, last = tuple(map(_vector, [*inputs, out])), len(inputs)
    tile = text.format(*(f"{{{number}}}[i_]" for number in range(last)))
    yield Entry(f"{name}, tile", tuple(asks), params, (f"for i_ in T.Parallel({N}):", f"    {{{last}}}[i_] = {tile}"))
    element = text.format(*(f"{{{number}}}[0]" for number in range(last)))
    yield Entry(f"{name}, element", tuple(asks), params, (f"{{{last}}}[0] = {element}",))


BINARY = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "floordiv": "{} // {}",
    "floormod": "{} % {}", "truncdiv": "T.truncdiv({}, {})", "truncmod": "T.truncmod({}, {})", "max": "T.max({}, {})",
    "min": "T.min({}, {})", "and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}", "shl": "{} << {}", "shr": "{} >> {}",
    "pow": "{} ** {}",
}  # fmt: skip
COMPOSED = {"ceildiv": "T.ceildiv({}, {})", "logical and": "{} and {}", "logical or": "{} or {}"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
UNARY = {"neg": "-{}", "not": "~{}", "abs": "T.abs({})"}
_OTHERWISE = {*BINARY, *UNARY, "clamp", "round"}
FUNCTIONS = {  # of one form, T.name(...), with the number of their arguments
    each.name: each.arity for each in MATH_FUNCTIONS.values() if each.name in names.NAMES
    and each.name not in _OTHERWISE
}  # fmt: skip
OF_IR = [name for name in MATH_FUNCTIONS if name not in {*names.NAMES, *_OTHERWISE}]


def arithmetic() -> Iterator[Entry]:
    for dtype in ALL:
        number, one = _number(dtype), (dtype,)
        for name, text in BINARY.items():
            asks = [(name, one)]
            yield from _elementwise(f"{name} of {dtype}", asks, [dtype, dtype], dtype, text)
            yield from _elementwise(f"{name} of {dtype} and {number}", asks, [dtype], dtype, text.format("{}", number))
            yield from _elementwise(f"{name} of {number} and {dtype}", asks, [dtype], dtype, text.format(number, "{}"))
        for name, text in COMPOSED.items():
            out = "bool" if name.startswith("logical") else dtype
            yield from _elementwise(f"{name} of {dtype}", [], [dtype, dtype], out, text)
        for name, symbol in COMPARISONS.items():
            asks = [(f"cmp.{name}", one)]
            yield from _elementwise(f"{name} of {dtype}", asks, [dtype, dtype], "bool", f"{{}} {symbol} {{}}")
            text = f"{{}} {symbol} {number}"
            yield from _elementwise(f"{name} of {dtype} and {number}", asks, [dtype], "bool", text)
        for name, text in UNARY.items():
            yield from _elementwise(f"{name} of {dtype}", [(name, one)], [dtype], dtype, text)
        yield from _elementwise(f"logical not of {dtype}", [], [dtype], "bool", "not {}")
        yield from _elementwise(f"not of {dtype} as a number", [], [dtype], "int32", "T.cast(not {}, 'int32') + 1")
        yield from _elementwise(f"square of {dtype}", [], [dtype], dtype, "{} ** 2")
        asks, text = [("select", one)], "T.if_then_else({}, {}, {})"
        yield from _elementwise(f"select {dtype}", asks, ["bool", dtype, dtype], dtype, text)
        text = f"T.if_then_else({{}}, {{}}, {number})"
        yield from _elementwise(f"select {dtype} or {number}", asks, ["bool", dtype], dtype, text)
        yield from _elementwise(f"select by {dtype}", [], [dtype, "int32"], "int32", "T.if_then_else({}, {}, 7)")
        for name, count in FUNCTIONS.items():
            out = "bool" if MATH_FUNCTIONS[name].takes == "test" else dtype
            text = f"T.{name}({', '.join(['{}'] * count)})"
            yield from _elementwise(f"{name} of {dtype}", [(name, one)], [dtype] * count, out, text)
        text = "T.round({}, 'ties-away-from-zero')"
        yield from _elementwise(f"round of {dtype}", [("round", one)], [dtype], dtype, text)
        for name in ("popcount", "clz"):
            yield from _elementwise(
                f"{name} of {dtype} as a number",
                [(name, one)],
                [dtype],
                "int64",
                f"T.cast(T.{name}({{}}), 'int64') << 40",
            )
        asks = [("clamp", one)]
        yield from _elementwise(f"clamp of {dtype}", asks, [dtype] * 3, dtype, "T.clamp({}, {}, {})")
        yield from _elementwise(f"clamp of {dtype} by numbers", asks, [dtype], dtype, "T.clamp({}, 0, 1)")


def moves() -> Iterator[Entry]:
    for dtype in ALL:
        two, both = (_vector(dtype),) * 2, (_matrix(dtype),) * 2
        tile = f"t_ = T.alloc_fragment(({N}, {N}), '{dtype}')"
        asks = (("load", (dtype,)), ("store", (dtype,)))
        yield Entry(
            f"variable of {dtype}", asks, two, (f"x_ = T.alloc_var('{dtype}', {{0}}[0])", "x_ = {0}[1]", "{1}[0] = x_")
        )
        loop = (f"for k_ in range({N}):", "    x_ = T.max(x_, {0}[k_])", "{1}[0] = x_")
        yield Entry(f"variable of {dtype} in a loop", (), two, (f"x_ = T.alloc_var('{dtype}', {{0}}[0])", *loop))
        lines = (tile, "T.fill(t_, {1}[0])", "T.copy(t_, {0})")
        yield Entry(f"fill {dtype}", (("broadcast", (dtype,)),), (_matrix(dtype), _vector(dtype)), lines)
        for number in dict.fromkeys(("0", "1", "-2.5" if dtype in FLOATS else "1")):
            lines = (tile, f"T.fill(t_, {number})", "T.copy(t_, {0})")
            yield Entry(f"fill {dtype} with {number}", (("constant", (dtype,)),), (_matrix(dtype),), lines)
            yield Entry(f"store {number} as {dtype}", (), (_vector(dtype),), (f"{{0}}[1] = {number}",))
        lines = (tile, "u_ = T.alloc_fragment((16, 16), '" + dtype + "')", "T.copy({0}, t_)", "T.transpose(t_, u_)")
        yield Entry(f"transpose {dtype}", (("transpose", (dtype,)),), both, (*lines, "T.copy(u_, {1})"))
        lines = ("T.copy({0}, t_)", "r_ = T.reshape(t_, (256,))", "T.copy(r_[0:16], {1})")
        yield Entry(f"reshape {dtype}", (("reshape", (dtype,)),), (_matrix(dtype), _vector(dtype)), (tile, *lines))
        shared = (f"t_ = T.alloc_shared(({N},), '{dtype}')", "T.copy({0}, t_)")
        params = (_vector(dtype), _vector("int32"), _vector(dtype))
        lines = (*shared, f"for i_ in T.Parallel({N}):", "    {2}[i_] = t_[{1}[i_] % 16]")
        yield Entry(f"gather {dtype}", (("gather", (dtype,)),), params, lines)
        yield Entry(f"element of {dtype}", (), params, (*shared, "{2}[0] = t_[{1}[0] % 16]"))


def casts() -> Iterator[Entry]:
    for source in ALL:
        for target in ALL:
            asks, text = [("cast", (source, target))], f"T.cast({{}}, '{target}')"
            yield from _elementwise(f"cast {source} to {target}", asks, [source], target, text)
            if ELEMENTS[source].bits == ELEMENTS[target].bits:
                asks, text = [("bitcast", (source, target))], f"T.reinterpret({{}}, '{target}')"
                yield from _elementwise(f"reinterpret {source} as {target}", asks, [source], target, text)


def mixed() -> Iterator[Entry]:
    """Operands of two types."""
    functions = {"add": "{} + {}", "lt": "{} < {}", "max": "T.max({}, {})", "select": "T.if_then_else({} != 0, {}, 7)"}
    for a in ALL:
        for b in ALL:
            for name, text in functions.items():
                out = "bool" if name == "lt" else "float32"
                if a != b:
                    yield next(_elementwise(f"{name} of {a} and {b}", [], [a, b], out, text))


def reductions() -> Iterator[Entry]:
    for dtype in ALL:
        tile = (f"t_ = T.alloc_fragment(({N}, {N}), '{dtype}')", "T.copy({0}, t_)")
        for kind in "sum max min abssum absmax bitand bitor bitxor".split():
            for out in dict.fromkeys([dtype, "float32", "int32"]):
                asks = tuple((f"reduce.{kind.removeprefix('bit')}", (each,)) for each in dict.fromkeys([dtype, out]))
                nans = ("", ", nan_propagate=True") if kind in ("max", "min", "absmax") and out == dtype else ("",)
                for how in [*nans, *([", clear=False"] if out == dtype else [])]:
                    lines = (f"r_ = T.alloc_fragment(({N},), '{out}')", "T.copy({1}, r_)")
                    last = (f"T.reduce_{kind}(t_, r_, dim=1{how})", "T.copy(r_, {1})")
                    name = f"reduce_{kind} of {dtype} into {out}{how}"
                    yield Entry(name, asks, (_matrix(dtype), _vector(out)), (*tile, *lines, *last))
        for kind in ("sum", "max"):
            for how in ("", ", reverse=True"):
                lines = (*tile, f"T.cum{kind}(t_, dim=1{how})", "T.copy(t_, {1})")
                yield Entry(f"cum{kind} of {dtype}{how}", ((f"scan.{kind}", (dtype,)),), (_matrix(dtype),) * 2, lines)
        for kind in ("any_of", "all_of"):
            lines = (f"t_ = T.alloc_fragment(({N},), '{dtype}')", "T.copy({0}, t_)", f"if T.{kind}(t_):")
            yield Entry(f"{kind} {dtype}", (), (_vector(dtype), _vector("int32")), (*lines, "    {1}[0] = 1"))
        for op, update in (
            ("sum", "r_[0] += {0}[i_]"),
            *((f, f"r_[0] = T.{f}(r_[0], {{0}}[i_])") for f in ("max", "min")),
        ):
            begin = (f"r_ = T.alloc_reducer((1,), '{dtype}', op='{op}')", "T.reducer_init(r_)")
            lines = (f"for i_ in T.Parallel({N}):", f"    {update}", "T.finalize_reducer(r_)", "T.copy(r_, {1})")
            yield Entry(f"reducer of {op} of {dtype}", (), (_vector(dtype), ((1,), dtype)), (*begin, *lines))


def products() -> Iterator[Entry]:
    for a in ALL:
        for b in ALL:
            for c in ALL:
                params = (((16, 32), a), ((32, 16), b), ((16, 16), c))
                tiles = [
                    f"{x}_ = T.alloc_{where}({shape}, '{dtype}')"
                    for x, where, (shape, dtype) in zip("abc", ("shared", "shared", "fragment"), params)
                ]
                lines = (
                    "T.copy({0}, a_)",
                    "T.copy({1}, b_)",
                    "T.copy({2}, c_)",
                    "T.gemm(a_, b_, c_)",
                    "T.copy(c_, {2})",
                )
                yield Entry(f"gemm of {a} and {b} into {c}", (("dot", (a, b, c)),), params, (*tiles, *lines))


_SEMANTICS = {None: "relaxed", "acquire": "acquire", "release": "release", "acq_rel": "acq_rel", "seq_cst": "acq_rel"}


def atomics() -> Iterator[Entry]:
    for dtype in ALL:
        two = (_vector(dtype),) * 2
        parallel = f"for i_ in T.Parallel({N}):"
        for kind in ("add", "max", "min", "or"):
            for order, semantics in _SEMANTICS.items():
                tail = f", memory_order={order!r}" if order else ""
                asks = ((f"atomic.{kind}.{semantics}", (dtype,)),)
                update = f"T.atomic_{kind}({{0}}[i_], {{1}}[i_]{tail})"
                forms = {
                    "tile": (parallel, f"    {update}"),
                    "masked": (parallel, "    if i_ % 3 != 1:", f"        {update}"),
                    "element": (f"T.atomic_{kind}({{0}}[0], {{1}}[0]{tail})",),
                    "previous": (
                        parallel,
                        f"    {{1}}[i_] = T.atomic_{kind}({{0}}[i_], {{1}}[i_]{tail}, return_prev=True)",
                    ),
                    "number": (f"T.atomic_{kind}({{0}}[0], 1{tail})",),
                    "region": (f"T.atomic_{kind}({{0}}[0:8], {{1}}[0:8]{tail})",),
                }
                for form, lines in forms.items() if order in (None, "acq_rel") else [("tile", forms["tile"])]:
                    yield Entry(f"atomic_{kind} of {dtype}{tail}, {form}", asks, two, lines)
        for order in (None, "acquire", "release", "seq_cst"):
            asks = ((f"atomic.cas.{_SEMANTICS[order]}", (dtype,)),)
            swap = f"T.atomic_cas({{0}}[%], {{1}}[%], {{0}}[0], memory_order={order!r})"
            masked = (parallel, "    if i_ % 3 != 1:", "        {1}[i_] = " + swap.replace("%", "i_"))
            lines = (parallel, "    " + swap.replace("%", "i_"))
            yield Entry(f"atomic_cas of {dtype}, {order}, tile", asks, two, lines)
            yield Entry(f"atomic_cas of {dtype}, {order}, masked", asks, two, masked)
            yield Entry(f"atomic_cas of {dtype}, {order}", asks, two, ("{1}[1] = " + swap.replace("%", "0"),))
        for lanes in (2, 4):
            asks, update = (("atomic.add.relaxed", (dtype,)),), f"T.atomic_addx{lanes}({{0}}[%], {{1}}[%]"
            yield Entry(f"atomic_addx{lanes} of {dtype}", asks, two, (update.replace("%", "0") + ")",))
            before = f"o_ = {update}, return_prev=True)"
            lines = (before.replace("%", "0"), "{1}[0] = o_[0] + o_[1]")
            yield Entry(f"atomic_addx{lanes} of {dtype}, previous", asks, two, lines)
            lines = (f"for i_ in T.Parallel({N // lanes}):", "    " + before.replace("%", f"i_ * {lanes}"))
            lines += tuple(f"    {{1}}[i_ * {lanes} + {lane}] = o_[{lanes - 1 - lane}]" for lane in range(lanes))
            yield Entry(f"atomic_addx{lanes} of {dtype}, previous of a tile", asks, two, lines)
        for order in ("relaxed", "acquire", "seq_cst"):
            asks = ((f"atomic.load.{_SEMANTICS.get(order, order)}", (dtype,)),)
            text = f"T.atomic_load({{0}}[%], memory_order={order!r})"
            lines = (parallel, "    {1}[i_] = " + text.replace("%", "i_"))
            yield Entry(f"atomic_load of {dtype}, {order}, tile", asks, two, lines)
            yield Entry(f"atomic_load of {dtype}, {order}", asks, two, ("{1}[0] = " + text.replace("%", "0"),))
        for order in ("relaxed", "release", "seq_cst"):
            asks = ((f"atomic.store.{_SEMANTICS.get(order, order)}", (dtype,)),)
            lines = (f"T.atomic_store({{0}}[0], {{1}}[0], memory_order={order!r})",)
            yield Entry(f"atomic_store of {dtype}, {order}", asks, two, lines)
            lines = (parallel, f"    T.atomic_store({{0}}[i_], {{1}}[i_], memory_order={order!r})")
            yield Entry(f"atomic_store of {dtype}, {order}, tile", (*asks, ("atomic.store.tile", (dtype,))), two, lines)


def scatters() -> Iterator[Entry]:
    for dtype in ALL:
        params = (_vector(dtype), _vector("int32"), _vector(dtype))
        for kind in ("add", "max", "min", "or"):
            update = f"T.atomic_{kind}(t_[{{1}}[i_] % 16], {{0}}[i_]"
            start = (f"t_ = T.alloc_shared(({N},), '{dtype}')", "T.copy({2}, t_)", f"for i_ in T.Parallel({N}):")
            bits = ("or", "and", "xor") if kind == "or" and dtype in FLOATS else (kind,)  # all refused alike
            asks = tuple((f"scatter.{each}", (dtype,)) for each in bits)
            lines = (*start, f"    {update})", "T.copy(t_, {2})")
            yield Entry(f"scatter {kind} of {dtype}", asks, params, lines)
            lines = (*start, f"    {{2}}[i_] = {update}, return_prev=True)")
            yield Entry(f"scatter {kind} of {dtype}, previous", asks, params, lines)
        swap = "    {2}[i_] = T.atomic_cas(t_[{1}[i_] % 16], {0}[i_], {0}[0])"
        yield Entry(f"scatter cas of {dtype}", (("scatter.cas", (dtype,)),), params, (*start, swap))


def of_ir() -> Iterator[Entry]:
    """What the language has no function for."""
    orders = "relaxed acquire release acq_rel".split()
    for dtype in ALL:
        tile, three = f"tensor<{N}x{dtype}>", (_vector(dtype),) * 3
        for function in OF_IR:
            given = ["%x", "%n" if function == "ldexp" else "%y", "%x"][: MATH_FUNCTIONS[function].arity]
            line = f'%r = arith.math [{", ".join(given)}] {{function = "{function}"}} : {tile}'
            yield Entry(f"{function} of {dtype}", ((function, (dtype,)),), three, (line,), True)
        line = f'%s = tensor.reduce %x {{kind = "prod", axis = 0}} : {dtype}\n    %r = tensor.broadcast %s : {tile}'
        yield Entry(f"reduce prod of {dtype}", (("reduce.prod", (dtype,)),), three, (line,), True)
        for kind in ("prod", "min"):
            line = f'%r = tensor.scan %x {{kind = "{kind}", axis = 0}} : {tile}'
            yield Entry(f"scan {kind} of {dtype}", ((f"scan.{kind}", (dtype,)),), three, (line,), True)
        line = f'%r = tensor.scan %x factors=%y {{kind = "linear", axis = 0}} : {tile}'
        yield Entry(f"scan linear of {dtype}", (("scan.linear", (dtype,)),), three, (line,), True)
        for kind in ("and", "xor") if dtype not in FLOATS else ():
            places = f"%p = arith.xor %i, %one : tensor<{N}xint32>"
            line = f'{places}\n    %r, %q = tensor.scatter %x, %y, %p {{kind = "{kind}"}} : {tile}, {tile}'
            yield Entry(f"scatter {kind} of {dtype}", ((f"scatter.{kind}", (dtype,)),), three, (line,), True)
        for kind in ("and", "xor", "exchange"):
            for order in orders:
                options = f'{{kind = "{kind}", semantics = "{order}", guarded = true}}'
                line = f"%r = tile.atomic %x, %Y[%i] {options} : {tile}"
                asks = ((f"atomic.{kind}.{order}", (dtype,)),)
                asks += (("atomic.exchange.tile", (dtype,)),) if kind == "exchange" else ()
                yield Entry(f"atomic {kind} of {dtype}, {order}", asks, three, (line,), True)


def every() -> list[Entry]:
    """All entries, each once."""
    groups = (arithmetic, moves, casts, mixed, reductions, atomics, scatters, products, of_ir)
    return list({entry.name: entry for group in groups for entry in group()}.values())


_VARIABLE = re.compile(r"\b([a-z]_)(?![A-Za-z0-9_])")


def program_text(entries: list[Entry]) -> str:
    """One program of some entries of the language: each has parameters, and variables, of its own.

    Products of the same operands have only accumulators of their own.
    """
    params, body = dict[str, None](), list[str]()
    shares = len({entry.pair for entry in entries}) == 1
    for number, entry in enumerate(entries):
        common = entry.pair if shares else ()
        names = [f"P{number if position >= len(common) else 0}_{position}" for position in range(len(entry.params))]
        typed = zip(names, entry.params, strict=True)
        params |= {f"{name}: T.Tensor({shape}, '{dtype}')": None for name, (shape, dtype) in typed}
        for line in entry.lines:
            named = _VARIABLE.sub(lambda found: f"{found[1]}{0 if common and found[1] in 'a_b_' else number}", line)
            written = named.format(*names)
            if not common or written not in body:
                body.append(written)
    lines = "\n".join(f"        {line}" for line in body)
    return f"@T.prim_func\ndef main({', '.join(params)}):\n    with T.Kernel(1, threads=128) as bx:\n{lines}\n"


def ir_text(entry: Entry) -> str:
    """The program of an entry of the IR."""
    dtype = entry.params[0][1]
    params = ", ".join(f"%{name}: buffer<{N}*{dtype}, global>" for name in ("X", "Y", "OUT"))
    return f"""
tile.func {{sym_name = "main", parameters = ("X", "Y", "OUT"), outputs = (2,)}} ({params}) {{
  %one = arith.constant {{value = 1}} : int32
  tile.kernel [%one] (%bx: int32) {{
    %i = tensor.iota {{axis = 0}} : tensor<{N}xint32>
    %n = arith.sub %i, %one : tensor<{N}xint32>
    %x = tile.load %X[%i] {{guarded = true}} : tensor<{N}x{dtype}>
    %y = tile.load %Y[%i] {{guarded = true}} : tensor<{N}x{dtype}>
    {entry.lines[0]}
    tile.store %r, %OUT[%i] {{guarded = true}}
  }}
}}"""
