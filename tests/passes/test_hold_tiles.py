"""hold-tiles: what a loop loads again turns later comes from rings of shared memory, and what stays in Triton."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.passes.ir_cases import program
from tests.support.gluon_machine import run_gluon
from tiledsl.certificate.algebra import ExecutorError
from tiledsl.kernels.kernel import Kernel
from tiledsl.passes.hold_tiles import _is_known


def compiled(program: Any, *, target: str = "cuda:90", pass_configs: Any = None, **options: Any) -> Kernel:
    function = tiledsl.jit(out_idx=[-1], target=target, pass_configs=pass_configs)(program)
    return function.kernel_for({"M": 12, "N": 256}, options)


def differences(
    M, N, *, lag=2, back=None, stages=3, groups=2, first=0, fill=0, threads=32, dtype="float32", into_x=False,
):  # fmt: skip
    """Y[m] = X[m] - sum(X[m + lag * groups])."""
    back = lag * groups if back is None else back
    turns = -(-M // groups) + lag

    @T.prim_func
    def differences(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(groups, threads=threads) as group:
            new = T.alloc_fragment((N,), dtype)
            held = T.alloc_fragment((N,), dtype)
            total = T.alloc_var("float32")
            if fill:
                T.annotate_safe_value({X: T.infinity("float32")})
            for turn in T.Pipelined(first, turns, num_stages=stages):
                row = turn * groups + group
                T.copy(X[row, 0], new)
                T.copy(X[row - back, 0], held)
                T.reduce_sum(new, total, dim=0)
                for j in T.Parallel(N):
                    held[j] -= total
                if into_x:
                    T.copy(held, X[row - back, 0])
                T.copy(held, Y[row - back, 0])

    return differences


def is_held(kernel: Kernel) -> bool:
    return "_load_ahead(" in kernel.source


def test_a_tile_of_an_earlier_turn_comes_from_its_place_in_the_ring() -> None:
    source = compiled(differences).source
    assert "[5, 256], gl.SwizzledSharedLayout(1, 1, 1, order=[0]))" in source
    loop = source[source.index("for ahead in") :]
    assert "for ahead in gl.static_range(2):\n" in loop
    assert "ahead, ahead < 8, new_0_ring.index(ahead))" in loop
    assert "turn + 2, turn + 2 < 8, new_0_ring.index((turn + 2) % 5))" in loop
    assert loop.count("async_copy.commit_group()") == 2
    assert loop.count("async_copy.wait_group(2)") == 1
    assert "new = new_0_ring.index(turn % 5).load(differences_kernel_of_256)" in loop
    assert "held = new_0_ring.index((turn + 3) % 5).load(differences_kernel_of_256)" in loop
    assert "gl.load(" not in source
    assert "gl.BlockedLayout([4], [32], [1], [0])" in source  # 16 bytes of float32


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lag": 1},
        {"lag": 3, "stages": 2},
        {"stages": 4, "groups": 3},
        {"groups": 5},  # of which the last turn has two rows
        {"fill": 1},
        {"dtype": "bfloat16"},
        {"stages": 8, "groups": 6},  # more on their way than there are turns
    ],
)
def test_it_means_the_same(options: dict[str, Any]) -> None:
    kernel = compiled(differences, **options)
    assert is_held(kernel)
    checks = kernel.verify(seconds=20).checks
    assert [each for each in checks if each.status not in ("proved", "tested")] == []
    assert any(each.kind == "source" and each.status == "tested" for each in checks)


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("wait_group(2)", "wait_group(3)"),  # of the turn's own tile
        ("wait_group(2)", "wait_group(4)"),
        ("new_0_ring.index(turn % 5)", "new_0_ring.index((turn + 1) % 5)"),
        ("index((turn + 3) % 5)", "index((turn + 2) % 5)"),
        ("index((turn + 3) % 5)", "index((turn + 4) % 5)"),
        ("index((turn + 2) % 5))", "index((turn + 3) % 5))"),  # the place that the turn reads
        ("gl.static_range(2)", "gl.static_range(1)"),
        ("turn + 2 < 8", "turn + 2 < 5"),
        ("commit_group()", "wait_group(9)"),
    ],
)
def test_mistakes_in_the_text_are_found(text: str, mistake: str) -> None:
    source, x, y = compiled(differences).source, torch.randn(12, 256), torch.empty(12, 256)
    wanted = x - torch.cat([x[4:].sum(1), torch.zeros(4)])[:, None]
    run_gluon(source, "differences_into", x, y)
    torch.testing.assert_close(y, wanted)
    assert text in source
    try:
        run_gluon(source.replace(text, mistake, 1), "differences_into", x, y)
    except ExecutorError:
        return
    assert not torch.allclose(y, wanted)


@pytest.mark.parametrize(
    ("options", "target"),
    [
        ({"stages": 1}, "cuda:90"),  # nothing is loaded ahead
        ({"back": 3}, "cuda:90"),  # no whole turns
        ({"back": -4}, "cuda:90"),  # turns that come later
        ({"back": 0}, "cuda:90"),
        ({"into_x": True}, "cuda:90"),  # the tile may be another one by then
        ({"first": 1}, "cuda:90"),
        ({"threads": 512}, "cuda:90"),  # less than an element of the tile for each thread
        ({}, "cuda:80"),
        ({}, "cuda:100"),
    ],
)
def test_other_loops_stay_in_triton(options: dict[str, Any], target: str) -> None:
    assert not is_held(compiled(differences, target=target, **options))


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ('arith.math [%x] {function = "exp2"} : tensor<16xfloat32>', True),
        ('arith.math [%x] {function = "tanh"} : tensor<16xfloat32>', False),  # of libdevice
        ("tensor.broadcast %f : tensor<16xfloat32>", True),
        ("tensor.broadcast %one : tensor<16xfloat32>", False),  # whose layout nothing says
        ("tensor.broadcast %row : tensor<4x16xfloat32>", True),
        ('tensor.scan %x {kind = "sum", axis = 0} : tensor<16xfloat32>', True),
        ('tensor.scan %x {kind = "max", axis = 0} : tensor<16xfloat32>', False),
        ('tensor.scan %row {kind = "sum", axis = 1} : tensor<1x16xfloat32>', False),
        ("tile.load %A[%bx, %bx] : float32", False),
    ],
)
def test_which_operations_gluon_has(line: str, known: bool) -> None:
    body = f"""%x = arith.constant {{value = 1.0}} : tensor<16xfloat32>
    %one = arith.constant {{value = 1.0}} : tensor<1xfloat32>
    %row = arith.constant {{value = 1.0}} : tensor<1x16xfloat32>
    %found = {line}"""
    (op,) = (op for op in program(body).root.walk() if [each.name for each in op.results] == ["found"])
    assert _is_known(op) is known


def test_it_can_be_turned_off() -> None:
    assert not is_held(compiled(differences, pass_configs={"hold-tiles.enabled": False}))


def test_rings_that_do_not_fit_are_a_remark() -> None:
    kernel = tiledsl.jit(out_idx=[-1], target="cuda:90")(differences).kernel_for(
        {"M": 64, "N": 16384}, {"lag": 2, "stages": 2, "threads": 256}
    )
    assert not is_held(kernel)
    assert any("rings of 262144 bytes do not fit in shared memory" in each for each in kernel.remarks)


def test_all_tiles_that_move_with_the_loop_get_rings_and_small_ones_do_not() -> None:
    def several(M, N, groups=2):
        @T.prim_func
        def several(
            X: T.Tensor((M, N), "bfloat16"), Z: T.Tensor((M, N), "float16"), W: T.Tensor((N,), "float16"),
            S: T.Tensor((M, 8), "float32"), Y: T.Tensor((M, N), "float32"),
        ):  # fmt: skip
            with T.Kernel(groups, threads=32) as group:
                x = T.alloc_fragment((N,), "bfloat16")
                z = T.alloc_fragment((N,), "float16")
                w = T.alloc_fragment((N,), "float16")
                s = T.alloc_fragment((8,), "float32")
                y = T.alloc_fragment((N,), "float32")
                total = T.alloc_var("float32")
                for turn in T.Pipelined(M // groups + 1, num_stages=2):
                    row = turn * groups + group
                    T.copy(X[row, 0], x)
                    T.copy(Z[row, 0], z)
                    T.copy(W, w)
                    T.copy(S[row, 0], s)
                    for j in T.Parallel(N):
                        y[j] = T.cast(x[j], "float32") * T.cast(z[j], "float32") * T.cast(w[j], "float32")
                    T.reduce_sum(s, total, dim=0)
                    T.copy(X[row - groups, 0], x)
                    for j in T.Parallel(N):
                        y[j] += T.cast(x[j], "float32") * total
                    T.copy(y, Y[row - groups, 0])

        return several

    kernel = compiled(several)
    source = kernel.source
    assert "x_0_ring = gl.allocate_shared_memory(gl.bfloat16, [4, 256]" in source
    assert "z_1_ring = gl.allocate_shared_memory(gl.float16, [3, 256]" in source
    assert source.count("allocate_shared_memory") == 2
    assert "gl.BlockedLayout([8], [32], [1], [0])" in source  # of 16 bytes
    assert "gl.BlockedLayout([1], [32], [1], [0])" in source  # of eight sums
    checks = kernel.verify(seconds=20).checks
    assert [each for each in checks if each.status not in ("proved", "tested")] == []


def pairs(M, N, *, rows=2, columns=None, fill=0, mean=0, threads=32):
    """Y[m] = X[m] + X[m + rows], and their sums along rows or columns."""
    columns = N if columns is None else columns

    @T.prim_func
    def pairs(X: T.Tensor((M, N), "float32"), S: T.Tensor((M,), "float32"), Y: T.Tensor((M, N), "float32")):
        with T.Kernel(N // columns, threads=threads) as part:
            new = T.alloc_fragment((rows, columns), "float32")
            held = T.alloc_fragment((rows, columns), "float32")
            sums = T.alloc_fragment((rows,), "float32")
            scale = T.alloc_fragment((rows,), "float32")
            down = T.alloc_fragment((columns,), "float32")
            if fill:
                T.annotate_safe_value({X: 2.5})
            T.clear(down)
            for turn in T.Pipelined(M // rows + 1, num_stages=2):
                T.copy(X[turn * rows, part * columns], new)
                T.copy(S[turn * rows], scale)
                T.reduce_sum(new, sums, dim=1)
                for i, j in T.Parallel(rows, columns):
                    new[i, j] = new[i, j] * sums[i] + down[j]
                T.reduce_sum(new, down, dim=0, clear=False)
                T.copy(X[turn * rows - rows, part * columns], held)
                if mean:
                    T.reduce_sum(held, sums, dim=1)
                for i, j in T.Parallel(rows, columns):
                    held[i, j] += new[i, j] * scale[i] + sums[i]
                T.copy(held, Y[turn * rows - rows, part * columns])

    return pairs


@pytest.mark.parametrize(
    "options", [{}, {"rows": 4}, {"columns": 128}, {"fill": 1}, {"mean": 1}, {"fill": 1, "mean": 1}]
)
def test_tiles_of_two_dimensions(options: dict[str, Any]) -> None:
    kernel = compiled(pairs, **options)
    assert is_held(kernel)
    checks = kernel.verify(seconds=20).checks
    assert [each for each in checks if each.status not in ("proved", "tested")] == []


def test_layouts_of_rows_and_columns_are_those_of_the_tile() -> None:
    source = compiled(pairs).source
    assert "pairs_kernel_of_2x256 = gl.constexpr(gl.BlockedLayout([1, 4], [1, 32], [1, 1], [1, 0]))" in source
    assert "[4, 2, 256], gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0])" in source
    assert "gl.arange(0, 2, layout=gl.SliceLayout(1, pairs_kernel_of_2x256))[:, None]" in source
    assert "gl.arange(0, 256, layout=gl.SliceLayout(0, pairs_kernel_of_2x256))[None, :]" in source
    assert "gl.convert_layout" not in source


@pytest.mark.parametrize(
    ("rows", "threads", "along", "warps"),
    [(4, 128, True, "4, 1"), (4, 64, True, "2, 1"), (2, 128, True, "1, 4"), (4, 128, False, "1, 4")],
)
def test_warps_have_whole_rows_where_they_are_told_to(rows: int, threads: int, along: bool, warps: str) -> None:
    configs = {"hold-tiles.along_rows": along, "limit-warps.mode": "off"}
    kernel = compiled(pairs, rows=rows, threads=threads, pass_configs=configs)
    assert f"_of_{rows}x256 = gl.constexpr(gl.BlockedLayout([1, 4], [1, 32], [{warps}], [1, 0]))" in kernel.source
    assert "along" not in kernel.source
    checks = kernel.verify(seconds=20).checks
    assert [each for each in checks if each.status not in ("proved", "tested")] == []


def two_sums(M, N, *, between="", kind="sum", dtype="float32"):
    """Y[m] = X[m] * (sum(X[m + 2]) + sum(X[m + 2]^2)), or other reductions."""

    @T.prim_func
    def two_sums(X: T.Tensor((M, N), dtype), S: T.Tensor((M,), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(1, threads=32):
            new = T.alloc_fragment((2, N), dtype)
            held = T.alloc_fragment((2, N), dtype)
            first = T.alloc_fragment((2,), dtype)
            second = T.alloc_fragment((2,), dtype)
            third = T.alloc_fragment((2,), dtype)
            columns = T.alloc_fragment((N,), dtype)
            scale = T.alloc_fragment((2,), dtype)
            for turn in T.Pipelined(M // 2 + 1, num_stages=2):
                T.copy(X[turn * 2, 0], new)
                T.copy(X[turn * 2 - 2, 0], held)
                T.reduce_sum(new, first, dim=1)
                if between == "loads":
                    T.copy(S[turn * 2], scale)
                for i, j in T.Parallel(2, N):
                    new[i, j] *= first[i] if between == "uses" else scale[i] if between == "loads" else new[i, j]
                if between == "columns":
                    T.reduce_sum(new, columns, dim=0)
                    for i, j in T.Parallel(2, N):
                        held[i, j] *= columns[j]
                elif kind == "sum":
                    T.reduce_sum(new, second, dim=1)
                else:
                    T.reduce_max(new, second, dim=1)
                for i, j in T.Parallel(2, N):
                    new[i, j] += 1
                if between != "columns":
                    T.reduce_sum(new, third, dim=1)
                    for i, j in T.Parallel(2, N):
                        held[i, j] *= second[i] + third[i]
                for i, j in T.Parallel(2, N):
                    held[i, j] *= first[i]
                T.copy(held, Y[turn * 2 - 2, 0])

    return two_sums


@pytest.mark.parametrize(
    ("options", "joined"),
    [
        ({}, "first, second"),  # and the third by itself
        ({"between": "loads"}, "second, third"),
        ({"between": "uses"}, "second, third"),
        ({"between": "columns"}, ""),
        ({"kind": "max"}, ""),
        ({"dtype": "float16"}, ""),
    ],
)
def test_two_sums_of_a_shape_are_exchanged_at_once(options: dict[str, Any], joined: str) -> None:
    kernel = compiled(two_sums, pass_configs={"fold-rows.enabled": False}, **options)
    assert is_held(kernel)
    found = re.findall(r"^ +(\w+, \w+) = gl\.reduce\(\((\w+)_terms, new\), 1, _add_two\)$", kernel.source, re.M)
    assert found == ([(joined, joined.split(",")[0])] if joined else [])
    assert kernel.source.count("_terms = new\n") == kernel.source.count("gl.reduce(") == len(found)
    checks = kernel.verify(seconds=20).checks
    assert [each for each in checks if each.status not in ("proved", "tested")] == []


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({}, []),  # only stores take it, and leave out what it leaves out
        ({"fill": 1}, ["new"]),  # another number than the 0 that a copy leaves
        ({"mean": 1}, ["held"]),
        ({"fill": 1, "mean": 1}, ["new", "held"]),
    ],
)
def test_what_a_mask_leaves_out_is_chosen_where_it_is_used(options: dict[str, int], chosen: list[str]) -> None:
    lines = compiled(pairs, **options).source.splitlines()
    assert [line.split()[0] for line in lines if "gl.where(" in line and "_ring.index(" in line] == chosen


def test_tiles_whose_sizes_do_not_tell_rows_from_columns_stay_in_triton() -> None:
    assert not is_held(compiled(pairs, rows=16, columns=16))


@pytest.mark.parametrize("reverse", [False, True])
def test_sums_of_held_tiles_are_scanned(reverse: bool) -> None:
    def scans(M, N):
        @T.prim_func
        def scans(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
            with T.Kernel(1, threads=32):
                new = T.alloc_fragment((N,), "float32")
                held = T.alloc_fragment((N,), "float32")
                y = T.alloc_fragment((N,), "float32")
                for turn in T.Pipelined(M + 1, num_stages=2):
                    T.copy(X[turn, 0], new)
                    T.copy(X[turn - 1, 0], held)
                    T.cumsum(held, y, dim=0, reverse=reverse)
                    for j in T.Parallel(N):
                        y[j] += new[j]
                    T.copy(y, Y[turn - 1, 0])

        return scans

    kernel = compiled(scans)
    assert ("y = gl.associative_scan(held, 0, _add)" in kernel.source) == is_held(kernel) == (not reverse)
    checks = kernel.verify(seconds=20).checks
    assert [each for each in checks if each.status not in ("proved", "tested")] == []


def test_tiles_of_several_turns_share_a_ring() -> None:
    def thirds(M, N):
        @T.prim_func
        def thirds(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
            with T.Kernel(1, threads=32):
                new = T.alloc_fragment((N,), "float32")
                held = T.alloc_fragment((N,), "float32")
                old = T.alloc_fragment((N,), "float32")
                for turn in T.Pipelined(M + 3, num_stages=2):
                    T.copy(X[turn - 1, 0], held)
                    T.copy(X[turn, 0], new)
                    T.copy(X[turn - 3, 0], old)
                    for j in T.Parallel(N):
                        old[j] += new[j] * held[j]
                    T.copy(old, Y[turn - 3, 0])

        return thirds

    kernel = compiled(thirds)
    assert kernel.source.count("allocate_shared_memory") == 1
    assert "new_1_ring = gl.allocate_shared_memory(gl.float32, [6, 256]" in kernel.source
    for name, place in ("held", 5), ("old", 3):
        assert re.search(rf"{name} = .*new_1_ring.index\(\(turn \+ {place}\) % 6\)", kernel.source)
    checks = kernel.verify(seconds=20).checks
    assert [each for each in checks if each.status not in ("proved", "tested")] == []


def test_what_the_kernel_adds_to_is_no_held_tile() -> None:
    def added(M, N):
        @T.prim_func
        def added(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
            with T.Kernel(1, threads=32):
                new = T.alloc_fragment((N,), "float32")
                held = T.alloc_fragment((N,), "float32")
                for turn in T.Pipelined(M + 1, num_stages=2):
                    T.copy(X[turn, 0], new)
                    T.copy(X[turn - 1, 0], held)
                    T.atomic_add(X[turn - 1, 0], new)
                    T.copy(held, Y[turn - 1, 0])

        return added

    assert not is_held(compiled(added))


@pytest.mark.parametrize(
    ("words", "threads", "held"),
    [(8, 64, 1), (32, 64, 1), (128, 256, 4), (128, 128, 1), (256, 64, 1)],
)
def test_a_warp_has_all_of_a_small_tile_or_each_thread_its_own(words: int, threads: int, held: int) -> None:
    """Of what others write meanwhile two threads would see two values."""

    def waits(M, N):
        @T.prim_func
        def waits(X: T.Tensor((M, N), "float32"), W: T.Tensor((M, words), "float32"), Y: T.Tensor((M, N), "float32")):
            with T.Kernel(1, threads=threads):
                new = T.alloc_fragment((N,), "float32")
                held = T.alloc_fragment((N,), "float32")
                some = T.alloc_fragment((words,), "float32")
                total = T.alloc_var("float32")
                for turn in T.Pipelined(M + 1, num_stages=2):
                    for p in T.Parallel(words):
                        some[p] = T.atomic_load(W[turn, p], memory_order="relaxed")
                    T.copy(X[turn, 0], new)
                    T.copy(X[turn - 1, 0], held)
                    T.reduce_sum(some, total, dim=0)
                    for j in T.Parallel(N):
                        held[j] += new[j] * total
                    T.copy(held, Y[turn - 1, 0])

        return waits

    configs = {"limit-warps.mode": "off"}
    function = tiledsl.jit(out_idx=[-1], target="cuda:90", pass_configs=configs)(waits)
    source = function.kernel_for({"M": 12, "N": 1024}, {}).source
    assert f"waits_kernel_of_{words} = gl.constexpr(gl.BlockedLayout([{held}], [32], [{threads // 32}], [0]))" in source


def test_places_that_the_loop_carries_stay_in_triton() -> None:
    def walked(M, N):
        @T.prim_func
        def walked(X: T.Tensor((M, N), "float32"), P: T.Tensor((M,), "int32"), Y: T.Tensor((M, N), "float32")):
            with T.Kernel(1, threads=32):
                new = T.alloc_fragment((N,), "float32")
                held = T.alloc_fragment((N,), "float32")
                place = T.alloc_var("int32", 0)
                for turn in T.Pipelined(M + 2, num_stages=3):
                    T.copy(X[turn + place, 0], new)
                    T.copy(X[turn + place - 2, 0], held)
                    place = P[turn]
                    for j in T.Parallel(N):
                        held[j] += new[j]
                    T.copy(held, Y[turn - 2, 0])

        return walked

    assert not is_held(compiled(walked))


def in_pieces(M, N, *, pieces=4, back=2, of=4, groups=2, late=0, other=0):
    """Y[m] = X[m] times the sum of X[m + back * groups], piece by piece: a row is so many turns."""
    width = N // pieces

    @T.prim_func
    def in_pieces(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
        with T.Kernel(groups, threads=32) as group:
            new = T.alloc_fragment((width,), "float32")
            held = T.alloc_fragment((width,), "float32")
            sums = T.alloc_fragment((width,), "float32")
            total = T.alloc_var("float32", 1.0)
            T.clear(sums)
            for turn in T.Pipelined((M // groups + back) * pieces + late, num_stages=3):
                row = turn // pieces * groups + group
                first = turn % of * width
                old = turn + pieces - late
                begin = (old + other) % of * width
                past = (old // pieces - back - 1) * groups + group
                T.copy(X[past, begin], held)
                T.copy(X[row, first], new)
                for i in T.Parallel(width):
                    held[i] *= total
                    sums[i] += new[i]
                T.copy(held, Y[past, begin])
                if turn % pieces == pieces - 1:
                    T.reduce_sum(sums, total, dim=0)
                    T.clear(sums)

    return in_pieces


@pytest.mark.parametrize(
    ("options", "places"),
    [
        ({}, 11),
        ({"of": 2, "back": 1}, 7),
        ({"of": 8}, 0),
        ({"of": 3}, 0),
        ({"pieces": 1, "of": 2}, 0),
        ({"late": 1}, 12),
        ({"late": 3, "of": 2}, 14),
        ({"late": 1, "of": 8}, 0),
        ({"other": 1}, 0),
        ({"late": 2, "other": 2}, 0),
    ],
)
def test_pieces_of_earlier_rows_stay_where_the_remainder_of_the_turn_was_the_same(
    options: dict[str, int], places: int
) -> None:
    kernel = compiled(in_pieces, **options)
    assert is_held(kernel) == bool(places) and (not places or f"[{places}, 64]" in kernel.source)


def test_pieces_of_rows_mean_the_same() -> None:
    function = tiledsl.jit(out_idx=[-1], target="cuda:90")(in_pieces)
    kernel = function.kernel_for({"M": 4, "N": 256}, {"pieces": 2, "of": 2, "back": 1, "late": 1})
    assert is_held(kernel)
    assert "failed" not in {each.status for each in kernel.verify(seconds=20).checks}


def test_a_place_that_has_more_of_the_turn_is_another_one_earlier() -> None:
    def jumps(M, N):
        @T.prim_func
        def jumps(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
            with T.Kernel(1, threads=32):
                new = T.alloc_fragment((N,), "float32")
                held = T.alloc_fragment((N,), "float32")
                for turn in T.Pipelined(M, num_stages=3):
                    T.copy(X[2 * turn - turn % 2, 0], new)
                    T.copy(X[2 * turn - turn % 2 - 2, 0], held)
                    for j in T.Parallel(N):
                        held[j] += new[j]
                    T.copy(held, Y[turn, 0])

        return jumps

    assert not is_held(compiled(jumps))


def after_a_kernel(M, N, *, early="", others="", launch_pdl=True):
    """Y[m] = X[m] - sum(X[m + 2]) * numbers, of a workspace that a kernel before fills."""

    @T.prim_func
    def after_a_kernel(X: T.Tensor((M, N), "float32"), Z: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
        numbers = T.alloc_global((N,), "float32")
        kept = T.alloc_global((2, N), "float32")
        with T.Kernel(1, threads=32, launch_pdl=launch_pdl):
            some = T.alloc_fragment((N,), "float32")
            T.fill(some, 2.0)
            if others:
                T.copy({"X": X, "Z": Z}[others][0, 0], some)
            T.copy(some, numbers)
        with T.Kernel(2, threads=32, launch_pdl=launch_pdl) as group:
            new = T.alloc_fragment((N,), "float32")
            held = T.alloc_fragment((N,), "float32")
            factor = T.alloc_fragment((N,), "float32")
            total = T.alloc_var("float32")
            T.fill(factor, 1.0)
            if early == "reads":
                T.copy(numbers, factor)
            if early == "writes":
                T.copy(X[group, 0], factor)
                T.copy(factor, kept[group, 0])
            if early == "goes round":
                for _ in T.serial(group):
                    T.copy(numbers, factor)
            for turn in T.Pipelined(8, num_stages=3):
                T.copy(X[turn * 2 + group, 0], new)
                T.copy(X[turn * 2 + group - 2, 0], held)
                if not early:
                    T.copy(numbers, factor)
                T.reduce_sum(new, total, dim=0)
                for j in T.Parallel(N):
                    held[j] -= total * factor[j]
                T.copy(held, Y[turn * 2 + group - 2, 0])

    return after_a_kernel


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({}, "late"),
        ({"launch_pdl": False}, ""),
        ({"early": "reads"}, "first"),
        ({"early": "writes"}, "first"),
        ({"early": "goes round"}, "first"),
        ({"others": "X"}, "first"),
        ({"others": "Z"}, "first"),
    ],
)
def test_first_tiles_are_asked_for_before_the_kernel_before_ends(options: dict[str, Any], place: str) -> None:
    kernel = compiled(after_a_kernel, **options)
    assert is_held(kernel) and "awaits" not in kernel.source
    text = kernel.source[kernel.source.index("def after_a_kernel_kernel_2(") :]
    marks = {"gdc_wait()": "wait", "gl.program_id": "id", "for ahead in": "ahead", "for turn in": "turn"}
    order = [name for _, name in sorted((text.index(mark), name) for mark, name in marks.items() if mark in text)]
    assert order == {
        "late": ["id", "ahead", "wait", "turn"], "": ["id", "ahead", "turn"], "first": ["wait", "id", "ahead", "turn"],
    }[place]  # fmt: skip
    checks = kernel.verify(seconds=20).checks
    assert [each for each in checks if each.status not in ("proved", "tested")] == []
