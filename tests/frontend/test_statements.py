"""Statements that an elaborated program refuses or converts: short programs as text.

Of tiledsl.frontend.statements, tiledsl.frontend.blocks, tiledsl.frontend.loops, tiledsl.frontend.jumps,
tiledsl.frontend.calls and tiledsl.frontend.expressions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.support.executor import run
from tiledsl.errors import TileError
from tiledsl.frontend import syntax
from tiledsl.frontend.elaborate import _declared, _size, eager_sizes, elaborate_tree
from tiledsl.frontend.names import Scope, outer_names
from tiledsl.frontend.parser import parse_expression, parse_module
from tiledsl.frontend.statements import Statements
from tiledsl.ir.printer import print_op
from tiledsl.language.context import Context

OUTSIDE = """
@T.prim_func
def main(A: T.Tensor((8,), "float32"), n: T.int32):
    {statement}
    with T.Kernel(1, threads=32) as bx:
        A[0] = 1.0
"""
INSIDE = """
@T.prim_func
def main(A: T.Tensor((8,), "int32"), B: T.Tensor((8,), "int32"), n: T.int32):
    with T.Kernel(1, threads=32) as bx:
{body}
"""


def build(text: str) -> tiledsl.Kernel:
    return tiledsl.compile(tiledsl.parse(text), target="interpret")


def inside(body: str) -> str:
    return INSIDE.format(body="\n".join(f"        {line}" for line in body.strip("\n").splitlines()))


@pytest.mark.parametrize(
    ("what", "statement"),
    [
        ("if", "if n > 3:\n        pass"),
        ("for", "for i in range(n):\n        pass"),
        ("while", "while n > 3:\n        pass"),
        ("assert", "assert n > 3"),
        ("T.If", "with T.If(n > 3):\n        with T.Then():\n            pass"),
    ],
)
def test_what_runs_on_the_device_stands_in_a_kernel(what: str, statement: str) -> None:
    with pytest.raises(TileError, match=f"`{what}` on a device value stands outside of T.Kernel") as caught:
        build(OUTSIDE.format(statement=statement))
    assert caught.value.loc is not None and caught.value.loc.line == 4


def test_an_annotated_number_is_of_that_type_in_a_kernel() -> None:
    kernel = build(inside("x: T.int8 = 200\nA[0] = x\ny: T.int8 = n\nA[1] = y\nz = 200\nA[2] = z"))
    a, b = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    kernel(a, b, 300)
    assert a[:3].tolist() == [200 - 256, 300 - 256, 200]


def test_a_type_that_a_function_s_annotations_have_is_not_evaluated_again() -> None:
    def main(A):  # type: ignore[no-untyped-def]
        with T.Kernel(1, threads=32):
            A[0] = 7

    main.__annotations__["A"] = T.Tensor((8,), "int32")
    a = np.zeros(8, np.int32)
    run(T.prim_func(main).build(()), [a])
    assert a.tolist() == [7, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("bounds", "dtype"), [("2, n", "int32"), ("2, T.int64(n)", "int64"), ("T.uint32(n), 9", "int64")]
)
def test_a_loop_counts_in_the_widest_type_of_its_bounds(bounds: str, dtype: str) -> None:
    text = print_op(tiledsl.parse(inside(f"for i in T.serial({bounds}):\n    B[i] = 1")).build(()))
    assert f"(%i: {dtype})" in text


def test_annotations_that_change_nothing() -> None:
    """Of what is no number, and of numbers outside of a kernel, which are Python's."""
    program = OUTSIDE.format(statement="x: T.int16 = 70000")
    program = program.replace("A[0] = 1.0", "y: list = [1, 2]\n        A[0] = x + len(y)")
    a = np.zeros(8, np.float32)
    run(tiledsl.parse(program).build(()), [a, 0])
    assert a[0] == 70002


def test_names_that_are_declared_are_plain_ones() -> None:
    (tree,) = parse_module("def f(a, b):\n    a: T.int32\n    b[0]: T.int32 = 1\n    b.c: T.int32 = 1\n").body
    assert isinstance(tree, syntax.Function) and _declared(tree) == {"a"}


def test_an_annotated_name_has_the_value_that_a_variable_had() -> None:
    for annotation in ("", ": int"):
        lines = f'v = T.alloc_var("int32", 5)\nx{annotation} = v\nv = 7\nA[0] = x\nA[1] = v'
        kernel = build(inside(f"{lines}\ny{annotation} = A[1]\nA[1] = 9\nA[2] = y"))
        a, b = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
        kernel(a, b, 0)
        assert a[:3].tolist() == [5, 9, 7]


def test_another_name_of_a_parameter_outlives_the_kernel() -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            B = A
            B[0] = 5
        with T.Kernel(1, threads=32):
            B[1] = 6

    a = np.zeros(8, np.int32)
    run(main.build(()), [a])
    assert a.tolist() == [5, 6, 0, 0, 0, 0, 0, 0]


CARRIED = """
k = n + 0
for i in T.serial(4):
    A[i] = k
    {rebound}
    if n > 2:
        k = n * 5
        B[i] = k
"""


def test_a_name_of_a_branch_is_its_own_but_what_the_loop_binds_is_the_loops() -> None:
    build(inside(CARRIED.format(rebound="pass")))
    with pytest.raises(TileError, match="k is read and then assigned again in a device loop"):
        build(inside(CARRIED.format(rebound="k = k + 1")))


@pytest.mark.parametrize("value", ["1.0", "n", "n + 1", "True"])
def test_a_buffers_name_is_not_given_to_a_number(value: str) -> None:
    with pytest.raises(TileError, match="f is a buffer, and this would only give its name to"):
        build(inside(f'f = T.alloc_fragment((8,), "int32")\nf = {value}'))


TWO_KERNELS = """
@T.prim_func
def main(A: T.Tensor((8,), "float32")):
    with T.Kernel(1, threads=32) as bx:
        t = T.alloc_fragment((8,), "float32")
        T.copy(A, t)
        old = A[0]
    with T.Kernel(1, threads=32) as bx:
        {use}
"""


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("T.copy(t, A)", "t is an on-chip buffer of a T.Kernel that has ended"),
        ("A[0] = old", "old was first assigned in device code that has ended, so its value is not known here"),
    ],
)
def test_what_ends_with_a_kernel(use: str, message: str) -> None:
    with pytest.raises(TileError, match=message) as caught:
        build(TWO_KERNELS.format(use=use))
    assert caught.value.loc is not None and caught.value.loc.line == 9


@pytest.mark.parametrize(("given", "size"), [(4, 4), (4.0, 4), (4.5, None), ("4", None), (None, None)])
def test_a_constant_of_an_eager_function_is_an_integer(given: object, size: int | None) -> None:
    if size is not None:
        assert _size("f", "N", given) == size
    else:
        with pytest.raises(TileError, match=f"f: N is {given!r}; it is not a parameter, and a T.const is an integer"):
            _size("f", "N", given)


@pytest.mark.parametrize("jump", ["break", "continue", "T.loop_break()"])
def test_what_follows_a_jump_is_never_reached(jump: str) -> None:
    text = "for k in T.serial(4):\n    A[k] = n\n    if n > k:\n        {jump}{more}\n    B[k] = k"
    made, wanted = (
        print_op(tiledsl.parse(inside(text.format(jump=jump, more=more))).build(()))
        for more in ("\n        A[0] = 7\n        A[0, 0, 0] = 7", "")
    )
    assert made == wanted


@pytest.mark.parametrize("loop", ["while i < 2:\n        i += 1", "for _ in (1, 2):\n        i += 1"])
def test_a_break_behind_a_loop_that_ran_while_building_leaves_the_outer_one(loop: str) -> None:
    text = "for k in T.serial(4):\n    i = 0\n    {loop}\n    A[k] = n + {number}\n    if n > k:\n        break"
    made, wanted = (
        print_op(tiledsl.parse(inside(text.format(loop=each, number=number))).build(()))
        for each, number in ((loop, "i"), ("pass", "2"))
    )
    assert made == wanted


def test_a_set_that_is_written_out_holds_its_elements() -> None:
    kernel = build(
        inside("A[0] = 1 if 3 in {1, 1 + 2} else 2\nA[1] = len({1, 1, 2})\nA[2] = 1 if 3 in {*[1, 2]} else 2")
    )
    a, b = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    kernel(a, b, 0)
    assert a[:3].tolist() == [1, 2, 2]


def test_a_branch_reads_a_name_before_it_gives_it_to_another_value() -> None:
    kernel = build(inside("k = 3\nif n > 2:\n    A[0] = k\n    k = 4\n    A[1] = k"))
    a, b = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    kernel(a, b, 5)
    assert a[:2].tolist() == [3, 4]


def test_a_dict_that_is_written_out_takes_in_others() -> None:
    kernel = build(inside("d = {1: 2, **{1: 5, 3: 4}}\nA[0] = d[1]\nA[1] = d[3]\nA[2] = len(d)"))
    a, b = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    kernel(a, b, 0)
    assert a[:3].tolist() == [5, 4, 2]


def test_a_range_outside_of_a_kernel_is_pythons() -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        sizes = range(1, 4)
        total = sum(sizes) + len(sizes)
        with T.Kernel(1, threads=32) as _:
            A[0] = total

    a = torch.zeros(8, dtype=torch.int32)
    tiledsl.compile(main, target="interpret")(a)
    assert a[0] == 9


@pytest.mark.parametrize("outer", ["if n > 2:", "for i in T.serial(n):"])
def test_a_list_of_a_kernel_is_not_changed_in_a_loop_or_branch(outer: str) -> None:
    with pytest.raises(TileError, match="a Python list from outside this device loop or branch cannot be changed"):
        build(inside(f"x = [0]\n{outer}\n    x[0] = 1\nA[0] = x[0]"))
    build(inside(f"{outer}\n    x = [0]\n    x[0] = 1\n    A[0] = x[0]"))


def test_break_and_continue_of_nested_loops_are_those_of_their_own_loops() -> None:
    """The outer loop's flag is reset by its own iterations alone."""
    body = """
for k in T.serial(4):
    for j in T.serial(4):
        if j == n:
            continue
        B[k] += 1
        if j == 2:
            break
    if k == 2:
        break
    A[k] = 1
"""
    kernel = build(inside(body))
    a, b = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    kernel(a, b, 1)
    assert (a[:4].tolist(), b[:4].tolist()) == ([1, 1, 0, 0], [2, 2, 2, 0])


def test_a_name_of_an_annotation_alone_is_that_of_the_frame_around() -> None:
    size = 5

    @tiledsl.jit(target="interpret")
    def fill(A, number):
        A: T.Tensor((size,), "int32")
        with T.Kernel(1, threads=32) as _:
            for i in T.Parallel(8):
                A[i] = number

    assert "size" not in fill.function.__code__.co_freevars
    a = torch.zeros(size, dtype=torch.int32)
    fill(a, 3)
    assert a.tolist() == [3] * size
    assert eager_sizes(fill.function, {"A": None, "number": 3}, {"size": size}) == {}


def test_an_object_that_fails_is_called_by_its_class() -> None:
    number = functools.partial(int, "x")

    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            A[0] = number()

    with pytest.raises(TileError) as caught:
        main.build(())
    assert caught.value.message == "partial failed: ValueError: invalid literal for int() with base 10: 'x'"


@pytest.mark.parametrize(
    "inner",
    [
        "for i in T.Parallel(n):",
        "for i, j in T.Parallel(n, n):",
        "for i in T.Parallel(8):",
        "for i in T.serial(n):",
        "while B[0] > 9:",
        "if n > 2:",
    ],
)
def test_behind_what_runs_on_the_device_python_goes_on(inner: str) -> None:
    """A loop that runs while the program is built may end, and its lists change."""
    kernel = build(
        inside(f"""
x = [1]
for k in (2, 3, 4):
    {inner}
        B[1] = 1
    if k == 3:
        break
    x[0] += k
A[0] = sum(x)""")
    )
    a, b = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    kernel(a, b, 3)
    assert a[0] == 3


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("for k in (0, 1, 2):\n    B[k] = k + 1\nelse:\n    B[7] = 9", [1, 2, 3, 0, 0, 0, 0, 9]),
        ("for k in (0, 1, 2):\n    B[k] = k + 1\n    if k == 1:\n        break\nelse:\n    B[7] = 9", [1, 2]),
        ("for k in (0, 1, 2):\n    if k == 1:\n        continue\n    B[k] = k + 1", [1, 0, 3]),
        ("k = 0\nwhile k < 3:\n    B[k] = k + 1\n    k = k + 1\nelse:\n    B[7] = 9", [1, 2, 3, 0, 0, 0, 0, 9]),
        ("k = 0\nwhile True:\n    B[k] = 1\n    k = k + 1\n    if k == 2:\n        break\nelse:\n    B[7] = 9", [1, 1]),
        ("k = 0\nwhile k < 3:\n    k = k + 1\n    if k == 2:\n        continue\n    B[k] = k", [0, 1, 0, 3]),
        # the innermost loop of each kind is the one that ends
        ("for k in (0, 1):\n    for j in (0, 1, 2):\n        if j == 1:\n            break\n        B[4 * k + j] = 1",
         [1, 0, 0, 0, 1]),
        ("for k in (0, 1):\n    for i in T.serial(3):\n        if i == n:\n            break\n        B[4 * k + i] = 1",
         [1, 0, 0, 0, 1]),
        ("for i in T.serial(3):\n    for k in (0, 1):\n        if k == 1:\n            break\n        B[i] += 1",
         [1, 1, 1]),
        # what stands behind `else` belongs to the loop around
        ("for i in (0, 1, 2):\n    for k in (3, 4):\n        B[k] = 1\n    else:\n        break\n    B[i] = 1",
         [0, 0, 0, 1, 1]),
        ("for i in (0, 1, 2):\n    k = 3\n    while k < 5:\n        B[k] += 1\n        k += 1\n    else:\n"
         "        break", [0, 0, 0, 1, 1]),
        ("for i in T.serial(3):\n    for k in (3, 4):\n        B[k] += 1\n    else:\n        break\n    B[i] = 1",
         [0, 0, 0, 1, 1]),
        ("for i in T.serial(3):\n    for k in (3, 4):\n        B[k] += 1\n    else:\n        if i == n:\n"
         "            continue\n    B[i] = 1", [1, 0, 1, 3, 3]),
        ("for i in T.serial(3):\n    if i == n:\n        continue\n    B[i] = 1", [1, 0, 1]),
        ("for i in T.serial(0, 8, 3):\n    B[i] = i + 1", [1, 0, 0, 4, 0, 0, 7]),
        ("for i, j in T.grid(2, 3):\n    B[3 * i + j] = i - j", [0, -1, -2, 1, 0, -1]),
        ("for i in T.grid(3):\n    B[i] = 1", [1, 1, 1]),
        ("for i in T.grid(3):\n    if i > n:\n        break\n    B[i] = 1", [1, 1]),
        ("for (i,) in T.grid(3):\n    if i > n:\n        break\n    B[i] = 1", [1, 1]),
        ("for (i,) in T.grid(3):\n    B[i] = 1", [1, 1, 1]),
        ("for i, j in T.grid(2, 3):\n    if j == n:\n        continue\n    B[3 * i + j] = 1", [1, 0, 1, 1, 0, 1]),
        ("for (i,) in T.Parallel(3):\n    B[i] = 1", [1, 1, 1]),
        ("for i in T.Parallel(3):\n    if i == n:\n        continue\n    B[i] = 1", [1, 0, 1]),
    ],
)  # fmt: skip
def test_loops(body: str, found: list[int]) -> None:
    a, b = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    build(inside(body))(a, b, 1)
    assert b.tolist() == found + [0] * (8 - len(found))


@pytest.mark.parametrize(
    ("body", "message", "line"),
    [
        ("for i in T.serial(n):\n    pass\nelse:\n    B[0] = 1", "a device loop has no else", 8),
        ("while n > 1:\n    B[0] = 1\nelse:\n    B[0] = 1", "a device loop has no else", 8),
        ("for i, j in T.serial(n):\n    B[0] = 1", "this loop gives one index and names 2", 5),
        ("for [i] in T.serial(n):\n    B[0] = 1", "this loop gives one index and names 1", 5),
        ("for i in n:\n    B[0] = 1", "a loop needs T.serial, T.Parallel, ... or a Python sequence, not ", 5),
        ("for i in A:\n    B[0] = 1", "a loop needs T.serial, T.Parallel, ... or a Python sequence, not ", 5),
        ("for i, j, k in T.grid(2, 3):\n    B[0] = 1", "T.grid of 2 extents needs as many names", 5),
        ("for i in T.grid(2, 3):\n    B[0] = 1", "T.grid of 2 extents needs as many names", 5),
        ("for i, j in T.grid(2, 3):\n    break", "break in T.grid: it would end the innermost loop only", 5),
        ("for i in T.Parallel(3):\n    break", "the iterations of T.Parallel are independent: there is no break", 5),
        ("for i in T.Parallel(3):\n    T.thread_return()", "independent: there is no T.thread_return", 5),
        ("for k in (0, 1):\n    if n > k:\n        break", "`break` of a loop that runs while the program is built", 7),
        ("for k in (0, 1):\n    if n > k:\n        continue", "`continue` of a loop that runs while the program", 7),
        (
            "for k in (0, 1):\n    T.thread_return()",
            "T.thread_return in a loop that runs while the program is built",
            6,
        ),
        ("T.loop_break()", "outside of a loop", 5),
        ("if n > 1:\n    T.thread_return()\nT.loop_break()", "T.loop_break outside of a loop that it can end", 7),
        ("for k in (0, 1):\n    B[k] = 1\nelse:\n    T.loop_break()", "outside of a loop", 8),
    ],
)
def test_loops_that_are_refused(body: str, message: str, line: int) -> None:
    with pytest.raises(TileError) as caught:
        build(inside(body))
    assert message in caught.value.message
    assert caught.value.loc is not None and caught.value.loc.line == line


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("B[0] = size\nsize = 5\nB[1] = size", None),
        ("for i in T.serial(3):\n    size = size + i\n    B[i] = size", None),  # of one iteration to the next
        ("if n > 3:\n    size = 5\nB[0] = 1", [1]),
        ("if n is None:\n    size = 5\nB[0] = size", None),
        ("f = lambda: size\nsize = 5\nB[0] = f()", [5]),
        ("def f(x=size):\n    size = 5\n    return x + size\nB[0] = f()", [13]),
        ("def f():\n    y = size\n    size = 5\n    return y\nB[0] = f()", None),
        ("B[0] = size\nB[1] = [size for size in (4, 5)][0]\nB[2] = size", [8, 4, 8]),
    ],
)
def test_what_a_function_assigns_is_not_read_from_around(body: str, found: list[int] | None) -> None:
    """As in Python."""

    def built() -> tiledsl.Kernel:
        return build("size = 8\n" + inside(body))

    if found is None:
        with pytest.raises(TileError, match="size is read before it is assigned"):
            built()
        return
    a, b = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    built()(a, b, 4)
    assert b[: len(found)].tolist() == found


def test_a_star_alone_is_nothing() -> None:
    name = parse_expression("a")
    with pytest.raises(TileError, match="this is not part of the tile language"):
        Statements(Context("f"), Scope({"a": (1, 2)}.__getitem__)).evaluate(syntax.Starred(name.loc, name))


def test_what_a_condition_of_a_host_loop_computes_leaves_nothing_behind() -> None:
    root = tiledsl.parse(inside("k = 0\nwhile (n * 3, k < 2)[1]:\n    B[k] = 1\n    k += 1")).build(())
    ops = list(root.walk())
    values = [value for op in ops for value in (*op.results, *(arg for region in op.regions for arg in region.args))]
    assert {use for value in values for use in value.uses} <= set(ops)
    assert sum(op.name == "tile.store" for op in ops) == 2


def test_a_thread_leaves_a_kernel_from_inside_of_it() -> None:
    with pytest.raises(TileError, match=r"T\.thread_return leaves a kernel: it stands inside of"):
        build(OUTSIDE.format(statement="T.thread_return()"))


@pytest.mark.parametrize(
    ("dtype", "index"),
    [("int32", "int32"), ("int16", "int32"), ("uint32", "int64"), ("int64", "int64"), ("uint64", "int64")],
)
@pytest.mark.parametrize("bounds", ["{}", "{}, 8", "0, 8, {}"])
def test_indices_are_as_wide_as_the_widest_bound(dtype: str, index: str, bounds: str) -> None:
    body = f"m = T.cast(n, '{dtype}')\nfor i in T.serial({bounds.format('m')}):\n    B[0] = 1"
    assert f"(%i: {index}) {{" in print_op(build(inside(body)).program_root())


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("f = lambda *a, k=2: len(a) + k\nB[0] = f(1, 1)\nB[1] = f(k=5)", [4, 5]),
        ("n0 = 1\ndef f(x=n0):\n    return x\nn0 = 2\nB[0] = f()", [1]),
        ("x = [1]\ny = x\nx += [2]\nB[0] = len(y)", [2]),
        ("B[0] = (n is None) + 2 * (n is not None) + 4 * (3 is 3)", [6]),
        ("def f(x=5, /, **more):\n    return x + more['x']\nB[0] = f(1, x=2)\nB[1] = f(x=2)", [3, 7]),
        ("for i in T.serial(2):\n    v = T.alloc_var('int32', 4)\nB[0] = v", [4]),  # until the kernel ends
        ("x = [4, 5]\nif n > 0:\n    B[0] = x.index(5)", [1]),
        ("for i in T.Parallel(T.min(n, 8)):\n    B[i] = 5", [5, 0, 0]),
        ("for i, j in T.Parallel(2, T.min(n, 8)):\n    B[i * 2 + j] = 5", [5, 0, 5, 0]),
        ("x = 3\nfor i in T.serial(2):\n    x = i + 5\n    B[i] = x", [5, 6]),  # a name of the loop's own
        ("x = []\ndef f():\n    x.append(1)\n    return 1\nB[0] = 0 > 1 > f()\nB[1] = len(x)", [0, 0]),
    ],
)
def test_what_runs_while_a_program_is_built_is_pythons(body: str, found: list[int]) -> None:
    (tree,) = parse_module(inside(body)).body
    assert isinstance(tree, syntax.Function)
    a, b = np.zeros(8, np.int32), np.zeros(8, np.int32)
    names = {"T": T, "len": len}
    run(elaborate_tree(tree, names.__getitem__), [a, b, 1])
    assert b[: len(found)].tolist() == found


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("f = lambda x: x\nB[0] = f(1, y=2)", "the lambda is called with the unknown argument y"),
        ("f = lambda x: x\nB[0] = f(1, x=2)", "the lambda is called with two values for x"),
        ("def f(x, **more):\n    return x\nB[0] = f(1, x=2)", "f is called with two values for x"),
        ("f = lambda x, /: x\nB[0] = f(x=2)", "the lambda is called without x"),
        ("f = lambda x: x\nB[0] = f(1, 2)", "the lambda is called with 1 argument too many"),
        ("def f(x, *, k=2):\n    return x\nB[0] = f(1, 2)", "f is called with 1 argument too many"),
        (
            "tx = T.get_thread_binding()\nv = T.alloc_var('int32')\n"
            "with T.attr(T.comm_reducer(lambda x, y: x + y, [0]), 'reduce_scope', 0):\n"
            "    T.tvm_thread_allreduce(1, tx, True, v, tx)\nT.tvm_thread_allreduce(1, tx, True, v, tx)",
            "T.tvm_thread_allreduce stands in a block `with T.attr",
        ),
        ("B[0] = 1 if n is 3 else 2", "`is` compares Python's objects, not values on the device; write =="),
        ("B[0] = 1 if 3 is not A[0] else 2", "`is not` compares Python's objects, not values on the device; write !="),
        ("x = [1]\nif n > 2:\n    x += [2]", "a Python list from outside this device loop or branch cannot be changed"),
        (
            "for i in T.serial(2):\n    x = [1]\n    if n > 2:\n        x += [2]",
            "a Python list from outside this device loop",
        ),
    ],
)
def test_calls_and_changes_that_are_refused(body: str, message: str) -> None:
    with pytest.raises(TileError, match=message):
        build(inside(body))


class Host:
    """An object whose methods fail, and that has no hash."""

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[int]:
        return iter(self)

    def __call__(self, *values: Any) -> Any:
        return sum(values)

    @property
    def value(self) -> int:
        raise ValueError("none")

    @property
    def refused(self) -> int:
        raise TileError("not here")

    def items(self) -> Iterator[int]:
        yield 1
        raise ValueError("no more")


@pytest.mark.parametrize(
    ("body", "column", "message"),
    [
        ("for x in host:\n    pass", 18, "too deep a recursion"),
        ("for x in host.items():\n    B[0] = x", 18, "next failed: ValueError: no more"),
        ("x = host.value", 13, "getattr failed: ValueError: none"),
        ("x = 1 + host.refused", 17, "not here"),
        ("x = [1]\nif n > 2:\n    x.append(2)", 13, "a Python list from outside this device loop or branch cannot"),
        ("B[0] = host(n, 1) + none", 29, "none is not defined"),  # what has no hash was called
    ],
)
def test_host_objects_that_fail(body: str, column: int, message: str) -> None:
    (tree,) = parse_module(inside(body)).body
    assert isinstance(tree, syntax.Function)
    with pytest.raises(TileError) as caught:
        elaborate_tree(tree, outer_names(lambda: None, {"host": Host()}))
    assert caught.value.message.startswith(message) and caught.value.loc is not None
    assert (caught.value.loc.line, caught.value.loc.column) == (5 + 2 * ("append" in body), column)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("T.copy(A, B, disable=1)", "T.copy has no argument 'disable'; did you mean disable_tma?"),
        ("T.ceildiv(10**400, 1.0)", "ceildiv failed: OverflowError: int too large to convert to float"),
        ("T.ceildiv(8, numbers)", "ceildiv failed: ValueError: no text"),  # of what it would say that it is
    ],
)
def test_what_fails_in_a_function_of_the_language(body: str, message: str) -> None:
    class Numbers:
        def __repr__(self) -> str:
            raise ValueError("no text")

    (tree,) = parse_module(inside(body)).body
    assert isinstance(tree, syntax.Function)
    with pytest.raises(TileError) as caught:
        elaborate_tree(tree, {"T": T, "numbers": Numbers()}.__getitem__)
    assert caught.value.message == message


def test_a_name_without_a_value_yet_is_told_from_one_that_is_unknown() -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            A[0] = later

    with pytest.raises(TileError, match="later has no value yet when main is built"):
        main.build(())
    later = 3
    main.build(())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("leave(n)", ""),
        ("x = leave(n)", ""),
        ("x = y = leave(n)", ""),
        ("x, (y, [z]) = leave(n)", ""),
        ("B[1] = leave(n)", "T.thread_return in a function that is called inside of an expression"),
        ("x, B[1] = leave(n)", "T.thread_return in a function that is called inside of an expression"),
        ("x = leave(n)[0]", "T.thread_return in a function that is called inside of an expression"),
    ],
)
def test_calls_that_may_leave_the_kernel(call: str, message: str) -> None:
    leave = "def leave(k):\n    if k > 2:\n        T.thread_return()\n    B[2] = k\n    return 1, (2, [3])\n"
    text = inside(f"{leave}{call}\nA[0] = 5")
    if message:
        with pytest.raises(TileError, match=message):
            build(text)
    else:
        for number, first in ((3, 0), (1, 5)):
            a, b = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
            build(text)(a, b, number)
            assert a[0] == first
