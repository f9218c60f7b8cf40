"""Groups of warps that run apart and exchange operands: attention's gradients, products by columns, what is refused."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.codegen.test_gluon_gradients import WIDTHS, errors, gradients
from tests.support import gluon_machine
from tests.support.gluon_kernels import part_of
from tiledsl.certificate.algebra import ExecutorError

APART = {"select-emitter.backend": "gluon", "select-emitter.consumers": "apart"}


def test_each_group_has_its_rows_and_its_columns() -> None:
    source = gradients(APART).source
    consumer = part_of(source, "consumer")
    turn = consumer[consumer.index("for turn_1 in range(") :]
    steps = [
        "v_ring.index(_zero()).reshape([128, 128]).slice(consumer * 64, 64, 0)",  # its keys
        "ds_half_buffer_place, ds_half_buffer_phase = _advance(ds_half_buffer_place, ds_half_buffer_phase, 2)",
        "ds_half_buffer.index(ds_half_buffer_place).slice(consumer * 64, 64, 0).store(ds_half)",
        "fence_async_shared()",
        "mbarrier.arrive(ds_half_buffer_full.index(ds_half_buffer_place), count=1)",
        "dk = warpgroup_mma(ds_half_operand",  # while the other group comes
        "mbarrier.wait(ds_half_buffer_full.index(ds_half_buffer_place), ds_half_buffer_phase)",
        "k_ring.index(_zero()).reshape([128, 128]).slice(consumer * 64, 64, 1)",  # its columns of dQ
        "dQ_buffer.index(consumer).reshape([64, 64]).store(dq)",
        "index_1, 0 + consumer * 64], dQ_buffer.index(consumer))",
    ]
    places = [turn.index(step) for step in steps]
    assert places == sorted(places), list(zip(steps, places))
    assert "_barrier()" not in source
    assert re.findall(r"(\w+) = _barriers\((\d), 2\)", source) == [
        ("empty", "1"), ("empty_1", "2"), ("empty_2", "2"), ("ds_half_buffer_full", "2"),
    ]  # fmt: skip
    assert "[4, 1],\n        [240, 24]" in source and "num_warps=4" in source
    assert "gl.float16, [2, 128, 64]" in source and "gl.float32, [2, 1, 1, 64, 64]" in source


@pytest.mark.parametrize(("dim", "block"), WIDTHS)
@pytest.mark.parametrize(
    ("queries", "keys", "causal"), [(256, 256, False), (256, 256, True), (100, 300, True), (130, 17, False)]
)
def test_gradients_match_torch(queries: int, keys: int, causal: bool, dim: int, block: int) -> None:
    kernel = gradients(APART, queries=queries, keys=keys, dim=dim, causal=causal, block_M=block)
    assert "warpgroup_mma(ds_half_buffer.index(" in kernel.source
    assert errors(kernel.source, queries, keys, dim, causal) < 1e-3


def chained(threads: int = 256, columns: int = 128, scaled: bool = False) -> Any:
    """A product of 64 rows, whose columns groups of warps share, is an operand of another, added to memory."""

    @T.prim_func
    def sums(
        A: T.Tensor((256, 64), "float16"), B: T.Tensor((64, columns), "float16"),
        D: T.Tensor((columns, columns), "float16"), C: T.Tensor((256, columns), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, columns), "float16")
            d = T.alloc_shared((columns, columns), "float16")
            first = T.alloc_fragment((64, columns), "float32")
            half = T.alloc_fragment((64, columns), "float16")
            second = T.alloc_fragment((64, columns), "float32")
            T.copy(B, b)
            T.copy(D, d)
            for t in T.Pipelined(4, num_stages=2):
                T.copy(A[t * 64, 0], a)
                T.gemm(a, b, first, clear_accum=True)
                if scaled:
                    for i, j in T.Parallel(64, columns):
                        first[i, j] *= j
                T.copy(first, half)
                T.gemm(half, d, second, clear_accum=True)
                for i, j in T.Parallel(64, columns):
                    T.atomic_add(C[t * 64 + i, j], second[i, j])

    return sums


def chain_inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    given = [torch.randn(256, 64), torch.randn(64, 128) / 8, torch.randn(128, 128) / 8]
    return [*(each.half() for each in given), torch.ones(256, 128)]


def test_columns_are_exchanged_in_any_order() -> None:
    kernel = tiledsl.compile(chained(), target="cuda:90", pass_configs=APART)
    assert "half_buffer.index(half_buffer_place).slice(consumer * 64, 64, 1).store(half)" in kernel.source
    a, b, d, c = chain_inputs()
    expected = 1 + (a.float() @ b.float()).half().float() @ d.float()
    for seed in (None, 0, 1, 2):
        out = c.clone()
        choose = None if seed is None else random.Random(seed).choice
        gluon_machine.run_gluon(kernel.source, "sums", a, b, d, out, choose=choose)
        assert torch.allclose(out, expected, rtol=1e-3, atol=1e-3)


WRONG = {
    "nobody waits for the other group": (r"\n +mbarrier\.wait\(half_buffer_full.*", ""),
    "nobody says that a part is there": (r"\n +mbarrier\.arrive\(half_buffer_full.*", ""),
    "one group is enough": (r"half_buffer_full = _barriers\(2, 2\)", "half_buffer_full = _barriers(2, 1)"),
    "no fence": (r"\.store\(half\)\n +fence_async_shared\(\)", ".store(half)"),
    "one place": (r"half_buffer\.index\(half_buffer_place\)", "half_buffer.index(0)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_in_an_exchange_are_found(name: str) -> None:
    source = tiledsl.compile(chained(), target="cuda:90", pass_configs=APART).source
    wrong, number = re.subn(*WRONG[name], source)
    assert number
    with pytest.raises(ExecutorError):
        gluon_machine.run_gluon(wrong, "sums", *chain_inputs())


def test_levels_and_source_agree() -> None:
    certificate = tiledsl.compile(chained(), target="cuda:90", pass_configs=APART).verify()
    assert certificate.ok and not certificate.of("unknown"), certificate.text()


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (chained(threads=128), "groups of warps run apart in blocks of 256 threads, not 128"),
        (chained(scaled=True), "of a product whose columns are divided among groups of warps something is computed"),
        (chained(columns=64), "groups of warps would have 64 bytes of a row, less than 128"),
    ],
)
def test_what_groups_cannot_divide_stays_in_triton(program: Any, reason: str) -> None:
    kernel = tiledsl.compile(program, target="cuda:90", pass_configs=APART)
    assert "@gluon.jit" not in kernel.source and reason in kernel.remarks[0]
