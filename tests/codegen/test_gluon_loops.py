"""Loops of tiles of any kind in Gluon: their text, its results on the CPU, and what Triton and ptxas make of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
from tests.support import gluon_machine
from tests.support.gluon_kernels import compile_kernels, part_of
from tests.support.tile_loops import carried, decayed, grouped, scan, summed

GLUON = {"select-emitter.backend": "gluon"}


def compiled(function: Any) -> tiledsl.Kernel:
    kernel = tiledsl.compile(function, target="cuda:90", pass_configs=GLUON)
    assert "@gluon.jit" in kernel.source, kernel.remarks
    return kernel


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float16)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.float() - want).norm() / want.norm())


@pytest.mark.parametrize(("rows", "steps"), [(64, 2), (128, 4), (192, 5)])
def test_two_products_into_one_sum_and_a_third_one(rows: int, steps: int) -> None:
    """Sums begin with what is loaded. The last products of a turn are awaited in the next."""
    kernel = compiled(summed(rows, steps))
    torch.manual_seed(0)
    a, b, x, y = half(2 * rows, 64 * steps), half(64, 64 * steps), half(2 * rows, 32 * steps), half(64, 32 * steps)
    d, c, e = torch.randn(2 * rows, 64), *(torch.full((2 * rows, 64), float("nan")) for _ in "ce")
    gluon_machine.run_gluon(kernel.source, "summed", a, b, x, y, d, c, e)
    second = x.float() @ y.float().T
    assert error(c, d + a.float() @ b.float().T + second) < 1e-5 and error(e, d + second) < 1e-5
    consumer = part_of(kernel.source, "consumer")
    loop = consumer[consumer.index("for k in range(") :]
    order = ["warpgroup_mma_wait(3, deps=[total, other])", "stage_before), count=1, pred=k > 0)",
             "warpgroup_mma_wait(2, deps=[total])", "stage_before = stage", "warpgroup_mma_wait(0"]  # fmt: skip
    assert sorted(order, key=loop.index) == order


@pytest.mark.parametrize(("rows", "steps"), [(64, 1), (128, 4), (192, 2)])
def test_a_chunk_scan(rows: int, steps: int) -> None:
    """Both products of the sum wait until the next turn's scores are on their way."""
    kernel = compiled(scan(rows, steps))
    torch.manual_seed(0)
    q, k, v, s = half(2 * rows, 64), half(64 * steps, 64), half(64 * steps, 64), half(64 * steps, 64)
    out = torch.full((2 * rows, 64), float("nan"), dtype=torch.float16)
    gluon_machine.run_gluon(kernel.source, "scan", q, k, v, s, out)
    seen = torch.arange(rows).repeat(2)[:, None] >= torch.arange(64)
    want = torch.zeros(2 * rows, 64)
    for keys, values, state in zip(k.split(64), v.split(64), s.split(64), strict=True):
        weights = torch.where(seen, q.float() @ keys.float().T * 0.125, 0.0).half().float()
        want += weights @ values.float() + q.float() @ state.float()
    assert error(out, want) < 2e-3
    if steps == 1:
        return
    consumer = part_of(kernel.source, "consumer")
    loop = consumer[consumer.index("for t in range(") :]
    order = ["s = warpgroup_mma(", "acc = warpgroup_mma(weights_operand", "state_ring", "s, q = warpgroup_mma_wait(2"]
    assert rows == 192 or sorted(order, key=loop.index) == order  # where the queries do not stay in registers


@pytest.mark.parametrize(("rows", "groups", "steps"), [(64, 2, 2), (128, 3, 2), (192, 2, 3)])
def test_a_loop_inside_of_a_loop_and_atomics_behind(rows: int, groups: int, steps: int) -> None:
    kernel = compiled(grouped(rows, groups, steps))
    torch.manual_seed(0)
    a, b, scale = half(2 * rows, 64 * groups * steps), half(64, 64 * groups * steps), torch.rand(groups)
    c = torch.zeros(rows, 64)
    gluon_machine.run_gluon(kernel.source, "grouped", a, b, scale, c)
    parts = zip(a.float().split(64 * steps, 1), b.float().split(64 * steps, 1), scale, strict=True)
    want = sum(factor * (one @ other.T) for one, other, factor in parts)
    assert error(c, want[:rows] + want[rows:]) < 1e-5
    assert "gl.atomic_add(" in kernel.source


@pytest.mark.parametrize(("rows", "steps", "width"), [(64, 1, 64), (64, 5, 128), (128, 3, 64)])
def test_a_carried_state_that_is_an_operand(rows: int, steps: int, width: int) -> None:
    """Products that need none of the turn's others are issued first; results are sent transposed in each turn."""
    kernel = compiled(carried(rows, steps, width))
    torch.manual_seed(0)
    k, v, w = half(64 * steps, width) / 8, half(64 * steps, 2 * rows), half(64 * steps, 64) / 8
    g, out = torch.rand(steps, 64), torch.full((64 * steps, 2 * rows), float("nan"), dtype=torch.float16)
    gluon_machine.run_gluon(kernel.source, "carried", k, v, w, g, out)
    state, want = torch.zeros(2 * rows, width), []
    for turn, (keys, values, mixed) in enumerate(zip(k.split(64), v.split(64), w.split(64), strict=True)):
        known = (-(state.half().float() @ keys.float().T) * g[turn]).half().float()
        update = (known + values.float().T) @ mixed.float().T
        state = state * g[turn, 63] + update.half().float() @ keys.float()
        want.append(update.T)
    assert error(out, torch.cat(want)) < 2e-3
    consumer = part_of(kernel.source, "consumer")
    loop = consumer[consumer.index("for t in range(") :]
    order = ["gl.load(G", "known = warpgroup_mma(", "gate_ring", "known, state_half_operand = warpgroup_mma_wait(0",
             "update = warpgroup_mma(known_half_operand", "update = warpgroup_mma(v_ring", "state = warpgroup_mma(",
             ".permute((1, 0)).store(", "_store_box(O_tiles"]  # fmt: skip
    assert sorted(order, key=loop.index) == order


@pytest.mark.parametrize(("rows", "steps", "width", "stages"), [(64, 1, 64, 2), (64, 5, 128, 1), (128, 3, 64, 3)])
def test_a_row_comes_with_a_tile_of_the_last_product(rows: int, steps: int, width: int, stages: int) -> None:
    """The row is read first, and awaits the ring that the product reads behind it."""
    kernel = compiled(decayed(rows, steps, width, stages=stages))
    torch.manual_seed(0)
    q, k, v = half(64 * steps, width), half(64 * steps, width) / 8, half(64 * steps, 2 * rows)
    d, out = torch.rand(steps, width), torch.full((64 * steps, 2 * rows), float("nan"), dtype=torch.float16)
    gluon_machine.run_gluon(kernel.source, "decayed", q, k, v, d, out)
    state, want = torch.zeros(2 * rows, width), []
    for decay, *tiles in zip(d, q.split(64), k.split(64), v.split(64), strict=True):
        queries, keys, values = (each.float() for each in tiles)
        want.append((state.half().float() @ queries.T).T)
        state = state * decay + values.T @ keys
    assert error(out, torch.cat(want)) < 2e-3 or steps == 1 and not out.any()
    consumer = part_of(kernel.source, "consumer")
    loop = consumer[consumer.index("for t in range(") :]
    order = ["out = warpgroup_mma(", "mbarrier.wait(full", "decay_ring", "state = warpgroup_mma("]
    assert sorted(order, key=loop.index) == order and "gl.load(D" not in loop


KERNELS: dict[str, Callable[[], tiledsl.Kernel]] = {
    "summed": lambda: compiled(summed(128, 8, 128)),
    "scan": lambda: compiled(scan(128, 8, 128)),
    "grouped": lambda: compiled(grouped(128, 4, 4, 128)),
    "three": lambda: compiled(scan(192, 8)),
    "carried": lambda: compiled(carried(64, 8, 128)),
}


@pytest.mark.parametrize(
    ("version", "names"),
    [
        pytest.param("installed", " ".join(KERNELS), marks=pytest.mark.slow),
        ("3.6", "grouped carried"),
        pytest.param("3.6", "summed scan three", marks=pytest.mark.slow),
    ],
)
def test_compiles_without_spills_or_products_in_line(
    version: str, names: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    python = request.getfixturevalue("triton36") if version == "3.6" else sys.executable
    made = {name: KERNELS[name]() for name in names.split()}
    for name, result in compile_kernels(made, python, tmp_path).items():
        assert not re.search(r"\(C7[56]\d\d\)", result["ptxas"]), (name, result["ptxas"])
        assert set(re.findall(r"(\d+) bytes spill stores", result["ptxas"])) == {"0"}, (name, result["ptxas"])
        assert "wgmma.mma_async" in result["ptx"] and result["shared"] <= 227 * 1024


@pytest.mark.parametrize(
    "function", [summed(128), scan(128), grouped(128), carried(64), decayed(64)], ids=lambda each: each.name
)
def test_certificates(function: Any) -> None:
    """Every pass and the text compute the same, and no order of producer and consumers hangs."""
    checks = compiled(function).verify().checks
    assert {each.status for each in checks} == {"proved", "tested"}
    assert {"pass", "source"} <= {each.kind for each in checks}
