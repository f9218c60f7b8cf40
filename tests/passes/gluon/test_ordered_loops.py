"""Loops of products that one group of warps runs in order: what is one, and how its warps divide products."""

from __future__ import annotations

from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tests.support.latent_attention import decode, decode_paged, decode_two
from tiledsl.analysis.gluon.schedule import PAIR, Schedule, divided, instruction_columns
from tiledsl.analysis.gluon.tile_loops import tile_loops
from tiledsl.dialects import gluon, scf, tile, triton
from tiledsl.ir.core import Operation
from tiledsl.ir.pass_manager import parse_program

GLUON = {"select-emitter.backend": "gluon"}


def compiled(function: Any, configs: dict[str, Any] | None = None) -> tiledsl.Kernel:
    return tiledsl.compile(function, target="cuda:90", pass_configs={**GLUON, **(configs or {})})


def ops_after(kernel: tiledsl.Kernel, name: str) -> list[Operation]:
    return list(parse_program(kernel.ir(name)).root.walk())


@pytest.mark.parametrize(
    ("shape", "warps", "by", "columns"),
    [
        ((64, 64), 8, (4, 2), 32),
        ((64, 512), 8, (4, 2), 256),
        ((64, 64), 4, (4, 1), 64),
        ((64, 512), 4, (4, 1), 256),
        ((128, 64), 8, (8, 1), 64),
        ((128, 512), 8, (8, 1), 256),
        ((256, 64), 8, (8, 1), 64),
    ],
)
def test_no_two_warps_have_the_same_part_of_a_product(
    shape: tuple[int, int], warps: int, by: tuple[int, int], columns: int
) -> None:
    assert divided(shape, warps) == by and by[0] * by[1] == warps
    assert instruction_columns(shape, warps) == columns
    assert shape[0] % (16 * by[0]) == 0 == shape[1] % (by[1] * columns)


def test_what_is_loaded_once_and_what_in_each_turn() -> None:
    """Values are the keys, which are loaded to one place for both products that read them."""
    kernel = compiled(decode())
    loads = [op for op in ops_after(kernel, "select-emitter") if isinstance(op, tile.LoadBlockOp)]
    assert [op.out.name for op in loads] == ["q", "q_rope", "kv", "k_rope"]
    (launch,) = [op for op in ops_after(kernel, "schedule-loops") if isinstance(op, triton.LaunchOp)]
    found = tile_loops(launch.body)
    assert [len(loop.products) for loop in found.loops] == [3] and not found.buffers(4, 2)
    assert [value.name for value in found.buffers(8, 2)] == ["weights"]
    schedule = launch.body.first
    assert isinstance(schedule, gluon.ScheduleOp) and schedule.runs == (True,)
    assert schedule.in_flight == () and found.loops[0].op.unroll == PAIR


def test_computed_operands_take_turns_in_a_place_of_a_loop_of_one_stage() -> None:
    def places(dim: int) -> tuple[Any, dict[str, str]]:
        ops = ops_after(compiled(decode_two(dim=dim)), "schedule-loops")
        (launch,) = [op for op in ops if isinstance(op, triton.LaunchOp)]
        return launch, {value.name: owner.name for value, owner in Schedule(launch).buffers.items()}

    apart = {"weights": "weights", "weights2": "weights2"}
    deep, found = places(64)
    assert found == apart
    stages = [op.stage for op in deep.body.walk() if isinstance(op, gluon.ClusterOp)]
    assert stages == [0]  # the first scores are summed up behind the last product: none is issued ahead
    launch, found = places(512)
    assert found == {**apart, "weights2": "weights"}
    loops = tile_loops(launch.body)
    assert {value.name: owner.name for value, owner in loops.buffers(8, 1).items()} == found
    assert {value.name: owner.name for value, owner in loops.buffers(8, 2).items()} == apart
    (loop,) = loops.loops
    assert {value.name: span for value, span in loop.operands(8, 1).items()} == {"weights": (4, 4), "weights2": (5, 5)}
    assert loop.operands(4, 1) == {}
    schedule = launch.body.first
    assert isinstance(schedule, gluon.ScheduleOp) and schedule.in_flight == () and loop.op.unroll == 0
    assert [op.stage for op in loop.op.body if isinstance(op, gluon.ClusterOp)] == [0]


def test_what_a_product_reads_from_registers_does_not_stay_in_flight() -> None:
    (schedule,) = [
        op
        for op in ops_after(compiled(decode(rows=128, heads=128)), "schedule-loops")
        if isinstance(op, gluon.ScheduleOp)
    ]
    assert schedule.in_flight == ()


@pytest.mark.parametrize(("asked", "stages"), [(0, 2), (1, 2), (3, 3), (9, 9), (99, 17)])
def test_as_many_stages_as_shared_memory_has_room_for(asked: int, stages: int) -> None:
    kernel = compiled(decode(), {"select-emitter.stages": asked})
    loops = [op for op in ops_after(kernel, "select-emitter") if isinstance(op, scf.ForOp)]
    assert [op.num_stages for op in loops] == [stages]


def test_results_take_the_place_of_queries_where_memory_is_short() -> None:
    def ring(dim: int) -> list[str]:
        ops = ops_after(compiled(decode(dim=dim), {"select-emitter.consumers": "one"}), "schedule-loops")
        return [op.ring for op in ops if isinstance(op, triton.StoreBlockOp)]

    assert (ring(64), ring(512)) == (["results"], ["item"])


def test_the_default_divides_columns_where_one_block_fills_a_multiprocessor() -> None:
    """With less, Triton runs several blocks at a time; with as many rows as warps have, it divides those."""
    wide = tiledsl.compile(decode(dim=512), target="cuda:90")
    assert "alternate = ((2,), (3,))" in wide.ir("triton")
    assert "alternate = " not in compiled(decode(dim=256)).ir("triton")  # which has not been measured
    assert wide.remarks == ("decode: written in Gluon: its loops are estimated to run at 1.628 of Triton's speed",)
    small = tiledsl.compile(decode(heads=200 * 64), target="cuda:90")
    assert "@gluon.jit" not in small.source
    assert small.remarks[0].startswith(
        "decode: written in Triton, not in Gluon: its loops are estimated to run at 0.469"
    )
    assert "of Triton's speed, less than 1.1 (" in small.remarks[0]
    four = tiledsl.compile(decode(dim=512, threads=128), target="cuda:90")
    assert "alternate = ((2,), (3,))" in four.ir("triton")  # by eight: Triton's four spill the sums
    assert four.remarks == ("decode: written in Gluon: its loops are estimated to run at 3.287 of Triton's speed",)


def variant(change: str) -> Any:
    """Two products, in a program that is changed in one way."""

    @T.prim_func
    def variant(
        A: T.Tensor((256, 256), "float16"),
        B: T.Tensor((256, 256), "float16"),
        where: T.Tensor((16,), "int32"),
        C: T.Tensor((256, 256), "float32"),
        D: T.Tensor((256, 256), "float32"),
    ):
        with T.Kernel(1, threads=256) as _:
            rows = 32 if change == "rows" else 64
            a, b = T.alloc_shared((rows, 64), "float16"), T.alloc_shared((64, 64), "float16")
            c = T.alloc_shared((64, 64), "float16")
            s, acc = T.alloc_fragment((rows, 64), "float32"), T.alloc_fragment((rows, 64), "float32")
            w = T.alloc_fragment((rows, 64), "float16")
            other = T.alloc_fragment((64, 64), "float32")
            place = T.alloc_local((1,), "int32")
            place[0] = 0
            T.copy(A[0, 0], a)
            T.clear(acc)
            for t in T.serial(0, 4, 2) if change == "step" else T.Pipelined(4, num_stages=2):
                T.copy(B[(place[0] if change == "carried" else t) * 64, 0], b)
                T.gemm(a, b, s, transpose_B=True, clear_accum=True)
                if change == "stored twice":
                    T.copy(s, C[0, t * 64])
                if change == "stored":
                    T.copy(s, D[0, t * 64])
                if change == "stored beside two products":
                    T.gemm(a, b, other, clear_accum=True)
                    T.copy(other, D[0, t * 64])
                if change == "stored in one place":
                    T.copy(s, D[0, 0])
                if change == "stored transposed":
                    for i, j in T.Parallel(64, 64):
                        D[t * 64 + j, i] = s[i, j]
                if change == "transposed":
                    T.gemm(a, b, acc, transpose_A=True)
                if change == "computed":
                    for i, j in T.Parallel(64, 64):
                        c[i, j] = T.cast(s[i, j] * 2, "float16")
                    T.gemm(a, c, acc)
                if change == "rows reduced":
                    T.reduce_max(s, other, dim=0)
                T.copy(s, w)
                T.gemm(w, b, acc)
                place[0] = place[0] + where[t]
            if change == "outside":
                T.gemm(w, b, acc)
            T.copy(acc, C[0, 0])

    return variant


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("rows", "32 rows are not a multiple of 64"),
        ("carried", "where a tile is loaded from depends on what is computed"),
        ("stored twice", "tile.store in a loop"),
        ("computed", "a product's right operand is not a loaded tile"),
    ],
)
def test_what_is_no_such_loop(change: str, reason: str) -> None:
    kernel = compiled(variant(change))
    assert "@gluon.jit" not in kernel.source
    (told,) = [each for each in kernel.remarks if "not in Gluon" in each]
    assert f"nor by one group of warps: {reason}" in told or told.count(reason) == 1


@pytest.mark.parametrize(
    ("change", "has"),
    [
        ("", ""),
        ("transposed", "a_ring.index(0).permute((1, 0))"),
        ("stored", "D_buffer.index(consumer).store(s)"),
        ("stored transposed", "D_buffer.index(consumer).permute((1, 0)).store(s)"),
        ("stored beside two products", "D_buffer.index(consumer).store(other)"),
        ("stored in one place", "gl.store(D_pointers, s)"),  # boxes might arrive in another order
    ],
)
def test_it_is_one(change: str, has: str) -> None:
    assert "@gluon.jit" in compiled(variant(change)).source and has in compiled(variant(change)).source


def test_a_table_says_where_pages_are() -> None:
    """The producer loads what starts need; a branch may load as well."""
    kernel = compiled(decode_paged(2, 4))
    assert "@gluon.jit" in kernel.source
    assert kernel.source.count("gl.load(table") == 1 and kernel.source.count("table_start = ") == 1  # by it alone
