"""Text programs: parameters, what a text may hold, and that nothing in it reaches host Python."""

# ruff: noqa: E501

from __future__ import annotations

import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError
from tiledsl.frontend.text_program import MAX_STEPS

SCALE = '''
"""Scaling by a constant."""
block = 8
factor = 2.0  # a default

@T.macro
def scaled(x):
    return x * factor

def shifted(x, by=1.0):
    return x + by

@T.prim_func
def scale(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype)):
    with T.Kernel(T.ceildiv(M, block), T.ceildiv(N, block), threads=128) as (bx, by):
        a = T.alloc_fragment((block, block), dtype)
        T.copy(A[bx * block, by * block], a)
        for i, j in T.Parallel(block, block):
            a[i, j] = shifted(scaled(a[i, j]))
        T.copy(a, B[bx * block, by * block])
'''


def run(program: Any, *inputs: torch.Tensor, out_idx: Any = (-1,)) -> Any:
    return tiledsl.compile(program, out_idx=list(out_idx), target="interpret")(*inputs)


def body(text: str, **parameters: Any) -> Any:
    """Build a program whose kernel has this body."""
    lines = ["@T.prim_func", 'def main(A: T.Tensor((4, 4), "float32"), B: T.Tensor((4, 4), "float32")):']
    lines += ["    with T.Kernel(1) as bx:", textwrap.indent(textwrap.dedent(text).strip("\n"), " " * 8)]
    return tiledsl.parse("\n".join([*lines, "        B[0, 0] = 1.0"]), **parameters).build(())


def test_what_a_program_is_shown_as() -> None:
    program = tiledsl.parse(SCALE, M=5, N=11, dtype="float32")
    assert repr(program) == f"<tiledsl program scale of {program.function.loc.file}>"


def test_parameters_and_defaults() -> None:
    x = torch.randn(5, 11)
    torch.testing.assert_close(run(tiledsl.parse(SCALE, M=5, N=11, dtype="float32"), x), x * 2 + 1)
    program = tiledsl.parse(SCALE, M=5, N=11, dtype=T.float16, factor=3, block=4)
    torch.testing.assert_close(run(program, x.half()), x.half() * 3 + 1)
    assert program.name == "scale" and program.parameters["block"] == 4
    assert tiledsl.parse(SCALE, M=5, N=11, dtype=torch.float32).parameters["dtype"] == "float32"


def test_sequences_are_parameters_with_what_is_in_them() -> None:
    given = {"M": 5, "N": 3, "dtype": torch.float16}
    for value, kept in (
        (torch.Size((2, 3)), (2, 3)), ([torch.int8, (True, None)], ["int8", (True, None)]), ((), ()), ("ab", "ab")
    ):  # fmt: skip
        found = tiledsl.parse("extra = 0\n" + SCALE, **given, extra=value).parameters["extra"]
        assert found == kept and type(found) is type(kept)
    with pytest.raises(TileError, match="the parameter extra is module"):
        tiledsl.parse("extra = 0\n" + SCALE, **given, extra=[[torch]])


def test_a_sum_of_lists_is_another_list() -> None:
    lines = ["a = [1]", "b = a", "c = a + [2]", "b += [3, 4]", "A[0] = len(a) * 10 + len(c)"]
    text = "@T.prim_func\ndef main(A: T.Tensor((1,), 'int32')):\n    with T.Kernel(1) as bx:\n"
    a = torch.zeros(1, dtype=torch.int32)
    run(tiledsl.parse(text + "".join(f"        {line}\n" for line in lines)), a, out_idx=())
    assert a.item() == 32


def test_numbers_of_numpy_are_parameters_and_arrays_are_not() -> None:
    for rows in (np.int64(5), np.array(5)):
        assert tiledsl.parse(SCALE, M=rows, N=3, dtype="float32").parameters["M"] == 5
    for array in (np.array([5]), np.zeros((1, 1))):
        with pytest.raises(TileError, match=r"the parameter M is .*; parameters are numbers"):
            tiledsl.parse(SCALE, M=array, N=3, dtype="float32")


def test_names_that_a_body_binds_are_no_parameters() -> None:
    """In statements, in `:=` wherever it stands, and in loops; what nested functions bind is theirs."""
    text = """
        rows = 3
        if (width := rows + 1) > 2:
            for k in range(width):
                B[0, k] = (last := k + 1) + last
        pair = ((low := 1), low + width)
        B[1, 0] = pair[1] + low
    """
    body(text)
    with pytest.raises(TileError, match=r"inner has no value.*nor a parameter that was given"):
        body("f = lambda x: (inner := x)\nB[1, 0] = f(2) + inner")
    body("f = lambda x, y=2: x + y\nB[1, 0] = f(2)")
    for unbound in ("lambda x: x + other", "lambda x=other: x", "[x + other for x in range(2)][0]"):
        with pytest.raises(TileError, match=r"^[^(]*other has no value"):
            body(f"f = {unbound}\nB[1, 0] = 2")


def test_what_functions_of_functions_leave_open_is_needed_too() -> None:
    unused = "def g():\n    return open_name\ndef f():\n    return g()\n"
    used = "@T.prim_func\ndef main(A: T.Tensor((4,), 'int32')):\n    with T.Kernel(1):\n        A[0] = {}\n"
    tiledsl.parse(unused + used.format("1")).build(())
    tiledsl.parse(unused + used.format("f()"), open_name=3).build(())
    with pytest.raises(TileError, match="open_name has no value: it is neither in the text nor a parameter") as caught:
        tiledsl.parse(unused + used.format("f()"))
    assert caught.value.loc is not None and caught.value.loc.line == 2


def test_dynamic_dimensions() -> None:
    text = 'M = T.dynamic("M")\n' + SCALE
    kernel = tiledsl.compile(tiledsl.parse(text, N=4, dtype="float32"), out_idx=-1, target="interpret")
    for rows in (1, 9):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(kernel(x), x * 2 + 1)


def test_a_tile_file(tmp_path: Path) -> None:
    file = tmp_path / "scale.tile"
    file.write_text(SCALE)
    x = torch.randn(3, 3)
    torch.testing.assert_close(run(tiledsl.parse_file(file, M=3, N=3, dtype="float32"), x), x * 2 + 1)
    with pytest.raises(TileError, match=r"scale\.tile:\d+:\d+: error: dtype has no value"):
        tiledsl.parse_file(file, M=3, N=3)
    with pytest.raises(TileError, match=r"there is no file .*nothing\.tile"):
        tiledsl.parse_file(tmp_path / "nothing.tile")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(TileError, match="cannot be read"):
        tiledsl.parse_file(file)


def test_several_programs() -> None:
    text = SCALE + SCALE[SCALE.index("@T.prim_func") :].replace("scale(A", "twice(A").replace(
        "T.prim_func", "T.prim_func()"
    )
    with pytest.raises(TileError, match="holds 2 programs: scale, twice\n  note: choose one with name="):
        tiledsl.parse(text, M=3, N=3, dtype="float32")
    assert tiledsl.parse(text, name="twice", M=3, N=3, dtype="float32").name == "twice"
    with pytest.raises(TileError, match=r"has no program 'twic'; did you mean twice\?"):
        tiledsl.parse(text, name="twic", M=3, N=3, dtype="float32")


@pytest.mark.parametrize(
    ("before", "body", "found"),
    [
        ("pass\n'of text'\n3\nx: int = 3\n", "with T.Kernel(1): A[0] = 1", True),
        ("", "if x: pass\n    else:\n        with T.Kernel(1): A[0] = 1", True),
        ("", "for i in x:\n        while x:\n            with T.Kernel(1): A[0] = 1", True),
        ("", "for i in x: pass\n    else:\n        with T.Kernel(1): A[0] = 1", True),
        ("", "if x:\n        pass\n    else:\n        pass", False),
        ("@T.macro\n", "with T.Kernel(1): A[0] = 1", False),
        ("@T.prim_func(3)\n", "with T.Kernel(1): A[0] = 1", False),
        ("@T.prim_func.x\n", "pass", False),
        ("@x(T).prim_func\n", "pass", False),
        ("@T.prim_func\n", "pass", True),
    ],
)
def test_what_is_a_program(before: str, body: str, found: bool) -> None:
    text = f"{before}def f(A):\n    {body}\n"
    if found:
        assert tiledsl.parse(text, **({} if "x: int" in text or "x" not in body else {"x": 1})).name == "f"
    else:
        with pytest.raises(TileError, match="holds no program"):
            tiledsl.parse(text, x=1)


def test_bare_functions() -> None:
    bare = SCALE.replace("@T.prim_func\n", "")
    x = torch.randn(3, 3)
    torch.testing.assert_close(run(tiledsl.parse(bare, M=3, N=3, dtype="float32"), x), x * 2 + 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"M": 5, "N": 3}, "dtype has no value: it is neither in the text nor a parameter that was given"),
        ({}, r"M \(and N, dtype\) has no value"),
        ({"M": 5, "N": 3, "dtype": "float32", "blok": 4}, "scale has no parameter 'blok'; did you mean block?"),
        ({"M": 5, "N": 3, "dtype": "float32", "T": 4}, "the parameter T has the name of something else in the text"),
        ({"M": 5, "N": 3, "dtype": "float32", "scaled": 4}, "the parameter scaled has the name of something else"),
        ({"M": object(), "N": 3, "dtype": "float32"}, "the parameter M is object .*; parameters are numbers, strings"),
        ({"M": print, "N": 3, "dtype": "float32"}, "the parameter M is builtin_function"),
        ({"M": {"a": 1}, "N": 3, "dtype": "float32"}, "the parameter M is dict"),
        ({"M": [torch], "N": 3, "dtype": "float32"}, "the parameter M is module"),
        ({"M": None, "N": 3, "dtype": "float32"}, "dimension 0 of a tensor is None .was a tunable left None"),
    ],
)  # fmt: skip
def test_wrong_parameters(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TileError, match=message):
        tiledsl.parse(SCALE, **given).build(())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no program"),
        ("x = 3", "holds no program"),
        ("import os", "a text program imports nothing: T is there already"),
        ("from os import system", "a text program imports nothing: T is there already"),
        ("print('x')", "a text program holds functions and constants"),
        ("for i in range(3):\n    x = i", "a text program holds functions and constants"),
        ("def f(): pass\ndef f(): pass", "two functions are called f"),
        ("@staticmethod\ndef f(A: T.Tensor((4,), 'int8')):\n    with T.Kernel(1): A[0] = 1", "holds no program"),
        ("@U.prim_func\ndef f(A: T.Tensor((4,), 'int8')):\n    with T.Kernel(1): A[0] = 1", "holds no program"),
        ("@T.prim_func\n@T.macro\ndef f():\n    with T.Kernel(1): x = 1", "a program has no decorator but @T.prim_func"),
        (SCALE + "x = " + "(" * 30000 + "1" + ")" * 30000, "more than 200 brackets are open at once"),
        (SCALE + "x = " + "-" * 30000 + "1", "nested too deep"),
        (SCALE + "y = " + "1+" * 30000 + "1", "nested too deep"),
        ("\0", "null byte"),
        ("x" * 2_000_000, "the text has 2000000 characters; at most 1000000 are possible"),
    ],
)  # fmt: skip
def test_wrong_texts(text: str, message: str) -> None:
    with pytest.raises(TileError, match=message):
        tiledsl.parse(text, **({"M": 4, "N": 4, "dtype": "float32"} if "block" in text else {})).build(())


TENSORS = """
n = T.dyn["n"]
@T.prim_func
def main(A: T.Tensor[(n,), "int32"]):
    with T.Kernel(1):
        A[0] = {value}
"""


def test_what_a_text_makes_with_brackets() -> None:
    a = torch.zeros(3, dtype=torch.int32)
    tiledsl.compile(tiledsl.parse(TENSORS.format(value="n")), target="interpret")(a)
    assert a[0] == 3
    for value, kind in (("T.copy", "a function"), ("T.int32", "the element type int32")):
        with pytest.raises(TileError, match=f"error: {kind} cannot be indexed in a text program"):
            tiledsl.parse(TENSORS.format(value=f"{value}[0]")).build(())


def test_no_text() -> None:
    with pytest.raises(TileError, match=r"tiledsl\.parse takes a text, not int"):
        tiledsl.parse(3)  # type: ignore[arg-type]


def test_errors_quote_their_own_text() -> None:
    first = tiledsl.parse(SCALE.replace("T.copy(A", "T.cpy(A"), M=4, N=4, dtype="float32")
    tiledsl.parse("\n\n\n\n" + SCALE, M=4, N=4, dtype="float32")
    with pytest.raises(TileError, match=r"T\.cpy is not part of the tile language; did you mean T\.copy\?") as caught:
        first.build(())
    assert "        T.cpy(A[bx * block, by * block], a)" in str(caught.value)


@pytest.mark.parametrize("use", ["T.address_of[0]", "T.address_of.x", "T.address_of(A)"])
def test_what_has_no_triton_form_says_so_however_it_is_used(use: str) -> None:
    program = SCALE.replace("T.copy(A[bx * block, by * block], a)", use)
    with pytest.raises(TileError) as caught:
        tiledsl.parse(program, M=4, N=4, dtype="float32").build(())
    assert caught.value.message == "T.address_of: addresses have no Triton form; index the buffer"


ESCAPES = [
    # modules and internals of T
    "T.operations.context", "T.expression", "T.hints", "T.program.sys", "T.__dict__", "T.__class__", "T.__globals__",
    "T.copy.__globals__", "T.copy.__code__", "T.copy.__wrapped__", "T.copy.__self__", "T.TileError", "T.Any(1)", "T._dtypes",
    "T.difflib", "T.ModuleType", "T.prim_func.__init__", "T.PrimFunc", "T.Macro", "T.Buffer", "T.PrimExpr", "T.REFUSED",
    "T.Symbol", "T.Refused", "T.Kernel(1).options", "T.Kernel(1).__enter__()", "T.Layout(1).arguments", "T.float32.__class__",
    "T.Tensor((4,), 'int8').__class__", "T.GemmWarpPolicy.__members__", "T.GemmWarpPolicy.Square.__class__",
    "T.GemmWarpPolicy.Square._value_", "T.GemmWarpPolicy('x')", "T.dyn.__getitem__", "T.Ref.__class_getitem__", "T.Ref.__mro__",
    "T.language", "T.annotations", "T.note_once", "T.alloc_var('int32').buffer", "T.serial(3).start", "T.serial(3).__iter__()",
    "T.macro(lambda: 1)", "T.prim_func(lambda: 1)", "T.inline(T.copy)", "T.macro.__name__",
    # values of the program
    "A._value", "A.value", "A.type", "A.__class__", "A.data.value", "A.store(1)", "A.__getattribute__('value')", "bx._value",
    "bx.value()", "bx.__class__", "bx.dtype.__class__.__mro__", "A[0, 0].buffer", "A[0, 0].value()", "A[0, 0].store(2)",
    "A[0:2, 0].offsets", "A.dtype.as_torch()", "A.dtype.format", "A.scope.__func__", "A.scope.__self__", "bx.astype.__self__",
    # Python
    "().__class__", "(1).__class__.__base__.__subclasses__()", "'a'.__class__", "'{0.__class__}'.format(1)", "'a'.join",
    "'%s'.__mod__", "'%s' % 1", "[].append", "{}.get", "(1).bit_length()", "1.0.hex()", "True.real", "None.__class__",
    "(lambda: 1).__globals__", "(lambda: 1).__code__", "(lambda f: f.__globals__)(T.copy)", "[x for x in [T.copy]][0].__globals__",
    "(i for i in [1]).gi_frame", "range(3).start", "range.__self__", "len.__self__", "max.__self__", "int.__subclasses__()",
    "int.from_bytes(b'a', 'big')", "float.fromhex('1')", "list.append", "tuple.__new__", "sum.__call__", "round.__self__",
    "open('x')", "eval('1')", "exec('1')", "compile('1', '', 'eval')", "__import__('os')", "getattr(A, 'value')", "setattr",
    "globals()", "locals()", "vars(A)", "dir(A)", "type(A)", "object()", "super()", "isinstance(A, int)", "print('x')",
    "input()", "breakpoint()", "help()", "__builtins__", "__name__", "__file__", "__loader__", "memoryview(b'')", "bytearray(9)",
    "str(A)", "repr(A)", "hash(A)", "id(A)", "iter(A)", "next(A)", "map(T.copy, [])", "filter(T.copy, [])", "zip([1])",
    "sorted([1], key=T.copy)", "max([1], key=lambda x: x)", "min([1, 2], key=T.copy)", "sum([[1]], [])", "callable(A)",
    "exit()", "quit()", "copyright", "NotImplemented", "Exception('x')", "ValueError", "int('1' * 5000)", "list(A)", "tuple(bx)",
    "f'{A.__class__}'", "f'{T.copy.__globals__}'", "f'{1:>{10**9}}'", "f'{1:999999999d}'", "f'{T.copy:x}'",
    "A[T.copy]", "A['x']", "T['copy']", "T.copy['x']", "len[0]", "(lambda: 1)[0]", "T()", "A()", "bx()", "'a'()", "3()", "[](1)",
    "T.comment(open)", "T.print(T)", "T.copy(T, T)", "T.fill(A, T.copy)", "T.alloc_var(T.copy)", "T.annotate_layout({A: eval})",
    "T.device_assert(T.copy)", "T.call_extern('int', 'system', 'ls')", "T.import_source('x')", "T.assume(print)", "A.__dict__",
    "T.Layout(1).__class__", "T.Layout(1).f.g", "T.Fragment(1)()", "T.ptr.__globals__", "T.ptr.error", "T.dtype(A)", "T.dtype.__self__",
]  # fmt: skip


@pytest.mark.parametrize("expression", ESCAPES)
def test_nothing_reaches_python(expression: str) -> None:
    for text in (f"x = {expression}", expression, f"x = [{expression} for y in (1,)]", f"x = (lambda: {expression})()"):
        with pytest.raises(TileError) as caught:
            body(text)
        assert caught.value.loc is not None


@pytest.mark.parametrize(
    "text",
    [
        "import os",
        "from os import system",
        "global A",
        "A.dtype = 3",
        "T.copy = 3",
        "T = 3\nT.copy(A, B)",
        "with open('x') as f:\n    pass",
        "with A as f:\n    pass",
        "@T.prim_func\ndef f(): pass",
        "@print\ndef f(): pass",
        "@(lambda f: f.__globals__)\ndef f(): pass",
        "def f(x=T.copy.__globals__): pass\nf()",
        "def f(): return f\nf().__globals__",
        "def f(): return T.copy\nf().__globals__",
        "raise ValueError('x')",
        "raise T",
        "class A: pass",
        "try:\n    pass\nfinally:\n    pass",
        "x = yield",
        "x: T.copy.__globals__ = 3",
        "x, y = T.copy, 3\nx.__globals__",
        "(x := T.copy)\nx.__globals__",
        "x = {'a': T.copy}\nx['a'].__globals__",
        "x = [T.copy]\nx[0].__globals__",
        "for x in [T.copy]:\n    x.__globals__",
        "for x in A.__class__:\n    pass",
        "while A.__class__:\n    pass",
        "if A.__class__:\n    pass",
        "assert T.copy.__globals__",
        "assert False, T.copy.__globals__",
        "del A",
        "x = []\nx.__iadd__([1])",
        "print(*[1], **{'file': 3})",
        "T.print(*[T], **{'msg': T.copy.__globals__})",
    ],
)
def test_statements_that_are_refused(text: str) -> None:
    with pytest.raises(TileError) as caught:
        body(text)
    assert caught.value.loc is not None


@pytest.mark.parametrize(
    "text",
    [
        "while True:\n    pass",
        "x = 1\nwhile x > 0:\n    x = x + 1",
        "x = 10 ** 10 ** 10",
        "x = 1 << 10 ** 9",
        "x = T.pow(10, 10 ** 9)",
        "x = T.shift_left(1, 10 ** 9)",
        "x = 2\nfor i in [1] * 60:\n    x = x * x",
        "x = 'a' * 10 ** 10",
        "x = 'a'\nfor i in [1] * 60:\n    x = x + x",
        "x = [0] * 10 ** 10",
        "x = [0]\nfor i in [1] * 60:\n    x = x + x",
        "x = (1,)\nfor i in [1] * 60:\n    x = (x, x)",
        "x = (1,)\nfor i in [1] * 60:\n    x = {0: x, 1: x}",
        "x = [1]\nx[0] = x\ny = x",
        "x = [1]\nfor i in [1] * 60:\n    x[0] = [x, x]",
        "x = (1,)\nfor i in [1] * 60:\n    x = f'{x}{x}'",
        "x = sum([range(10 ** 12)][0])",
        "x = tuple([range(10 ** 12)][0])",
        "x = [i for i in [range(10 ** 12)][0]]",
        "x = [i for i in [1] * 1000 for j in [1] * 1000 for k in [1] * 1000]",
        "x = (lambda f: f(f))(lambda f: f(f))",
        "f = lambda n: f(n) + f(n)\nf(1)",
        "g = lambda n, g: (g(n - 1, g) + g(n - 1, g)) if n else 1\ng(60, g)",
        "def f(): f()\nf()",
        "def f(g): g(g)\nf(f)",
        "x = max(*[1] * 90000, *[1] * 90000)",
        "y = [1] * 90000\nfor i in [1] * 90000:\n    x = 5 in y",
        "x = round(5, -10 ** 9)",
        "x = int('9' * 90000)",
        "x = {i: i for i in [1] * 90000 for j in [1] * 90000}",
        "*x, = [range(10 ** 12)][0]",
        "x = f'{1:99999999}'",
        "x = f'{1.0:.99999999f}'",
        "T.Tensor([range(10 ** 12)][0], 'int8')",
        "T.alloc_fragment(range(10 ** 12), 'int8')",
        "T.alloc_fragment((2,) * 90000, 'int8')",
        "for i in T.unroll(10 ** 9):\n    A[0, 0] = 1",
        "for i in T.Parallel(10 ** 9):\n    A[0, 0] = 1",
    ],
)
def test_work_is_bounded(text: str) -> None:
    start = time.perf_counter()
    with pytest.raises(TileError):
        body(text)
    assert time.perf_counter() - start < 10


def test_many_operations_are_bounded() -> None:
    text = "for i in [1] * 30000:\n    A[0, 0] = A[0, 0] + 1.0"
    with pytest.raises(TileError, match=f"building this program takes more than {MAX_STEPS} steps"):
        body(text)


def test_what_texts_can_do() -> None:
    body(
        """
        x = [i * 2 for i in (1, 2, 3) if i != 2]
        y = max(x) + min(1, 2) + abs(-3) + len(x) + int(2.5) + round(2.4) + sum(x)
        assert y == 6 + 1 + 3 + 2 + 2 + 2 + 8, f"y is {y:>4d} {y!r}"
        assert round(1234, -2) == 1200 and round(2.6, None) == 3 and sum([2], start=1) == 3
        z = {"a": 1, "b": (2, 3)}
        first, *rest = z["b"]
        assert A.shape[0] == 4 and A.dtype == "float32" and A.scope() == "global" and A.dtype.bits == 32
        f = T.alloc_fragment(A.shape, A.dtype)
        assert T.GemmWarpPolicy.FullRow not in (None, T.GemmWarpPolicy.FullCol)
        T.gemm(f, f, f, policy=T.GemmWarpPolicy.FullRow)
        T.annotate_layout({A: T.Layout((4, 4), lambda i, j: i * 4 + j)})
        def nested(a, b=2):
            return a * b
        twice = lambda a: nested(a)
        v = T.alloc_var("int32", 3)
        v = v + twice(bx).astype("int32")
        B[0, 1] = T.float32(v) if bx > 0 else -1.0
        """
    )


NAMES = [
    "T",
    "A",
    "B",
    "bx",
    "x",
    "copy",
    "float32",
    "__class__",
    "__globals__",
    "range",
    "max",
    "open",
    "f",
    "1",
    "'a'",
    "None",
]


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> str:
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(NAMES))
    inner = expressions(depth=depth - 1)
    kind = draw(st.integers(0, 9))
    a = draw(inner)
    if kind == 0:
        attribute = st.sampled_from(
            ["copy", "shape", "dtype", "__class__", "value", "alloc_fragment", "astype", "fill", "__init__"]
        )
        return f"({a}).{draw(attribute)}"
    b = draw(inner)
    if kind == 1:
        return f"({a})[{b}]"
    if kind == 2:
        return f"({a})({b})"
    if kind == 3:
        return f"({a})({b}, {draw(inner)})"
    if kind == 4:
        return f"({a}) {draw(st.sampled_from(['+', '*', '**', '%', '<', '==', 'and', 'in', '//', '@', '<<']))} ({b})"
    if kind == 5:
        return f"[{a}, *({b})]"
    if kind == 6:
        return f"[{a} for x in {b}]"
    if kind == 7:
        return f"(lambda x: {a})({b})"
    if kind == 8:
        return f"f'{{({a})!r}}'" if "'" not in a and "\\" not in a else f"({a}, {b})"
    return f"({a}) if ({b}) else x"


@hypothesis_settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(expressions(), min_size=1, max_size=3))
def test_fuzzed_expressions_give_nothing_but_tile_errors(lines: list[str]) -> None:
    start = time.perf_counter()
    try:
        body("x = 1\n" + "\n".join(f"x = {line}" for line in lines))
    except TileError as error:
        assert str(error)
    assert time.perf_counter() - start < 5
