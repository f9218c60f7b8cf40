"""Bounds, races and reads: what is planted is named at the user's line, and what is right is proved."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import tiledsl.language as T
from tiledsl.certificate.bounds import check_bounds, check_tile_bounds
from tiledsl.certificate.check import Check
from tiledsl.certificate.races import check_races
from tiledsl.certificate.reads import check_reads
from tiledsl.certificate.solver import Solver
from tiledsl.ir.pass_manager import PassManager, Program
from tiledsl.passes import default_pipeline, guard_accesses
from tiledsl.runtime.target import Target

pytest.importorskip("z3")

UNGUARDED = {"guard-accesses.enabled": False}
POINTERS = {"select-access.mode": "pointer"}


def bounds(
    program: Any, options: dict[str, Any] | None = None, target: str = "cuda:80", guarded: bool = True
) -> list[Check]:
    root = program.build()
    PassManager(default_pipeline(options)).run(Program(root, Target.parse(target)))
    return list(check_bounds(root, Solver(), guarded))


def races(program: Any) -> list[Check]:
    return list(check_races(program.build(), Solver()))


def reads(program: Any, *outputs: int) -> list[Check]:
    return list(check_reads(program.build(outputs), Solver()))


def failures(checks: list[Check], program: Any, marker: str) -> list[str]:
    """The details of the failed checks, which must all be at the line with the marker; nothing may be unknown."""
    assert {each.status for each in checks} <= {"proved", "failed"}, checks
    failed = [each for each in checks if each.status == "failed"]
    lines, start = inspect.getsourcelines(program.function)
    (wanted,) = [start + number for number, line in enumerate(lines) if f"# {marker}" in line]
    assert {int(each.place.split(":")[-2]) for each in failed} <= {wanted}, failed
    return [each.detail for each in failed]


def statuses(checks: list[Check]) -> set[str]:
    return {each.status for each in checks}


# Bounds


def tiles(M: int, N: int, K: int) -> Any:
    @T.prim_func
    def product(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 32), threads=128) as (bx, by):
            A_shared = T.alloc_shared((32, 32), "float16")
            B_shared = T.alloc_shared((64, 32), "float16")
            total = T.alloc_fragment((32, 64), "float32")
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
                T.copy(A[by * 32, k * 32], A_shared)
                T.copy(B[bx * 64, k * 32], B_shared)
                T.gemm(A_shared, B_shared, total, transpose_B=True)
            T.copy(total, C[by * 32, bx * 64])

    return product


@pytest.mark.parametrize("sizes", [(128, 128, 128), (100, 70, 50), (1, 1, 1)])
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
def test_a_product_is_proved(sizes: tuple[int, int, int], target: str) -> None:
    found = bounds(tiles(*sizes), target=target)
    assert len(found) == 3 and statuses(found) == {"proved"}


@pytest.mark.parametrize("sizes", [(M, N, K) for M in ("m", 96) for N in ("n", 100) for K in ("k", 64)])
def test_a_product_of_dynamic_sizes_is_proved(sizes: tuple[Any, ...]) -> None:
    program = tiles(*(T.dynamic(each) if isinstance(each, str) else each for each in sizes))
    found = bounds(program, POINTERS)
    assert len(found) == 3 and statuses(found) == {"proved"}, found


def test_without_guards_ragged_tiles_are_named() -> None:
    M = T.dynamic("M")

    @T.prim_func
    def doubled(A: T.Tensor((M, 64), "float32"), B: T.Tensor((M, 64), "float32")):
        with T.Kernel(T.ceildiv(M, 32), threads=128) as bx:
            for i, j in T.Parallel(32, 64):
                B[bx * 32 + i, j] = A[bx * 32 + i, j] * 2  # here

    assert statuses(bounds(doubled)) == {"proved"}
    found = failures(bounds(doubled, UNGUARDED), doubled, "here")
    assert len(found) == 2 and all("M = " in each and "bx = " in each for each in found), found


def test_a_loop_that_runs_once_too_often_is_named() -> None:
    @T.prim_func
    def sums(A: T.Tensor((8, 64), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            total = T.alloc_fragment((64,), "float32")
            T.clear(total)
            for k in range(9):
                for i in T.Parallel(64):
                    total[i] += A[k, i]  # here
            T.copy(total, B)

    (detail,) = failures(bounds(sums, UNGUARDED), sums, "here")
    assert detail.startswith("element 5") and "of 512" in detail and "k = 8" in detail
    assert statuses(bounds(sums)) == {"proved"}


def difference(dtype: str) -> Any:
    @T.prim_func
    def difference(U: T.Tensor((64,), dtype), B: T.Tensor((8,), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(64, threads=128) as bx:
            C[bx] = B[T.cast(3, dtype) - U[bx]]  # here

    return difference


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_an_unsigned_difference_that_wraps_needs_its_mask(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = difference(dtype)

    def believed(self: Any, index: Any, bound: Any) -> bool:  # as when ranges forgot that unsigned numbers wrap
        return True

    monkeypatch.setattr(guard_accesses._Guard, "_is_below", believed)
    (detail,) = failures(bounds(program), program, "here")
    assert "of 8" in detail and "what U" in detail
    monkeypatch.undo()


def test_an_unguarded_index_from_memory_is_unknown() -> None:
    @T.prim_func
    def gather(I: T.Tensor((64,), "int32"), A: T.Tensor((1000,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = A[I[i]]

    assert statuses(bounds(gather)) == {"proved"}
    (open_one,) = [each for each in bounds(gather, UNGUARDED, guarded=False) if each.status != "proved"]
    assert open_one.status == "unknown" and "what I" in open_one.detail


@pytest.mark.parametrize(
    ("option", "value"),
    [("map-grid.group_m", 3), ("map-grid.persistent", 1), ("split-k.splits", 2), ("lower-to-triton.index_bits", 64)],
)
def test_what_passes_make_of_the_grid_is_proved(option: str, value: int) -> None:
    program = tiles(T.dynamic("M") if "split" not in option else 200, 200, 256)
    assert statuses(bounds(program, {option: value, **POINTERS})) == {"proved"}


def tile_bounds(program: Any) -> list[Check]:
    return list(check_tile_bounds(program.build(), Solver()))


def test_elements_outside_of_a_tile_are_named() -> None:
    N = T.dynamic("N")

    @T.prim_func
    def marked(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(N, threads=32) as bx:
            s = T.alloc_shared((64,), "float32")
            T.clear(s)
            s[bx] = 1.0  # here
            B[bx] = s[0]

    (detail,) = failures(tile_bounds(marked), marked, "here")
    assert "is outside of [64], where bx = " in detail

    @T.prim_func
    def checked(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(N, threads=32) as bx:
            s = T.alloc_shared((64,), "float32")
            T.clear(s)
            if bx < 64:
                s[bx] = 1.0
            B[bx] = T.if_then_else(bx < 64 and s[bx] > 0.0, s[bx % 64], 0.0)

    assert statuses(tile_bounds(checked)) == {"proved"} == statuses(reads(checked, 1))


def test_elements_of_a_tile_at_places_of_data_are_unknown() -> None:
    @T.prim_func
    def scattered(I: T.Tensor((64,), "int32"), A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((64,), "float32")
            h = T.alloc_shared((64,), "float32")
            T.copy(A, s)
            T.clear(h)
            for i in T.serial(64):
                s[I[i]] = 1.0
            for i in T.Parallel(64):
                T.atomic_add(h[I[i]], 1.0)
            for i in T.Parallel(64):
                B[i] = s[I[i]] + h[i]

    write, read, counts = tile_bounds(scattered)
    assert write.status == read.status == "unknown" and counts.status == "proved"
    assert "what I holds" in write.detail and "a write changes nothing" in write.detail
    assert "what I holds" in read.detail and "a read is an element" in read.detail


# Races


def test_blocks_with_tiles_of_their_own_are_proved() -> None:
    assert statuses(races(tiles(T.dynamic("M"), 100, 64))) == {"proved"}


def test_what_lies_outside_of_a_view_is_written_by_nobody() -> None:
    def viewed(columns: int) -> Any:
        @T.prim_func
        def program(B: T.Tensor((8, 16, columns), "float32")):
            with T.Kernel(2, threads=64) as bx:
                flat = T.Tensor((128, columns), "float32", B.data)
                tile = T.alloc_shared((64, 64), "float32")
                T.clear(tile)
                T.copy(tile, flat[bx * 64, 0])

        return program

    for columns in (32, 48, 64):  # of a tile of 64
        assert statuses(races(viewed(columns))) == {"proved"}


def test_blocks_that_overlap_are_named() -> None:
    @T.prim_func
    def overlapping(A: T.Tensor((256,), "float32"), B: T.Tensor((256,), "float32")):
        with T.Kernel(4, threads=64) as bx:
            for i in T.Parallel(65):
                B[bx * 64 + i] = A[bx * 64 + i]  # here

    (detail,) = failures(races(overlapping), overlapping, "here")
    assert detail.count("bx = ") == 2 and detail.startswith("[")


def test_blocks_that_forget_a_dimension_of_the_grid_are_named() -> None:
    @T.prim_func
    def forgetful(A: T.Tensor((64, 64), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(2, 64, threads=32) as (bx, by):
            tile = T.alloc_fragment((32,), "float32")
            T.copy(A[by, bx * 32], tile)
            T.copy(tile, B[bx * 32])  # here

    (detail,) = failures(races(forgetful), forgetful, "here")
    assert "by = " in detail


def test_atomics_of_several_blocks_are_no_race_but_beside_a_store_they_are() -> None:
    @T.prim_func
    def counted(A: T.Tensor((64,), "float32"), B: T.Tensor((1,), "float32")):
        with T.Kernel(64, threads=32) as bx:
            T.atomic_add(B[0], A[bx])

    @T.prim_func
    def mixed(A: T.Tensor((64,), "float32"), B: T.Tensor((1,), "float32")):
        with T.Kernel(64, threads=32) as bx:
            if bx == 0:
                B[0] = 0.0  # here
            T.atomic_add(B[0], A[bx])

    assert statuses(races(counted)) == {"proved"}
    assert failures(races(mixed), mixed, "here")


def test_a_read_of_what_another_block_writes_is_named() -> None:
    @T.prim_func
    def shifted(A: T.Tensor((64,), "float32")):
        with T.Kernel(63, threads=32) as bx:
            A[bx] = A[bx + 1]  # here

    @T.prim_func
    def in_place(A: T.Tensor((64,), "float32")):
        with T.Kernel(64, threads=32) as bx:
            A[bx] = A[bx] + 1

    (detail,) = failures(races(shifted), shifted, "here")
    assert "read" in detail
    assert statuses(races(in_place)) == {"proved"}


def test_whether_a_block_waits_for_what_another_one_announces_is_unknown() -> None:
    @T.prim_func
    def announced(A: T.Tensor((8,), "float32"), done: T.Tensor((1,), "int32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(8) as bx:
            A[bx] = 1.0
            T.atomic_add(done[0], 1, memory_order="release")
            while T.atomic_load(done[0], memory_order="acquire") < 8:
                T.evaluate(0)
            B[bx] = A[7 - bx]

    @T.prim_func
    def unannounced(A: T.Tensor((8,), "float32"), done: T.Tensor((1,), "int32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(8) as bx:
            T.atomic_add(done[0], 1, memory_order="release")
            while T.atomic_load(done[0], memory_order="acquire") < 8:
                T.evaluate(0)
            A[bx] = 1.0  # here
            B[bx] = A[7 - bx]

    (open_one,) = (each for each in races(announced) if each.status != "proved")
    assert open_one.status == "unknown" and "whether the block that reads waits" in open_one.detail
    assert failures(races(unannounced), unannounced, "here")


def test_iterations_that_write_one_element_are_named() -> None:
    @T.prim_func
    def halves(A: T.Tensor((64,), "float32"), B: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i // 2] = A[i]  # here

    @T.prim_func
    def rows(A: T.Tensor((8, 8), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=64):
            for i, _j in T.Parallel(8, 8):
                B[i] = A[i, 0]

    (detail,) = failures(races(halves), halves, "here")
    assert detail.count("i = ") == 2
    assert statuses(races(rows)) == {"proved"}  # all write the same


def test_iterations_that_contribute_to_one_element_are_no_race() -> None:
    @T.prim_func
    def sums(A: T.Tensor((8, 4), "int32"), I: T.Tensor((8,), "int32"), Y: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            r = T.alloc_shared((8,), "int32")
            T.clear(r)
            for i, j in T.Parallel(8, 4):
                r[i] += A[i, j]
            for i in T.Parallel(8):
                r[I[i]] = T.max(r[I[i]], A[i, 0])
            T.copy(r, Y)

    @T.prim_func
    def seen_by_a_view(A: T.Tensor((8, 4), "int32"), Y: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            r, seen = T.alloc_shared((8,), "int32"), T.alloc_fragment((8, 4), "int32")
            same = T.reshape(r, (8, 1))
            T.clear(r)
            for i, j in T.Parallel(8, 4):
                seen[i, j] = same[i, 0]
                r[i] += A[i, j]  # here
            T.copy(seen[:, 0], Y)

    @T.prim_func
    def kept(Y: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            r = T.alloc_shared((8,), "int32")
            T.clear(r)
            for i, _j in T.Parallel(8, 4):
                r[i] = r[i] * 1  # nothing, once it is folded
            T.copy(r, Y)

    found = races(sums)
    assert [(each.subject, each.status, each.detail) for each in found[:2]] == [
        ("iterations that write r", "proved", "only atomically")
    ] * 2
    assert found[2].subject == "blocks that write Y" and len(found) == 3
    assert failures(races(seen_by_a_view), seen_by_a_view, "here")
    assert [each.subject for each in races(kept)] == ["iterations that write r", "blocks that write Y"]


def test_what_a_load_gives_to_nobody_is_no_race() -> None:
    @T.prim_func
    def reducers(A: T.Tensor((8, 4), "int32"), Y: T.Tensor((8,), "int32"), Z: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            total, largest = T.alloc_reducer((8,), "int32"), T.alloc_reducer((8,), "int32", op="max")
            T.reducer_init(total)
            T.reducer_init(largest)
            for i, j in T.Parallel(8, 4):
                total[i] += A[i, j] * j
                largest[i] = T.max(A[i, j], largest[i])
            T.finalize_reducer(total, Y)
            T.finalize_reducer(largest, Z)

    @T.prim_func
    def folded(A: T.Tensor((8,), "int32"), Y: T.Tensor((8,), "int32"), kept: T.int32):
        with T.Kernel(1, threads=32):
            t = T.alloc_shared((8,), "int32")
            T.copy(A, t)
            for i in T.Parallel(8):
                other = t[7 - i]
                if i < 4:
                    t[i] = T.if_then_else(kept == 0, other, 0)
            T.copy(t, Y)

    @T.prim_func
    def used(A: T.Tensor((8,), "int32"), Y: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            t = T.alloc_shared((8,), "int32")
            T.copy(A, t)
            for i in T.Parallel(8):
                other = t[7 - i]
                if i < 5:
                    t[i] = other  # here
            T.copy(t, Y)

    assert statuses(races(reducers)) == {"proved"}
    assert statuses(races(folded)) == {"proved"}
    assert failures(races(used), used, "here")


def test_a_scatter_is_unknown() -> None:
    @T.prim_func
    def scatter(I: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
        with T.Kernel(64, threads=32) as bx:
            B[I[bx]] = bx

    (found,) = races(scatter)
    assert found.status == "unknown" and "what I" in found.detail


# Reads


def test_memory_that_is_not_cleared_is_named() -> None:
    """It is proved where the first iteration writes it."""

    def program(cleared: bool) -> Any:
        @T.prim_func
        def sums(A: T.Tensor((8, 64), "float32"), B: T.Tensor((64,), "float32")):
            with T.Kernel(1, threads=128):
                total = T.alloc_fragment((64,), "float32")
                for k in range(8):
                    if cleared and k == 0:
                        T.clear(total)
                    for i in T.Parallel(64):
                        total[i] += A[k, i]  # here
                T.copy(total, B)

        return sums

    (detail,) = failures(reads(program(False)), program(False), "here")
    assert "k = 0" in detail
    assert statuses(reads(program(True))) == {"proved"}


@pytest.mark.parametrize("place", [lambda i: (i + 5) % 64, lambda i: 63 - i])
def test_memory_that_is_written_in_another_order_is_proved(place: Callable[[Any], Any]) -> None:
    @T.prim_func
    def turned(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((64,), "float32")
            for i in T.Parallel(64):
                x[place(i)] = A[i]
            T.copy(x, B)

    assert statuses(reads(turned)) == {"proved"}


@pytest.mark.parametrize("count", [48, 47])
def test_memory_that_is_written_by_digits_of_a_number_is_proved(count: int) -> None:
    @T.prim_func
    def digits(A: T.Tensor((48,), "float32"), B: T.Tensor((12, 4), "float32"), C: T.Tensor((3, 4, 4), "float32")):
        with T.Kernel(1, threads=128):
            x, y = T.alloc_shared((12, 4), "float32"), T.alloc_shared((3, 4, 4), "float32")
            for k in T.serial(2):
                for i in T.Parallel(24):
                    x[(k * 24 + i) // 4, (k * 24 + i) % 4] = A[k * 24 + i]
            T.copy(x, B)
            for i in T.Parallel(count):
                y[i // 16, i // 4 % 4, i % 4] = A[i]
            T.copy(y, C)  # here

    found = failures(reads(digits), digits, "here")
    assert found == (
        [] if count == 48 else ["[2, 3, 3] is read before it is written, where lane = 2, lane = 3, lane = 3"]
    )


def test_what_another_iteration_read_is_not_taken_for_what_this_one_reads() -> None:
    @T.prim_func
    def late(A: T.Tensor((8,), "int32"), B: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            x = T.alloc_shared((1,), "int32")
            for k in range(1, 8):
                flag = A[k] > 0
                if k > 1 and flag:
                    B[k] = x[0]
                if flag:
                    x[0] = k

    (found,) = [each for each in reads(late) if each.status != "proved"]
    assert found.status == "unknown" and "what A" in found.detail


@pytest.mark.parametrize("rows", [2, 8])
def test_an_earlier_iteration_wrote_its_own_row(rows: int) -> None:
    @T.prim_func
    def ahead(A: T.Tensor((9, 16), "int32"), B: T.Tensor((16,), "int32")):
        with T.Kernel(1, threads=32):
            x, total = T.alloc_shared((rows, 16), "int32"), T.alloc_fragment((16,), "int32")
            T.clear(total)
            T.copy(A[0, :], x[0, :])
            for k in T.serial(7):
                T.copy(A[k + 1, :], x[(k + 1) % rows, :])
                for i in T.Parallel(16):
                    total[i] += x[k % rows, i]
            T.copy(total, B)

    @T.prim_func
    def behind(A: T.Tensor((8, 16), "int32"), B: T.Tensor((16,), "int32")):
        with T.Kernel(1, threads=32):
            x, total = T.alloc_shared((rows, 16), "int32"), T.alloc_fragment((16,), "int32")
            T.clear(total)
            for k in T.serial(8):
                if k > 0:
                    for i in T.Parallel(16):
                        total[i] += x[k % rows, i]  # here
                T.copy(A[k, :], x[k % rows, :])
            T.copy(total, B)

    assert statuses(reads(ahead)) == {"proved"}
    (detail,) = failures(reads(behind), behind, "here")
    assert "[1, 0] is read before it is written, where k = 1" in detail


def test_a_number_of_each_iteration_is_its_own() -> None:
    @T.prim_func
    def chosen(A: T.Tensor((64,), "int32"), B: T.Tensor((1,), "int32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                if A[i] == i:
                    B[0] = i

    assert "unknown" in statuses(races(chosen))


def test_half_a_buffer_that_is_written_is_named() -> None:
    @T.prim_func
    def halves(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((64,), "float32")
            for i in T.Parallel(32):
                x[i * 2] = A[i]
            T.copy(x, B)  # here

    (detail,) = failures(reads(halves), halves, "here")
    assert "before it is written" in detail


@pytest.mark.parametrize("blocks", [4, 3])
def test_workspaces_are_written_by_earlier_kernels(blocks: int) -> None:
    @T.prim_func
    def turned(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        parts = T.alloc_global((4, 16), "float32")
        with T.Kernel(blocks, threads=32) as bx:
            T.copy(A[bx * 16 : bx * 16 + 16], parts[3 - bx, :])
        with T.Kernel(64, threads=32) as bx:
            B[bx] = parts[3 - bx // 16, bx % 16]  # here

    found = failures(reads(turned), turned, "here")
    assert len(found) == (blocks < 4)
    assert all("[0, 0] is read before it is written, where bx = 48" in each for each in found)


def test_whether_another_block_has_written_a_workspace_is_unknown() -> None:
    """As in stream-K, where it waits for what the other one announces; after the kernel everything is there."""

    @T.prim_func
    def handed_on(done: T.Tensor((8,), "int32"), B: T.Tensor((8,), "float32"), late: T.Tensor((8,), "float32")):
        parts = T.alloc_global((8,), "float32")
        with T.Kernel(8, threads=32) as bx:
            if bx % 2 == 1:
                parts[bx] = 1.0
                T.atomic_add(done[bx], 1, memory_order="release")
            else:
                while T.atomic_load(done[bx + 1], memory_order="acquire") == 0:
                    T.evaluate(0)
                B[bx] = parts[bx + 1]
        with T.Kernel(4, threads=32) as bx:
            late[bx] = parts[2 * bx + 1]

    (found,) = [each for each in reads(handed_on) if each.status != "proved"]
    assert found.status == "unknown" and "a block may have written it" in found.detail


def test_memory_written_in_one_branch_is_named() -> None:
    def program(both: bool) -> Any:
        @T.prim_func
        def branches(A: T.Tensor((64,), "float32"), B: T.Tensor((128,), "float32")):
            with T.Kernel(2, threads=128) as bx:
                x = T.alloc_shared((64,), "float32")
                if bx == 0:
                    T.copy(A, x)
                elif both:
                    T.clear(x)
                T.copy(x, B[bx * 64])  # here

        return branches

    (detail,) = failures(reads(program(False)), program(False), "here")
    assert "bx = 1" in detail
    assert statuses(reads(program(True))) == {"proved"}


@pytest.mark.parametrize(
    ("blocks", "rows", "missing"),
    [(4, 32, ()), (3, 32, range(96, 128)), (4, 31, range(31, 128, 32)), (5, 32, ()), (4, 33, ())],
)
def test_outputs_must_be_written_whole(blocks: int, rows: int, missing: Sequence[int]) -> None:
    @T.prim_func
    def copied(A: T.Tensor((128, 64), "float32"), B: T.Tensor((128, 64), "float32")):
        with T.Kernel(blocks, threads=128) as bx:
            for i, j in T.Parallel(rows, 64):
                B[bx * 32 + i, j] = A[bx * 32 + i, j]  # here

    found = failures(reads(copied, 1), copied, "here")
    assert len(found) == bool(missing)
    assert all(int(re.findall(r"\[(\d+), \d+\]", each)[0]) in missing for each in found), found


def test_an_output_of_a_dynamic_size_that_no_block_ends_is_named() -> None:
    M = T.dynamic("M")

    def program(blocks: Callable[[Any], Any]) -> Any:
        @T.prim_func
        def copied(A: T.Tensor((M,), "float32"), B: T.Tensor((M,), "float32")):
            with T.Kernel(blocks(M), threads=128) as bx:
                for i in T.Parallel(128):
                    B[bx * 128 + i] = A[bx * 128 + i]  # here

        return copied

    down = program(lambda size: size // 128)
    (detail,) = failures(reads(down, 1), down, "here")
    assert "M = " in detail
    assert statuses(reads(program(lambda size: T.ceildiv(size, 128)), 1)) == {"proved"}


def test_atomics_into_an_output_that_nothing_clears_are_named() -> None:
    @T.prim_func
    def counted(A: T.Tensor((64,), "float32"), B: T.Tensor((1,), "float32")):
        with T.Kernel(64, threads=32) as bx:
            T.atomic_add(B[0], A[bx])  # here

    (detail,) = failures(reads(counted, 1), counted, "here")
    assert "atomics" in detail


@pytest.mark.parametrize(("turns", "late"), [(32, 0), (31, 0), (33, 3), (32, 3)])
def test_a_turn_is_solved_for_from_its_quotient_and_remainder(turns: int, late: int) -> None:
    @T.prim_func
    def pieces(X: T.Tensor((16, 256), "float32"), Y: T.Tensor((16, 256), "float32")):
        with T.Kernel(2, threads=32) as group:
            piece = T.alloc_fragment((64,), "float32")
            for turn in T.serial(turns):
                T.copy(X[turn // 4 * 2 + group, turn % 4 * 64], piece)
                T.copy(piece, Y[(turn + late) // 4 * 2 + group - late // 3 * 2, (turn + late) % 4 * 64])

    (found,) = [each for each in reads(pieces, 1) if each.subject == "elements of Y"]
    assert found.status == ("proved" if turns == 32 + late // 3 else "failed")
