"""Tune for energy: a metric of one's own, from the counter of NVIDIA's management library, is what is minimised.

`energy` is called in the process that measures, after a configuration was timed. It runs the kernel for half a second,
since the counter has steps of some 20 milliseconds. NVML is loaded by ctypes: nothing is to be installed.
"""

from __future__ import annotations

import ctypes

import torch

import tiledsl
import tiledsl.language as T

SECONDS = 0.5


class Counter:
    """Millijoules that the current GPU has used since its driver was loaded; NVIDIA GPUs from Volta on count them."""

    def __init__(self):
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.handle = ctypes.c_void_p()
        uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
        self.ask("nvmlInit_v2")
        self.ask("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}".encode(), ctypes.byref(self.handle))

    def ask(self, name, *arguments):
        status = getattr(self.nvml, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} returns {status}")

    def read(self):
        value = ctypes.c_ulonglong()
        self.ask("nvmlDeviceGetTotalEnergyConsumption", self.handle, ctypes.byref(value))
        return value.value


def energy(measurement):
    """Millijoules of a call."""
    counter = Counter()
    before = counter.read()
    calls, _ = measurement.repeat(SECONDS)
    return (counter.read() - before) / calls


def energy_delay(metrics):
    """The product of both, if neither alone is wanted: objective=energy_delay."""
    return metrics["energy"] * metrics["latency"]


@tiledsl.autotune(
    configs=tiledsl.space(block_M=[64, 128], block_N=[64, 128], num_stages=[2, 3]),
    ref_prog=lambda A, B: A @ B,
    metrics={"energy": "nvml_energy:energy"},  # a module's: the process that measures imports it
    objective="energy",
)
@tiledsl.jit(out_idx=-1)
def matmul(M, N, K, block_M=None, block_N=None, block_K=32, num_stages=2, threads=128):
    @T.prim_func
    def matmul(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), "float16")
            B_shared = T.alloc_shared((block_K, block_N), "float16")
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[k * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return matmul


def main(M=4096, N=4096, K=4096):
    result = matmul(M, N, K)
    print(result.table(sort="energy"))
    print(f"least {result.minimised}: {result.metrics['energy']:.1f} mJ, with {result.config}")


if __name__ == "__main__":
    main()
