"""Linear attention forward: delta rules, gates for each head or channel, retention, and the scan of Mamba-2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.ours import tiledsl_candidate
from benchmarks.peers.fla import flash_linear_attention
from benchmarks.peers.library import copy_ceiling
from benchmarks.programs import example
from benchmarks.row import Candidate, Row, Tensors
from benchmarks.rows.spaces import AUTO, GLUON, TMA


def _config(passes: Mapping[str, Any], **sizes: int) -> dict[str, Any]:
    return {**sizes, "pass_configs": dict(passes)} if passes else sizes


DELTA_SPACE = [
    _config(GLUON, num_stages=3), _config(GLUON, num_stages=2),
    _config(AUTO, num_stages=2), _config(TMA, num_stages=2),
]  # fmt: skip
CHANNEL_SPACE = [
    _config(GLUON, block_V=128, threads=256, num_stages=2), _config(GLUON, block_V=128, threads=256, num_stages=3),
    _config(GLUON, block_V=64, threads=128, num_stages=2), _config(GLUON, block_V=64, threads=128, num_stages=3),
    _config(TMA, block_V=64, threads=128, num_stages=2),
]  # fmt: skip
GATED_SPACE = [
    _config(AUTO, chunk=64, threads=128), _config(TMA, chunk=64, threads=128),
    _config(AUTO, chunk=128, threads=256), _config(TMA, chunk=128, threads=256),
]  # fmt: skip


def _row(
    case: str, shape: tuple[int, int, int, int], dim: int, words: int, inputs: Callable[[str], list[Any]],
    reference: Callable[..., list[Any]], *candidates: Candidate, quick: bool = False,
) -> Row:  # fmt: skip
    """shape: of V and O, (batch, tokens, heads, value_dim). words: of 4 bytes, read for each token and channel of keys.
    Operations are those of the recurrence, token by token."""
    batch, length, heads, value_dim = shape
    return Row(
        family="linear attention",
        case=f"bf16 {case} B{batch} H{heads} S{length} D{dim}x{value_dim}",
        inputs=inputs,
        reference=reference,
        outputs=((shape, torch.bfloat16),),
        candidates=(*candidates, copy_ceiling()),
        operations=4.0 * batch * length * heads * dim * value_dim,
        bytes_moved=4.0 * batch * length * (heads * value_dim + words * dim),
        tags=frozenset({"memory"}),
        quick=quick,
    )


KINDS = {
    "gated delta rule": ("gated_delta_net", DELTA_SPACE, "gated_delta_rule.chunk_gated_delta_rule", 1),
    "GLA": ("gated_linear_attention", CHANNEL_SPACE, "gla.chunk_gla", 2),
    "KDA": ("kimi_delta_attention", CHANNEL_SPACE, "kda.chunk_kda", 2),
}


def chunked_row(kind: str, batch: int, heads: int, length: int, dim: int, quick: bool = False) -> Row:
    """A program of examples/ whose first launch prepares all chunks, for a state that the second carries.

    KINDS has its name, what may be chosen, flash-linear-attention's function, and how often 4 bytes are read for each
    channel of a key: for q and k, and for gates of channels.
    """
    program, space, peer, words = KINDS[kind]
    module = example(program)
    return _row(
        kind, (batch, length, heads, dim), dim, words * heads,
        lambda device: list(module.inputs(batch, heads, length, dim, dim, device)),
        lambda *given: [module.reference(*(each.float() for each in given))],
        tiledsl_candidate(
            getattr(module, program),
            {"batch": batch, "heads": heads, "length": length, "dim": dim, "value_dim": dim}, space,
        ),
        flash_linear_attention(peer, _named("q", "k", "v", "g", "beta")),
        quick=quick,
    )  # fmt: skip


def gated_row(
    kind: str, batch: int, heads: int, groups: int, length: int, dim: int, value_dim: int, quick: bool = False
) -> Row:
    """examples/linear_attention.py with random gates ("gates"), those of "retention", or as "Mamba-2" calls it: without
    scale, and with `groups` of B and C, which flash-linear-attention is given for each head."""
    module = example("linear_attention")
    scale = 1.0 if kind == "Mamba-2" else dim**-0.5

    def inputs(device: str) -> list[Any]:
        q, k, v, g = module.inputs(batch, heads, groups, length, dim, value_dim, device)
        if kind == "retention":
            g = torch.log1p(-(2.0 ** (-5 - torch.arange(heads, device=device)))).expand(g.shape).contiguous()
        return [q, k, v, g]

    def named(given: Tensors) -> dict[str, Any]:
        q, k, *others = given
        q, k = (each.repeat_interleave(heads // groups, dim=2) for each in (q, k))
        return {**_named("q", "k", "v", "g")([q, k, *others]), "scale": scale}

    arguments = {"batch": batch, "heads": heads, "groups": groups, "length": length, "dim": dim}
    peer = flash_linear_attention("simple_gla.chunk_simple_gla", named)
    if kind == "retention":
        peer = flash_linear_attention("retention.chunk_retention", _named("q", "k", "v"))
    return _row(
        kind, (batch, length, heads, value_dim), dim, groups, inputs,
        lambda *given: [module.reference(*(each.float() for each in given), scale=scale)],
        tiledsl_candidate(
            module.linear_attention, {**arguments, "value_dim": value_dim, "scale": scale}, GATED_SPACE
        ),
        peer, quick=quick,
    )  # fmt: skip


def _named(*names: str) -> Callable[[Tensors], dict[str, Any]]:
    return lambda given: dict(zip(names, given, strict=False))


def rows() -> list[Row]:
    """One long sequence, and some shorter ones."""
    return [
        chunked_row("gated delta rule", 4, 64, 8192, 128, quick=True),
        chunked_row("gated delta rule", 1, 64, 32768, 128),
        chunked_row("GLA", 4, 64, 8192, 128, quick=True),
        chunked_row("GLA", 1, 64, 32768, 128),
        chunked_row("KDA", 4, 64, 8192, 128, quick=True),
        chunked_row("KDA", 1, 64, 32768, 128),
        gated_row("gates", 4, 64, 64, 8192, 128, 128, quick=True),
        gated_row("gates", 1, 64, 64, 32768, 128, 128),
        gated_row("retention", 4, 32, 32, 8192, 128, 128),
        gated_row("Mamba-2", 8, 64, 1, 4096, 128, 64),
    ]
