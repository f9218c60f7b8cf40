"""Softmax, norms and cross-entropy, forward and backward, of rows of 256 to 262144 elements, beside a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.handwritten import tuned_wide
from benchmarks.ours import tiledsl_candidate
from benchmarks.peers.library import compiled, copy_ceiling
from benchmarks.programs import example, gradients, wide_rows
from benchmarks.row import Candidate, Row

WIDTHS = (256, 1024, 4096, 16384, 65536, 262144)
ELEMENTS = 1 << 27
_EPS = 1e-5
_BF16 = torch.bfloat16


def _space(*configs: tuple[int, ...], names: Sequence[str]) -> list[dict[str, Any]]:
    return [dict(zip(names, config, strict=True)) for config in configs]


def whole_space(N: int) -> list[dict[str, Any]]:
    """Blocks of whole rows: 8 to 32 elements a thread, or more where a row asks for it."""
    sizes = (
        (4096, 128),
        (8192, 256),
        (8192, 512),
        (2048, 128),
        (4096, 256),
        (16384, 512),
        (4096, 512),
        (16384, 256),
        (16384, 1024),
        (32768, 1024),
    )
    return [{"block_M": max(1, size // N), "threads": threads} for size, threads in sizes if size >= N][:7]


def piece_space(N: int) -> list[dict[str, Any]]:
    """Tiles: of several rows, of one, or of a part of one."""
    width = 1 << (N - 1).bit_length()
    return [
        {"block_M": max(1, size // width), "block_N": min(width, size), "threads": threads}
        for size, threads in (
            (4096, 128), (2048, 128), (8192, 256), (4096, 256), (8192, 512), (16384, 512), (1024, 32), (2048, 32),
        )
    ]  # fmt: skip


def prefetched_space(N: int) -> list[dict[str, Any]]:
    """Pieces of rows, some of them under way."""
    configs = [{**tile, "num_stages": 1} for tile in piece_space(N)]
    if N > 16384:
        more = ((4096, 128, 3), (8192, 256, 2), (8192, 256, 3), (4096, 128, 4), (4096, 256, 3), (8192, 512, 3))
        configs = configs[2:5] + [
            {"block_M": 1, "block_N": size, "threads": threads, "num_stages": stages} for size, threads, stages in more
        ]
    return configs


_HELD = ("block_M", "block_N", "blocks", "threads", "lag", "num_stages", "maxnreg")


def _wide(*configs: tuple[int, ...], along_rows: bool = False, names: Sequence[str] = _HELD) -> list[dict[str, Any]]:
    """Configurations of programs that clear their words first, and begin meanwhile. Rings take what shared memory there
    is as they are, without a further place; tiles of one row are of one dimension."""
    passes: dict[str, Any] = {"pipeline-loops.deepen": False, "fold-unit-dims.least_rank": 2}
    if along_rows:
        passes["hold-tiles.along_rows"] = True
    return [{**each, "launch_pdl": True, "pass_configs": passes} for each in _space(*configs, names=names)]


WIDEST = 65536  # of which a piece need not be wide for its words to be few


def softmax_space(N: int) -> list[dict[str, Any]]:
    """Rows in turns of few elements, of which a multiprocessor has as many as fit: small blocks, each with some turns
    under way."""
    parts = max(1, N // WIDEST)
    return _wide(
        (4 * parts, 2048, 528, 128, 2, 4, 128), (4 * parts, 2048, 528, 128, 3, 3, 128),
        (8 * parts, 1024, 1056, 64, 2, 4, 128), (8 * parts, 2048, 528, 128, 4, 5, 128),
        names=("parts", "block_N", "blocks", "threads", "late", "num_stages", "maxnreg"),
    )  # fmt: skip


def rms_norm_space(N: int) -> list[dict[str, Any]]:
    """As of softmax."""
    if N > WIDEST:
        return [
            *_wide((4, 4096, 256, 128, 1, 2, 255), along_rows=True),
            *_wide((1, 2048, 2048, 32, 1, 2, 128), (1, 16384, 256, 256, 1, 2, 128), (1, 4096, 1056, 64, 1, 2, 128)),
        ]
    return [
        *_wide((4, 2048, 528, 128, 1, 2, 128), (2, 2048, 1024, 64, 1, 2, 128), along_rows=True),
        *_wide((2, 2048, 1056, 128, 1, 2, 64), (1, 8192, 512, 128, 1, 2, 128)),
    ]


def layer_norm_space(N: int) -> list[dict[str, Any]]:
    """Pieces of rows, with few weights a thread."""
    if N > WIDEST:
        return _wide(
            (2, 8192, 264, 256, 1, 2, 128), (1, 4096, 528, 128, 2, 4, 128), (1, 8192, 264, 256, 1, 2, 128),
            (2, 4096, 528, 128, 1, 2, 128),
        )  # fmt: skip
    return _wide(
        (4, 2048, 528, 128, 1, 2, 128), (2, 2048, 1056, 64, 1, 2, 128), (4, 1024, 1056, 64, 1, 2, 128),
        (8, 2048, 264, 128, 1, 2, 255),
    )  # fmt: skip


def wide_gradient_space(N: int) -> list[dict[str, Any]]:
    """Of the gradients of rows that several blocks hold."""
    if N > WIDEST:
        return _wide(
            (2, 4096, 264, 128, 1, 2, 255), (1, 8192, 264, 128, 1, 2, 255), (1, 4096, 528, 64, 1, 2, 255),
            (2, 4096, 264, 256, 1, 2, 128), (2, 8192, 128, 256, 1, 2, 255),
        )  # fmt: skip
    return _wide(
        (2, 2048, 528, 128, 1, 2, 128), (4, 1024, 528, 128, 1, 2, 128), (4, 1024, 528, 64, 1, 2, 255),
        (2, 1024, 1056, 64, 1, 2, 128), (2, 2048, 528, 64, 1, 2, 255),
    )  # fmt: skip


def norm_space(N: int) -> list[dict[str, Any]]:
    """Blocks that walk over whole rows, as many as run at once on an H200; last, with more blocks for the last sums."""
    configs: list[dict[str, Any]] = [
        {
            "block_M": max(1, size // N),
            "blocks": 132 * each,
            "threads": threads,
            "num_stages": stages,
            "launch_pdl": True,
        }
        for size, each, threads, stages in (
            (8192, 1, 512, 2), (8192, 1, 512, 3), (4096, 2, 256, 2), (4096, 2, 512, 3), (4096, 2, 256, 3),
            (2048, 4, 128, 3), (4096, 2, 256, 4), (4096, 2, 512, 4), (8192, 1, 512, 4),
        )
        if size >= N
    ]  # fmt: skip
    return [*configs, {**configs[0], "sum_N": 8}] if configs else []


def _row(
    family: str, M: int, N: int, inputs: Any, reference: Any, candidates: tuple[Candidate, ...], units: float,
    outputs: Sequence[tuple[tuple[int, ...], Any]] | None = None, operations: float = 6, quick: bool = False,
) -> Row:  # fmt: skip
    """units: how often M * N elements of bfloat16 are read or written."""
    outputs = outputs or [((M, N), _BF16)]
    return Row(
        family=family,
        case=f"bf16 {M}x{N}",
        inputs=inputs,
        reference=reference,
        outputs=tuple(outputs),
        candidates=(*candidates, copy_ceiling()),
        operations=operations * M * N,
        bytes_moved=2.0 * units * M * N,
        required=len(outputs),
        tags=frozenset({"memory"}),
        quick=quick,
    )


def _normal(shape: tuple[int, ...], device: str, scale: float = 1.0) -> Any:
    return (torch.randn(shape, device=device, dtype=_BF16) * scale).contiguous()


def _ours(
    whole: Any, held: Any, M: int, N: int, configs: list[dict[str, Any]], *,
    common: list[dict[str, Any]], widest: int = 16384, **more: Any,
) -> Candidate:  # fmt: skip
    """Whole rows where they fit, rows that several blocks hold where they do not."""
    sizes = {"M": M, "N": N, **more}
    if widest < N:
        return tiledsl_candidate(held, sizes, common)
    return tiledsl_candidate(whole, {} if whole.is_eager else sizes, configs)


def softmax_row(M: int, N: int, quick: bool = False) -> Row:
    """Softmax along rows."""
    return _row(
        "softmax", M, N,
        lambda device: [_normal((M, N), device, 3)],
        lambda x: [torch.softmax(x.float(), 1)],
        (
            _ours(
                example("softmax").softmax, wide_rows.softmax, M, N, whole_space(N), common=softmax_space(N),
                dtype="bfloat16",
            ),
            compiled(lambda x: torch.softmax(x, 1)),
            tuned_wide.softmax_by_hand(N),
        ),
        units=2, quick=quick,
    )  # fmt: skip


def softmax_backward_row(M: int, N: int, quick: bool = False) -> Row:
    """dX of Y = softmax(X), of Y and dY."""

    def gradient(y: Any, dy: Any) -> Any:
        y, dy = y.float(), dy.float()
        return y * (dy - (y * dy).sum(1, keepdim=True))

    return _row(
        "softmax backward", M, N,
        lambda device: [torch.softmax(_normal((M, N), device, 3), 1), _normal((M, N), device)],
        lambda y, dy: [gradient(y, dy)],
        (
            _ours(
                gradients.softmax_gradient,
                wide_rows.softmax_gradient, M, N, whole_space(N), common=wide_gradient_space(N),
            ),
            compiled(lambda y, dy: gradient(y, dy).to(y.dtype)),
            tuned_wide.softmax_gradient_by_hand(N),
        ),
        units=3, quick=quick,
    )  # fmt: skip


def rms_norm_row(M: int, N: int, quick: bool = False) -> Row:
    """RMS norm with a weight."""
    return _row(
        "rms norm", M, N,
        lambda device: [_normal((M, N), device), _normal((N,), device)],
        lambda x, w: [F.rms_norm(x.float(), (N,), w.float(), 1e-6)],
        (
            _ours(example("rms_norm").rms_norm, wide_rows.rms_norm, M, N, whole_space(N), common=rms_norm_space(N)),
            compiled(lambda x, w: F.rms_norm(x, (N,), w, 1e-6)),
            tuned_wide.rms_norm_by_hand(N, 1e-6),
        ),
        units=2, quick=quick,
    )  # fmt: skip


def layer_norm_row(M: int, N: int, quick: bool = False) -> Row:
    """Layer norm with weight and bias."""
    return _row(
        "layer norm", M, N,
        lambda device: [_normal((M, N), device), _normal((N,), device), _normal((N,), device)],
        lambda x, w, b: [F.layer_norm(x.float(), (N,), w.float(), b.float(), _EPS)],
        (
            _ours(
                example("layer_norm").layer_norm, wide_rows.layer_norm, M, N, whole_space(N), common=layer_norm_space(N)
            ),
            compiled(lambda x, w, b: F.layer_norm(x, (N,), w, b, _EPS)),
            tuned_wide.layer_norm_by_hand(N, _EPS),
        ),
        units=2, quick=quick,
    )  # fmt: skip


def _norm_backward(family: str, programs: Callable[[Any], Any], centred: bool, M: int, N: int, quick: bool) -> Row:
    def inputs(device: str) -> list[Any]:
        x, w, dy = _normal((M, N), device), _normal((N,), device), _normal((M, N), device)
        if centred:
            mean = x.float().mean(1)
            return [x, w, mean, (x.float().var(1, correction=0) + _EPS).rsqrt(), dy]
        return [x, w, (x.float().square().mean(1) + _EPS).rsqrt(), dy]

    def gradient(x: Any, w: Any, *more: Any) -> tuple[Any, ...]:
        (*means, r, dy) = (each.float() for each in more)
        x = (x.float() - means[0][:, None] if centred else x.float()) * r[:, None]
        h = dy * w.float()
        dx = h - x * (h * x).mean(1, keepdim=True)
        if centred:
            dx = dx - h.mean(1, keepdim=True)
        return (dx * r[:, None], (dy * x).sum(0), *([dy.sum(0)] if centred else []))

    return _row(
        family, M, N, inputs,
        lambda *given: list(gradient(*given)),
        (
            _ours(
                programs(gradients), programs(wide_rows), M, N, norm_space(N), widest=8192,
                common=wide_gradient_space(N),
            ),
            compiled(lambda *given: tuple(each.to(_BF16) for each in gradient(*given))),
            tuned_wide.norm_gradient_by_hand(N, centred),
        ),
        units=3, operations=12, quick=quick,
        outputs=[((M, N), _BF16), *[((N,), _BF16)] * (2 if centred else 1)],
    )  # fmt: skip


def rms_norm_backward_row(M: int, N: int, quick: bool = False) -> Row:
    """dX and dweight, of X, weight, 1 / root mean square, and dY."""
    return _norm_backward("rms norm backward", lambda module: module.rms_norm_gradient, False, M, N, quick)


def layer_norm_backward_row(M: int, N: int, quick: bool = False) -> Row:
    """dX, dweight and dbias, of X, weight, mean, 1 / deviation, and dY."""
    return _norm_backward("layer norm backward", lambda module: module.layer_norm_gradient, True, M, N, quick)


def _logits(M: int, N: int, device: str) -> list[Any]:
    return [_normal((M, N), device, 3), torch.randint(0, N, (M,), device=device, dtype=torch.int32)]


def cross_entropy_row(M: int, N: int, quick: bool = False) -> Row:
    """Losses and log-sum-exps of logits."""

    def losses(x: Any, targets: Any) -> tuple[Any, Any]:
        x = x.float()
        lse = torch.logsumexp(x, 1)
        return lse - x.gather(1, targets.long()[:, None])[:, 0], lse

    return _row(
        "cross-entropy", M, N,
        lambda device: _logits(M, N, device),
        lambda *given: list(losses(*given)),
        (
            tiledsl_candidate(example("cross_entropy").cross_entropy, {"M": M, "N": N}, prefetched_space(N)),
            compiled(losses),
            tuned_wide.cross_entropy_by_hand(N),
        ),
        units=1, outputs=[((M,), torch.float32)] * 2, quick=quick,
    )  # fmt: skip


def cross_entropy_backward_row(M: int, N: int, quick: bool = False) -> Row:
    """The logits' gradient, of logits, targets, log-sum-exps and the losses' gradients."""

    def inputs(device: str) -> list[Any]:
        x, targets = _logits(M, N, device)
        return [x, targets, torch.logsumexp(x.float(), 1), torch.rand(M, device=device)]

    def gradient(x: Any, targets: Any, lse: Any, scale: Any) -> Any:
        hit = torch.arange(N, device=x.device)[None, :] == targets[:, None]
        return (torch.exp(x.float() - lse[:, None]) - hit.float()) * scale[:, None]

    return _row(
        "cross-entropy backward", M, N, inputs,
        lambda *given: [gradient(*given)],
        (
            tiledsl_candidate(example("cross_entropy").cross_entropy_gradient, {"M": M, "N": N}, piece_space(N)),
            compiled(lambda *given: gradient(*given).to(_BF16)),
            tuned_wide.cross_entropy_gradient_by_hand(N),
        ),
        units=2, quick=quick,
    )  # fmt: skip


MAKERS = (
    softmax_row, softmax_backward_row, rms_norm_row, rms_norm_backward_row, layer_norm_row, layer_norm_backward_row,
    cross_entropy_row, cross_entropy_backward_row,
)  # fmt: skip


def rows() -> list[Row]:
    """Each over all widths, of as many elements."""
    sizes = {cross_entropy_row: 2 * ELEMENTS}  # it writes next to nothing
    return [make(sizes.get(make, ELEMENTS) // N, N, quick=N == 65536) for make in MAKERS for N in WIDTHS]
