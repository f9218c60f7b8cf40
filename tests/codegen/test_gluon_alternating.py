"""Two groups that take the turns of a loop in turn: order, what they tell each other, values, and what is refused."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.support import gluon_machine, turn_programs
from tests.support.gluon_kernels import part_of
from tests.support.latent_attention import PAGE, ROPE, decode, decode_paged, inputs, reference
from tiledsl.certificate.algebra import ExecutorError

ALTERNATE = {"select-emitter.backend": "gluon", "select-emitter.consumers": "alternate"}


def compiled(program: Any) -> tiledsl.Kernel:
    kernel = tiledsl.compile(program, target="cuda:90", pass_configs=ALTERNATE)
    assert "alternate = " in kernel.ir("triton"), kernel.remarks
    return kernel


def in_order(text: str, steps: list[str]) -> None:
    at = 0
    for step in steps:
        assert step in text[at:], step
        at += text[at:].index(step) + len(step)


def halves(source: str) -> tuple[str, str]:
    consumer = part_of(source, "consumer")
    _, first, rest = re.split(r"\n +if consumer == [01]:\n", consumer, maxsplit=2)
    return first, rest


def test_one_computes_while_the_others_products_run() -> None:
    first, second = halves(compiled(decode(keys=192)).source)
    in_order(
        first,
        [
            "mbarrier.wait(kv_full.index(stage), phase)",
            "s = warpgroup_mma(q_rope_ring.index(_zero())",
            "for pair in range(1):",
            "s = warpgroup_mma_wait(0, deps=[s])",
            "highest_told.index(0).store(highest)",
            "mbarrier.arrive(highest_full.index(0), count=1)",  # so that the other may rescale its sum
            "weights_told.index(0).store(weights)",
            "fence_async_shared()",
            "mbarrier.arrive(weights_full.index(0), count=1)",
            "acc = warpgroup_mma(weights_operand, kv_ring.index(stage)",
            "more_told.index(0).store(more)",
            "mbarrier.arrive(more_full.index(0), count=1)",
            "stage_1, phase_1 = _advance(stage, phase, 2)",
            "acc, weights_operand = warpgroup_mma_wait(0, deps=[acc, weights_operand])",
            "mbarrier.arrive(kv_empty.index(stage), count=1)",
            "mbarrier.wait(highest_full.index(0), parity ^ 1)",
            "highest = highest_told.index(0).load(ROWS_64)",
            "mbarrier.wait(weights_full.index(0), parity ^ 1)",
            "acc = warpgroup_mma(weights_told.index(0), kv_ring.index(stage_1)",
            "more = more_told.index(0).load(ROWS_64)",
            "stage, phase = _advance(stage_1, phase_1, 2)",
            "s = warpgroup_mma(q_ring.index(_zero()).reshape([64, 32]), kv_ring.index(stage)",
            "acc = warpgroup_mma_wait(1, deps=[acc])",
            "mbarrier.arrive(kv_empty.index(stage_1), count=1)",
            "s = warpgroup_mma(q_32_ring.index(_zero())",
        ],
    )
    assert "kv_32_empty" not in first and "kv_32_full.index(stage_1)" not in first  # who tells has awaited them
    in_order(
        second,
        [
            "for pair_1 in range(1):",
            "stage_1, phase_1 = _advance(stage, phase, 2)",
            "s = warpgroup_mma(q_rope_ring.index(_zero())",
            "acc_32 = warpgroup_mma_wait(3, deps=[acc_32])",
            "mbarrier.wait(weights_full.index(0), parity)",
            "acc_32 = warpgroup_mma(weights_told.index(0), kv_32_ring.index(stage)",
            "s = warpgroup_mma_wait(1, deps=[s])",
            "weights_told.index(0).store(weights)",
            "acc_32 = warpgroup_mma(weights_operand_1, kv_32_ring.index(stage_1)",
            "stage, phase = _advance(stage_1, phase_1, 2)",
            "mbarrier.wait(weights_full.index(0), parity)",  # of a turn that is left
            "stage, phase = _advance(stage, phase, 2)",
            "parity ^= 1",
            "if consumer == 0:",
            "_store_box(O_tiles, [item, 0, 0], O_buffer.index(0))",
            "if consumer == 1:",
            "_store_box(O_tiles, [item, 0, 32], O_buffer_1.index(0))",
        ],
    )


def test_barriers_and_places() -> None:
    source = compiled(decode()).source
    barriers = dict(re.findall(r"(\w+) = _barriers\(\d, (\d)\)", source))
    assert barriers == {
        "full": "1", "empty": "2", "kv_full": "1", "kv_empty": "1", "kv_32_full": "1", "kv_32_empty": "1",
        "k_rope_full": "1", "k_rope_empty": "1", "highest_full": "1", "more_full": "1", "weights_full": "1",
    }  # fmt: skip
    assert "weights_told = gl.allocate_shared_memory(gl.float16, [1, 64, 64]" in source
    assert "more_told = gl.allocate_shared_memory(gl.float32, [1, 64]" in source
    assert "O_buffer = gl.allocate_shared_memory(gl.float16, [1, 1, 64, 32]" in source
    assert "[4, 1],\n        [240, 24]" in source and "num_warps=4" in source
    assert "parity ^= " not in source  # two turns


def test_weights_take_the_place_of_a_tile_of_their_turn() -> None:
    source = compiled(turn_programs.weighted(2, 4, 2, 64)).source
    first, second = halves(source)
    assert "weights_told" not in source
    in_order(first, ["k_ring.index(stage).store(weights)", "= warpgroup_mma(k_ring.index(stage_1), v_ring"])
    in_order(first, ["mbarrier.arrive(v_empty.index(stage_1), count=1)", "mbarrier.arrive(k_empty.index(stage_1)"])
    in_order(second, ["= warpgroup_mma(k_ring.index(stage), v_32_ring", "k_ring.index(stage_1).store(weights)"])
    assert first.count("k_empty.index(") == 2 and second.count("k_empty.index(") == 2  # in the other's turns


@pytest.mark.parametrize("shape", [(1, 64, 64), (3, 128, 192), (4, 64, 256), (5, 64, 320)])
def test_decoding_matches_torch(shape: tuple[int, int, int]) -> None:
    source = compiled(decode(*shape)).source
    given = inputs(*shape)
    for seed in (None, 0, 1):
        out = torch.full_like(given[0], float("nan"))
        choose = None if seed is None else random.Random(seed).choice
        gluon_machine.run_gluon(source, "decode", *given, out, choose=choose)
        assert float((out.float() - reference(*given)).norm() / reference(*given).norm()) < 1e-3


def test_paged_decoding_matches_torch() -> None:
    lengths = [256, 130, 0, 1, 64]
    batch, pages, dim = len(lengths), 4, 64
    torch.manual_seed(0)
    q, q_rope = torch.randn(batch, 64, dim).half(), torch.randn(batch, 64, ROPE).half()
    kv, k_rope = (torch.randn(batch * pages * PAGE, width).half() for width in (dim, ROPE))
    table = torch.randperm(batch * pages).to(torch.int32).reshape(batch, pages)
    out = torch.full_like(q, float("nan"))
    source = compiled(decode_paged(batch, pages)).source
    assert "if turns > 0:" in source and "parity ^= turns % 2" in source
    gluon_machine.run_gluon(source, "decode_paged", q, q_rope, kv, k_rope, table, torch.tensor(lengths).int(), out)
    for each, length in enumerate(lengths):
        rows = (table[each].long()[:, None] * PAGE + torch.arange(PAGE)).reshape(-1)[:length]
        wanted = reference(q[each], q_rope[each], kv[rows], k_rope[rows]) if length else torch.zeros(64, dim)
        assert torch.allclose(out[each].float(), wanted, rtol=2e-2, atol=2e-3)


WRONG = {
    "nobody waits for the other group": (r"\n +mbarrier\.wait\(weights_full.*", ""),
    "nobody says that weights are there": (r"\n +mbarrier\.arrive\(weights_full.*", ""),
    "the wrong turn": (r"parity \^ 1", "parity"),
    "no fence": (r"\.store\(weights\)\n +fence_async_shared\(\)", ".store(weights)"),
    "released before the other's products": (r"\n +s = warpgroup_mma_wait\(0, deps=\[s\]\)",
        r"\g<0>; mbarrier.arrive(kv_empty.index(stage), count=1)"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_found(name: str) -> None:
    wrong, number = re.subn(*WRONG[name], compiled(decode(keys=256)).source)
    assert number
    given = inputs(1, 64, 256)
    with pytest.raises(ExecutorError):
        gluon_machine.run_gluon(wrong, "decode", *given, torch.zeros_like(given[0]))


def test_levels_and_source_agree() -> None:
    certificate = compiled(decode_paged(2, 3)).verify()
    assert certificate.ok and not certificate.of("unknown"), certificate.text()


def test_results_are_those_of_one_group() -> None:
    """Each sum is added up in the same order; the columns of keys, of which scores are a sum, are halved."""
    program = turn_programs.weighted(4, 3, 2, 64)
    *given, out = turn_programs.inputs(turn_programs.weighted, [3, 0, 1, 2], 3, 64)
    results = []
    for configs in (ALTERNATE, {"select-emitter.backend": "gluon"}):
        source = tiledsl.compile(program, target="cuda:90", pass_configs=configs).source
        results.append(out.clone())
        gluon_machine.run_gluon(source, "weighted", *given, results[-1])
    assert torch.equal(*results)


def scored(threads: int = 256, rows: int = 64, kind: str = "", times: int = 1) -> Any:
    """Sums that are computed of scores, in several ways, so many times."""

    @T.prim_func
    def scored(
        A: T.Tensor((rows, 64), "float16"), B: T.Tensor((256, 64), "float16"), C: T.Tensor((rows, 64), "float32"),
        D: T.Tensor((256, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=threads):
            a, b = T.alloc_shared((rows, 64), "float16"), T.alloc_shared((64, 64), "float16")
            s, acc = T.alloc_fragment((rows, 64), "float32"), T.alloc_fragment((rows, 64), "float32")
            weights, most = T.alloc_fragment((rows, 64), "float16"), T.alloc_fragment((rows,), "float32")
            T.copy(A, a)
            T.clear(acc)
            T.clear(most)
            for _ in T.serial(times):
                for t in T.Pipelined(4, num_stages=2):
                    T.copy(B[t * 64, 0], b)
                    if kind == "of the sum":
                        T.reduce_max(acc, most, dim=1)
                    T.gemm(a, b, s, transpose_B=True, clear_accum=True)
                    if kind == "written":
                        T.copy(s, D[t * 64, 0])
                    if kind == "of scores":
                        for i, j in T.Parallel(rows, 64):
                            acc[i, j] *= s[i, j]
                    T.copy(s, weights)
                    T.gemm(weights, b, acc)
            for i, j in T.Parallel(rows, 64):
                C[i, j] = acc[i, j] + most[i]

    return scored


REFUSED = {
    "128 threads": (scored(threads=128), "groups take turns in blocks of 256 threads, not 128"),
    "128 rows": (scored(rows=128), "groups that take turns multiply 64 rows of 16 bits"),
    "in a loop": (scored(times=3), "a loop whose turns groups take in turn stands in another"),
    "one stage": (decode(dim=512, keys=256, block=128), "groups that take turns need tiles of 2 turns in shared"),
    "of the sum": (scored(kind="of the sum"), "2 groups that take turns need sums of their own, and have [[], []]"),
    "written": (scored(kind="written"), "memory is written in a turn that one group alone computes"),
    "of scores": (scored(kind="of scores"), "a product's left operand does not tell that the first products of its"),
    "no sums": (turn_programs.product(2, 3, 2, 64), "groups take turns in one loop, before which tiles are loaded"),
    "two loops": (turn_programs.twice(2, 3, 2, 64), "groups take turns in one loop, before which tiles are loaded"),
    "a loop in a loop": (turn_programs.nested(2, 3, 2, 64), "groups take turns in one loop, before which"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_groups_cannot_take_turns_at(name: str) -> None:
    program, reason = REFUSED[name]
    kernel = tiledsl.compile(program, target="cuda:90", pass_configs=ALTERNATE)
    assert "alternate" not in kernel.ir("triton") and reason in kernel.remarks[0], kernel.remarks


LEFT = (227 - 1 - 44) * 1024  # beside tiles and barriers


@pytest.mark.parametrize("lacking", [0, 1, 1000])
def test_what_is_told_takes_what_is_left_of_shared_memory(lacking: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter((LEFT, lacking))
    monkeypatch.setattr("tiledsl.passes.gluon.alternate_turns.tensor_bytes", lambda value: next(sizes))
    kernel = tiledsl.compile(decode(), target="cuda:90", pass_configs=ALTERNATE)
    said = f"what groups tell each other needs {lacking} bytes more of shared memory"
    assert said in kernel.remarks[0] if lacking else "alternate = " in kernel.ir("triton")


def test_a_group_of_all_warps_runs_what_has_one_stage() -> None:
    program = decode(dim=512, keys=256, block=128)
    kernel = tiledsl.compile(program, target="cuda:90", pass_configs={"select-emitter.backend": "gluon"})
    assert "@gluon.jit" in kernel.source and "alternate = " not in kernel.ir("triton")
