"""Rows of 32-bit integers in order, by a radix sort on the chip.

Y[M, N] = the rows of X[M, N], ascending. A block holds a row in shared memory. In each round it counts the keys by one
digit of `bits` bits, sums the counts to the place where each digit begins, and writes the keys to the next free place
of their digit. Atomics on the chip run in the order of the tile's elements: keys with the same digit stay in order.
"""

from __future__ import annotations

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 2, "N": 100, "bits": 8}


@tiledsl.jit(out_idx=[1])
def radix_sort(M, N, bits=8, threads=128):
    digits = 1 << bits

    @T.prim_func
    def radix_sort(X: T.Tensor((M, N), "int32"), Y: T.Tensor((M, N), "int32")):
        with T.Kernel(M, threads=threads) as row:
            keys = T.alloc_shared((N,), "int32")
            moved = T.alloc_shared((N,), "int32")
            digit = T.alloc_fragment((N,), "int32")
            counts = T.alloc_shared((digits,), "int32")
            free = T.alloc_shared((digits,), "int32")

            for i in T.Parallel(N):
                keys[i] = X[row, i] ^ T.min_value("int32")  # negative numbers first
            for shift in T.serial(0, 32, bits):
                for i in T.Parallel(N):
                    digit[i] = (keys[i] >> shift) & (digits - 1)
                T.histogram(digit, counts)
                T.cumsum(counts, free)
                for d in T.Parallel(digits):
                    free[d] -= counts[d]
                for i in T.Parallel(N):
                    moved[T.atomic_add(free[digit[i]], 1, return_prev=True)] = keys[i]
                T.copy(moved, keys)
            for i in T.Parallel(N):
                Y[row, i] = keys[i] ^ T.min_value("int32")

    return radix_sort


def reference(x):
    return x.sort(dim=1).values


def main(*, M=4096, N=1024, bits=8):
    kernel = radix_sort(M, N, bits)
    torch.manual_seed(0)
    x = torch.randint(-(2**31), 2**31, (M, N), dtype=torch.int32, device=DEVICE)
    assert torch.equal(kernel(x), reference(x)), "a row is not in order"
    error = largest_error(kernel(x).double(), reference(x).double(), rtol=0, atol=0)
    print_speed(f"radix sort of {M} rows of {N}", lambda: kernel(x), lambda: reference(x), bytes_moved=8 * M * N)
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
