"""Whether arguments fit a program: random tensors against a plain rule, and what each refusal says."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError
from tiledsl.runtime.launch_checks import as_bytes, by_position, check, refuse_tangents, stand_in
from tiledsl.runtime.parameter import Parameter
from tiledsl.runtime.target import Target

HERE, GPU = Target("interpret"), Target("cuda", 90)
DIMS = st.sampled_from([1, 2, 3, "m", "n"])
SIZES = st.sampled_from([0, 1, 2, 3])


def fits(params: list[Parameter], tensors: list[torch.Tensor]) -> bool:
    sizes: dict[str, int] = {}
    for param, tensor in zip(params, tensors):
        if len(param.shape) != tensor.dim() or param.strides is None and not tensor.is_contiguous():
            return False
        strides = [*zip(param.strides or (), tensor.stride(), (size > 1 for size in tensor.shape))]
        for dim, found, counts in [*strides, *zip(param.shape, tensor.shape, itertools.repeat(True))]:
            known = sizes.setdefault(dim, found) if isinstance(dim, str) else dim
            if counts and known != found:
                return False
    return True


@given(st.data())
def test_what_fits_is_told_by_a_plain_rule(data: st.DataObject) -> None:
    params, tensors = [], []
    for name in "AB"[: data.draw(st.integers(1, 2))]:
        rank = data.draw(st.integers(0, 2))
        shape = tuple(data.draw(st.lists(DIMS, min_size=rank, max_size=rank)))
        strides = tuple(data.draw(st.lists(DIMS, min_size=rank, max_size=rank))) if data.draw(st.booleans()) else None
        params.append(Parameter(name, "float32", False, shape, strides))
        rank = data.draw(st.sampled_from([rank, rank, rank, 1]))
        given_shape = data.draw(st.lists(SIZES, min_size=rank, max_size=rank))
        given_strides = data.draw(st.lists(st.sampled_from([0, 1, 2, 3]), min_size=rank, max_size=rank))
        plain = torch.empty(given_shape)
        tensors.append(plain if data.draw(st.booleans()) else torch.empty_strided(given_shape, given_strides))
    try:
        check("k", HERE, params, tensors)
    except TileError as error:
        assert not fits(params, tensors) and error.code == "wrong-argument" and error.message.startswith("k: ")
    else:
        assert fits(params, tensors)


A = Parameter("A", "float32", False, (4, "m"))
B = Parameter("B", "float32", False, ("m",), ("s",))
N, X, FLAG = (Parameter(name, dtype, False) for name, dtype in (("n", "int32"), ("x", "float32"), ("b", "bool")))
C = Parameter("C", "float32", False, ("k",), None, {"k": ("add", ("mul", 2, "n"), 1)})


def strided(name: str, shape: tuple[Any, ...], strides: tuple[Any, ...]) -> Parameter:
    return Parameter(name, "float32", False, shape, strides)


def zeros(*shape: int, **options: Any) -> torch.Tensor:
    return torch.zeros(shape, **options)


LAYOUT = "k: A is a tensor of layout {}, but must be strided\n  note: "
CONTIGUOUS = "\n  note: pass A.contiguous(), or declare it with T.StridedTensor"
JAGGED = torch.nested.nested_tensor([zeros(2), zeros(3)], layout=torch.jagged)
SHARED = [zeros(6)[::2], zeros(3, 4)[:, :3]]


@pytest.mark.parametrize(
    ("params", "arguments", "message"),
    [
        ([A], [zeros(4, 3)], None),
        ([A], [None], "k: A is None, but the program uses it\n  note: pass a tensor of float32 with shape (4, 'm')"),
        ([A], [3], "k: A is a tensor, not int"),
        ([A], [zeros(4, 3).to_sparse()], f"{LAYOUT.format('sparse_coo')}pass A.to_dense()"),
        ([A], [JAGGED], f"{LAYOUT.format('jagged')}pass its parts, or A padded"),
        ([A], [zeros(4, 3, dtype=torch.float16)], "k: A must be float32, but the tensor is float16"),
        ([A], [zeros(4)], "k: A has shape (4,), but 2 dimensions (4, 'm') are declared"),
        ([A], [zeros(5, 3)], "k: A has shape (5, 3), but it was compiled for (4, 'm')"),
        ([A], [zeros(3, 4).t()], f"k: A has strides (1, 4), but must be contiguous{CONTIGUOUS}"),
        ([A, B], [zeros(4, 3), zeros(2)], "k: B.shape[0] is 2, but m is 3 by A.shape[1]"),
        ([A, B], [zeros(4, 3), zeros(6)[::2]], None),
        ([B, strided("D", ("m", "m"), ("s", 1))], SHARED, "k: D.stride(0) is 4, but s is 2 by B.stride(0)"),
        ([B, strided("D", (1, "m"), ("s", 1))], [zeros(6)[::2], zeros(1, 4)[:, :3]], None),  # of one row
        ([strided("D", ("m", 3), ("m", 1))], [zeros(2, 3)], "k: D.shape[0] is 2, but m is 3 by D.stride(0)"),
        ([strided("D", (2, 3), (4, 1))], [zeros(2, 3)], "k: D has stride 3 in dimension 0, not 4"),
        ([strided("D", (1, 3), (4, 1))], [zeros(1, 3)], None),
        ([A, B], [zeros(4, 3), zeros(3, device="meta")], "k: B is on meta, but A is on cpu"),
        ([N, X, FLAG], [3, 0.5, True], None),
        ([N], [0.5], "k: n is int32, but the argument is the float 0.5"),
        ([FLAG], [1.0], "k: b is bool, but the argument is the float 1.0"),
        ([N], [-(1 << 31)], None),
        ([N], [(1 << 31) - 1], None),
        ([N], [1 << 31], "k: n is 2147483648, which int32 does not hold"),
        ([N], [-(1 << 31) - 1], "k: n is -2147483649, which int32 does not hold"),
        ([N], [10**5000], "k: n is an integer of 16610 bits, which int32 does not hold"),
        ([Parameter("s", "float32", False)], [10**400], "k: s is an integer of 1329 bits, which float32 does not hold"),
        ([Parameter("u", "uint8", False)], [10**400], "k: u is an integer of 1329 bits, which uint8 does not hold"),
        ([Parameter("w", "int64", False)], [-(1 << 63)], None),
        ([Parameter("w", "int64", False)], [1 << 63], "k: w is 9223372036854775808, which int64 does not hold"),
        ([Parameter("w", "uint8", False)], [256], None),  # is converted
        ([Parameter("D", "int8", False, ("m",))], [torch.empty((1 << 31) - 1, dtype=torch.int8, device="meta")], None),
        (
            [Parameter("D", "int8", False, ("m",))], [torch.empty(1 << 31, dtype=torch.int8, device="meta")],
            "k: D has shape (2147483648,), but dynamic sizes are at most 2147483647\n"
            "  note: indices are int32: give the tensor more dimensions",
        ),
        (
            [Parameter("D", "int8", False, (1 << 31,))], [torch.empty(1 << 31, dtype=torch.int8, device="meta")], None
        ),
        ([X], [3], None),
        ([X], [torch.tensor(1.0)], "k: x is a float32 scalar, not Tensor\n  note: pass the number that x.item() gives"),
        ([X], ["1"], "k: x is a float32 scalar, not str"),
        ([N, C], [3, zeros(7)], None),
        ([N, C], [3, zeros(6)], "k: C.shape[0] is 6, but (2 * n) + 1 is 7: n is 3"),
        ([C, N], [zeros(8), 3], "k: C.shape[0] is 8, but (2 * n) + 1 is 7: n is 3"),
        ([C], [zeros(7)], None),  # nothing says n
        ([C], [zeros(0)], "k: C.shape[0] is 0, but it is (2 * n) + 1, at least 1"),
        ([Parameter("D", "float32", False, ("k",), None, {"k": ("sub", "n", 1)})], [zeros(0)], None),
        ([Parameter("D", "float32", False, ("k",), None, {"k": ("sub", 5, "n")})], [zeros(3)], None),
    ],
)  # fmt: skip
def test_what_a_refusal_says(params: list[Parameter], arguments: list[Any], message: str | None) -> None:
    if message is None:
        check("k", HERE, params, arguments)
        return
    with pytest.raises(TileError) as caught:
        check("k", HERE, params, arguments)
    said = "\n  note: ".join([caught.value.message, *caught.value.notes])
    assert said == message and caught.value.code == "wrong-argument"


def test_tensors_of_a_compiled_program_are_not_on_the_cpu() -> None:
    with pytest.raises(TileError, match="k: A is on the CPU, but the program is compiled for cuda:90") as caught:
        check("k", GPU, [N, A], [1, zeros(4, 3)])
    assert caught.value.notes == ["move the tensors with .cuda(), or compile with target='interpret'"]
    check("k", GPU, [A], [zeros(4, 3, device="meta")])
    check("k", GPU, [N], [1])
    with pytest.raises(ValueError):
        check("k", HERE, [A], [])


def test_a_stride_that_tensors_share_is_checked() -> None:
    """The kernel takes it of one of them."""
    s = T.dynamic("s")

    @T.prim_func
    def copied(A: T.StridedTensor((4, 8), (s, 1), "float32"), B: T.StridedTensor((4, 8), (s, 1), "float32")):
        with T.Kernel(4) as bx:
            for j in T.Parallel(8):
                B[bx, j] = A[bx, j]

    kernel = tiledsl.compile(copied, target="interpret")
    given, wide, same = torch.rand(4, 10)[:, :8], zeros(4, 16)[:, :8], zeros(4, 10)[:, :8]
    kernel.check(kernel.params, [given, same])
    with pytest.raises(TileError, match=re.escape("copied: B.stride(0) is 16, but s is 10 by A.stride(0)")):
        kernel(given, wide)


def test_arguments_by_position_and_name() -> None:
    params = [A, N, X]
    assert (
        by_position("k", params, (1, 2), {"x": 3})
        == by_position("k", params, (), {"x": 3, "n": 2, "A": 1})
        == (1, 2, 3)
    )
    assert by_position("k", params, (1, 2, 3), {}) == (1, 2, 3)
    for arguments, names, message in (
        ((1, 2), {"n": 3, "x": 4}, "k has no further parameter 'n'"),  # given already
        ((1,), {"z": 3, "y": 4, "x": 5}, "k has no further parameter 'y'"),
        ((1,), {"x": 4}, "k is called without n"),
        ((), {}, "k is called without A"),
    ):
        with pytest.raises(TileError, match=f"^{re.escape(message)}"):
            by_position("k", params, arguments, names)


def test_what_stands_for_what_is_not_used() -> None:
    def made(param: Parameter, others: list[Parameter], arguments: list[Any]) -> Any:
        found = stand_in(param, [*others, param], [*arguments, None])
        assert found.untyped_storage().size() == 0 and found.device == torch.device("cpu")
        return tuple(found.shape), found.stride(), found.dtype

    of = lambda *shape, **options: Parameter("Z", "float16", False, shape, **options)
    half = torch.float16
    assert made(of(4, "m"), [A], [zeros(4, 3)]) == ((4, 3), (3, 1), half)
    assert made(of("q", 2), [A], [zeros(4, 3)]) == ((1, 2), (2, 1), half)  # nobody knows
    assert made(of("n", "m"), [N, A], [5, None]) == ((5, 1), (1, 1), half)
    assert made(of("m", "m", strides=("s", 1)), [B], [zeros(6)[::2]]) == ((3, 3), (2, 1), half)
    assert made(of("m", strides=("q",)), [A], [zeros(4, 3)]) == ((3,), (1,), half)
    assert made(of("m", strides=(7,)), [A, A], [zeros(4, 3), zeros(4, 9)]) == ((3,), (7,), half)  # the first says
    assert made(of("n"), [C], [zeros(7)]) == ((3,), (1,), half)  # 2 n + 1
    assert made(of("k", formulas={"k": ("add", "m", 4)}), [A], [zeros(4, 3)]) == ((7,), (1,), half)
    chain = {"k": ("add", "j", 1), "j": ("mul", "m", 2)}  # the first is known by the second
    assert made(of("k", "j", formulas=chain), [A], [zeros(4, 3)]) == ((7, 6), (6, 1), half)
    meta = stand_in(of("m"), [A, of("m")], [zeros(4, 3, device="meta"), None])
    assert meta.device.type == "meta"


def test_bytes_of_two_numbers() -> None:
    pairs = zeros(4, dtype=torch.int8)
    made = as_bytes(pairs)
    assert made.dtype == torch.uint8 and made.data_ptr() == pairs.data_ptr()
    others = (zeros(4), zeros(4, dtype=torch.uint8), 3, None)
    assert all(as_bytes(each) is each for each in others)
    packed = getattr(torch, "float4_e2m1fn_x2", None)
    assert packed is None or as_bytes(made.view(packed)).dtype == torch.uint8


def test_tangents_are_refused_with_their_names() -> None:
    refuse_tangents("k", [zeros(3), 3, None])
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(zeros(3), zeros(3))
        refuse_tangents("k", [zeros(3)])
        with pytest.raises(TileError, match="k: an argument has a tangent, and kernels have no forward-mode"):
            refuse_tangents("k", [zeros(3), dual])


def test_a_warm_call_looks_at_integers_too() -> None:
    @T.prim_func
    def written(Y: T.Tensor((1,), "int64"), n: T.int32):
        with T.Kernel(1):
            Y[0] = n

    kernel, y = tiledsl.compile(written, target="interpret"), torch.zeros(1, dtype=torch.int64)
    for _ in range(3):
        kernel(y, 40)
    with pytest.raises(TileError, match="n is 4294967336, which int32 does not hold"):
        kernel(y, 40 + (1 << 32))
    assert y.item() == 40
