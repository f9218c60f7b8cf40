"""What the threads of roles compute by themselves: registers that the block fills, and variables of each thread."""

from __future__ import annotations

from typing import Any

import torch

import tiledsl.language as T
from tests.language.test_roles import refused


def test_each_role_reads_what_the_block_has_put_into_registers(run: Any) -> None:
    @T.prim_func
    def main(X: T.Tensor((16,), "float32"), Y: T.Tensor((2, 16), "float32")):
        with T.Kernel(1, threads=256):
            s = T.alloc_shared((16,), "float32")
            x = T.alloc_fragment((16,), "float32")
            ready = T.alloc_barrier(128)
            T.fill(x, 3)
            with T.ws(1):
                T.copy(X, s)
                T.copy(x, Y[0, :])
                T.barrier_arrive(ready)
            with T.ws(0):
                T.barrier_wait(ready, 0)
                T.copy(x, Y[1, :])

    assert torch.equal(run(main, torch.randn(16)), torch.full((2, 16), 3.0))


def test_a_variable_of_two_roles_is_not_the_blocks() -> None:
    @T.prim_func
    def main(X: T.Tensor((16,), "float32"), Y: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((16,), "float32")
            v = T.alloc_var("int32")
            ready = T.alloc_barrier(32)
            tx = T.get_thread_binding()
            if tx < 32:
                v = 1
                T.copy(X, s)
                T.barrier_arrive(ready)
            else:
                v = 2
                T.barrier_wait(ready, 0)
            Y[tx] = v

    assert "is in registers, which are each thread's own" in refused(main).message


def test_a_variable_that_all_threads_set(run: Any) -> None:
    @T.prim_func
    def main(X: T.Tensor((16,), "float32"), Y: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((16,), "float32")
            v = T.alloc_var("int32")
            ready = T.alloc_barrier(32)
            tx = T.get_thread_binding()
            v = tx + 3
            if tx < 32:
                T.copy(X, s)
                T.barrier_arrive(ready)
            else:
                T.barrier_wait(ready, 0)
            Y[tx] = v

    assert run(main, torch.randn(16)).tolist() == list(range(3, 67))


def test_what_two_of_three_roles_do(run: Any) -> None:
    @T.prim_func
    def main(X: T.Tensor((96,), "int32"), Y: T.Tensor((96,), "int32")):
        with T.Kernel(1, threads=96):
            s = T.alloc_shared((96,), "int32")
            ready = T.alloc_barrier(32)
            tx = T.get_thread_binding()
            if tx < 64:
                if tx < 32:
                    T.copy(X, s)
                    T.barrier_arrive(ready)
                else:
                    T.barrier_wait(ready, 0)
                Y[tx] = tx
            else:
                Y[tx] = -1

    assert run(main, torch.arange(96, dtype=torch.int32)).tolist() == [*range(64), *[-1] * 32]


def test_a_load_of_a_smaller_role(run: Any) -> None:
    @T.prim_func
    def main(X: T.Tensor((96,), "int32"), Y: T.Tensor((96,), "int32")):
        with T.Kernel(1, threads=96):
            s = T.alloc_shared((96,), "int32")
            ready = T.alloc_barrier(64)
            tx = T.get_thread_binding()
            if tx < 64:
                T.copy(X, s)
                Y[tx] = 5
                T.barrier_arrive(ready)
            else:
                T.barrier_wait(ready, 0)
                v = X[tx]
                Y[tx] = v

    assert run(main, torch.arange(96, dtype=torch.int32)).tolist() == [*[5] * 64, *range(64, 96)]
