"""pipeline-loops: which tiles are loaded once, and depths of loops."""

from __future__ import annotations

import re

import pytest

import tiledsl
from tests.passes.ir_cases import after, program, stays_in_gluon
from tests.support.programs import check_pass, gemm, inputs_for
from tiledsl.dialects import scf, tile, triton
from tiledsl.errors import TileError
from tiledsl.ir.pass_manager import PassManager, Program
from tiledsl.passes import default_pipeline
from tiledsl.passes.pipeline_loops import PipelineLoops
from tiledsl.runtime.target import Target

HINTS = {"pipeline-loops.streamed": "evict_first", "pipeline-loops.reused": "evict_last"}


def lowered(rows: int, columns: int, **options: int | str) -> Program:
    program = Program(gemm(rows, columns, 64, 16, 16, 16), Target("cuda", 90))
    PassManager(default_pipeline(options)).run(program)
    return program


def hints(program: Program) -> list[str]:
    return [op.eviction for op in program.root.walk() if isinstance(op, triton.LoadOp)]


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        (16, 64, ["evict_last", "evict_first"]),  # one row of blocks: each tile of B is loaded once, A's by all
        (64, 16, ["evict_first", "evict_last"]),
        (64, 64, ["evict_last", "evict_last"]),
        (16, 16, ["evict_first", "evict_first"]),
    ],
)
def test_what_is_loaded_once(rows: int, columns: int, expected: list[str]) -> None:
    assert hints(lowered(rows, columns, **HINTS)) == expected
    assert hints(lowered(rows, columns)) == ["", ""]


def test_one_kind_only() -> None:
    assert hints(lowered(16, 64, **{"pipeline-loops.streamed": "evict_first"})) == ["", "evict_first"]


def test_depth() -> None:
    for options, expected in (({}, 3), ({"deepen": False}, 2), ({"stages": 5}, 5), ({"stages": 2}, 2)):
        program = lowered(64, 64, **{f"pipeline-loops.{name}": value for name, value in options.items()})
        assert [op.num_stages for op in program.root.walk() if isinstance(op, scf.ForOp)] == [expected]


def depth(
    target: str, blocks: int, rows: int = 64, columns: int = 64, stages: int = 2, k: int = 64, turns: int = 2
) -> int:
    """Of the loop of a product of such tiles of float16."""
    func = gemm(rows * blocks, columns, turns * k, rows, columns, k, num_stages=stages)
    program = Program(func, Target.parse(target))
    PassManager(default_pipeline({"select-access.mode": "pointer"})).run(program)
    (loop,) = [op for op in program.root.walk() if isinstance(op, scf.ForOp)]
    return loop.num_stages


def test_loops_load_one_tile_more_where_blocks_still_fit() -> None:
    assert [depth("cuda:90", 1000, stages=stages) for stages in (1, 2, 3, 4)] == [2, 3, 3, 4]
    assert [depth(target, 1000) for target in ("hip:gfx942", "cuda:80", "cuda:100")] == [2, 2, 2]
    # 128 KB in each iteration: two copies are too many already
    assert [depth("cuda:90", blocks, 128, 128, k=256) for blocks in (1, 1000)] == [2, 2]
    # 48 KB: two blocks with two copies, or one with three, which is enough where the grid has no more
    assert [depth("cuda:90", blocks, 128, 64, k=128) for blocks in (132, 133)] == [3, 2]
    # not asynchronous: two blocks with two tiles are better than one with three
    assert [depth("cuda:90", blocks, 32, 128, k=256) for blocks in (132, 133)] == [3, 2]
    # 144 registers of each of 128 threads: enough for three blocks, which two copies leave room for
    assert depth("cuda:90", 1000, 64, 192, k=64) == 2
    # 176 registers of each of 128 threads: there are enough for two blocks, which three copies leave room for
    assert depth("cuda:90", 1000, 128, 128, k=64) == 3


@pytest.mark.parametrize("stages", [0, 1])
def test_asynchronous_products_have_two_tiles_ahead_where_many_follow(stages: int) -> None:
    """Also where the program asks for none: the one behind is still read when the next one comes."""
    assert [depth("cuda:90", 1000, stages=stages, turns=turns) for turns in (2, 4, 5, 64)] == [2, 2, 3, 3]
    assert depth("cuda:90", 1000, 32, stages=stages, turns=64) == 2  # not asynchronous
    # in a grid that leaves no multiprocessor a second block, as many as there are
    assert [depth("cuda:90", 132, stages=stages, turns=turns) for turns in (2, 3, 4)] == [2, 3, 3]
    assert depth("cuda:80", 1000, stages=stages, turns=64) == stages


def test_how_many_iterations_follow_may_be_known_of_their_bounds_alone() -> None:
    def depth(end: str, stages: int = 1) -> str:
        text = f"""
@T.prim_func
def main(A: T.Tensor((64, 4096), "float16"), B: T.Tensor((64, 4096), "float16"), C: T.Tensor((64000, 64), "float32"), n: T.int32):
    with T.Kernel(1000, threads=128) as bx:
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined({end}, num_stages={stages}):
            T.copy(A[0, k * 64], a)
            T.copy(B[0, k * 64], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C[bx * 64, 0])
"""  # noqa: E501
        (found,) = re.findall(r"num_stages=(\d)\)", tiledsl.compile(tiledsl.parse(text), target="cuda:90").source)
        return str(found)

    assert [depth(end) for end in ("bx % 4 + 1", "bx % 5 + 1", "n", "bx % 2")] == ["2", "3", "3", "1"]
    assert [depth(end, 2) for end in ("bx % 4 + 1", "bx % 5 + 1")] == ["2", "3"]


def test_a_depth_that_the_kernel_asks_for_is_that_of_its_loops() -> None:
    text = """
@T.prim_func
def main(A: T.Tensor((64, 512), "float16"), B: T.Tensor((64, 512), "float16"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128, num_stages=STAGES):
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.serial(8):
            T.copy(A[0, k * 64], a)
            T.copy(B[0, k * 64], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C)
"""
    asked, not_asked = (
        tiledsl.compile(tiledsl.parse(text.replace(", num_stages=STAGES", each)), target="cuda:90").source
        for each in (", num_stages=1", "")
    )
    assert "range(8)" in asked and "range(8, num_stages=3)" in not_asked


@pytest.mark.parametrize("scaled", [False, True])
def test_tiles_that_are_multiplied_and_computed_with_are_loaded_further_ahead_too(scaled: bool) -> None:
    text = """
@T.prim_func
def main(A: T.Tensor((64, 512), "float16"), B: T.Tensor((64, 512), "float16"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        scaled, c = T.alloc_fragment((64, 64), "float16"), T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(8, num_stages=2):
            T.copy(A[0, k * 64], a)
            T.copy(B[0, k * 64], b)
            for i, j in T.Parallel(64, 64):
                scaled[i, j] = SOURCE[i, j] * 2
            T.gemm(scaled, b, c, transpose_B=True)
        T.copy(c, C)
"""
    program = tiledsl.parse(text.replace("SOURCE", "b" if scaled else "a"))
    kernel = tiledsl.compile(program, target="cuda:90", pass_configs={"select-access.mode": "pointer"})
    assert "num_stages=3)" in kernel.source and kernel.source.count("tl.load(B") == 1 + scaled


@pytest.mark.parametrize(("rows", "again", "expected"), [(128, True, 3), (160, True, 2), (160, False, 3)])
def test_tiles_that_are_loaded_twice_need_room(rows: int, again: bool, expected: int) -> None:
    """Twice in all but one of the stages; 3 stages of 144 KB and 2 of 80 are too many."""
    text = f"""
@T.prim_func
def main(A: T.Tensor((64, 1024), "float16"), B: T.Tensor(({rows}, 1024), "float16"), C: T.Tensor((64, {rows}), "float32")):
    with T.Kernel(1, threads=256):
        a, b = T.alloc_shared((64, 128), "float16"), T.alloc_shared(({rows}, 128), "float16")
        c, d = T.alloc_fragment((64, {rows}), "float32"), T.alloc_fragment(({rows}, 128), "float32")
        T.clear(c)
        T.clear(d)
        for k in T.Pipelined(8, num_stages=2):
            T.copy(A[0, k * 128], a)
            T.copy(B[0, k * 128], b)
            for i, j in T.Parallel({rows}, 128):
                d[i, j] += {"b[i, j]" if again else 2}
            T.gemm(a, b, c, transpose_B=True)
        for i, j in T.Parallel(64, {rows}):
            C[i, j] = c[i, j] + d[j, 0]
"""  # noqa: E501
    kernel = tiledsl.compile(tiledsl.parse(text), target="cuda:90", pass_configs={"select-access.mode": "pointer"})
    assert f"num_stages={expected})" in kernel.source
    assert kernel.ir("pipeline-loops").count("tensor.transpose") == (1 if rows == 128 else 2)  # 160 is 128 and 32


@pytest.mark.parametrize(("stages", "expected"), [(1, 1), (2, 3), (3, 3)])
def test_loops_without_products_load_further_ahead_if_they_are_asked_to(stages: int, expected: int) -> None:
    text = f"""
@T.prim_func
def main(A: T.Tensor((64, 512), "float32"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128):
        a, c = T.alloc_shared((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(8, num_stages={stages}):
            T.copy(A[0, k * 64], a)
            for i, j in T.Parallel(64, 64):
                c[i, j] = c[i, j] * 2 + a[i, j]
        T.copy(c, C)
"""
    kernel = tiledsl.compile(tiledsl.parse(text), target="cuda:90")
    assert f"num_stages={expected})" in kernel.source


@pytest.mark.parametrize(("inner", "outer", "expected"), [(2, 8, 1), (3, 8, 2), (2, 0, 2), ("n", 8, 2)])
def test_inner_loops_of_few_iterations_load_no_further_ahead(inner: int | str, outer: int, expected: int) -> None:
    text = f"""
@T.prim_func
def main(A: T.Tensor((64, 4096), "float16"), B: T.Tensor((64, 4096), "float16"), C: T.Tensor((64, 64), "float32"), n: T.int32):
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        {f"for o in T.serial({outer}):" if outer else "if n > 0:"}
            for k in T.Pipelined({inner}, num_stages=1):
                T.copy(A[0, {"o * 512 + " if outer else ""}k * 64], a)
                T.copy(B[0, {"o * 512 + " if outer else ""}k * 64], b)
                T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C)
"""  # noqa: E501
    kernel = tiledsl.compile(tiledsl.parse(text), target="cuda:90", pass_configs={"select-access.mode": "pointer"})
    assert f"num_stages={expected})" in kernel.source.split("def main_into")[0]


@pytest.mark.parametrize(("k", "stages", "expected"), [(64, 3, 3), (64, 4, 3), (128, 3, 1), (128, 2, 1), (128, 1, 1)])
def test_a_loop_whose_tiles_are_loaded_twice_is_as_deep_as_shared_memory_allows(
    k: int, stages: int, expected: int
) -> None:
    text = f"""
@T.prim_func
def main(A: T.Tensor((128, 1024), "float16"), B: T.Tensor((256, 1024), "float16"), C: T.Tensor((128, 256), "float32")):
    with T.Kernel(1, threads=256):
        a, b = T.alloc_shared((128, {k}), "float16"), T.alloc_shared((256, {k}), "float16")
        c, d = T.alloc_fragment((128, 256), "float32"), T.alloc_fragment((256, {k}), "float32")
        T.clear(c)
        T.clear(d)
        for k in T.Pipelined({1024 // k}, num_stages={stages}):
            T.copy(A[0, k * {k}], a)
            T.copy(B[0, k * {k}], b)
            for i, j in T.Parallel(256, {k}):
                d[i, j] += b[i, j]
            T.gemm(a, b, c, transpose_B=True)
        for i, j in T.Parallel(128, 256):
            C[i, j] = c[i, j] + d[j, 0]
"""
    kernel = tiledsl.compile(tiledsl.parse(text), target="cuda:90", pass_configs={"pipeline-loops.deepen": False})
    assert f"num_stages={expected})" in kernel.source.split("def main_into")[0]
    assert kernel.source.count("tl.load(B") == (2 if expected > 1 else 1)
    assert any("loads fewer tiles ahead" in each for each in kernel.remarks) == (expected < stages)


@pytest.mark.parametrize(
    ("target", "rows", "stages", "after", "loads"),
    [
        ("cuda:90", 64, 2, "", 2),
        ("cuda:90", 64, 3, "", 2),
        ("cuda:90", 64, 1, "", 1),  # not loaded ahead, as asked for
        ("cuda:80", 64, 2, "", 1),  # no asynchronous products
        ("cuda:90", 32, 2, "", 1),
        ("cuda:90 with 64 threads", 64, 2, "", 1),
        ("cuda:90", 64, 2, "for i, j in T.Parallel(64, 64): c[i, j] *= 2", 1),  # waits for the product
        ("cuda:90", 64, 2, "T.gemm(a, a, c)", 2),  # adds to it
        ("cuda:90", 64, 2, "for i, j in T.Parallel(64, 64): d[i, j] += c[i, j]", 1),
    ],
)
def test_tiles_that_are_multiplied_and_computed_with_are_loaded_twice(
    target: str, rows: int, stages: int, after: str, loads: int
) -> None:
    text = """
@T.prim_func
def main(A: T.Tensor((ROWS, 512), "float16"), B: T.Tensor((64, 512), "float16"), C: T.Tensor((ROWS, 64), "float32")):
    with T.Kernel(1, threads=THREADS):
        a, b = T.alloc_shared((ROWS, 64), "float16"), T.alloc_shared((64, 64), "float16")
        c, d = T.alloc_fragment((ROWS, 64), "float32"), T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        T.clear(d)
        for k in T.Pipelined(8, num_stages=STAGES):
            T.copy(A[0, k * 64], a)
            T.copy(B[0, k * 64], b)
            for i, j in T.Parallel(64, 64):
                d[i, j] += b[i, j]
            T.gemm(a, b, c, transpose_B=True)
            AFTER
        for i, j in T.Parallel(ROWS, 64):
            C[i, j] = c[i, j] + d[i % 64, j]
"""
    target, _, few = target.partition(" with ")
    for name, value in {
        "ROWS": rows,
        "STAGES": stages,
        "AFTER": after or "pass",
        "THREADS": 64 if few else 128,
    }.items():
        text = text.replace(name, str(value))
    for mode in ("pointer", "auto", "tma")[: 3 if (target, rows) == ("cuda:90", 64) else 1]:
        options = {"select-access.mode": mode, "pipeline-loops.deepen": stages > 1}
        kernel = tiledsl.compile(tiledsl.parse(text), target=target, pass_configs=options)
        loaded = [line for line in kernel.source.splitlines() if "tl.load(B" in line]
        assert len(loaded) == loads and sum(".ca" in line for line in loaded) == loads - 1, kernel.source


def test_blocks_that_compute_while_others_wait_stay_together() -> None:
    """With asynchronous products three blocks are better than two that load ahead, where the grid has as many."""
    assert depth("cuda:90", 1000, 64, 32, stages=1, k=256) == 1
    assert depth("cuda:90", 264, 64, 32, stages=1, k=256) == 2


LOADS = """
scf.for %c0, %c9, %c1 (%k: int32) {
  %i = tensor.iota {axis = 0} : tensor<16xint32>
  %own = tile.load %A[%k, %i] {guarded = true, eviction = "evict_last"} : tensor<16xfloat32>
  %fetched = tile.load %A[%k, %i] {guarded = true, cache = ".cg"} : tensor<16xfloat32>
  %number = tile.load %A[%k, %bx] {guarded = true} : float32
  %once = tile.load %A[%1, %i] {guarded = true} : tensor<16xfloat32>
  scf.yield
}
"""


@pytest.mark.parametrize(
    ("place", "grid", "policy"),
    [
        ("%at = arith.add %bx, %k : int32", (8,), "evict_first"),
        ("%at = arith.add %bx, %bx : int32", (8,), "evict_last"),  # the same in each iteration
        ("%at = arith.add %k, %k : int32", (8,), "evict_last"),  # and in each block
        ("%at = arith.add %k, %k : int32", (1,), "evict_first"),  # there is one
    ],
)
def test_policies_of_tiles_without_one(place: str, grid: tuple[int, ...], policy: str) -> None:
    """Neither what the program says of a load is replaced, nor numbers have a policy."""
    text = LOADS.replace("%once", place + "\n%once").replace("%1", "%at")
    lines = after(PipelineLoops(streamed="evict_first", reused="evict_last"), text, grid=grid)
    assert [line.partition("{")[2].partition("}")[0] for line in lines if "tile.load" in line] == [
        'guarded = true, eviction = "evict_last"',
        'guarded = true, cache = ".cg"',
        "guarded = true",
        f'guarded = true, eviction = "{policy}"',
    ]


@pytest.mark.parametrize(
    ("option", "value"), [("stages", 4), ("streamed", "evict_first"), ("reused", "evict_last"), ("unroll", 2)]
)
def test_a_kernel_in_gluon_is_left_alone_and_says_so(option: str, value: int | str) -> None:
    made = program(SUM)
    assert stays_in_gluon(PipelineLoops(**{option: value}), made)
    (remark,) = next(iter(tile.kernels(made.root))).remarks
    assert remark.startswith(f"pipeline-loops.{option}={value!r} has no effect in Gluon")


def test_options_are_named_in_their_order() -> None:
    made = program(SUM)
    assert stays_in_gluon(PipelineLoops(4, "evict_first", "evict_last", 2), made)
    named = [each.partition("=")[0] for each in next(iter(tile.kernels(made.root))).remarks]
    assert named == [f"pipeline-loops.{option}" for option in ("stages", "streamed", "reused", "unroll")]


SUM = """
%zero = arith.constant {value = 0.0} : tensor<16xfloat32>
%i = tensor.iota {axis = 0} : tensor<16xint32>
%r = scf.for %c0, %c9, %c1[%zero] {num_stages = 3} : tensor<16xfloat32> (%k: int32, %sum: tensor<16xfloat32>) {
  %x = tile.load %A[%k, %i] {guarded = true} : tensor<16xfloat32>
  %more = arith.add %sum, %x : tensor<16xfloat32>
  scf.yield [%more]
}
tile.store %r, %B[%bx, %i] {guarded = true}
"""


def test_loops_without_products_may_be_unrolled_instead() -> None:
    def loops(**options: int) -> list[str]:
        return [line.partition("{")[2] for line in after(PipelineLoops(**options), SUM) if "scf.for" in line]

    rest = " : tensor<16xfloat32> (%k: int32, %sum: tensor<16xfloat32>) {"
    assert loops() == ["num_stages = 3}" + rest] and loops(stages=4) == ["num_stages = 4}" + rest]
    assert loops(unroll=4) == loops(unroll=4, stages=5) == ["unroll = 4}" + rest]
    (line,) = [each for each in after(PipelineLoops(unroll=2), SUM.replace("= 3", "= 2")) if "scf.for" in each]
    assert "{unroll = 2}" in line
    assert "{num_stages = 1}" in "".join(
        after(PipelineLoops(unroll=4), SUM.replace("num_stages = 3", "num_stages = 1"))
    )
    check_pass(PipelineLoops(unroll=4), program(SUM, grid=(2,)).root, inputs_for(program(SUM, grid=(2,)).root))
    product = lowered(64, 64, **{"pipeline-loops.unroll": 4})
    assert [(op.num_stages, op.unroll) for op in product.root.walk() if isinstance(op, scf.ForOp)] == [(3, 0)]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("streamed", "first", "pipeline-loops.streamed is 'first'; it must be '' or 'evict_first' or 'evict_last'"),
        ("stages", -1, "pipeline-loops.stages is -1; it must be a depth of at most 64, or 0 for the program's own"),
        ("stages", 65, "pipeline-loops.stages is 65; it must be a depth of at most 64, or 0 for the program's own"),
        ("unroll", 1, "pipeline-loops.unroll is 1; it must be 2 or more iterations, or 0 for none"),
        ("unroll", -2, "pipeline-loops.unroll is -2; it must be 2 or more iterations, or 0 for none"),
    ],
)
def test_wrong_options(option: str, value: int | str, message: str) -> None:
    with pytest.raises(TileError) as error:
        lowered(64, 64, **{f"pipeline-loops.{option}": value})
    assert message in str(error.value)


IN_PLACE = """
@T.prim_func
def main(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
    with T.Kernel(1, threads=32):
        view = T.view({viewed}, (8,))
        for k in T.Pipelined(4, num_stages=3):
            {written}[k + 1] = view[k] + 1
"""


@pytest.mark.parametrize(
    ("viewed", "written", "depth"), [("A", "A", 1), ("B", "B", 1), ("A", "B", 3), ("B", "A", 3), ("A", "view", 1)]
)
def test_a_loop_that_loads_what_it_writes_is_not_pipelined(viewed: str, written: str, depth: int) -> None:
    text = IN_PLACE.format(viewed=viewed, written=written)
    kernel = tiledsl.compile(tiledsl.parse(text), target="cuda:90")
    assert f"num_stages={depth})" in kernel.source
    remark = f"the loop in line 6 is not pipelined, because it loads what it writes to {viewed}"
    assert (remark in kernel.remarks) == (depth == 1)


def test_a_serial_loop_with_a_product_that_loads_what_it_writes_is_not_pipelined_by_the_launch() -> None:
    text = """
@T.prim_func
def main(A: T.Tensor((64, 16), "float16"), B: T.Tensor((16, 16), "float16")):
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((16, 16), "float16")
        b = T.alloc_shared((16, 16), "float16")
        c = T.alloc_fragment((16, 16), "float32")
        T.copy(B, b)
        for k in T.serial(3):
            T.copy(A[k * 16, 0], a)
            T.clear(c)
            T.gemm(a, b, c)
            T.copy(c, A[(k + 1) * 16, 0])
"""
    options = {"lower-to-triton.num_stages": 3, "pipeline-loops.deepen": False}
    source = tiledsl.compile(tiledsl.parse(text), target="cuda:90", pass_configs=options).source
    assert "tl.range(3, num_stages=1)" in source
    other = text.replace("A[(k", "C[(k").replace("B: T", 'C: T.Tensor((64, 16), "float16"), B: T', 1)
    assert "tl.range" not in tiledsl.compile(tiledsl.parse(other), target="cuda:90", pass_configs=options).source
