"""select-emitter: which programs go to Gluon, what the others are told, and that they stay as they were."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from benchmarks.programs.gemm import matmul
from tests.autotune import kernels
from tests.passes.ir_cases import program as ir_program
from tests.support.example_modules import load_example
from tiledsl import logs
from tiledsl.analysis.gluon import support
from tiledsl.dialects import gluon, scf, tensor, triton
from tiledsl.errors import TileError
from tiledsl.ir.pass_manager import parse_program
from tiledsl.passes.select_emitter import (
    NotRecognised,
    SelectEmitter,
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
    if wide and "consumers" not in options:
        tried = ["alternate", "one", "rows"]
    assert asked == tried
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


@pytest.mark.parametrize(
    ("option", "choices"),
    [("backend", "auto, triton, gluon"), ("rescale", "auto, each, late, lazy"), ("consumers", "auto, .*")],
)
def test_choices_are_checked_by_the_pass_itself(option: str, choices: str) -> None:
    with pytest.raises(TileError, match=rf"^select-emitter.{option} is 'none'; it must be one of {choices}"):
        SelectEmitter(**{option: "none"}).run(ir_program(""))
