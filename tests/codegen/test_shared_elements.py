"""Elements that iterations share, and places by quotients and remainders: whole programs, run, read and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T


@T.prim_func
def diagonal_blocks(A: T.Tensor((64, 64), "float32"), Y: T.Tensor((4, 16, 16), "float32")):
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 64), "float32")
        s = T.alloc_fragment((4, 16, 16), "float32")
        T.copy(A, a)
        for i, j in T.Parallel(64, 64):
            if i // 16 == j // 16:
                s[i // 16, i % 16, j % 16] = a[i, j]
        T.copy(s, Y)


@T.prim_func
def interleaved(A: T.Tensor((128,), "float32"), Y: T.Tensor((8, 16), "float32")):
    with T.Kernel(1, threads=128):
        a = T.alloc_fragment((128,), "float32")
        s = T.alloc_fragment((8, 16), "float32")
        T.copy(A, a)
        for i in T.Parallel(128):
            s[i % 8, i // 8] = a[i]
        T.copy(s, Y)


@T.prim_func
def lanes(A: T.Tensor((4, 64), "float32"), Y: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64):
        a = T.alloc_fragment((4, 64), "float32")
        b = T.alloc_fragment((64,), "float32")
        T.copy(A, a)
        T.clear(b)
        for i in T.Parallel(64):
            for k in T.vectorized(4):
                b[i] = b[i] * 2 + a[k, i]
        T.copy(b, Y)


@T.prim_func
def sums(A: T.Tensor((8, 64), "float32"), Y: T.Tensor((8,), "float32")):
    with T.Kernel(1, threads=128):
        a = T.alloc_fragment((8, 64), "float32")
        r = T.alloc_fragment((8,), "float32")
        T.copy(A, a)
        T.fill(r, 1)
        for k, v in T.Parallel(8, 64):
            r[k] = r[k] + a[k, v]
        T.copy(r, Y)


@T.prim_func
def largest_of_blocks(A: T.Tensor((64, 64), "float32"), Y: T.Tensor((2, 2), "float32")):
    with T.Kernel(1, threads=128):
        r = T.alloc_reducer((2, 2), "float32", op="max")
        T.reducer_init(r)
        for i, j in T.Parallel(64, 64):
            r[i // 32, j // 32] = T.max(r[i // 32, j // 32], A[i, j])
        T.copy(r, Y)


@T.prim_func
def classes(A: T.Tensor((64, 16), "float32"), Y: T.Tensor((3,), "float32")):
    with T.Kernel(1, threads=128):
        a = T.alloc_fragment((64, 16), "float32")
        r = T.alloc_reducer((3,), "float32")
        T.copy(A, a)
        T.fill(r, 0)
        for i, j in T.Parallel(64, 16):
            r[T.min(2, j // 4)] += a[i, j]
        T.copy(r, Y)


def weighted(a: torch.Tensor) -> torch.Tensor:
    return a[0] * 8 + a[1] * 4 + a[2] * 2 + a[3]


PROGRAMS: dict[str, tuple[Any, tuple[int, ...], Callable[[torch.Tensor], torch.Tensor]]] = {
    "diagonal_blocks": (
        diagonal_blocks, (64, 64), lambda a: torch.stack([a[n : n + 16, n : n + 16] for n in range(0, 64, 16)]),
    ),
    "interleaved": (interleaved, (128,), lambda a: a.view(16, 8).T),
    "lanes": (lanes, (4, 64), weighted),
    "sums": (sums, (8, 64), lambda a: a.sum(1) + 1),
    "largest_of_blocks": (largest_of_blocks, (64, 64), lambda a: a.view(2, 32, 2, 32).amax((1, 3))),
    "classes": (classes, (64, 16), lambda a: torch.stack([a[:, :4].sum(), a[:, 4:8].sum(), a[:, 8:].sum()])),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_results(name: str) -> None:
    program, shape, reference = PROGRAMS[name]
    a = torch.randint(-9, 10, shape).float()
    assert torch.equal(tiledsl.compile(program, out_idx=[-1], target="interpret")(a), reference(a))


@T.prim_func
def named_twice(Y: T.Tensor((4, 3), "int32")):
    with T.Kernel(1, threads=32):
        t = T.alloc_shared((4, 3), "int32")
        z = T.alloc_shared((8,), "int32")
        T.fill(t, 2)
        T.fill(z, 5)
        for i, j in T.Parallel(8, 5):
            if z[j] > 0:
                t[z[i] % 4, T.min(j + 1, 2)] = t[z[i] % 4, T.min(j + 1, 2)] + j
        T.copy(t, Y)


@pytest.mark.parametrize("loads", [True, False])
def test_a_place_that_is_read_from_memory_twice_is_one(loads: bool) -> None:
    kernel = tiledsl.compile(named_twice, out_idx=[-1], target="interpret", pass_configs={"cse.loads": loads})
    assert kernel().tolist() == [[2, 2, 2], [2, 2, 2 + 8 * 10], [2, 2, 2], [2, 2, 2]]


def source(name: str) -> str:
    return tiledsl.compile(PROGRAMS[name][0], out_idx=[-1], target="cuda:90").get_kernel_source()


def test_quotients_and_remainders_are_reshapes() -> None:
    """No element is compared with an index, and none is gathered."""
    text = source("interleaved")
    assert "tl.permute" in text or "tl.trans" in text
    assert "gather" not in text and "==" not in text
    assert "tl.max(tl.reshape(" in source("largest_of_blocks")


@pytest.mark.parametrize("version", ["current", "3.6"])
def test_compiles(compile_modules: Callable[..., Any], version: str, request: pytest.FixtureRequest) -> None:
    options = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    modules = {
        name: tiledsl.compile(program, out_idx=[-1], target="cuda:90").module
        for name, (program, _, _) in PROGRAMS.items()
    }
    made = compile_modules(modules, **options)
    assert sorted(name for name, _, _ in made) == sorted(PROGRAMS)
    assert [error for _, error, _ in made if error] == []
