"""C[M, N] = scale * A[M, K] @ B[N, K].T in Triton by hand, of 16- or 8-bit floats: a yardstick, tuned by its own tuner.

Three variants: one tile a program with pointers in grouped order; the same cut along K, with a second kernel that adds
the parts; and tensor descriptors in a persistent, flattened loop, where a tile's store overlaps the next one's loads.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from benchmarks.handwritten.variants import (
    Variant,
    by_hand,
    descriptor,
    multiprocessors,
    takes_descriptors,
)
from benchmarks.row import Candidate, Tensors


@triton.jit
def _place(tile, blocks_m, blocks_n, GROUP: tl.constexpr):
    in_group = GROUP * blocks_n
    first = tile // in_group * GROUP
    size = tl.minimum(blocks_m - first, GROUP)
    return first + tile % in_group % size, tile % in_group // size


@triton.heuristics({"EVEN": lambda args: args["K"] % (args["BLOCK_K"] * args["SPLITS"]) == 0})
@triton.jit
def pointer_kernel(
    A, B, C, M, N, K, scale,
    SPLITS: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    block_m, block_n = _place(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    part = tl.program_id(1)
    offs_m = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    steps = tl.cdiv(K, BLOCK_K * SPLITS)
    offs_k = part * steps * BLOCK_K + tl.arange(0, BLOCK_K)
    # Rows and columns past the end wrap around: what they give is not stored.
    a_ptrs = A + (offs_m % M)[:, None].to(tl.int64) * K + offs_k[None, :]
    b_ptrs = B + (offs_n % N)[None, :].to(tl.int64) * K + offs_k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(steps):
        if EVEN:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        else:
            left = K - step * BLOCK_K
            a = tl.load(a_ptrs, mask=offs_k[None, :] < left, other=0.0)
            b = tl.load(b_ptrs, mask=offs_k[:, None] < left, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K
    inside = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    place = offs_m[:, None].to(tl.int64) * N + offs_n[None, :]
    if SPLITS == 1:
        tl.store(C + place, (acc * scale).to(C.dtype.element_ty), mask=inside)
    else:
        tl.store(C + part.to(tl.int64) * M * N + place, acc, mask=inside)


@triton.jit
def add_parts_kernel(parts, C, size, scale, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(SPLITS):
        total += tl.load(parts + part * size + offs, mask=offs < size, other=0.0)
    tl.store(C + offs, (total * scale).to(C.dtype.element_ty), mask=offs < size)


@triton.jit
def descriptor_kernel(
    a_desc, b_desc, c_desc, M, N, K, scale,
    DTYPE: tl.constexpr, PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    blocks_m, blocks_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    steps = tl.cdiv(K, BLOCK_K)
    for tile in tl.range(tl.program_id(0), blocks_m * blocks_n, PROGRAMS, flatten=FLATTEN):
        block_m, block_n = _place(tile, blocks_m, blocks_n, GROUP)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(steps):
            a = a_desc.load([block_m * BLOCK_M, step * BLOCK_K])
            b = b_desc.load([block_n * BLOCK_N, step * BLOCK_K])
            acc = tl.dot(a, b.T, acc)
        c_desc.store([block_m * BLOCK_M, block_n * BLOCK_N], (acc * scale).to(DTYPE))


def _set_blocks(arguments: dict[str, Any]) -> None:
    m, n, k = arguments["BLOCK_M"], arguments["BLOCK_N"], arguments["BLOCK_K"]
    arguments["a_desc"].block_shape = [m, k]
    arguments["b_desc"].block_shape = [n, k]
    arguments["c_desc"].block_shape = [m, n]


def _config(m: int, n: int, k: int, stages: int, warps: int, descriptors: bool = False, **more: Any) -> Any:
    tiles = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP": 8, **more}
    return triton.Config(tiles, num_stages=stages, num_warps=warps, pre_hook=_set_blocks if descriptors else None)


_LARGE = [
    (128, 256, 64, 3, 8), (128, 128, 64, 3, 4), (256, 128, 64, 3, 8), (128, 128, 64, 4, 8), (64, 256, 64, 4, 4),
    (128, 64, 64, 4, 4), (64, 128, 64, 4, 4),
]  # fmt: skip
_SMALL = [
    (16, 64, 128, 4, 4), (16, 32, 256, 4, 4), (16, 128, 128, 3, 4), (64, 64, 128, 4, 4), (64, 128, 128, 3, 4),
    (16, 32, 128, 6, 2), (128, 64, 128, 3, 4), (64, 64, 64, 6, 4),
]  # fmt: skip
_BYTE = [
    (128, 256, 128, 3, 8), (128, 128, 128, 3, 4), (256, 128, 128, 3, 8), (128, 128, 128, 4, 8), (64, 128, 128, 4, 4),
    (64, 256, 128, 3, 4),
]  # fmt: skip

_TORCH_TO_TRITON = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def _launch_pointers(scale: float, splits: int = 1) -> Any:
    def launch(kernel: Any, inputs: Any, outputs: Any) -> None:
        (a, b), c = inputs[:2], outputs[0]
        (M, K), N = a.shape, b.shape[0]
        sums = c if splits == 1 else torch.empty((splits, M, N), dtype=torch.float32, device=a.device)
        kernel[lambda meta: (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]), splits)](
            a, b, sums, M, N, K, scale if splits == 1 else 1.0, SPLITS=splits
        )
        if splits > 1:
            add_parts_kernel[(triton.cdiv(M * N, 1024),)](sums, c, M * N, scale, SPLITS=splits, BLOCK=1024)

    return launch


def _launch_descriptors(scale: float) -> Any:
    def launch(kernel: Any, inputs: Any, outputs: Any) -> None:
        (a, b), c = inputs[:2], outputs[0]
        (M, K), N = a.shape, b.shape[0]
        programs = multiprocessors(a)
        kernel[lambda meta: (min(programs, triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"])),)](
            descriptor(a), descriptor(b), descriptor(c), M, N, K, scale,
            DTYPE=_TORCH_TO_TRITON[c.dtype], PROGRAMS=programs,
        )  # fmt: skip

    return launch


def _aligned(inputs: Tensors) -> bool:
    return takes_descriptors(inputs) and inputs[1].shape[0] % 8 == 0  # the output's rows, too


def gemm_variants(M: int, *, scale: float = 1.0, byte: bool = False) -> list[Variant]:
    """The ways to write C = scale * A @ B.T that suit M rows. byte: the operands are 8-bit floats."""
    key = ["M", "N", "K"]
    large = _BYTE if byte else _LARGE
    low, decode = M <= 128 and not byte, M <= 64
    variants = []
    if not decode:
        flattened = [_config(*tiles, descriptors=True, FLATTEN=each) for each in (True, False) for tiles in large]
        variants.append(Variant("descriptors", descriptor_kernel, flattened, key, _launch_descriptors(scale), _aligned))
    tiles = (large if byte or not decode else []) + (_SMALL if low else [])
    pointers = [_config(*each) for each in tiles]
    variants.append(Variant("pointers", pointer_kernel, pointers, [*key, "SPLITS"], _launch_pointers(scale)))
    if low:
        small = [_config(*each) for each in _SMALL[:6]]
        variants += [
            Variant(f"split in {splits}", pointer_kernel, small, [*key, "SPLITS"], _launch_pointers(scale, splits))
            for splits in (2, 4, 8)
        ]
    return variants


def gemm_by_hand(M: int, *, scale: float = 1.0, byte: bool = False) -> Candidate:
    """A candidate for C = scale * A @ B.T of M rows."""
    return by_hand(gemm_variants(M, scale=scale, byte=byte))
