"""Loops that add products to memory, in Gluon: attention's gradients at once, their text, results, what ptxas says."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.support import gluon_machine
from tests.support.example_modules import load_example
from tests.support.gluon_kernels import compile_kernels, part_of
from tiledsl.certificate.algebra import ExecutorError

WIDTHS = [pytest.param(128, 64, id="128"), pytest.param(64, 128, id="64")]


def gradients(passes: dict[str, Any] | None = None, **sizes: Any) -> tiledsl.Kernel:
    """The kernel of the example, in Gluon."""
    chosen = {"batch": 1, "heads": 2, "kv_heads": 2, "queries": 256, "keys": 256, "dim": 128, **sizes}
    function = load_example("attention_backward").gradients_at_once.function
    kernel = tiledsl.jit(function, target="cuda:90", pass_configs=passes or {}).compile(**chosen)
    assert "@gluon.jit" in kernel.source, kernel.remarks
    return kernel


def errors(source: str, queries: int, keys: int, dim: int, causal: bool, heads: int = 2, kv_heads: int = 2) -> float:
    """The largest relative error of dQ, dK and dV, as the machine for Gluon computes them."""
    torch.manual_seed(0)
    q, do = (torch.randn(1, heads, queries, dim).half() for _ in range(2))
    k, v = (torch.randn(1, kv_heads, keys, dim).half() for _ in range(2))
    group, root = heads // kv_heads, dim**-0.5
    all_k, all_v = (each.float().repeat_interleave(group, 1) for each in (k, v))
    scores = q.float() @ all_k.mT * root
    if causal:
        scores = scores.masked_fill(torch.ones(queries, keys).triu(1 + keys - queries).bool(), -math.inf)
    total = torch.logsumexp(scores, -1)
    p = torch.exp(scores - total[..., None])
    d = (p @ all_v * do.float()).sum(-1)
    ds = p * (do.float() @ all_v.mT - d[..., None])
    summed = [each.view(1, kv_heads, group, keys, dim).sum(2) for each in (ds.mT @ q.float() * root, p.mT @ do.float())]
    dq, dk, dv = torch.zeros(q.shape), torch.full_like(k, float("nan")), torch.full_like(v, float("nan"))
    lse = (total * math.log2(math.e)).contiguous()
    gluon_machine.run_gluon(source, "attention_gradients", q, k, v, do, lse, d, dq, dk, dv)
    return max(float((a.float() - b).norm() / b.norm()) for a, b in zip((dq, dk, dv), (ds @ all_k, *summed)))


def test_the_next_scores_are_issued_before_the_products_of_this_turn_are_used() -> None:
    source = gradients().source
    consumer = part_of(source, "consumer")
    turn = consumer[consumer.index("for turn_1 in range(") :]
    steps = [
        "turn_1_before = turn_1 - 1",
        "ds = warpgroup_mma(v_ring.index(_zero())",  # while the scores are used
        "lse = lse_ring.index(stage_1)",
        "dv = warpgroup_mma(p_half_operand",
        "d = d_ring.index(stage_1)",
        "ds = warpgroup_mma_wait(1, deps=[ds])",
        "ds_half_buffer.store(",
        "fence_async_shared()",
        "dk = warpgroup_mma(ds_half_operand",
        "dv, p_half_operand = warpgroup_mma_wait(1",  # its registers are free for what follows
        "dq = warpgroup_mma(ds_half_buffer.permute((1, 0)), k_ring",
        "p = warpgroup_mma(k_ring.index(_zero())",
        "dk, dq, ds_half_operand = warpgroup_mma_wait(1",
        "dQ_buffer.index(consumer)",
        "_add_box(dQ_tiles",
        "p = warpgroup_mma_wait(0, deps=[p])",
    ]
    places = [turn.index(step) for step in steps]
    assert places == sorted(places), list(zip(steps, places))
    producer = part_of(source, "producer")
    assert producer.count("mbarrier.expect(") == 3  # K and V; Q with a row of LSE and one of D; dO
    assert "LSE" not in consumer and "warps_per_cta=[4, 2], instr_shape=[16, 64, 16]" in source
    assert "num_warps=8" in source


LENGTHS = [(256, 256), (100, 300)]


@pytest.mark.parametrize(("dim", "block"), WIDTHS)
@pytest.mark.parametrize(
    ("queries", "keys", "causal"),
    [*((*each, causal) for each in LENGTHS for causal in (False, True)), (130, 17, False)],  # causal, rows see nothing
)
def test_matches_torch(queries: int, keys: int, causal: bool, dim: int, block: int) -> None:
    kernel = gradients(queries=queries, keys=keys, dim=dim, causal=causal, block_M=block)
    assert errors(kernel.source, queries, keys, dim, causal) < 1e-3


def test_turns_that_issue_their_own_products_alone() -> None:
    source = gradients({"schedule-loops.skew": False}).source
    assert "turn_1_before" not in source and errors(source, 256, 256, 128, False) < 1e-3


@pytest.mark.parametrize("persistent", [False, True])
def test_heads_that_share_keys_and_blocks_of_their_own(persistent: bool) -> None:
    """A loop over the heads of a group stands around the loops over their queries."""
    passes = {"select-emitter.persistent": persistent}
    kernel = gradients(passes, heads=4, queries=128, keys=256, causal=True)
    assert errors(kernel.source, 128, 256, 128, True, heads=4) < 1e-3


def test_blocks_with_fewer_turns_come_last() -> None:
    """No block of a causal kernel is part of a persistent program: its blocks take shorter and shorter."""
    assert "for item in" not in gradients(causal=True).source and "for item in" in gradients().source


WRONG = {
    "a sum is used too early": ("dk, dq, ds_half_operand = warpgroup_mma_wait(1, deps=[dk, dq, ds_half_operand])", ""),
    "without a fence": ("fence_async_shared()", "pass"),
}


@pytest.mark.parametrize("name", WRONG)
def test_planted_faults_are_found(name: str) -> None:
    source = gradients().source
    assert WRONG[name][0] in source
    with pytest.raises(ExecutorError):
        errors(source.replace(*WRONG[name]), 256, 256, 128, False)


def test_what_is_stored_instead_of_added_is_lost() -> None:
    source = gradients().source
    assert errors(source.replace("_add_box(dQ_tiles", "_store_box(dQ_tiles"), 256, 256, 128, False) > 0.1


IN_TURN = {"select-emitter.additions": 2}
TOO_EARLY = {
    "of three": ("tma.store_wait(1)", "tma.store_wait(2)"),
    "at one place": ("dQ_buffer_place ^= 1", "pass"),
}


@pytest.mark.parametrize("consumers", ["auto", "apart"])
@pytest.mark.parametrize("causal", [False, True])
def test_additions_take_turns_in_two_places(causal: bool, consumers: str) -> None:
    """Those of both loops of a causal kernel in the same two."""
    source = gradients({**IN_TURN, "select-emitter.consumers": consumers}, causal=causal).source
    assert source.count("dQ_buffer = gl.allocate") == 1 and "dQ_buffer_1" not in source
    places = "[4, 1, 1, 64, 64]" if consumers == "apart" else "[2, 1, 1, 64, 128]"
    assert f"dQ_buffer = gl.allocate_shared_memory(gl.float32, {places}" in source
    assert source.count("tma.store_wait(1)") == source.count("dQ_buffer_place ^= 1") == 2 + 2 * causal
    assert errors(source, 256, 256, 128, causal) < 1e-3


@pytest.mark.parametrize("name", TOO_EARLY)
def test_a_place_is_not_taken_before_its_addition_has_read_it(name: str) -> None:
    source = gradients(IN_TURN).source
    assert TOO_EARLY[name][0] in source
    with pytest.raises(ExecutorError, match="may overwrite what the copy"):
        errors(source.replace(*TOO_EARLY[name]), 256, 256, 128, False)


def test_additions_of_two_loops_share_a_place() -> None:
    source = gradients(causal=True).source
    assert source.count("_add_box(dQ_tiles") == 4 and source.count("dQ_buffer = gl.allocate") == 1


def test_without_room_additions_keep_one_place() -> None:
    source = gradients({**IN_TURN, "select-emitter.stages": 3}, dim=64, block_M=128).source
    assert "dQ_buffer_place" not in source and "_add_box(dQ_tiles" in source


def test_so_many_additions_are_not_on_their_way() -> None:
    with pytest.raises(tiledsl.TileError, match=r"select-emitter\.additions is 3; it must be 1 or 2"):
        gradients({"select-emitter.additions": 3})


def adding(reads: bool = False) -> Any:
    """Two products of tiles; the second is added to memory, which may be read behind the loop."""

    @T.prim_func
    def sums(A: T.Tensor((256, 64), "float16"), B: T.Tensor((64, 64), "float16"), C: T.Tensor((256, 64), "float32")):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            first = T.alloc_fragment((64, 64), "float32")
            half = T.alloc_fragment((64, 64), "float16")
            second = T.alloc_fragment((64, 64), "float32")
            T.copy(B, b)
            for t in T.Pipelined(4, num_stages=2):
                T.copy(A[t * 64, 0], a)
                T.gemm(a, b, first, clear_accum=True)
                T.copy(first, half)
                T.gemm(half, a, second, clear_accum=True)
                for i, j in T.Parallel(64, 64):
                    T.atomic_add(C[t * 64 + i, j], second[i, j])
            if reads:
                T.copy(C[0, 0], second)
                T.copy(second, C[64, 0])

    return sums


def test_additions_to_what_is_also_read_are_no_copies() -> None:
    """A copy is there for others at the end of the kernel."""
    kernel = tiledsl.compile(adding(reads=True), target="cuda:90", pass_configs={"select-emitter.backend": "gluon"})
    assert "_add_box" not in kernel.source and "atomic_add(C" in kernel.source


def test_one_product_of_tiles_leaves_a_turn_whole() -> None:
    kernel = tiledsl.compile(adding(), target="cuda:90", pass_configs={"select-emitter.backend": "gluon"})
    assert "_add_box(C_tiles" in kernel.source and "_before" not in kernel.source, kernel.remarks
    a, b, c = torch.randn(256, 64).half(), torch.randn(64, 64).half(), torch.ones(256, 64)
    gluon_machine.run_gluon(kernel.source, "sums", a, b, c)
    for t in range(4):
        tile = a[t * 64 :][:64].float()
        assert torch.allclose(c[t * 64 :][:64], 1 + (tile @ b.float()).half().float() @ tile, rtol=1e-2, atol=2e-1)


def test_levels_and_source_add_alike() -> None:
    certificate = tiledsl.compile(adding(), target="cuda:90", pass_configs={"select-emitter.backend": "gluon"}).verify()
    assert certificate.ok and not certificate.of("unknown"), certificate.text()
    assert "iterations that write C" in certificate.text()


def test_where_gluon_is_estimated_to_gain_too_little() -> None:
    kernel = tiledsl.compile(adding(), target="cuda:90")
    assert "@gluon.jit" not in kernel.source
    assert "at 0.966 of Triton's speed, less than 1.1 (" in kernel.remarks[0]


KINDS: dict[str, dict[str, Any]] = {"full": {}, "causal": {"causal": True}, "narrow": {"dim": 64, "block_M": 128}}


@pytest.mark.parametrize(
    ("version", "names"),
    [
        pytest.param("installed", " ".join(KINDS), marks=pytest.mark.slow),
        ("3.6", "causal"),
        pytest.param("3.6", "full narrow", marks=pytest.mark.slow),
    ],
)
def test_compiles_with_products_in_flight(
    version: str, names: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    python = request.getfixturevalue("triton36") if version == "3.6" else sys.executable
    large = {"batch": 4, "heads": 32, "kv_heads": 32, "queries": 4096, "keys": 4096}
    made = {name: gradients(**large, **KINDS[name]) for name in names.split()}
    for name, result in compile_kernels(made, python, tmp_path).items():
        assert not re.search(r"\(C7[56]\d\d\)", result["ptxas"]), (name, result["ptxas"])
        assert max(map(int, re.findall(r"(\d+) bytes spill stores", result["ptxas"]))) <= 16, (name, result["ptxas"])
        assert "cp.reduce.async.bulk.tensor" in result["ptx"] and result["shared"] <= 227 * 1024
