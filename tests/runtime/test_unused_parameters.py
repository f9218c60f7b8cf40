"""None in place of a tensor that a program does not use, as builders with flags have them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError
from tiledsl.kernels.stored import call_fields, describe
from tiledsl.runtime import launch
from tiledsl.runtime.launch_checks import stand_in
from tiledsl.runtime.parameter import Parameter


def built(scaled: bool, own: bool = False) -> Any:
    n = T.dynamic("n")
    m = T.dynamic("m") if own else n

    @T.prim_func
    def main(S: T.Tensor((m,), "float32"), A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 64), threads=64) as p:
            for i in T.Parallel(64):
                if scaled:
                    B[p * 64 + i] = A[p * 64 + i] * S[p * 64 + i]
                else:
                    B[p * 64 + i] = A[p * 64 + i] + 1

    return tiledsl.compile(main, target="interpret")


@pytest.mark.parametrize("own", [False, True])
def test_none_for_a_tensor_that_is_not_used(own: bool) -> None:
    kernel = built(False, own)
    assert [each.is_used for each in kernel.params] == [False, True, True]
    for size in (70, 64, 70):
        a, b = torch.randn(size), torch.zeros(size)
        kernel(None, a, b)
        assert torch.equal(b, a + 1)
    kernel(S=None, A=a, B=b.zero_())
    assert torch.equal(b, a + 1)
    kernel.bind(None, a, b.zero_())()
    assert torch.equal(b, a + 1)
    kernel(torch.ones(70), a, b.zero_())  # nor is a tensor refused
    assert torch.equal(b, a + 1)


def test_the_tensor_for_none_is_kept_for_calls_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(*arguments: Any) -> Any:
        made.append(stand_in(*arguments))
        return made[-1]

    monkeypatch.setattr(launch, "stand_in", counted)
    kernel = built(False)
    for size in (70, 70, 64, 70, 64):
        kernel(None, torch.randn(size), torch.zeros(size))
    assert [tuple(each.shape) for each in made] == [(70,), (64,)]


def test_how_many_tensors_for_none_are_kept() -> None:
    caller = built(False).caller(3)
    for kept, left in ((1023, 1024), (1024, 1)):
        caller.stand_ins = dict.fromkeys(range(kept))
        given = [torch.zeros(kept), torch.zeros(kept)]
        assert caller._converted([None, *given])[0].shape == (kept,) and len(caller.stand_ins) == left


@pytest.mark.parametrize("number", [64, 0.5, "a", [1]])
def test_what_is_no_tensor_is_refused_beside_none(number: Any) -> None:
    with pytest.raises(TileError, match="main: A "):
        built(False)(None, number, torch.zeros(64))


def test_the_tensor_for_none_has_sizes_of_the_tensors_that_are_given() -> None:
    n, m = T.dynamic("n"), T.dynamic("m")

    @T.prim_func
    def main(
        S: T.Tensor((m,), "float32"),
        A: T.Tensor((n,), "float32"),
        B: T.Tensor((m,), "float32"),
        C: T.Tensor((4,), "float32"),
    ):
        with T.Kernel(1, threads=32):
            C[0] = 1

    kernel = tiledsl.compile(main, target="interpret")
    some, c = torch.randn(5), torch.zeros(4)
    kernel(None, some, None, c)
    kernel(None, None, some, c)
    assert c[0] == 1


def test_none_has_the_sizes_that_others_are_computed_from() -> None:
    k, n = T.dynamic("k"), T.dynamic("n")

    @T.prim_func
    def main(
        Sums: T.Tensor((k, 8), "float32"),
        Ends: T.Tensor((k + 1,), "int32"),
        Part: T.Tensor((n // 4 + k,), "float32"),
        A: T.Tensor((n,), "float32"),
    ):
        with T.Kernel(k, threads=32) as p:
            A[Ends[p]] = Part[p]

    kernel = tiledsl.compile(main, target="interpret")
    for count in (3, 5):
        ends, part, a = torch.arange(count + 1, dtype=torch.int32), torch.randn(5 + count), torch.zeros(20)
        kernel(None, ends, part, a)
        assert torch.equal(a[:count], part[:count])
    with pytest.raises(TileError, match=r"Part.shape\[0\] is 9, but .* is 10"):
        kernel(None, ends, part[:9], a)


def test_none_for_tensors_that_share_a_size_and_are_not_used() -> None:
    n, m = T.dynamic("n"), T.dynamic("m")

    @T.prim_func
    def main(M: T.Tensor((m, 2), "int32"), S: T.Tensor((m,), "int32"), A: T.Tensor((n,), "float32")):
        with T.Kernel(n, threads=32) as p:
            A[p] = A[p] + 1

    kernel = tiledsl.compile(main, target="interpret")
    assert [each.is_used for each in kernel.params] == [False, False, True]
    a = torch.zeros(3)
    for maps in ((None, None), (None, torch.ones(4, dtype=torch.int32)), (torch.ones(5, 2, dtype=torch.int32), None)):
        kernel(*maps, a)
    assert torch.equal(a, torch.full((3,), 3.0))
    with pytest.raises(TileError, match=r"S.shape\[0\] is 4"):
        kernel(torch.ones(5, 2, dtype=torch.int32), torch.ones(4, dtype=torch.int32), a)


def test_none_for_a_tensor_that_is_used() -> None:
    a = torch.randn(70)
    with pytest.raises(TileError, match="main: S is None, but the program uses it") as raised:
        built(True)(None, a, a)
    assert "pass a tensor of float32 with shape ('n',)" in str(raised.value)
    with pytest.raises(TileError, match="main: A is None"):
        built(False)(None, None, a)


@pytest.mark.parametrize("size", [9, 4, 1])
def test_none_has_the_sizes_that_follow_from_others(size: int) -> None:
    n, stride = T.dynamic("n"), T.dynamic("stride")

    @T.prim_func
    def main(
        A: T.Tensor((n, 64), "float32"),
        S: T.StridedTensor((T.ceildiv(n, 4), 64), (stride, 1), "float32"),
        B: T.Tensor((n, 64), "float32"),
    ):
        with T.Kernel(n, threads=64) as p:
            for i in T.Parallel(64):
                B[p, i] = A[p, i] + 1

    kernel = tiledsl.compile(main, target="interpret")
    a, b = torch.randn(size, 64), torch.zeros(size, 64)
    kernel(a, None, b)
    assert torch.equal(b, a + 1)
    with pytest.raises(TileError, match=r"S.shape\[0\] is 5"):
        kernel(a, torch.zeros(5, 64), b)


def test_none_has_the_strides_of_others() -> None:
    s = T.dynamic("s")

    @T.prim_func
    def main(
        A: T.StridedTensor((4, 8), (s, 1), "float32"),
        S: T.StridedTensor((4, 8), (s, 1), "float32"),
        B: T.Tensor((4, 8), "float32"),
    ):
        with T.Kernel(4, threads=32) as p:
            for i in T.Parallel(8):
                B[p, i] = A[p, i] + 1

    kernel = tiledsl.compile(main, target="interpret")
    for stride in (8, 10, 12):
        a, b = torch.randn(4, stride)[:, :8], torch.zeros(4, 8)
        kernel(a, None, b)
        assert torch.equal(b, a + 1)
    with pytest.raises(TileError, match="A is a tensor of layout sparse_coo"):
        kernel(a.to_sparse(), None, b)


def test_other_tensors_are_checked_as_before() -> None:
    with pytest.raises(TileError, match=r"B.shape\[0\] is 64, but n is 70"):
        built(False)(None, torch.randn(70), torch.randn(64))
    with pytest.raises(TileError, match="S must be float32"):
        built(False)(torch.ones(70).int(), torch.randn(70), torch.randn(70))


def test_a_kept_kernel_knows_it_too() -> None:
    described = describe(built(False))
    assert [each.get("unused", False) for each in described["params"]] == [True, False, False]
    assert [each.is_used for each in call_fields(described)["params"]] == [False, True, True]


@pytest.mark.parametrize("strides", [None, (64, 1)])
def test_what_stands_for_none_lies_where_the_others_do(strides: tuple[int, ...] | None) -> None:
    params = [Parameter("A", "float32", False, (8,)), Parameter("S", "float32", False, (4, 64), strides)]
    made = stand_in(params[1], params, [torch.zeros(8, device="meta"), None])
    assert (made.device.type, made.shape, made.stride()) == ("meta", (4, 64), (64, 1))


def test_what_stands_for_none_has_the_sizes_that_numbers_give() -> None:
    params = [Parameter("n", "int32", False), Parameter("A", "float32", False, ("n", "k"))]
    shape = stand_in(params[1], params, [5, None]).shape  # in a failed assertion, a tensor without memory is printed
    assert shape == (5, 1)


def test_what_stands_for_none_is_kept_for_calls_of_the_same_sizes() -> None:
    launcher = built(False).caller(3)
    made = [launcher._converted((None, torch.zeros(size), torch.zeros(size)))[0] for size in (70, 70, 64, 70)]
    same, sizes = [each is made[0] for each in made], [each.shape[0] for each in made]
    assert (same, sizes) == ([True, True, False, True], [70, 70, 64, 70])
