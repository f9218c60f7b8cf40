"""Loops that one group of warps runs in order, in Gluon: their text, its results on the CPU, and what ptxas says."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.support import gluon_machine
from tests.support.example_modules import load_example
from tests.support.gluon_kernels import compile_kernels, part_of
from tests.support.latent_attention import PAGE, ROPE, decode, decode_paged, decode_two, inputs, reference
from tiledsl.certificate.algebra import ExecutorError

GLUON = {"select-emitter.backend": "gluon"}


def compiled(function: Any, configs: dict[str, Any] | None = None) -> tiledsl.Kernel:
    kernel = tiledsl.compile(function, target="cuda:90", pass_configs={**GLUON, **(configs or {})})
    assert "@gluon.jit" in kernel.source, kernel.remarks
    return kernel


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.float() - want).norm() / want.norm())


def test_a_tile_for_two_products_is_loaded_once_and_released_after_the_second() -> None:
    source = compiled(decode(dim=512, keys=512), {"select-emitter.consumers": "one"}).source
    producer, consumer = part_of(source, "producer"), part_of(source, "consumer")
    assert producer.count("_load_box(KV_tiles") == 1 and producer.count("mbarrier.expect(kv_full") == 1
    loop = consumer[consumer.index("for pair in range(4)") :]
    turn = [
        "mbarrier.wait(kv_full.index(stage), phase)",
        "s = warpgroup_mma(q_ring",
        "s = warpgroup_mma(q_rope_ring",
    ]
    used = [
        "mbarrier.arrive(k_rope_empty.index(stage), count=1)",
        "weights_buffer.store(weights)",
        "fence_async_shared()",
        "acc = _rescaled_256(acc",
        "acc = warpgroup_mma(weights_buffer, kv_ring.index(stage)",
        "more = gl.sum(",  # while the product runs
    ]
    steps = [
        *turn,
        "stage_before = stage",
        *(each.replace("s = ", "s_1 = ") for each in turn),  # while the first scores are used
        "s = warpgroup_mma_wait(2, deps=[s])",
        *(each.replace("(stage)", "(stage_before)") for each in used),
        "s_1 = warpgroup_mma_wait(1, deps=[s_1])",
        used[0],
        "acc = warpgroup_mma_wait(0, deps=[acc])",  # what the weights' place is read by
        "mbarrier.arrive(kv_empty.index(stage_before), count=1)",
        *used[1:],
        "acc = warpgroup_mma_wait(0, deps=[acc])",
        "mbarrier.arrive(kv_empty.index(stage), count=1)",
    ]
    place = 0
    for step in steps:
        place = loop.index(step, place) + 1
    assert "warps_per_cta=[4, 2], instr_shape=[16, 32, 16]" in source  # of scores
    assert "warps_per_cta=[4, 2], instr_shape=[16, 256, 16]" in source
    assert "num_warps=8" in source and "[1],\n        [24]," in source


def test_rows_enough_for_all_warps_are_divided_among_consumers() -> None:
    """A tile that products of both stages read is released behind the later ones."""
    source = compiled(decode(rows=128, heads=128)).source
    assert "warps_per_cta=[4, 1]" in source and "_buffer.store(weights" not in source
    loop = part_of(source, "consumer")
    loop = loop[loop.index("for t in range(") :]
    steps = [
        "s = warpgroup_mma(q, kv_ring.index(stage)",
        "acc = warpgroup_mma(weights_operand, kv_ring.index(kv_stage)",
        "s, q, q_rope = warpgroup_mma_wait(1, deps=[s, q, q_rope])",
        "mbarrier.arrive(k_rope_empty.index(stage), count=1)",
        "acc, weights_operand = warpgroup_mma_wait(0, deps=[acc, weights_operand])",
        "mbarrier.arrive(kv_empty.index(kv_stage), count=1)",
    ]
    assert sorted(steps, key=loop.index) == steps


@pytest.mark.parametrize("keys", [128, 384])
def test_two_tiles_of_scores_in_a_turn_whose_sums_come_last(keys: int) -> None:
    """None of the next turn's scores is on its way then: it would take the registers of what is summed."""
    kernel = compiled(decode_two(keys))
    assert part_of(kernel.source, "consumer").count("s = warpgroup_mma(q_ring") == 1
    given = inputs(1, 64, keys)
    out = torch.full_like(given[0], float("nan"))
    gluon_machine.run_gluon(kernel.source, "decode_two", *given, out)
    assert error(out, reference(*given)) < 1e-3


@pytest.mark.parametrize("keys", [128, 384])
def test_rings_of_one_place_where_there_is_no_room_for_two(keys: int) -> None:
    """Tiles are loaded again as soon as they are released; weights take one place after the other."""
    kernel = compiled(decode_two(keys, 512))
    turn = part_of(kernel.source, "consumer").partition("for t in range(")[2]
    steps = [
        "s = warpgroup_mma(q_ring",
        "s2 = warpgroup_mma(q_ring",
        "s = warpgroup_mma_wait(2, deps=[s])",
        "weights_buffer.store(weights)",
        "acc = warpgroup_mma(weights_buffer, kv_ring",
        "s2 = warpgroup_mma_wait(1, deps=[s2])",
        "acc = warpgroup_mma_wait(0, deps=[acc])",
        "mbarrier.arrive(kv_empty.index(stage), count=1)",
        "weights_buffer.store(weights2)",
        "acc = warpgroup_mma(weights_buffer, kv2_ring",
        "acc = warpgroup_mma_wait(0, deps=[acc])",
        "mbarrier.arrive(kv2_empty.index(stage), count=1)",
        "stage, phase = _advance(stage, phase, 1)",
    ]
    place = 0
    for step in steps:
        place = turn.index(step, place) + 1
    assert "weights2_buffer" not in kernel.source and "[1, 1, 64, 512]" in kernel.source
    given = inputs(1, 64, keys, 512)
    out = torch.full_like(given[0], float("nan"))
    gluon_machine.run_gluon(kernel.source, "decode_two", *given, out)
    assert error(out, reference(*given)) < 1e-3


@pytest.mark.parametrize(
    "configs", [{}, {"select-emitter.persistent": False}, {"select-emitter.rescale": "each"}], ids=str
)
@pytest.mark.parametrize(
    ("sizes", "keys"),
    [
        ({}, 64),  # one turn
        ({}, 128),
        ({"batch": 3}, 448),
        ({"heads": 128, "rows": 128}, 192),
        ({"threads": 128}, 192),
        ({"dim": 128, "block": 32}, 160),
    ],
    ids=str,
)
def test_decoding(sizes: dict[str, int], keys: int, configs: dict[str, Any]) -> None:
    kernel = compiled(decode(keys=keys, **sizes), configs)
    given = inputs(sizes.get("batch", 1), sizes.get("heads", 64), keys, sizes.get("dim", 64))
    out = torch.full_like(given[0], float("nan"))
    gluon_machine.run_gluon(kernel.source, "decode", *given, out)
    assert error(out, reference(*given)) < 1e-3


def test_pages_and_no_keys_at_all() -> None:
    """Blocks have 0, 1 and more turns; the last block is masked."""
    lengths, pages = [0, 1, 64, 65, 200], 4
    kernel = compiled(decode_paged(len(lengths), pages))
    q, q_rope, kv, k_rope = inputs(len(lengths), 64, pages * PAGE)
    table = torch.randperm(len(lengths) * pages, dtype=torch.int32).reshape(-1, pages)
    out = torch.full_like(q, float("nan"))
    gluon_machine.run_gluon(
        kernel.source, "decode_paged", q, q_rope, kv.reshape(-1, 64), k_rope.reshape(-1, ROPE), table,
        torch.tensor(lengths, dtype=torch.int32), out,
    )  # fmt: skip
    for number, length in enumerate(lengths):
        rows = (table[number].long()[:, None] * PAGE + torch.arange(PAGE)).reshape(-1)[:length]
        keys = kv.reshape(-1, 64)[rows], k_rope.reshape(-1, ROPE)[rows]
        want = reference(q[number], q_rope[number], *keys) if length else torch.zeros(64, 64)
        assert torch.allclose(out[number].float(), want, atol=2e-3)


@pytest.mark.parametrize("sizes", [{}, {"queries": 192, "keys": 320}, {"queries": 320, "keys": 128}], ids=str)
def test_loops_that_follow_each_other_share_their_tiles(sizes: dict[str, int]) -> None:
    """Attention whose blocks have 64 rows, with a masked loop behind the plain one."""
    example = load_example("attention")
    chosen = {"batch": 1, "heads": 2, "kv_heads": 1, "queries": 256, "keys": 256, "dim": 256, "causal": True, **sizes}
    chosen |= {"block_M": 64, "block_N": 64}
    kernel = tiledsl.jit(example.attention.function, target="cuda:90").compile(**chosen)
    consumer = part_of(kernel.source, "consumer")
    assert consumer.count("for tile in range(") == 2 and kernel.source.count("weights_buffer = ") == 1
    torch.manual_seed(0)
    q = torch.randn(1, 2, chosen["queries"], 256, dtype=torch.float16)
    k, v = (torch.randn(1, 1, chosen["keys"], 256, dtype=torch.float16) for _ in range(2))
    out, lse = torch.full_like(q, float("nan")), torch.full(q.shape[:3], float("nan"))
    gluon_machine.run_gluon(kernel.source, "attention_forward", q, k, v, out, lse)
    want = example.reference(q.float(), k.float(), v.float(), True, 0)
    seen = ~torch.isnan(want)
    assert error(out[seen], want[seen]) < 1e-3


@T.prim_func
def gated(
    A: T.Tensor((128, 64), "float16"),
    B: T.Tensor((512, 64), "float16"),
    W: T.Tensor((64, 128), "float16"),
    bias: T.Tensor((64,), "float32"),
    C: T.Tensor((128, 128), "float32"),
    D: T.Tensor((128, 64), "float32"),
):
    """Two sums; the second product reads a tile that is loaded once, and its left operand is computed."""
    with T.Kernel(2, threads=256) as bx:
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        w = T.alloc_shared((64, 128), "float16")
        s, total = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
        acc, gate = T.alloc_fragment((64, 128), "float32"), T.alloc_fragment((64, 64), "float16")
        T.copy(A[bx * 64, 0], a)
        T.copy(W, w)
        T.clear(acc)
        T.clear(total)
        for t in T.Pipelined(8, num_stages=2):
            T.copy(B[t * 64, 0], b)
            T.gemm(a, b, s, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(64, 64):
                gate[i, j] = T.cast(T.max(s[i, j] + bias[j], 0.0), "float16")
            T.gemm(gate, w, acc)
            T.gemm(a, b, total, transpose_B=True)
        T.copy(acc, C[bx * 64, 0])
        T.copy(total, D[bx * 64, 0])


def test_a_single_product_that_consumers_cannot_take() -> None:
    """A loaded left operand that is transposed, and rows that each turn stores."""
    turns = 5

    @T.prim_func
    def logits(
        A: T.Tensor((turns * 128, 256), "float16"),
        B: T.Tensor((128, 64), "float16"),
        C: T.Tensor((turns, 256), "float32"),
    ):
        with T.Kernel(2, threads=256) as bx:
            a, b = T.alloc_shared((128, 128), "float16"), T.alloc_shared((128, 64), "float16")
            scores, best = T.alloc_fragment((128, 64), "float32"), T.alloc_fragment((128,), "float32")
            T.copy(B, b)
            for t in T.Pipelined(turns, num_stages=2):
                T.copy(A[t * 128, bx * 128], a)
                T.gemm(a, b, scores, transpose_A=True, clear_accum=True)
                T.reduce_max(scores, best, dim=1)
                T.copy(best, C[t, bx * 128])

    torch.manual_seed(0)
    a, b = torch.randn(turns * 128, 256).half(), torch.randn(128, 64).half()
    got = torch.full((turns, 256), float("nan"))
    gluon_machine.run_gluon(compiled(logits).source, "logits", a, b, got)
    want = (a.float().view(turns, 128, 256).mT @ b.float()).amax(2)
    assert error(got, want) < 1e-6
    by_rows = tiledsl.compile(logits, target="cuda:90", pass_configs={**GLUON, "select-emitter.consumers": "rows"})
    assert "tile.store in a loop" in by_rows.remarks[0]


def test_sums_of_any_kind() -> None:
    kernel = compiled(gated)
    torch.manual_seed(0)
    a, b, w = (torch.randn(shape, dtype=torch.float16) for shape in ((128, 64), (512, 64), (64, 128)))
    bias, c, d = torch.randn(64), torch.full((128, 128), float("nan")), torch.full((128, 64), float("nan"))
    gluon_machine.run_gluon(kernel.source, "gated", a, b, w, bias, c, d)
    want, total = torch.zeros(128, 128), torch.zeros(128, 64)
    for tile in b.split(64):
        scores = a.float() @ tile.float().T
        want += torch.relu(scores + bias).half().float() @ w.float()
        total += scores
    assert error(c, want) < 1e-3 and error(d, total) < 1e-5


WAITED, ARRIVED = "acc = warpgroup_mma_wait(0, deps=[acc])", "mbarrier.arrive(kv_empty.index(stage_before), count=1)"
NEXT_LINE = "\n            "
WRONG = {
    "a product is used before it is waited for": ("s = warpgroup_mma_wait(2", "s = warpgroup_mma_wait(3"),
    "deadlock": ("mbarrier.arrive(k_rope_empty.index(stage), count=1)", "pass"),
    "takes what was written in shared memory, without a fence between": ("fence_async_shared()", "pass"),
    "may overwrite what the product of line \\d+ still reads": (
        WAITED + NEXT_LINE + ARRIVED,
        ARRIVED + NEXT_LINE + WAITED,
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_model_sees_what_is_wrong(name: str) -> None:
    source = compiled(decode(keys=512)).source
    assert WRONG[name][0] in source
    given = inputs(1, 64, 512)
    with pytest.raises(ExecutorError, match=name):
        gluon_machine.run_gluon(source.replace(*WRONG[name]), "decode", *given, torch.empty_like(given[0]))


KERNELS: dict[str, Callable[[], tiledsl.Kernel]] = {
    "wide": lambda: compiled(decode(batch=2, heads=128, keys=1024, dim=512), {"select-emitter.consumers": "one"}),
    "wide_in_turn": lambda: compiled(decode(batch=2, heads=128, keys=1024, dim=512)),
    "rows": lambda: compiled(decode(rows=128, heads=128)),
    "paged": lambda: compiled(decode_paged(2, 4, dim=256)),
    "sums": lambda: compiled(gated),
}


@pytest.mark.parametrize(
    ("version", "names"),
    [
        pytest.param("installed", " ".join(KERNELS), marks=pytest.mark.slow),
        ("3.6", "wide_in_turn sums"),
        pytest.param("3.6", "wide rows paged", marks=pytest.mark.slow),
    ],
)
def test_compiles_with_products_in_flight_and_registers_for_all(
    version: str, names: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    python = request.getfixturevalue("triton36") if version == "3.6" else sys.executable
    made = {name: KERNELS[name]() for name in names.split()}
    for name, result in compile_kernels(made, python, tmp_path).items():
        assert not re.search(r"\(C7[56]\d\d\)", result["ptxas"]), (name, result["ptxas"])
        if version == "3.6" or "wide" not in name:  # what GPU machines have; the ptxas of 3.9 spills values of these
            assert set(re.findall(r"(\d+) bytes spill stores", result["ptxas"])) == {"0"}, (name, result["ptxas"])
        registers = re.findall(r"setmaxnreg\.\w+\.sync\.aligned\.u32\s+(\d+)", result["ptx"])
        assert {"24", "240"} <= set(registers), name
        assert result["shared"] <= 227 * 1024
