"""Rows that memory bounds and that reduce little: quantisation, RoPE, SwiGLU, hyper-connections, transposes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.handwritten import tuned_moves
from benchmarks.ours import tiledsl_candidate
from benchmarks.peers.library import compiled, copy_ceiling
from benchmarks.programs import example, moves
from benchmarks.row import Candidate, Row
from benchmarks.rows.elementwise import FLAT_SPACE

_BF16, _FP8 = torch.bfloat16, torch.float8_e4m3fn
_E4M3_MAX = 448.0


def _configs(names: tuple[str, ...], *values: tuple[int, ...]) -> list[dict[str, int]]:
    return [dict(zip(names, each, strict=True)) for each in values]


TOKEN_SPACE = _configs(
    ("block_M", "threads"), (1, 128), (1, 256), (1, 512), (2, 256), (2, 512), (4, 512), (1, 1024),
)  # fmt: skip
GROUP_SPACE = _configs(
    ("block_M", "threads"), (32, 128), (32, 256), (16, 128), (64, 256), (64, 128), (16, 64), (128, 256),
)  # fmt: skip
ROPE_SPACE = _configs(
    ("block_S", "block_H", "threads"), (2, 16, 128), (1, 32, 128), (1, 32, 256), (2, 32, 256), (4, 8, 128), (1, 16, 64),
    (4, 16, 256), (1, 16, 128),
)  # fmt: skip
STREAM_SPACE = _configs(
    ("block_N", "threads"), (512, 128), (512, 64), (1024, 128), (1024, 256), (256, 64), (2560, 256), (640, 128),
)  # fmt: skip
HEADS_SPACE = _configs(
    ("block_S", "block_H", "threads"), (8, 4, 128), (4, 8, 128), (16, 4, 256), (16, 2, 128), (32, 1, 128), (1, 32, 128),
    (8, 8, 256), (4, 4, 64),
)  # fmt: skip
TRANSPOSE_SPACE = _configs(
    ("block_M", "block_N", "threads"), (64, 64, 128), (128, 64, 128), (64, 128, 128), (128, 128, 256), (64, 64, 256),
    (128, 64, 256), (64, 32, 128), (256, 64, 256),
)  # fmt: skip


def _row(
    family: str, case: str, inputs: Any, reference: Any, outputs: Sequence[tuple[tuple[int, ...], Any]],
    candidates: tuple[Candidate, ...], moved: float, quick: bool = False, error: float = 1e-2,
) -> Row:  # fmt: skip
    return Row(
        family=family,
        case=case,
        inputs=inputs,
        reference=reference,
        outputs=tuple(outputs),
        candidates=(*candidates, copy_ceiling()),
        operations=moved,
        bytes_moved=float(moved),
        required=len(outputs),
        error=error,
        tags=frozenset({"memory"}),
        quick=quick,
    )


def _normal(*shapes: tuple[int, ...], dtype: Any = _BF16) -> Any:
    return lambda device: [torch.randn(shape, device=device, dtype=dtype) for shape in shapes]


def quantise_row(M: int, N: int, group: int = 0, quick: bool = False) -> Row:
    """Rows of bfloat16 to e4m3, with a scale for each of them, or for each `group` of channels. What rounds to another
    e4m3 value is off by an eighth at most: the error bounds how many do."""
    rows, width = (M * N // group, group) if group else (M, N)

    def quantised(x: Any) -> tuple[Any, Any]:
        wide = x.float()
        scales = wide.abs().amax(1).clamp(min=1e-4) / _E4M3_MAX
        return (wide / scales[:, None]).clamp(-_E4M3_MAX, _E4M3_MAX).to(_FP8), scales

    def reference(x: Any) -> list[Any]:
        y, scales = quantised(x)
        return [y.float(), scales]

    return _row(
        "quantisation", f"e4m3 {M}x{N} {f'groups of {group}' if group else 'per token'}",
        _normal((rows, width)), reference,
        [((rows, width), _FP8), ((rows,), torch.float32)],
        (
            tiledsl_candidate(
                moves.quantise_rows, {"M": rows, "N": width}, GROUP_SPACE if width <= 1024 else TOKEN_SPACE
            ),
            compiled(quantised),
            tuned_moves.quantise_by_hand(width),
        ),
        3 * M * N + 4 * rows, quick, error=2e-2,
    )  # fmt: skip


def rope_row(batch: int, length: int, heads: int, dim: int, quick: bool = False) -> Row:
    """Halves of each head, turned; examples/rope.py has the formula."""
    module = example("rope")

    def inputs(device: str) -> list[Any]:
        return [torch.randn(batch, length, heads, dim, device=device, dtype=_BF16), *module.angles(length, dim, device)]

    def exact(x: Any, cos: Any, sin: Any) -> list[Any]:
        return [module.reference(x.float(), cos, sin)]

    return _row(
        "rope", f"bf16 B{batch} S{length} H{heads} D{dim}", inputs, exact, [((batch, length, heads, dim), _BF16)],
        (
            tiledsl_candidate(
                module.rope, {"batch": batch, "length": length, "heads": heads, "dim": dim}, ROPE_SPACE
            ),
            compiled(module.reference),
            tuned_moves.rope_by_hand(),
        ),
        4 * batch * length * heads * dim + 4 * length * dim, quick,
    )  # fmt: skip


def swiglu_row(M: int, N: int, quick: bool = False) -> Row:
    """Gates and values side by side."""
    module = example("swiglu")
    return _row(
        "swiglu", f"bf16 {M}x{N}",
        _normal((M, 2 * N)), lambda x: [F.silu(x[:, :N].float()) * x[:, N:].float()], [((M, N), _BF16)],
        (
            tiledsl_candidate(module.swiglu, {"M": M, "N": N}, FLAT_SPACE),
            compiled(module.reference),
            tuned_moves.swiglu_by_hand(False),
        ),
        6 * M * N, quick,
    )  # fmt: skip


def swiglu_backward_row(M: int, N: int, quick: bool = False) -> Row:
    """Both halves' gradients, of X and dY."""
    module = example("swiglu")
    return _row(
        "swiglu backward", f"bf16 {M}x{N}",
        _normal((M, 2 * N), (M, N)), lambda x, dy: [module.reference_gradient(x.float(), dy.float())],
        [((M, 2 * N), _BF16)],
        (
            tiledsl_candidate(module.swiglu_gradient, {"M": M, "N": N}, FLAT_SPACE),
            compiled(module.reference_gradient),
            tuned_moves.swiglu_by_hand(True),
        ),
        10 * M * N, quick,
    )  # fmt: skip


def mhc_post_row(tokens: int, streams: int, N: int, quick: bool = False) -> Row:
    """Streams of a residual mixed with each other and with a layer's output."""

    def inputs(device: str) -> list[Any]:
        wide = _normal((tokens, N), (tokens, streams, N))(device)
        return wide + _normal((tokens, streams), (tokens, streams, streams), dtype=torch.float32)(device)

    def mixed(x: Any, residual: Any, mix: Any, comb: Any) -> Any:
        summed = torch.einsum("tio,tin->ton", comb, residual.float())
        return mix[:, :, None] * x.float()[:, None, :] + summed

    return _row(
        "mhc post", f"bf16 {tokens}x{streams}x{N}", inputs, lambda *given: [mixed(*given)],
        [((tokens, streams, N), _BF16)],
        (
            tiledsl_candidate(moves.mhc_post, {"tokens": tokens, "streams": streams, "N": N}, STREAM_SPACE),
            compiled(lambda *given: mixed(*given).to(_BF16)),
            tuned_moves.mhc_post_by_hand(),
        ),
        2 * tokens * N * (1 + 2 * streams) + 4 * tokens * streams * (1 + streams), quick,
    )  # fmt: skip


def heads_first_row(batch: int, length: int, heads: int, dim: int, quick: bool = False) -> Row:
    """[batch, length, heads, dim] to [batch, heads, length, dim]."""
    sizes = {"batch": batch, "length": length, "heads": heads, "dim": dim}
    return _row(
        "permutation", f"bf16 BSHD to BHSD B{batch} S{length} H{heads} D{dim}",
        _normal((batch, length, heads, dim)), lambda x: [x.transpose(1, 2).float()],
        [((batch, heads, length, dim), _BF16)],
        (
            tiledsl_candidate(moves.heads_first, sizes, HEADS_SPACE),
            compiled(lambda x: x.transpose(1, 2).contiguous()),
            tuned_moves.heads_first_by_hand(),
        ),
        4 * batch * length * heads * dim, quick,
    )  # fmt: skip


def transpose_row(M: int, N: int, quick: bool = False) -> Row:
    """The transpose of a matrix."""
    return _row(
        "permutation", f"bf16 transpose {M}x{N}",
        _normal((M, N)), lambda x: [x.T.float()], [((N, M), _BF16)],
        (
            tiledsl_candidate(moves.transpose, {"M": M, "N": N}, TRANSPOSE_SPACE),
            compiled(lambda x: x.T.contiguous()),
            tuned_moves.transpose_by_hand(),
        ),
        4 * M * N, quick,
    )  # fmt: skip


def rows() -> list[Row]:
    """Sizes of layers of large models."""
    return [
        quantise_row(16384, 7168, quick=True), quantise_row(16384, 7168, 128),
        rope_row(8, 4096, 32, 128, quick=True),
        swiglu_row(8192, 14336, quick=True), swiglu_backward_row(8192, 14336, quick=True),
        mhc_post_row(8192, 4, 2560, quick=True), mhc_post_row(4096, 4, 7168),
        heads_first_row(8, 4096, 32, 128, quick=True), transpose_row(16384, 8192),
    ]  # fmt: skip
