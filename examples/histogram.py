"""How often each value occurs in a vector of bytes: histograms of blocks, added up in global memory.

counts[bins] = torch.bincount(X[N]). A block counts its part on the chip, where T.histogram is Triton's, and adds its
counts to those of the others: one atomic operation for each bin instead of one for each element.
"""

from __future__ import annotations

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"N": 1000, "bins": 50, "block": 256}


@tiledsl.jit
def histogram(N, bins, block, steps=4, threads=128):
    @T.prim_func
    def histogram(X: T.Tensor((N,), "uint8"), counts: T.Tensor((bins,), "int32")):
        with T.Kernel(T.ceildiv(N, block * steps), threads=threads) as b:
            x = T.alloc_fragment((block,), "int32")
            found = T.alloc_shared((bins,), "int32")

            T.clear(found)
            for step in T.serial(steps):
                begin = (b * steps + step) * block
                for i in T.Parallel(block):
                    x[i] = T.if_then_else(begin + i < N, X[begin + i], -1)  # -1 is in no bin
                T.histogram(x, found, clear=False)
            T.atomic_add(counts, found)

    return histogram


def reference(x, bins):
    return torch.bincount(x, minlength=bins).int()


def main(*, N=1 << 26, bins=256, block=4096):
    kernel = histogram(N, bins, block)
    torch.manual_seed(0)
    x = torch.randint(0, bins, (N,), dtype=torch.uint8, device=DEVICE)
    counts = torch.zeros(bins, dtype=torch.int32, device=DEVICE)
    kernel(x, counts)
    error = largest_error(counts, reference(x, bins), rtol=0, atol=0)
    print_speed(f"histogram of {N} bytes", lambda: kernel(x, counts), lambda: reference(x, bins), bytes_moved=N)
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
