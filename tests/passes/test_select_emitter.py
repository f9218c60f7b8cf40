"""select-emitter: which programs go to Gluon, what the others are told, and that they stay as they were."""

from __future__ import annotations

import contextlib
import logging
import re
from types import SimpleNamespace
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from benchmarks.programs.gemm import matmul
from tests.autotune import kernels
from tests.passes.ir_cases import body_lines, kernel_of
from tests.passes.ir_cases import program as ir_program
from tests.support.example_modules import load_example
from tiledsl import logs
from tiledsl.analysis.gluon import support
from tiledsl.dialects import gluon, scf, tensor, tile, triton
from tiledsl.errors import TileError
from tiledsl.ir.pass_manager import parse_program
from tiledsl.ir.verifier import verify
from tiledsl.passes.select_emitter import (
    NotRecognised,
    SelectEmitter,
    _add_by_box,
    _box_of,
    _load_rows_by_box,
    _store_beside,
    _walks_on,
)
from tiledsl.runtime.target import Target

F = "float32"


def attention(backend: str = "gluon", target: str = "cuda:90", **options: Any) -> tiledsl.Kernel:
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "queries": 512, "keys": 512, "dim": 64, **options}
    function = load_example("attention").attention.function
    return tiledsl.jit(function, target=target, pass_configs={"select-emitter.backend": backend}).compile(**sizes)


def is_gluon(kernel: tiledsl.Kernel) -> bool:
    return "@gluon.jit" in kernel.source


def form(kernel: tiledsl.Kernel) -> str:
    """Whether turns of loops in Gluon are skewed or in order; empty for a kernel in Triton."""
    ops = list(parse_program(kernel.ir("schedule-loops")).root.walk())
    stages = {op.stage for op in ops if isinstance(op, gluon.ClusterOp)}
    return "skewed" if 1 in stages else "ordered" if stages else ""


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"causal": True, "window": 100},
        {"causal": True, "queries": 200, "keys": 500},
        {"block_M": 64},
        {"block_M": 192, "queries": 768},
        {"dtype": "bfloat16"},
        {"dim": 128},
    ],
    ids=str,
)
def test_attention_goes_to_gluon(options: dict[str, Any]) -> None:
    assert is_gluon(attention(**options))


def test_sinks_go_to_gluon() -> None:
    function = load_example("attention_sink").attention_sink.function
    kernel = tiledsl.jit(function, target="cuda:90", pass_configs={"select-emitter.backend": "gluon"}).compile(
        1, 4, 2, 512, 512, 64, 0
    )
    assert is_gluon(kernel)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, ""),
        ({"dim": 128, "block_N": 64}, ""),
        ({"dim": 96}, ""),
        ({"dim": 192, "block_N": 64}, ""),
        ({"dim": 192, "value_dim": 128}, ""),
        ({"dim": 256, "block_N": 64}, ""),
        ({"dim": 128, "block_M": 64, "block_N": 64, "threads": 128}, ""),  # one block on each multiprocessor
        ({"dim": 128, "block_M": 64, "block_N": 64, "threads": 128, "heads": 64}, "of Triton's speed"),  # or several
        ({"dim": 32, "heads": 64}, "of Triton's speed"),
        ({"dim": 256}, "two stages need"),
    ],
    ids=str,
)
def test_the_default_is_gluon_where_it_is_faster(
    options: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    function = load_example("attention").attention.function
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "queries": 512, "keys": 512, "dim": 64, **options}
    with caplog.at_level(logging.DEBUG, "tiledsl"):
        kernel = tiledsl.jit(function, target="cuda:90").compile(**sizes)
    told = [each for each in caplog.records if "not in Gluon" in each.getMessage()]
    assert is_gluon(kernel) == (not reason)
    assert [each.levelno for each in told] == [logging.DEBUG] * bool(reason)
    assert all(reason in each.getMessage() for each in told)
    assert [each for each in kernel.remarks if "not in Gluon" in each] == [each.getMessage() for each in told]


@pytest.mark.parametrize("target", ["cuda:80", "interpret"])
def test_other_devices_hear_nothing_of_gluon(target: str) -> None:
    kernel = attention("auto", target)
    assert not is_gluon(kernel) and not any("Gluon" in each for each in kernel.remarks)


@pytest.mark.parametrize(("queries", "keys", "causal"), [(128, 128, True), (64, 100, False), (256, 200, False)])
def test_loops_of_one_tile(queries: int, keys: int, causal: bool) -> None:
    """They stay loops for Gluon alone."""
    options = {"queries": queries, "keys": keys, "causal": causal}
    assert is_gluon(attention("auto", **options))
    triton = attention("triton", **options)
    assert "scf.for" in triton.ir("promote-buffers") and "scf.for" not in triton.ir("select-emitter")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"block_M": 256}, "256 rows are not 64, 128 or 192"),
        ({"block_M": 32}, "32 rows are not a multiple of 64"),
        (
            {"dim": 256, "block_M": 64, "block_N": 256},
            "one group of warps: a stage needs 328704 bytes of shared memory of",
        ),
        ({"dim": 128, "block_M": 192}, "tiles need 160 registers a thread of 140"),
        ({"target": "cuda:80"}, "it is compiled for cuda:80"),
        ({"target": "cuda:100"}, "it is compiled for cuda:100"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_written_in_triton(
    options: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "tiledsl"):
        asked = attention(**options)
        told = [each for each in caplog.records if "not in Gluon" in each.getMessage()]
        automatic = attention("auto", **options)
    assert [each.levelno for each in told] == [logging.WARNING]
    assert reason in told[0].getMessage()
    assert asked.source == automatic.source == attention("triton", **options).source
    assert [each.levelno for each in caplog.records if "not in Gluon" in each.getMessage()][1:] == [logging.DEBUG]


@pytest.mark.parametrize(("requested", "stages"), [(1, 2), (2, 2), (5, 2)])
def test_loops_have_the_stages_of_the_plan(requested: int, stages: int) -> None:
    """Two at least, and no more than shared memory has room for."""
    kernel = attention(dim=128, num_stages=requested)
    loops = [op for op in parse_program(kernel.ir("select-emitter")).root.walk() if isinstance(op, scf.ForOp)]
    assert is_gluon(kernel) and [op.num_stages for op in loops] == [stages]


@pytest.mark.parametrize(("sizes", "divides"), [({"dim": 96}, True), ({"dim": 64, "value_dim": 96}, False)])
def test_columns_are_divided_and_rows_are_not(sizes: dict[str, int], divides: bool) -> None:
    """192 rows are three consumers' share; 96 columns are 64 and 32, of which each has a product and a ring."""
    kernel = attention(block_M=192, block_N=64, queries=768, **sizes)
    assert is_gluon(kernel)
    products = [op for op in parse_program(kernel.ir("select-emitter")).root.walk() if isinstance(op, tensor.DotOp)]
    assert [op.out.shape for op in products] == [(64, 64)] * (1 + divides) + [(64, 64), (64, 32)]
    allowed = SelectEmitter().allowances(parse_program(kernel.ir("promote-buffers"), Target.parse("cuda:90")))
    assert ("reassociation" in allowed) == divides


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_stored_takes_the_place_of_queries_where_memory_is_short(dtype: str) -> None:
    wide = attention(dim=256, block_N=64, dtype=dtype)
    assert is_gluon(wide) and _rings_of_stores(wide) == ["item"]
    assert _rings_of_stores(attention(dim=128)) == ["results"]


def _rings_of_stores(kernel: tiledsl.Kernel) -> list[str]:
    ops = parse_program(kernel.ir("schedule-loops")).root.walk()
    return [op.ring for op in ops if isinstance(op, triton.StoreBlockOp)]


def test_masks_that_scores_are_added_to() -> None:
    """As other attention kernels start their first product."""
    builder = kernels.attention.function
    for fast in (True, False):
        options = {"select-emitter.backend": "gluon", "select-emitter.fast_math": fast}
        kernel = tiledsl.jit(builder, target="cuda:90", pass_configs=options).compile(
            1, 2, 512, 64, True, 128, 128, 2, 256
        )
        assert form(kernel) == "skewed"


def test_auto_takes_gluon_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_gluon(attention("auto"))
    for version, reason in (((3, 5), "3.5 has no Gluon"), ((3, 99), "3.99 is not known"), (None, "not installed")):
        monkeypatch.setattr(support, "version", lambda version=version: version)
        kernel = attention("auto")
        assert not is_gluon(kernel) and reason in kernel.remarks[0]


@pytest.mark.parametrize(
    ("options", "fast_math", "expected"),
    [
        ({"dim": 128}, True, "lazy"),
        ({"dim": 128, "causal": True, "block_N": 64}, True, "lazy"),
        ({"dim": 128}, False, "late"),  # what is lazy may differ in its last bit
        ({}, True, "each"),
        ({"block_M": 192, "queries": 768}, True, "lazy"),
        ({"block_M": 192, "queries": 768}, False, "each"),
        ({"dim": 256, "block_N": 64}, True, "lazy"),
    ],
    ids=str,
)
def test_when_accumulators_are_rescaled(options: dict[str, Any], fast_math: bool, expected: str) -> None:
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "queries": 512, "keys": 512, "dim": 64, **options}
    function = load_example("attention").attention.function
    passes = {"select-emitter.backend": "gluon", "select-emitter.fast_math": fast_math}
    kernels = {}
    for chosen in ("auto", "each", "late", "lazy"):
        configs = {**passes, "select-emitter.rescale": chosen}
        kernels[chosen] = tiledsl.jit(function, target="cuda:90", pass_configs=configs).compile(**sizes)
    assert [name for name, kernel in kernels.items() if kernel.source == kernels["auto"].source] == ["auto", expected]
    for name, rescaled, stage in (("each", [], 0), ("late", [False], 1), ("lazy", [True], 1)):
        ops = list(parse_program(kernels[name].ir("schedule-loops")).root.walk())
        assert [op.skip for op in ops if isinstance(op, gluon.RescaleOp)] == rescaled
        assert [op.stage for op in ops if isinstance(op, gluon.ClusterOp)] == [0, 0, stage, 1]
        (loop,) = [op for op in ops if isinstance(op, scf.ForOp)]
        assert len(loop.inits) == (4 if name == "lazy" else 3)  # lazy: the maximum that factors are of, too


@pytest.mark.parametrize(
    ("options", "twice", "adds", "tried"),
    [
        ({}, False, [False, False], ["rows"]),
        ({"backend": "gluon"}, False, [False, False], ["rows", "one"]),
        ({"backend": "gluon"}, True, [False, False], ["one", "rows"]),
        ({}, True, [False, False], ["one", "rows"]),
        ({}, False, [False, True], ["one", "rows"]),  # a loop that adds to memory
        ({}, False, [], ["rows"]),
        ({"consumers": "rows"}, True, [], ["rows"]),
        ({"consumers": "one"}, False, [], ["one"]),
        ({"consumers": "one"}, True, [], ["one"]),
        ({"consumers": "apart", "backend": "gluon"}, False, [], ["apart"]),
        ({"consumers": "alternate"}, False, [], ["alternate"]),
    ],
)
@pytest.mark.parametrize("wide", [True, False])
def test_which_consumers_are_tried_first(
    options: dict[str, Any],
    twice: bool,
    adds: list[bool],
    tried: list[str],
    wide: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those with rows of their own, or one group of warps, which are two that take turns where sums are wide; if none
    can be, both reasons are told."""
    asked: list[str] = []

    def refused(self: SelectEmitter, kernel: object, way: str, shared_bytes: int) -> None:
        asked.append(way)
        raise NotRecognised("of rows" if way == "rows" else f"of {way}")

    loops = SimpleNamespace(loops=[SimpleNamespace(adds=each) for each in adds])
    monkeypatch.setattr(SelectEmitter, "_prepared", refused)
    monkeypatch.setattr("tiledsl.passes.select_emitter.is_computed_twice", lambda body, warps: twice and warps == 8)
    monkeypatch.setattr("tiledsl.passes.select_emitter.tile_loops", lambda body: loops)
    monkeypatch.setattr("tiledsl.passes.select_emitter.is_wide", lambda body: wide)
    monkeypatch.setattr(support, "missing", lambda: "")
    given: Any = SimpleNamespace(target=Target("cuda", 90)), SimpleNamespace(body=None, threads=256)
    with pytest.raises(NotRecognised) as raised:
        SelectEmitter(**options)._convert(*given)
    first = ["alternate"] if wide and tried[0] == "one" and "consumers" not in options else []
    assert asked == [*first, *tried]
    both = "of rows; nor by one group of warps: of one"
    assert str(raised.value) == (f"of {tried[0]}" if len(tried) == 1 else both)


def test_unknown_backend() -> None:
    with pytest.raises(TileError, match=r"select-emitter.backend is 'cutlass'; it must be one of auto, triton, gluon"):
        attention("cutlass")


def test_unknown_rescaling() -> None:
    options = {"select-emitter.rescale": "never"}
    function = load_example("attention").attention.function
    with pytest.raises(TileError, match=r"select-emitter.rescale is 'never'; it must be one of auto, each, late, lazy"):
        tiledsl.jit(function, target="cuda:90", pass_configs=options).compile(1, 2, 1, 512, 512, 64)


def two_products(kind: str) -> Any:
    """A loop of two products with something between them that a Gluon consumer cannot do."""

    @T.prim_func
    def program(
        Q: T.Tensor((512, 64), "float16"),
        K: T.Tensor((512, 64), "float16"),
        V: T.Tensor((512, 64), "float16"),
        O: T.Tensor((512, 64), "float16"),
    ):
        with T.Kernel(4, threads=256) as bx:
            q = T.alloc_shared((128, 64), "float16")
            k = T.alloc_shared((128, 64), "float16")
            v = T.alloc_shared((128, 64), "float16")
            scores = T.alloc_fragment((128, 128), "float32")
            column = T.alloc_fragment((128,), "float32")
            half = T.alloc_fragment((128,), "float16")
            weights = T.alloc_fragment((128, 128), "float16")
            acc = T.alloc_fragment((128, 64), "float32")
            T.copy(Q[bx * 128, 0], q)
            T.clear(acc)
            if kind in ("same buffers", "other buffers"):
                for tile in T.Pipelined(2, num_stages=2):
                    T.copy((K if kind == "same buffers" else V)[tile * 128, 0], k)
                    T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                    T.copy(scores, weights)
                    T.copy(V[tile * 128, 0], v)
                    T.gemm(weights, v, acc)
            for tile in T.Pipelined(4, num_stages=2):
                T.copy(K[tile * 128, 0], k)
                T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                if kind == "columns":
                    T.reduce_max(scores, column, dim=0)
                    for i, j in T.Parallel(128, 128):
                        scores[i, j] -= column[j]
                if kind == "three":
                    T.gemm(q, k, scores, transpose_B=True)
                T.copy(scores, weights)
                if kind == "narrow":
                    T.reduce_max(weights, half, dim=1)
                    for i, j in T.Parallel(128, 128):
                        weights[i, j] -= half[i]
                T.copy(V[tile * 128, 0], v)
                T.gemm(weights, v, acc)
            T.copy(acc, O[bx * 128, 0])

    return program


@pytest.mark.parametrize(
    ("kind", "written", "reason"),
    [
        ("rows", "skewed", ""),
        ("columns", "", "a reduction over rows"),
        ("three", "skewed", ""),
        ("narrow", "", "a reduction by max of float16"),
        ("same buffers", "skewed", ""),
        ("other buffers", "skewed", ""),
    ],
)
def test_what_stands_between_the_products(
    kind: str, written: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tiledsl"):
        kernel = tiledsl.compile(two_products(kind), target="cuda:90", pass_configs={"select-emitter.backend": "gluon"})
    messages = [each.getMessage() for each in caplog.records if "not in Gluon" in each.getMessage()]
    assert len(messages) == (1 if reason else 0)
    assert all(reason in each and "test_select_emitter.py:" in each for each in messages)
    assert form(kernel) == written


def remarks(options: dict[str, Any], backend: str = "gluon") -> tuple[str, ...]:
    """Of attention under options of passes, and launch options as a configuration gives them."""
    function = load_example("attention").attention.function
    configs = {"select-emitter.backend": backend, **options}
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "queries": 512, "keys": 512, "dim": 64}
    kernel = tiledsl.jit(function, target="cuda:90", pass_configs=configs).compile(**sizes)
    assert is_gluon(kernel) == (backend == "gluon")
    return kernel.remarks


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("select-access.mode", "pointer", "where tiles are copied by TMA"),
        ("select-access.operands", "Q=pointer", "where tiles are copied by TMA"),
        ("pipeline-loops.stages", 4, "where select-emitter.stages is the number of tiles in flight"),
        ("pipeline-loops.streamed", "evict_first", "where tiles are copied by TMA"),
        ("map-grid.persistent", 0, "where select-emitter.persistent says it"),
        ("peel-loops.mode", "all", "where only the tiles that need it are masked"),
        ("lower-to-triton.num_warps", 8, "where 64 rows of a block have four warps"),
        ("lower-to-triton.num_stages", 2, "where T.Pipelined or select-emitter.stages"),
        ("lower-to-triton.num_ctas", 2, "where blocks form no clusters"),
        ("lower-to-triton.maxnreg", 128, "where registers are shared out"),
    ],
)
def test_options_without_effect_in_gluon_are_told(
    option: str, value: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    logs._noted.clear()
    with caplog.at_level(logging.INFO, "tiledsl"):
        (remark,) = remarks({option: value})
        assert remarks({option: value}) == (remark,)
    assert remark.startswith(f"{option}={value!r} has no effect in Gluon, {reason}")
    assert remark.endswith('; it needs select-emitter.backend="triton"')
    assert [each.message for each in caplog.records if "no effect" in each.message] == [remark]


def test_options_with_effect_are_not_remarked_on() -> None:
    assert remarks({"select-emitter.stages": 3, "select-emitter.rescale": "late", "map-grid.group_m": 4}) == ()
    assert remarks({"pipeline-loops.stages": 0, "map-grid.persistent": -1, "select-access.mode": "auto"}) == ()
    used = {"select-access.mode": "pointer", "pipeline-loops.stages": 3, "lower-to-triton.maxnreg": 128}
    assert remarks(used, "triton") == ()
    assert remarks({"select-emitter.rescale": "each", "select-emitter.overlap": False}, "triton") == ()


def test_options_of_one_pass_are_told_in_their_order() -> None:
    told = remarks({"select-access.operands": "K=tma", "select-access.mode": "tma"})
    assert [each.partition("=")[0] for each in told] == ["select-access.mode", "select-access.operands"]


def test_options_of_gluon_without_effect_in_triton_are_told() -> None:
    stages, rescale = remarks({"select-emitter.stages": 3, "select-emitter.rescale": "lazy"}, "triton")
    assert stages.startswith("select-emitter.stages=3 has no effect in Triton, where T.Pipelined or pipeline-loops")
    assert rescale.startswith("select-emitter.rescale='lazy' has no effect in Triton, where")
    gluon = {"select-emitter.backend": "gluon", "select-emitter.rescale": "lazy"}
    sizes = {"M": 512, "N": 512, "K": 512, "block_M": 128, "block_N": 128, "block_K": 64}
    kernel = tiledsl.jit(matmul.function, target="cuda:90", pass_configs=gluon).compile(**sizes)
    assert is_gluon(kernel)
    assert kernel.remarks == ("select-emitter.rescale='lazy' has no effect in Gluon, for a loop without a softmax",)


def test_launch_options_of_the_program_are_told_too() -> None:
    @T.prim_func
    def product(A: T.Tensor((128, 512), "float16"), B: T.Tensor((512, 128), "float16"), C: T.Tensor((128, 128), F)):
        with T.Kernel(1, threads=256, maxnreg=128) as _:
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 128), "float16")
            total = T.alloc_fragment((128, 128), F)
            T.clear(total)
            for k in T.Pipelined(8, num_stages=2):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, total)
            T.copy(total, C)

    kernel = tiledsl.compile(product, target="cuda:90", pass_configs={"select-emitter.backend": "gluon"})
    assert is_gluon(kernel)
    assert [remark.split(",")[0] for remark in kernel.remarks] == ["maxnreg=128 has no effect in Gluon"]
    assert not any("no effect" in remark for remark in tiledsl.compile(product, target="cuda:90").remarks)


@pytest.mark.parametrize(
    ("type", "is_box"),
    [
        ("64*128*float16, global", True), ("64*8*float16, global", True), ("64*4*float16, global", False),
        ("64*128*float16, global, strides(256, 1)", False), ("64*128*float16, global, strides(128, 1)", False),
        ("64*m*float16, global", False), ("2*2*2*2*64*128*float16, global", False), ("128*float16, global", False),
        ("2*64*128*float16, global", True), ("2*2*64*128*float16, global", True),
        ("2*2*2*64*128*float16, global", True), ("64*128*float16, shared", False),
    ],
)  # fmt: skip
def test_which_buffers_tma_moves_boxes_of(type: str, is_box: bool) -> None:
    leading = "%bx, " * (type.split(" ")[0].count("*") - 2)
    places = "%j" if leading == "" and type.startswith("128") else f"{leading}%i, %j"
    text = f"""
    tile.func {{sym_name = "test", parameters = ("A",), symbols = ("m",), symbol_sources = ("A.1",)}}
        (%A: buffer<{type}>, %m: int32) {{
      %grid = arith.constant {{value = 2}} : int32
      tile.kernel [%grid] (%bx: int32) {{
        %i = tensor.iota {{axis = 0}} : tensor<16x1xint32>
        %j = tensor.iota {{axis = 1}} : tensor<1x8xint32>
        %x = tile.load %A[{places}] : tensor<{"1" if places == "%j" else "16"}x8xfloat16>
        scf.yield
      }}
      scf.yield
    }}"""
    (load,) = (op for op in parse_program(text).root.walk() if isinstance(op, tile.LoadOp))
    with contextlib.nullcontext() if is_box else pytest.raises(NotRecognised):
        _box_of(load, load.out.type)


@pytest.mark.parametrize(
    ("places", "type"), [("%bx, %bx", "float16"), ("%bx, %line", "tensor<8xfloat16>"), ("%i, %j, %k", "")]
)
def test_a_box_has_two_dimensions(places: str, type: str) -> None:
    made = ir_program(
        f"""%line = tensor.iota {{axis = 0}} : tensor<8xint32>
        %i = tensor.iota {{axis = 0}} : tensor<2x1x1xint32>
        %j = tensor.iota {{axis = 1}} : tensor<1x2x1xint32>
        %k = tensor.iota {{axis = 2}} : tensor<1x1x8xint32>
        %x = tile.load %{"A" if type else "B"}[{places}] : {type or "tensor<2x2x8xfloat16>"}""",
        parameters="A: 64*64*float16, B: 64*64*64*float16",
    )
    (load,) = (op for op in made.root.walk() if isinstance(op, tile.LoadOp))
    with pytest.raises(NotRecognised, match="is not a box"):
        _box_of(load, load.out.type)


@pytest.mark.parametrize(
    ("places", "is_box"),
    [
        ("%bx, %i, %j", True),
        ("%i, %bx, %j", True),
        ("%i, %j, %bx", False),
        ("%bx, %j, %i", False),
        ("%bx, %bx, %i", False),
    ],
)
def test_a_box_walks_along_the_last_dimension_and_one_before(places: str, is_box: bool) -> None:
    made = ir_program(
        f"""%i = tensor.iota {{axis = 0}} : tensor<16x1xint32>
        %j = tensor.iota {{axis = 1}} : tensor<1x8xint32>
        %x = tile.load %A[{places}] : tensor<16x{8 if "%j" in places else 1}xfloat16>""",
        parameters="A: 64*64*64*float16",
    )
    (load,) = (op for op in made.root.walk() if isinstance(op, tile.LoadOp))
    with contextlib.nullcontext() if is_box else pytest.raises(NotRecognised):
        assert _box_of(load, load.out.type)[1] == tuple(n for n, each in enumerate(places.split(", ")) if each != "%bx")


@pytest.mark.parametrize(
    ("value", "left", "free", "stays", "ring"),
    [
        ("16x8", 256, False, 0, ""),
        ("16x8", 255, False, None, ""),
        ("16x8", 255, True, 255, "item"),
        ("16x8", 256, True, 0, ""),
        ("1x8", 256, False, None, ""),  # the same row for all of them
    ],
)
def test_a_result_is_stored_as_a_box_where_it_has_a_place(
    value: str, left: int, free: bool, stays: int | None, ring: str
) -> None:
    made = ir_program(
        f"""%i = tensor.iota {{axis = 0}} : tensor<16x1xint32>
        %j = tensor.iota {{axis = 1}} : tensor<1x8xint32>
        %x = arith.constant {{value = 1.0}} : tensor<{value}xfloat16>
        tile.store %x, %A[%i, %j]""",
        parameters="A: 64*64*float16",
    )
    (store,) = (op for op in made.root.walk() if isinstance(op, tile.StoreOp))
    places = [((16, 8), "float16")] * free
    assert _store_beside(store, places, left) == (left if stays is None else stays)
    boxes = [op.ring for op in made.root.walk() if isinstance(op, tile.StoreBlockOp)]
    assert boxes == ([] if stays is None else [ring]) and len(places) == (free and not ring)


@pytest.mark.parametrize(("mask", "left", "rest"), [("", 512, 0), ("", 511, None), (" mask=%m", 512, None)])
def test_a_whole_tile_is_added_as_a_box_where_it_has_a_place(mask: str, left: int, rest: int | None) -> None:
    made = ir_program(
        f"""%i = tensor.iota {{axis = 0}} : tensor<16x1xint32>
        %j = tensor.iota {{axis = 1}} : tensor<1x8xint32>
        %m = arith.cmp %i, %c3 {{predicate = "lt"}} : tensor<16x1xbool>
        %x = arith.constant {{value = 1.0}} : tensor<16x8xfloat32>
        %y = tile.atomic %x, %A[%i, %j]{mask} {{kind = "add"}} : tensor<16x8xfloat32>""",
        parameters="A: 64*64*float32",
    )
    (op,) = (op for op in made.root.walk() if isinstance(op, tile.AtomicOp))
    added: list[tile.StoreBlockOp] = []
    assert _add_by_box(op, added, left) == (left if rest is None else rest)
    assert added == [op for op in made.root.walk() if isinstance(op, tile.StoreBlockOp)]
    found = [op.name for op in made.root.walk() if op.name in ("tile.atomic", "tile.store_block")]
    assert found == ["tile.atomic" if rest is None else "tile.store_block"]


MASKED = """
%i = tensor.iota {axis = 0} : tensor<16x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x16xint32>
%x = tile.load %A[%i, %j] : tensor<16x16xfloat32>
%seen = arith.cmp %j, %i {predicate = "le"} : tensor<16x16xbool>
%none = arith.constant {value = 0.0} : float32
%low = arith.constant {value = -inf} : float32
%mask = arith.select %seen, %none, %low : tensor<16x16xfloat32>
%d = tensor.dot %x, %x, %mask : tensor<16x16xfloat32>
"""


@pytest.mark.parametrize(
    ("options", "target", "named"),
    [
        ({}, Target("cuda", 90), {"reciprocal", "rescaling"}),
        ({"fast_math": False}, Target("cuda", 90), {"rescaling"}),
        ({"rescale": "lazy"}, Target("cuda", 90), {"reciprocal", "rescaling"}),
        ({"rescale": "each"}, Target("cuda", 90), {"reciprocal"}),
        ({"rescale": "late", "fast_math": False}, Target("cuda", 90), set()),
        ({"backend": "gluon"}, Target("cuda", 90), {"reciprocal", "rescaling"}),
        ({"backend": "triton"}, Target("cuda", 90), set()),
        ({}, Target("cuda", 80), set()),
        ({}, Target("interpret"), set()),
    ],
)
def test_what_a_certificate_allows_for(options: dict[str, Any], target: Target, named: set[str]) -> None:
    program = ir_program("", target=target)
    assert SelectEmitter(**options).allowances(program) == named
    masked = ir_program(MASKED, target=target)
    assert SelectEmitter(**options).allowances(masked) == named | ({"masking"} if "reciprocal" in named else set())


WIDE, COLUMN, ROWS = "tensor<128x64xfloat32>", "tensor<128x1xfloat32>", "tensor<128xfloat32>"
ATTENTION = f"""
%i = tensor.iota {{axis = 0}} : tensor<128x1xint32>
%p = tensor.iota {{axis = 0}} : tensor<64x1xint32>
%j = tensor.iota {{axis = 1}} : tensor<1x64xint32>
%first = arith.mul %bx, %c128 : int32
%rows = arith.add %first, %i : tensor<128x1xint32>
%zero = arith.constant {{value = 0.0}} : {WIDE}
%none = arith.constant {{value = 0.0}} : {ROWS}
%low = arith.constant {{value = -inf}} : {ROWS}
%q = tile.load %Q[%rows, %j] : tensor<128x64xfloat16>
%o, %m, %l = scf.for %c0, %c8, %c1[%zero, %low, %none] {{num_stages = 3}} : {WIDE}, {ROWS}, {ROWS}
    (%k: int32, %acc: {WIDE}, %top: {ROWS}, %sum: {ROWS}) {{
  %ks = arith.mul %k, %c64 : int32
  %ps = arith.add %p, %ks : tensor<64x1xint32>
  %key = tile.load %K[%ps, %j] : tensor<64x64xfloat16>
  %kt = tensor.transpose %key {{permutation = (1, 0)}} : tensor<64x64xfloat16>
  %s = tensor.dot %q, %kt, %zero : {WIDE}
  %most = tensor.reduce %s {{kind = "max", axis = 1}} : {ROWS}
  %new = arith.max %top, %most : {ROWS}
  %newc = tensor.reshape %new : {COLUMN}
  %apart = arith.sub %s, %newc : {WIDE}
  %e = arith.math [%apart] {{function = "exp2"}} : {WIDE}
  %fall = arith.sub %top, %new : {ROWS}
  %f = arith.math [%fall] {{function = "exp2"}} : {ROWS}
  %fc = tensor.reshape %f : {COLUMN}
  %old = arith.mul %acc, %fc : {WIDE}
  %part = tensor.reduce %e {{kind = "sum", axis = 1}} : {ROWS}
  %less = arith.mul %sum, %f : {ROWS}
  %next = arith.add %less, %part : {ROWS}
  %w = arith.cast %e : tensor<128x64xfloat16>
  %v = tile.load %V[%ps, %j] : tensor<64x64xfloat16>
  %d = tensor.dot %w, %v, %old : {WIDE}
  scf.yield [%d, %new, %next]
}}
%lc = tensor.reshape %l : {COLUMN}
%out = arith.div %o, %lc : {WIDE}
%h = arith.cast %out : tensor<128x64xfloat16>
tile.store %h, %O[%rows, %j]
"""
OPERANDS = "Q: 1024*64*float16, K: 512*64*float16, V: 512*64*float16, O: 1024*64*float16"


@pytest.mark.parametrize(
    ("options", "has", "lacks"),
    [
        ({}, ["{num_stages = 3}", "arith.mul %o, %inverse", "%q = tile.load_block %Q[", "tile.store_block %h"],
         ["arith.div %o", "gluon.rescale", "tile.load "]),
        ({"fast_math": False}, ["%out = arith.div %o, %lc"], ["%inverse"]),
        ({"stages": 5}, ["{num_stages = 5}"], []),
        ({"rescale": "each"}, [], ["gluon.rescale"]),
        ({"rescale": "late"}, ["gluon.rescale"], ["skip = true"]),
        ({"rescale": "lazy"}, ["gluon.rescale", "skip = true", "arith.mul %o, %inverse"], ["arith.div %o"]),
        ({"backend": "auto"}, ["%q = tile.load_block"], []),
        ({"backend": "triton"}, ["%q = tile.load "], ["load_block", "%part = gluon.warp_group_id"]),
    ],
    ids=str,
)  # fmt: skip
def test_attention_as_text(options: dict[str, Any], has: list[str], lacks: list[str]) -> None:
    made = ir_program(ATTENTION, parameters=OPERANDS, target=Target("cuda", 90))
    SelectEmitter(**{"backend": "gluon", **options}).run(made)
    verify(made.root)
    text = "\n".join(body_lines(made))
    assert all(each in text for each in has) and not any(each in text for each in lacks), text
    gluon_rows = re.search(r"%part = gluon.warp_group_id {parts = 2}", text) is not None
    assert gluon_rows is (options.get("backend") != "triton")


THREE = [
    ("128", "64"), ("%most =", "%s2 = tensor.dot %q, %kt, %s : tensor<64x64xfloat32> %most ="),
    ("reduce %s ", "reduce %s2 "), ("sub %s,", "sub %s2,"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "options", "has", "lacks"),
    [
        ([], {}, ["{num_stages = 3}", "skip = true", "arith.mul %o, %inverse", "tile.store_block %h"], ["div %o"]),
        ([], {"stages": 4}, ["{num_stages = 4}"], []),
        ([], {"rescale": "each"}, ["arith.mul %o, %inverse", "%old = arith.mul %acc, %fc"], ["gluon.rescale"]),
        ([], {"rescale": "late"}, ["arith.mul %o, %inverse", "%old = arith.mul %acc, %fc"], ["gluon.rescale"]),
        ([], {"fast_math": False}, ["%out = arith.div %o, %lc", "%old = arith.mul %acc, %fc"], ["gluon.rescale"]),
        ([], {"fast_math": False, "rescale": "lazy"}, ["%out = arith.div %o_1, %lc", "gluon.rescale"], []),
        ([("tensor.transpose %key", "tensor.transpose %v"), ("%v = tile.load %V[%ps, %j] : tensor<64x64xfloat16>", ""),
          ("%kt =", "%v = tile.load %V[%ps, %j] : tensor<64x64xfloat16> %kt =")], {},
         ["%v = tile.load_block %V[%ks, %c0] {axes = (0, 1)}"], ["load_block %K["]),
    ],
    ids=str,
)  # fmt: skip
def test_loops_in_order_as_text(
    changes: list[tuple[str, str]], options: dict[str, Any], has: list[str], lacks: list[str]
) -> None:
    """Three products of 64 rows, which one group of eight warps computes."""
    text = ATTENTION
    for before, after in [*THREE, *changes]:
        assert before in text, before
        text = text.replace(before, after)
    made = ir_program(text, parameters=OPERANDS, target=Target("cuda", 90))
    kernel_of(made).set_attribute("threads", 256)
    SelectEmitter(**{"backend": "gluon", **options}).run(made)
    verify(made.root)
    lines = body_lines(made)
    found = "\n".join(lines)
    assert all(each in found for each in has) and not any(each in found for each in lacks), found
    assert "%q = tile.load_block %Q[%first, %c0] {axes = (0, 1)} : tensor<64x64xfloat16>" in lines


@pytest.mark.parametrize(
    ("option", "choices"),
    [("backend", "auto, triton, gluon"), ("rescale", "auto, each, late, lazy"), ("consumers", "auto, .*")],
)
def test_choices_are_checked_by_the_pass_itself(option: str, choices: str) -> None:
    with pytest.raises(TileError, match=rf"^select-emitter.{option} is 'none'; it must be one of {choices}"):
        SelectEmitter(**{option: "none"}).run(ir_program(""))


ROW_LOADS = """
%i = tensor.iota {axis = 0} : tensor<16x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x64xint32>
%flat = tensor.iota {axis = 0} : tensor<64xint32>
%m = arith.cmp %j, %c3 {predicate = "lt"} : tensor<1x64xbool>
scf.for %c0, %c8, %c1 (%k: int32) {
  %x = tile.load %A[%k, %j] : tensor<1x64xfloat32>
  scf.yield
}"""


@pytest.mark.parametrize(
    ("load", "left", "rest"),
    [
        ("%A[%k, %j] : tensor<1x64xfloat32>", 512, 0),
        ("%A[%k, %j] : tensor<1x64xfloat32>", 2000, 1488),
        ("%A[%k, %j] : tensor<1x64xfloat32>", 511, None),
        ("%A[%k, %j] mask=%m : tensor<1x64xfloat32>", 512, None),
        ("%A[%k, %j] mask=%m other=%f : tensor<1x64xfloat32>", 512, None),
        ("%A[%i, %j] : tensor<16x64xfloat32>", 10000, None),
        ("%A[%i, %k] : tensor<16x1xfloat32>", 10000, None),
        ("%A[%k, %flat] : tensor<64xfloat32>", 10000, None),
        ("%B[%k, %j] : tensor<1x64xfloat32>", 512, None),  # whose rows are no multiples of 16 bytes
    ],
)
@pytest.mark.parametrize(("tiles", "has_place"), [(2, False), (1, True), (1, False)])
def test_rows_are_loaded_by_boxes_where_they_have_a_place(
    load: str, left: int, rest: int | None, tiles: int, has_place: bool
) -> None:
    """For two stages; in a loop of two tiles, or where the row is not needed at once."""
    text = ROW_LOADS.replace("%A[%k, %j] : tensor<1x64xfloat32>", load)
    made = ir_program(text, parameters="A: 64*64*float32, B: 64*65*float32, f: float32")
    (loop,) = (op for op in made.root.walk() if isinstance(op, scf.ForOp))
    of = SimpleNamespace(op=loop, of_tiles=[None] * tiles, has_place=lambda op: has_place)
    moves = rest is not None and (tiles > 1 or has_place)
    assert _load_rows_by_box(of, 2, left) == (rest if moves else left)  # type: ignore[arg-type]
    assert [op.name for op in loop.body][-2] == ("tile.load_block" if moves else "tile.load")
    verify(made.root)


@pytest.mark.parametrize(
    ("indices", "walks"),
    [
        ("%at, %j", True), ("%j2, %at", True),
        ("%k, %j", True),
        ("%far, %j", True), ("%near, %j", False), ("%i, %j", False), ("%back, %j", True), ("%k, %k", True),
        ("%read, %j", False),  # by what differs from turn to turn
        ("%shifted, %j", True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("nested", [False, True])
def test_whether_each_turn_stores_to_a_place_of_its_own(indices: str, walks: bool, nested: bool) -> None:
    loop = f"""scf.for %c0, %c4, %c1 (%k: int32) {{
      %start = arith.mul %k, %c16 : int32
      %at = arith.add %start, %i : tensor<16x1xint32>
      %step = arith.mul %k, %c40 : int32
      %far = arith.add %step, %i : tensor<16x1xint32>
      %few = arith.mul %k, %c15 : int32
      %near = arith.add %few, %i : tensor<16x1xint32>
      %less = arith.mul %k, %c-16 : int32
      %back = arith.add %less, %i : tensor<16x1xint32>
      %n = tile.load %N[%k] : int32
      %read = arith.add %at, %n : tensor<16x1xint32>
      %shifted = arith.add %at, %s : tensor<16x1xint32>
      tile.store %x, %A[{indices}]
      scf.yield
    }}"""
    head = """%i = tensor.iota {axis = 0} : tensor<16x1xint32>
    %j = tensor.iota {axis = 1} : tensor<1x16xint32>
    %j2 = tensor.iota {axis = 1} : tensor<1x16xint32>
    %x = arith.constant {value = 1.0} : tensor<16x16xfloat32>\n"""
    text = f"scf.for %c0, %c2, %c1 (%l: int32) {{ {loop} scf.yield }}" if nested else loop
    if indices == "%k, %k":
        text = text.replace("store %x", "store %c1.0")
    made = ir_program(head + text, parameters="A: 64*64*float32, N: 64*int32, s: int32")
    (store,) = (op for op in made.root.walk() if isinstance(op, tile.StoreOp))
    (inner,) = (op for op in made.root.walk() if isinstance(op, scf.ForOp) and store.parent is op.body)
    assert _walks_on(store, inner) is (walks and not nested)


CAUSAL = [
    ("%zero = arith", "%nought = arith.constant {value = 0.0} : float32\n"
     "%under = arith.constant {value = -inf} : float32\n%zero = arith"),
    ("%s = tensor.dot %q, %kt, %zero", "%at = arith.add %j, %ks : tensor<1x64xint32>\n"
     '%seen = arith.cmp %at, %rows {predicate = "le"} : tensor<128x64xbool>\n'
     f"%mask = arith.select %seen, %nought, %under : {WIDE}\n%s = tensor.dot %q, %kt, %mask"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("three", "options", "has", "lacks"),
    [
        (False, {}, ["%seen = arith.cmp %j,", "arith.cmp %k, %full", "= arith.select %seen_1, %s"], ["%mask"]),
        (False, {"fast_math": False}, ["%seen = arith.cmp %j,", "%s = tensor.dot %q, %kt, %mask"], []),
        (True, {}, ["%seen = arith.cmp %at, %rows", "%s = tensor.dot %q, %kt, %mask"], []),
    ],
)
def test_masks_of_scores_as_text(three: bool, options: dict[str, Any], has: list[str], lacks: list[str]) -> None:
    """Columns are compared with a number for each row, and masks come behind products, where consumers divide rows."""
    text = ATTENTION
    for before, after in [*CAUSAL, *(THREE if three else [])]:
        assert before in text, before
        text = text.replace(before, after)
    made = ir_program(text, parameters=OPERANDS, target=Target("cuda", 90))
    if three:
        kernel_of(made).set_attribute("threads", 256)
    SelectEmitter(**{"backend": "gluon", **options}).run(made)
    verify(made.root)
    found = "\n".join(body_lines(made))
    assert all(each in found for each in has) and not any(each in found for each in lacks), found
    assert "load_block" in found
