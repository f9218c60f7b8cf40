"""The executor itself: the named programs against plain NumPy, and what it must refuse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import programs as p
from tests.support.executor import DTYPES, ExecutorError, Memory, run
from tiledsl.ir.core import Operation
from tiledsl.ir.parser import parse_op
from tiledsl.ir.pass_manager import parse_program
from tiledsl.ir.printer import print_op


def results(func: Operation, seed: int = 0, **options: object) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs (as they were, in float64 where they are floats) and outputs."""
    arguments = p.inputs_for(func, seed, options.pop("sizes", None))  # type: ignore[arg-type]
    before = [each.astype(np.float64) if each.dtype.kind not in "iub" else each.copy() for each in arguments]
    return before, run(func, arguments, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_gemm(trans_a: bool, trans_b: bool) -> None:
    (a, b, _), (c,) = results(p.gemm(21, 18, 13, 8, 6, 5, trans_a=trans_a, trans_b=trans_b))
    np.testing.assert_array_equal(c, ((a.T if trans_a else a) @ (b.T if trans_b else b)).astype(np.float16))


def test_gemm_of_dynamic_sizes() -> None:
    (a, b, _), (c,) = results(p.NAMED["dynamic_gemm"](), sizes={"M": 17, "N": 5, "K": 9})
    assert c.shape == (17, 5)
    np.testing.assert_array_equal(c, (a.T @ b).astype(np.float16))


def test_split_k_in_any_order_of_the_grid() -> None:
    (a, b, c), (made,) = results(p.split_k())
    np.testing.assert_array_equal(made, c + a @ b)
    np.testing.assert_array_equal(made, results(p.split_k(), reverse_grid=True)[1][0])


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool) -> None:
    (q, k, v, _), (out,) = results(p.attention(causal=causal))
    scores = q @ k.transpose(0, 2, 1)
    if causal:
        scores[:, ~np.tri(scores.shape[1], dtype=bool)] = -np.inf
    weights = np.exp2(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(out, weights / weights.sum(-1, keepdims=True) @ v, atol=4e-3)


def test_layer_norm() -> None:
    (x, weight, _), (y,) = results(p.layer_norm())
    centred = x - x.mean(1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(y, expected, atol=4e-3)


def test_gather_rows() -> None:
    (indices, table, _), (y,) = results(p.gather_rows())
    inside = (indices >= 0) & (indices < len(table))
    assert not inside.all() and inside.any()
    np.testing.assert_array_equal(y, np.where(inside[:, None], table[np.where(inside, indices, 0)], 0))


def test_top_k() -> None:
    (x, _, _), (values, places) = results(p.top_k())
    order = np.argsort(-x, axis=1, kind="stable")[:, :3]
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))


def test_while() -> None:
    (x, _), (y,) = results(p.halvings())
    assert y.tolist() == [0 if v == 0 else (int(v) & -int(v)).bit_length() - 1 for v in x]


@settings(max_examples=30)
@given(p.programs(), st.integers(0, 99))
def test_random_programs_run_and_survive_their_text(func: Operation, seed: int) -> None:
    inputs = p.inputs_for(func, seed)
    p.check_pass(lambda program: None, func, inputs)
    twin = parse_op(print_op(func))
    expected, actual = p.copy_arguments(inputs), p.copy_arguments(inputs)
    run(func, expected)
    run(twin, actual, reverse_grid=True)
    for old, new in zip(expected, actual, strict=True):
        p.same_array(old, new)


def kernel(body: str, *, parameters: str = "%A: buffer<4*6*float32, global>", names: str = '("A",)') -> Operation:
    """A program of one instance with some constants at hand."""
    return parse_program(
        f"""tile.func {{sym_name = "f", parameters = {names}}} ({parameters}) {{
          %0 = arith.constant {{value = 0}} : int32
          %1 = arith.constant {{value = 1}} : int32
          %9 = arith.constant {{value = 9}} : int32
          %x = arith.constant {{value = 5.0}} : float32
          %no = arith.constant {{value = false}} : bool
          tile.kernel [%1] (%bx: int32) {{
            {body}
            scf.yield
          }}
          scf.yield
        }}"""
    ).root


def ones() -> np.ndarray:
    return np.ones((4, 6), np.float32)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%y = tile.load %A[%9, %0] {guarded = true} : float32", "guarded access"),
        ("tile.store %x, %A[%9, %0] {guarded = true}", "guarded access"),
        ("%s = tile.alloc : buffer<4*float32, shared>\n%y = tile.load %s[%9] : float32", "lies outside"),
        ('tile.assert %no {message = "k < n"}', "k < n"),
        ("tile.assume %no", "does not hold"),
        ("scf.for %0, %1, %0 (%i: int32) { scf.yield }", "step"),
        ("scf.while { %t = arith.not %no : bool\n scf.condition %t } { scf.yield }", "still runs"),
        (
            "%s = tensor.broadcast %x : tensor<4xfloat32>\n%i = tensor.broadcast %9 : tensor<4xint32>\n"
            "%y = tensor.gather %s, %i {axis = 0} : tensor<4xfloat32>",
            "gather index",
        ),
    ],
)
def test_refused(body: str, message: str) -> None:
    with pytest.raises(ExecutorError, match=message):
        run(kernel(body), [ones()], limit=100)


def test_accesses_to_global_memory_are_checked_at_both_ends() -> None:
    body = """
    %low = arith.sub %0, %1 : int32
    %a = tile.load %A[%low, %0] : float32
    %b = tile.load %A[%0, %9] other=%x : float32
    tile.store %x, %A[%low, %low]
    tile.store %x, %A[%9, %1]
    %old = tile.atomic %x, %A[%low, %1] {kind = "add"} : float32
    tile.print [%a, %b, %old]
    %i = tensor.iota {axis = 0} : tensor<16xint32>
    %t = tile.load %A[%1, %i] : tensor<16xfloat32>
    %y = tensor.reduce %t {kind = "sum", axis = 0} : float32
    tile.print [%y] {message = "sum"}
    """
    array, printed = ones(), []
    run(kernel(body), [array], printed=printed)
    assert printed == [("", [0.0, 5.0, 0.0]), ("sum", [6.0])]
    assert (array == 1).all()


@pytest.mark.parametrize(("option", "expected"), [("nan", np.nan), ("zero", 0.0)])
def test_memory_starts_undefined(option: str, expected: float) -> None:
    body = "%s = tile.alloc : buffer<1*float32, local>\n%y = tile.load %s[%0] : float32\ntile.store %y, %A[%0, %0]"
    array = ones()
    run(kernel(body), [array], uninitialised=option)
    np.testing.assert_array_equal(array[0, 0], expected)


def test_arguments_must_fit() -> None:
    with pytest.raises(ExecutorError, match="A is buffer"):
        run(kernel(""), [np.ones((4, 5), np.float32)])
    with pytest.raises(ExecutorError, match="strides"):
        run(kernel(""), [np.ones((6, 4), np.float32).T])
    with pytest.raises(ExecutorError, match="A is buffer"):
        run(kernel(""), [np.ones((4, 6), np.float64)])


POINTERS = """tile.func {{sym_name = "f", parameters = ("A", "n")}} (%A: buffer<4*3*float32, global, strides(5, 1)>, %n: int32) {{
  %1 = arith.constant {{value = 1}} : int32
  triton.launch [%1], [%A, %n] {{sym_name = "k"}} (%p: *float32, %n: int32) {{
    %b = triton.program_id {{axis = 0}} : int32
    %i = tensor.iota {{axis = 0}} : tensor<32xint32>
    %q = triton.addptr %p, %i : tensor<32x*float32>
    %m = arith.cmp %i, %n {{predicate = "lt"}} : tensor<32xbool>
    {body}
    scf.yield
  }}
  scf.yield
}}"""  # noqa: E501


def test_a_kernel_knows_how_many_blocks_there_are() -> None:
    text = POINTERS.format(body="%g = triton.num_programs {axis = 0} : int32 %f = arith.cast %g : float32"
                                " triton.store %p, %f").replace("value = 1}", "value = 3}")  # fmt: skip
    array = np.zeros((4, 5), np.float32)[:, :3]
    run(parse_program(text).root, [array, 1])
    assert array[0, 0] == 3


def test_pointers() -> None:
    def launch(body: str, count: int) -> np.ndarray:
        array = np.zeros((4, 5), np.float32)[:, :3]
        run(parse_program(POINTERS.format(body=body)).root, [array, count])
        return array

    two = "%x = arith.constant {value = 2.0} : float32\n"
    add = two + '%o = triton.atomic %q, %x mask=%m {kind = "add"} : tensor<32xfloat32>'
    assert launch(add, 3).tolist() == [[2, 2, 2], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    load = "%x = triton.load %q mask=%m : tensor<32xfloat32>\ntriton.store %q, %x"
    with pytest.raises(ExecutorError, match="element 3 of an allocation"):
        launch("%x = triton.load %q mask=%m : tensor<32xfloat32>", 4)
    with pytest.raises(ExecutorError, match="element 3 of an allocation"):
        launch(load, 3)
    with pytest.raises(ExecutorError, match="no value here"):
        launch("%y = arith.add %1, %1 : int32", 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_of_each_element_type(dtype: str) -> None:
    """A strided array in a line: its elements are valid, the gaps between its rows are not."""
    array = np.ones((2, 4), DTYPES[dtype])[:, :3]
    memory = Memory(array)
    assert memory.flat.dtype == array.dtype and memory.valid.tolist() == [True] * 3 + [False] + [True] * 3
    memory.flat[5] = 0
    assert array.astype(bool).tolist() == [[True, True, True], [True, False, True]]
