"""lower-exchanges: what comes out, and that it is what the operations mean, for many sizes, values and places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.passes.ir_cases import after, filecheck, program
from tests.support import executor
from tiledsl.dialects import tensor
from tiledsl.ir.kinds import of_kinds
from tiledsl.passes.lower_exchanges import LowerExchanges
from tiledsl.passes.pad_tiles import PadTiles


def _results(body: str, parameters: str, arguments: list[Any], *passes: Any) -> list[np.ndarray]:
    made = program(body, parameters=parameters, grid=(1,))
    for each in passes:
        each.run(made)
    if passes:
        assert not of_kinds(list(made.root.walk()), tensor.ScatterOp, tensor.SortOp)
    held = [np.array(each) for each in arguments]
    executor.run(made.root, held)
    return held


def _scatter(kind: str, size: int, count: int, dtype: str, number: str) -> tuple[str, str]:
    """A scatter's body and parameters; `number` is added instead of the elements of V, if it is given."""
    tile, many = f"tensor<{size}x{dtype}>", f"tensor<{count}x{dtype}>"
    body = f"""
    %i = tensor.iota {{axis = 0}} : tensor<{count}xint32>
    %j = tensor.iota {{axis = 0}} : tensor<{size}xint32>
    %x = tile.load %A[%j] {{guarded = true}} : {tile}
    %p = tile.load %P[%i] {{guarded = true}} : tensor<{count}xint32>
    %v = {f"arith.constant {{value = {number}}}" if number else "tile.load %V[%i] {guarded = true}"} : {many}
    %y, %b = tensor.scatter %x, %v, %p {{kind = "{kind}"}} : {tile}, {many}
    tile.store %y, %A[%j] {{guarded = true}}
    %low = arith.cmp %p, %zero {{predicate = "ge"}} : tensor<{count}xbool>
    %high = arith.cmp %p, %end {{predicate = "lt"}} : tensor<{count}xbool>
    %in = arith.and %low, %high : tensor<{count}xbool>
    tile.store %b, %V[%i] mask=%in {{guarded = true}}"""
    body = f"""
    %zero = arith.constant {{value = 0}} : int32
    %end = arith.constant {{value = {size}}} : int32{body}"""
    return body, f"A: {size}*{dtype}, P: {count}*int32, V: {count}*{dtype}"


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("kind", ["add", "max", "min", "and", "or", "xor"])
@pytest.mark.parametrize(("size", "count"), [(1, 8), (8, 1), (5, 12), (16, 16), (3, 64)])
def test_scatter(kind: str, size: int, count: int, asked: bool) -> None:
    rng = np.random.default_rng(size * 100 + count)
    for number in ("", "0", "-3"):
        body, parameters = _scatter(kind, size, count, "int32", number)
        if not asked:  # for what was there before
            body = body[: body.index("%low")]
        arguments = [
            rng.integers(-9, 9, size, np.int32), rng.integers(-2, size + 2, count, np.int32),
            rng.integers(-9, 9, count, np.int32),
        ]  # fmt: skip
        meant = _results(body, parameters, arguments)
        found = _results(body, parameters, arguments, PadTiles(), LowerExchanges())
        assert [each.tolist() for each in found] == [each.tolist() for each in meant]
        # and the meaning is that of a loop
        values = [int(number)] * count if number else arguments[2].tolist()
        function = {"add": np.add, "max": max, "min": min, "and": np.bitwise_and, "or": np.bitwise_or}
        held = arguments[0].tolist()
        for place, value in zip(arguments[1].tolist(), values, strict=True):
            if 0 <= place < size:
                held[place] = int(function.get(kind, np.bitwise_xor)(held[place], value))
        assert found[0].tolist() == held


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("add", "float32"), ("max", "float32"), ("cas", "int32"), ("number", "int32")],
)
def test_scatter_of_other_values(kind: str, dtype: str) -> None:
    """Floats, numbers that are written where an expected one stands, and the last of several that are written."""
    size, count = 4, 16
    body, parameters = _scatter("max" if kind == "number" else kind, size, count, dtype, "")
    if kind == "cas":
        body = body.replace("%v, %p {", "%v, %p compare=%e {")
        expected = f"%e = tile.load %E[%i] {{guarded = true}} : tensor<{count}x{dtype}>\n%y, %b"
        body, parameters = body.replace("%y, %b", expected), f"{parameters}, E: {count}*{dtype}"
    if kind == "number":
        body = body.replace("scatter %x, %v", "scatter %x, %i")
    rng = np.random.default_rng(5)
    into, values = rng.integers(0, 3, size).astype(dtype), rng.integers(0, 3, count).astype(dtype)
    arguments = [into, rng.integers(-1, size + 1, count, np.int32), values]
    arguments += [rng.integers(0, 3, count).astype(dtype)] if kind == "cas" else []
    meant = _results(body, parameters, arguments)
    found = _results(body, parameters, arguments, LowerExchanges())
    assert [each.tolist() for each in found] == [each.tolist() for each in meant]
    assert meant[0].tolist() != into.tolist()


def test_sums_of_floats_may_associate_in_another_way() -> None:
    for kind, dtype, allowed in (
        ("add", "float32", {"reassociation"}),
        ("max", "float32", set()),
        ("add", "int32", set()),
    ):
        body, parameters = _scatter(kind, 4, 16, dtype, "")
        assert LowerExchanges().allowances(program(body, parameters=parameters)) == allowed
        more = '%y2, %b2 = tensor.scatter %j, %i, %p {kind = "add"} : tensor<4xint32>, tensor<16xint32>\n%low ='
        assert LowerExchanges().allowances(program(body.replace("%low =", more), parameters=parameters)) == allowed


@pytest.mark.parametrize(("size", "count", "dtype"), [(1 << 15, 1 << 15, "int32"), (1 << 16, 1 << 15, "int64")])
def test_places_are_sorted_in_64_bits_where_place_and_number_need_them(size: int, count: int, dtype: str) -> None:
    """15 * 16 / 2 steps sort, 15 combine."""
    body, parameters = _scatter("min", size, count, "int32", "")
    filecheck(
        after([LowerExchanges()], body[: body.index("%low")], parameters=parameters),
        f"""
        CHECK: scf.for %c0, %c120, %c1{{{{.*}}}} : int32, int32, tensor<{count}x{dtype}>
        CHECK: scf.for %c0, %c15, %c1
        """,
    )


def test_integers_alone_are_sorted_without_their_places() -> None:
    body = """%x = tile.load %A[%i] {guarded = true} : tensor<8xint32>
    %y, %o = tensor.sort %x {axis = 0, descending = true} : tensor<8xint32>, tensor<8xint32>
    tile.store %y, %A[%i] {guarded = true}"""
    head, places = "%i = tensor.iota {axis = 0} : tensor<8xint32>\n", "\ntile.store %o, %O[%i] {guarded = true}"
    numbers = np.array([3, -1, 3, 7, 0, 0, -5, 2], np.int32)
    for more, order in (("", [0] * 8), (places, [3, 0, 2, 7, 4, 5, 1, 6])):
        found = _results(
            head + body + more, "A: 8*int32, O: 8*int32", [numbers, np.zeros(8, np.int32)], LowerExchanges()
        )
        assert [each.tolist() for each in found] == [sorted(numbers.tolist(), reverse=True), order]
    (loop,) = [line for line in after(LowerExchanges(), head + body, parameters="A: 8*int32") if "scf.for" in line]
    assert ": int32, int32, tensor<8xint32> (" in loop


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((1,), 0), ((2,), 0), ((13,), 0), ((32,), 0), ((3, 6), 1), ((6, 3), 0)])
def test_sort(shape: tuple[int, ...], axis: int, descending: bool) -> None:
    rank = len(shape)
    dims = "*".join(map(str, shape))
    indices = [
        f"%i{each} = tensor.iota {{axis = {each}}} : tensor<{'x'.join(str(s) if a == each else '1' for a, s in enumerate(shape))}xint32>"  # noqa: E501
        for each in range(rank)
    ]
    at = ", ".join(f"%i{each}" for each in range(rank))
    tile = "tensor<" + "x".join(map(str, shape)) + "x"
    body = "\n".join(
        [
            *indices,
            f"%x = tile.load %A[{at}] {{guarded = true}} : {tile}float32>",
            f"%y, %o = tensor.sort %x {{axis = {axis}, descending = {str(descending).lower()}}} : "
            f"{tile}float32>, {tile}int32>",
            f"tile.store %y, %A[{at}] {{guarded = true}}",
            f"tile.store %o, %O[{at}] {{guarded = true}}",
        ]
    )  # fmt: skip
    rng = np.random.default_rng(len(dims))
    x = rng.integers(-3, 3, shape).astype(np.float32)
    x[rng.random(shape) < 0.2] = np.nan
    arguments = [x, np.zeros(shape, np.int32)]
    parameters = f"A: {dims}*float32, O: {dims}*int32"
    meant = _results(body, parameters, arguments)
    found = _results(body, parameters, arguments, PadTiles(), LowerExchanges())
    key = np.where(np.isnan(x), np.inf, x)
    order = np.argsort(-key if descending else key, axis, kind="stable")
    for result in (meant, found):
        assert np.array_equal(result[1], order)
        np.testing.assert_array_equal(result[0], np.take_along_axis(x, order, axis))


@pytest.mark.parametrize(("dtype", "fewest"), [("int8", -128), ("uint32", 0), ("int64", -(2**62))])
def test_a_sort_of_integers_exchanges_halves_of_reshaped_tiles(dtype: str, fewest: int) -> None:
    body = f"""
    %i = tensor.iota {{axis = 0}} : tensor<2x1xint32>
    %j = tensor.iota {{axis = 1}} : tensor<1x8xint32>
    %x = tile.load %A[%i, %j] {{guarded = true}} : tensor<2x8x{dtype}>
    %y, %o = tensor.sort %x {{axis = 1}} : tensor<2x8x{dtype}>, tensor<2x8xint32>
    tile.store %y, %A[%i, %j] {{guarded = true}}"""
    parameters = f"A: 2*8*{dtype}"
    filecheck(
        after([LowerExchanges()], body, parameters=parameters),
        f"""
        CHECK: scf.for
        CHECK: scf.if
        CHECK: %[[HALVES:.*]] = tensor.reshape %{{{{.*}}}} : tensor<2x4x2x1x{dtype}>
        CHECK: %[[BOTH:.*]] = tensor.reduce %[[HALVES]] {{kind = "xor", axis = 2}} : tensor<2x4x1x{dtype}>
        CHECK: tensor.reshape %{{{{.*}}}} : tensor<2x8x{dtype}>
        CHECK: tensor.reshape %{{{{.*}}}} : tensor<2x2x2x2x{dtype}>
        CHECK: tensor.reshape %{{{{.*}}}} : tensor<2x1x2x4x{dtype}>
        CHECK-NOT: tensor.gather
        """,
    )
    x = np.random.default_rng(0).integers(fewest, 100, (2, 8)).astype(dtype)
    assert np.array_equal(_results(body, parameters, [x], LowerExchanges())[0], np.sort(x, 1))


def test_a_count_is_a_histogram() -> None:
    body, parameters = _scatter("add", 256, 1024, "int32", "2")
    found = after([LowerExchanges()], body[: body.index("%low")], parameters=parameters)
    filecheck(
        found,
        """
        CHECK: %[[COUNTS:.*]] = tensor.histogram %p, %{{.*}} : tensor<256xint32>
        CHECK: %[[TERMS:.*]] = arith.mul %[[COUNTS]], %{{.*}}
        CHECK: %y = arith.add %x, %[[TERMS]]
        CHECK-NOT: scf.for
        CHECK: tile.store %y
        """,
    )


@pytest.mark.parametrize("descending", ["false", "true"])
def test_zeros_of_both_signs_stay_in_their_order(descending: str) -> None:
    """They are equal; the order of elements that are is theirs before, whether it is asked for or not."""
    body = f"""%i = tensor.iota {{axis = 0}} : tensor<8xint32>
    %x = tile.load %A[%i] {{guarded = true}} : tensor<8xfloat32>
    %y, %o = tensor.sort %x {{axis = 0, descending = {descending}}} : tensor<8xfloat32>, tensor<8xint32>
    tile.store %y, %A[%i] {{guarded = true}}"""
    numbers = np.array([0.0, 5, -0.0, -3, -0.0, 2, 0.0, -1], np.float32)
    (meant,), (found,) = (_results(body, "A: 8*float32", [numbers], *each) for each in ((), (LowerExchanges(),)))
    zeros = [bool(np.signbit(each)) for each in found if each == 0]
    assert zeros == [bool(np.signbit(each)) for each in meant if each == 0] == [False, True, True, False]
