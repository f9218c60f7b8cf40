"""Loops of tiles of which each block has as many turns as a tensor says: none, one, as many as the ring is deep, more.

Blocks have 128 rows of A, so that two consumers share B, or 64, which one group of eight warps shares.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import tiledsl.language as T

KEYS = 64


def product(blocks: int, turns: int, depth: int, rows: int = 128) -> Any:
    """C = A B, so many tiles of 64 of the inner dimension for each block."""

    @T.prim_func
    def product(
        A: T.Tensor((blocks * rows, turns * KEYS), "float16"),
        B: T.Tensor((64, turns * KEYS), "float16"),
        lengths: T.Tensor((blocks,), "int32"),
        C: T.Tensor((blocks * rows, 64), "float32"),
    ):
        with T.Kernel(blocks, threads=256) as bx:
            a, b = T.alloc_shared((rows, KEYS), "float16"), T.alloc_shared((64, KEYS), "float16")
            total = T.alloc_fragment((rows, 64), "float32")
            T.clear(total)
            for t in T.Pipelined(lengths[bx], num_stages=depth):
                T.copy(A[bx * rows, t * KEYS], a)
                T.copy(B[0, t * KEYS], b)
                T.gemm(a, b, total, transpose_B=True)
            T.copy(total, C[bx * rows, 0])

    return product


def of_two_places(blocks: int, turns: int, depth: int, rows: int = 128) -> Any:
    """C = A B, where each odd turn takes the tile of B that the turn before has taken."""

    @T.prim_func
    def of_two_places(
        A: T.Tensor((blocks * rows, turns * KEYS), "float16"),
        B: T.Tensor((64, turns * KEYS), "float16"),
        lengths: T.Tensor((blocks,), "int32"),
        C: T.Tensor((blocks * rows, 64), "float32"),
    ):
        with T.Kernel(blocks, threads=256) as bx:
            a, b = T.alloc_shared((rows, KEYS), "float16"), T.alloc_shared((64, KEYS), "float16")
            total = T.alloc_fragment((rows, 64), "float32")
            T.clear(total)
            for t in T.Pipelined(lengths[bx], num_stages=depth):
                T.copy(A[bx * rows, t * KEYS], a)
                if t % 2 == 1:
                    T.copy(B[0, (t - 1) * KEYS], b)
                else:
                    T.copy(B[0, t * KEYS], b)
                T.gemm(a, b, total, transpose_B=True)
            T.copy(total, C[bx * rows, 0])

    return of_two_places


def in_a_branch(blocks: int, turns: int, depth: int, rows: int = 128) -> Any:
    """C = A B for blocks that have turns; what others have of C stays as it is."""

    @T.prim_func
    def in_a_branch(
        A: T.Tensor((blocks * rows, turns * KEYS), "float16"),
        B: T.Tensor((64, turns * KEYS), "float16"),
        lengths: T.Tensor((blocks,), "int32"),
        C: T.Tensor((blocks * rows, 64), "float32"),
    ):
        with T.Kernel(blocks, threads=256) as bx:
            a, b = T.alloc_shared((rows, KEYS), "float16"), T.alloc_shared((64, KEYS), "float16")
            total = T.alloc_fragment((rows, 64), "float32")
            length = lengths[bx]
            if length > 0:
                T.clear(total)
                for t in T.Pipelined(length, num_stages=depth):
                    T.copy(A[bx * rows, t * KEYS], a)
                    T.copy(B[0, t * KEYS], b)
                    T.gemm(a, b, total, transpose_B=True)
                T.copy(total, C[bx * rows, 0])

    return in_a_branch


def scaled(blocks: int, turns: int, depth: int, rows: int = 128, constant: int = 0) -> Any:
    """Each turn's product is scaled and added. constant: turns of every block, if it is not what `lengths` says."""

    @T.prim_func
    def scaled(
        A: T.Tensor((blocks * rows, turns * KEYS), "float16"),
        B: T.Tensor((64, turns * KEYS), "float16"),
        lengths: T.Tensor((blocks,), "int32"),
        C: T.Tensor((blocks * rows, 64), "float32"),
    ):
        with T.Kernel(blocks, threads=256) as bx:
            a, b = T.alloc_shared((rows, KEYS), "float16"), T.alloc_shared((64, KEYS), "float16")
            part, total = T.alloc_fragment((rows, 64), "float32"), T.alloc_fragment((rows, 64), "float32")
            T.clear(total)
            for t in T.Pipelined(constant or lengths[bx], num_stages=depth):
                T.copy(A[bx * rows, t * KEYS], a)
                T.copy(B[0, t * KEYS], b)
                T.gemm(a, b, part, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(rows, 64):
                    total[i, j] += part[i, j] * T.cast(t + 1, "float32")
            T.copy(total, C[bx * rows, 0])

    return scaled


def nested(blocks: int, turns: int, depth: int, rows: int = 128) -> Any:
    """A loop inside of a loop: the outer one's turns have no, one, two ... products, which are scaled and added."""

    @T.prim_func
    def nested(
        A: T.Tensor((blocks * rows, turns * KEYS), "float16"),
        B: T.Tensor((64, turns * KEYS), "float16"),
        lengths: T.Tensor((blocks,), "int32"),
        C: T.Tensor((blocks * rows, 64), "float32"),
    ):
        with T.Kernel(blocks, threads=256) as bx:
            a, b = T.alloc_shared((rows, KEYS), "float16"), T.alloc_shared((64, KEYS), "float16")
            part, total = T.alloc_fragment((rows, 64), "float32"), T.alloc_fragment((rows, 64), "float32")
            T.clear(total)
            for g in T.serial(lengths[bx]):
                T.clear(part)
                for t in T.Pipelined(g, num_stages=depth):
                    T.copy(A[bx * rows, t * KEYS], a)
                    T.copy(B[0, t * KEYS], b)
                    T.gemm(a, b, part, transpose_B=True)
                for i, j in T.Parallel(rows, 64):
                    total[i, j] += part[i, j] * T.cast(g, "float32")
            T.copy(total, C[bx * rows, 0])

    return nested


def scan(blocks: int, turns: int, depth: int, rows: int = 128) -> Any:
    """Two products into one sum, of which one needs a third: B's rows are keys, from the end on values, and states."""

    @T.prim_func
    def scan(
        A: T.Tensor((blocks * rows, 64), "float16"),
        B: T.Tensor((turns * KEYS, 64), "float16"),
        lengths: T.Tensor((blocks,), "int32"),
        C: T.Tensor((blocks * rows, 64), "float32"),
    ):
        with T.Kernel(blocks, threads=256) as bx:
            q, k = T.alloc_shared((rows, 64), "float16"), T.alloc_shared((KEYS, 64), "float16")
            v, state = T.alloc_shared((KEYS, 64), "float16"), T.alloc_shared((64, 64), "float16")
            s, acc = T.alloc_fragment((rows, KEYS), "float32"), T.alloc_fragment((rows, 64), "float32")
            weights = T.alloc_fragment((rows, KEYS), "float16")
            T.copy(A[bx * rows, 0], q)
            T.clear(acc)
            for t in T.Pipelined(lengths[bx], num_stages=depth):
                T.copy(B[t * KEYS, 0], k)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(rows, KEYS):
                    weights[i, j] = T.cast(s[i, j] * 0.125, "float16")
                T.copy(B[(turns - 1 - t) * KEYS, 0], v)
                T.gemm(weights, v, acc)
                T.copy(B[(t + 1) % turns * KEYS, 0], state)
                T.gemm(q, state, acc)
            T.copy(acc, C[bx * rows, 0])

    return scan


def twice(blocks: int, turns: int, depth: int, rows: int = 128) -> Any:
    """Two loops that load the same tiles and hold them differently long: values of one are keys of the other."""

    @T.prim_func
    def twice(
        A: T.Tensor((blocks * rows, 64), "float16"),
        B: T.Tensor((turns * KEYS, 64), "float16"),
        lengths: T.Tensor((blocks,), "int32"),
        C: T.Tensor((blocks * rows, 64), "float32"),
    ):
        with T.Kernel(blocks, threads=256) as bx:
            q, k = T.alloc_shared((rows, 64), "float16"), T.alloc_shared((KEYS, 64), "float16")
            v = T.alloc_shared((KEYS, 64), "float16")
            s, acc = T.alloc_fragment((rows, KEYS), "float32"), T.alloc_fragment((rows, 64), "float32")
            total, weights = T.alloc_fragment((rows, KEYS), "float32"), T.alloc_fragment((rows, KEYS), "float16")
            T.copy(A[bx * rows, 0], q)
            T.clear(acc)
            T.clear(total)
            for t in T.Pipelined(lengths[bx], num_stages=depth):
                T.copy(B[t * KEYS, 0], k)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(rows, KEYS):
                    weights[i, j] = T.cast(s[i, j] * 0.125, "float16")
                T.copy(B[(turns - 1 - t) * KEYS, 0], v)
                T.gemm(weights, v, acc)
            for t in T.Pipelined(lengths[bx] // 2, num_stages=depth):
                T.copy(B[t * KEYS, 0], v)
                T.gemm(q, v, total, transpose_B=True)
            for i, j in T.Parallel(rows, 64):
                acc[i, j] += total[i, j]
            T.copy(acc, C[bx * rows, 0])

    return twice


def latent(blocks: int, turns: int, depth: int, rows: int = 128) -> Any:
    """Attention whose values are the keys."""
    return weighted(blocks, turns, depth, rows, is_latent=True)


def in_parts(blocks: int, turns: int, depth: int, rows: int = 128) -> Any:
    """Attention with heads of 96, which are 64 + 32."""
    return weighted(blocks, turns, depth, rows, width=96)


def latent_in_parts(blocks: int, turns: int, depth: int, rows: int = 128) -> Any:
    """The same, whose values are the keys."""
    return weighted(blocks, turns, depth, rows, is_latent=True, width=96)


def gathered(blocks: int, turns: int, depth: int, rows: int = 128) -> Any:
    """The same, whose keys are every third row."""
    return weighted(blocks, turns, depth, rows, is_latent=True, apart=3)


def weighted(
    blocks: int, turns: int, depth: int, rows: int = 128, is_latent: bool = False, width: int = 64, apart: int = 1
) -> Any:
    """Attention: A's rows are queries, B's are keys, and from the end on values."""

    @T.prim_func
    def weighted(
        A: T.Tensor((blocks * rows, width), "float16"),
        B: T.Tensor((turns * KEYS, width), "float16"),
        lengths: T.Tensor((blocks,), "int32"),
        C: T.Tensor((blocks * rows, width), "float32"),
    ):
        with T.Kernel(blocks, threads=256) as bx:
            q, k = T.alloc_shared((rows, width), "float16"), T.alloc_shared((KEYS, width), "float16")
            v = T.alloc_shared((KEYS, width), "float16")
            s, acc = T.alloc_fragment((rows, KEYS), "float32"), T.alloc_fragment((rows, width), "float32")
            weights, total = T.alloc_fragment((rows, KEYS), "float16"), T.alloc_fragment((rows,), "float32")
            more, highest = T.alloc_fragment((rows,), "float32"), T.alloc_fragment((rows,), "float32")
            previous = T.alloc_fragment((rows,), "float32")
            T.copy(A[bx * rows, 0], q)
            T.clear(acc)
            T.clear(total)
            T.fill(highest, -1e30)
            for t in T.Pipelined(lengths[bx], num_stages=depth):
                if apart == 1:
                    T.copy(B[t * KEYS, 0], k)
                else:
                    for j, c in T.Parallel(KEYS, width):
                        k[j, c] = B[(t * KEYS + j) * apart % (turns * KEYS), c]
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                T.copy(highest, previous)
                T.reduce_max(s, highest, dim=1)
                for i in T.Parallel(rows):
                    highest[i] = T.max(previous[i], highest[i] * 0.125)
                for i, j in T.Parallel(rows, KEYS):
                    s[i, j] = T.exp2(s[i, j] * 0.125 - highest[i])
                T.reduce_sum(s, more, dim=1)
                for i in T.Parallel(rows):
                    total[i] = total[i] * T.exp2(previous[i] - highest[i]) + more[i]
                for i, j in T.Parallel(rows, width):
                    acc[i, j] *= T.exp2(previous[i] - highest[i])
                T.copy(s, weights)
                if apart == 1:
                    T.copy(B[(t if is_latent else turns - 1 - t) * KEYS, 0], v)
                    T.gemm(weights, v, acc)
                else:
                    T.gemm(weights, k, acc)
            for i, j in T.Parallel(rows, width):
                acc[i, j] /= T.max(total[i], 1.0)
            T.copy(acc, C[bx * rows, 0])

    return weighted


OF_ROWS = (weighted, latent, gathered, in_parts, latent_in_parts, scan, twice)  # whose turns take rows of B


def inputs(program: Callable[..., Any], lengths: list[int], turns: int, rows: int = 128) -> list[torch.Tensor]:
    """A, B, lengths and C of whole numbers, of which all sums are exact but the weights'."""
    torch.manual_seed(0)
    width = 96 if program in (in_parts, latent_in_parts) else 64
    inner = width if program in OF_ROWS else turns * KEYS
    a = torch.randint(-2, 3, (len(lengths) * rows, inner)).half()
    b = torch.randint(-2, 3, (turns * KEYS, width) if program in OF_ROWS else (width, inner)).half()
    out = torch.full((len(lengths) * rows, width), -1.0 if program is in_a_branch else float("nan"))
    return [a, b, torch.tensor(lengths, dtype=torch.int32), out]


def want(program: Callable[..., Any], a: torch.Tensor, b: torch.Tensor, lengths: torch.Tensor, *_: Any) -> torch.Tensor:
    """C, by torch."""
    rows = a.shape[0] // len(lengths)
    out = torch.zeros(a.shape[0], b.shape[1] if program in OF_ROWS else b.shape[0])
    for block, length in enumerate(lengths.tolist()):
        at = slice(block * rows, (block + 1) * rows)
        if program is in_a_branch and not length:
            out[at] = -1
        if program is scan:
            tiles = b.float().split(KEYS)
            for t in range(length):
                scores = a[at].float() @ tiles[t].T * 0.125
                out[at] += scores.half().float() @ tiles[-1 - t] + a[at].float() @ tiles[(t + 1) % len(tiles)]
            continue
        if program is twice:
            tiles = b.float().split(KEYS)
            for t in range(length):
                out[at] += (a[at].float() @ tiles[t].T * 0.125).half().float() @ tiles[-1 - t]
                out[at] += a[at].float() @ tiles[t].T if t < length // 2 else 0
            continue
        if program in (weighted, latent, gathered, in_parts, latent_in_parts):
            tiles = b.float()[torch.arange(len(b)) * (3 if program is gathered else 1) % len(b)].split(KEYS)
            keys, values = (
                tiles[:length],
                (tiles if program in (latent, gathered, latent_in_parts) else tiles[::-1])[:length],
            )
            if length:
                weights = torch.softmax(a[at].float() @ torch.cat(keys).T * 0.125 * math.log(2), 1)
                out[at] = weights @ torch.cat(values)
            continue
        for t in range(length):
            left, right = (slice(n * KEYS, (n + 1) * KEYS) for n in (t, t - t % 2 if program is of_two_places else t))
            made = a[at, left].float() @ b[:, right].float().T
            # of turn g of the outer loop, tile t is one if g is more
            scale = {scaled: t + 1, nested: sum(range(t + 1, length))}
            out[at] += made * scale.get(program, 1)
    return out


def from_words(blocks: int, turns: int, depth: int, what: str = "", columns: int = 64, fields: int = 2) -> Any:
    """C = (W B)^T, W made of fields of four bits of each word, with a factor for each row and tile of a turn."""

    @T.prim_func
    def from_words(
        W: T.Tensor((blocks * 128, turns * 32), "uint16"),
        B: T.Tensor((columns, turns * 32 * fields), "float16"),
        S: T.Tensor((turns * fields, blocks * 128), "float16"),
        lengths: T.Tensor((blocks,), "int32"),
        C: T.Tensor((columns, blocks * 128), "float16"),
    ):
        with T.Kernel(blocks, threads=256) as bx:
            words, weights = T.alloc_shared((128, 32), "uint16"), T.alloc_fragment((128, 32), "float16")
            total, rounded = T.alloc_fragment((128, columns), "float32"), T.alloc_fragment((128, columns), "float16")
            top = T.alloc_fragment((128,), "float16")
            T.clear(total)
            for t in T.Pipelined(lengths[bx], num_stages=depth):
                T.copy(W[bx * 128, t * 32], words)
                for field in T.unroll(fields):
                    b = T.alloc_shared((columns, 32), "float16")
                    T.copy(B[0, (t * fields + field) * 32], b)
                    for i, j in T.Parallel(128, 32):
                        number = T.cast((words[i, j] >> (4 * field)) & 15, "float16") - 8
                        if what == "columns":
                            number *= S[0, j]
                        weights[i, j] = number * S[t * fields + field, bx * 128 + i]
                    T.gemm(weights, b, total, transpose_B=True)
                    if what == "elsewhere":
                        T.reduce_max(weights, top, dim=1)
                        for i, j in T.Parallel(128, columns):
                            total[i, j] += T.cast(top[i], "float32")
            T.copy(total, rounded)
            for j, i in T.Parallel(columns, 128):
                C[j, bx * 128 + i] = rounded[i, j]

    return from_words


def words_expected(W: torch.Tensor, B: torch.Tensor, S: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """What from_words gives."""
    fields = S.shape[0] * 32 // W.shape[1]
    number = torch.stack([W.to(torch.int32).unflatten(1, (-1, 32)) >> 4 * field & 15 for field in range(fields)], 2)
    weights = (number - 8).half() * S.T.unflatten(1, (-1, fields))[..., None]
    used = torch.arange(weights.shape[1]) < lengths.repeat_interleave(128)[:, None]
    return ((weights * used[..., None, None]).flatten(1).float() @ B.float().T).half().T
