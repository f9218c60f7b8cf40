"""RMS normalisation written for one thread: a row to a block, arrays of each thread, shuffles, and shared memory.

Y[M, N] = X / sqrt(mean(X^2) + eps) * W, as examples/rms_norm.py has it for tiles. A thread keeps its elements in an
array; the threads of a warp add up by shuffles, and the warps through shared memory.
"""

from __future__ import annotations

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 3, "N": 200, "threads": 64}


@tiledsl.jit(out_idx=[-1])
def rms_norm(M, N, threads=256, width=4, eps=1e-6, dtype="float32"):
    turns = -(-N // (threads * width))
    warps = threads // 32

    @T.prim_func
    def rms_norm(X: T.Tensor((M, N), dtype), W: T.Tensor((N,), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=threads) as row:
            tx = T.get_thread_binding()
            own = T.alloc_local((turns, width), dtype)
            total = T.alloc_var("float32", 0.0)
            sums = T.alloc_shared((warps,), "float32")

            for turn in T.unroll(turns):
                for v in T.vectorized(width):
                    own[turn, v] = X[row, (turn * threads + tx) * width + v]
                for v in T.unroll(width):
                    total += own[turn, v] * own[turn, v]
            for step in T.unroll(5):
                total += T.shfl_xor(total, 16 >> step)
            if T.get_lane_idx() == 0:
                sums[T.get_warp_idx()] = total
            T.sync_threads()

            total = 0.0
            for warp in T.unroll(warps):
                total += sums[warp]
            factor = T.rsqrt(total / N + eps)
            for turn in T.unroll(turns):
                for v in T.vectorized(width):
                    column = (turn * threads + tx) * width + v
                    Y[row, column] = own[turn, v] * factor * W[column]

    return rms_norm


def reference(x, w):
    return torch.nn.functional.rms_norm(x, (x.shape[1],), w, eps=1e-6)


def main(*, M=8192, N=8192, threads=256):
    kernel = rms_norm(M, N, threads)
    torch.manual_seed(0)
    x, w = torch.randn(M, N, device=DEVICE), torch.randn(N, device=DEVICE)
    error = largest_error(kernel(x, w), reference(x, w), rtol=1e-5, atol=1e-5)
    print_speed(f"RMS norm by threads, {M} x {N}", lambda: kernel(x, w), lambda: reference(x, w), bytes_moved=8 * M * N)
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
