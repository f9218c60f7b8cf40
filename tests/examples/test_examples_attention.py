"""The attention programs of examples/ match torch at small ragged shapes, and compile to what one writes by hand."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tiledsl
from tests.support.example_modules import EXAMPLES, load_example
from tests.support.load_file import load_file
from tiledsl.runtime.compile import CompiledKernel, compile_kernel
from tiledsl.runtime.target import Target

HANDWRITTEN = Path(__file__).resolve().parents[2] / "benchmarks" / "handwritten"

# Beside SMALL itself, where neither the 40 queries nor the 56 keys are a multiple of the tiles.
ATTENTION: dict[str, dict[str, Any]] = {
    "ragged": {},
    "full tiles": {"queries": 32, "keys": 32, "kv_heads": 4},
    "causal": {"causal": 1},
    "causal, full tiles": {"queries": 32, "keys": 32, "causal": 1},
    "causal, square and ragged": {"queries": 41, "keys": 41, "causal": 1},
    "causal, some rows see nothing": {"queries": 56, "keys": 39, "causal": 1},
    "causal, one query": {"queries": 1, "keys": 50, "causal": 1, "kv_heads": 1},
    "causal, wide tiles of keys": {"queries": 70, "keys": 70, "causal": 1, "block_N": 32},
    "causal, high tiles of queries": {"queries": 70, "keys": 75, "causal": 1, "block_M": 32},
    "window": {"window": 13},
    "causal, window": {"causal": 1, "window": 13},
    "long window": {"window": 40, "queries": 70, "keys": 90},
    "causal, long window": {"causal": 1, "window": 45, "queries": 70, "keys": 90, "block_M": 32},
    "causal, window, some rows see nothing": {"causal": 1, "window": 20, "queries": 56, "keys": 39},
    "causal, window of one": {"causal": 1, "window": 1, "queries": 33},
    "dim is not a power of two": {"dim": 24, "causal": 1},
}
SINK: dict[str, dict[str, Any]] = {
    "ragged": {"window": 0},
    "window": {"window": 17},
    "window beyond the keys": {"window": 100, "queries": 41, "keys": 41},
    "rows that see only the sink": {"window": 0, "queries": 56, "keys": 40},
    "full tiles": {"window": 0, "queries": 32, "keys": 32, "kv_heads": 4},
}
FLOAT8: dict[str, dict[str, Any]] = {
    "full tiles": {},
    "causal": {"causal": 1},
    "causal, ragged": {"queries": 41, "keys": 56, "causal": 1},
    "ragged, one head": {"queries": 40, "keys": 50, "heads": 1, "kv_heads": 1},
}
BACKWARD: dict[str, dict[str, Any]] = {
    "ragged": {},
    "causal": {"causal": 1},
    "causal, some rows see nothing": {"causal": 1, "queries": 56, "keys": 40},
    "full tiles, one head": {"queries": 32, "keys": 32, "heads": 1, "kv_heads": 1},
    "wide tiles": {"causal": 1, "queries": 41, "keys": 41, "block_M": 32, "block_N": 32},
    "at once, ragged": {"at_once": 1},
    "at once, causal": {"at_once": 1, "causal": 1},
}
CASES = [
    pytest.param(name, options, id=f"{name}: {case}")
    for name, cases in {
        "attention": ATTENTION, "attention_sink": SINK, "attention_fp8": FLOAT8, "attention_backward": BACKWARD,
    }.items()
    for case, options in cases.items()
]  # fmt: skip


@pytest.fixture(scope="module")
def examples() -> dict[str, ModuleType]:
    return {path.stem: load_example(path.stem) for path in EXAMPLES.glob("attention*.py")}


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests interpret, on machines with a GPU too; tests/gpu runs the programs there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_matches_torch(name: str, options: dict[str, Any], examples: dict[str, ModuleType]) -> None:
    example = examples[name]
    assert 0 <= example.main(**{**example.SMALL, "batch": 1, **options}) < 0.02


def test_blocks_of_a_second_batch_are_their_own(examples: dict[str, ModuleType]) -> None:
    example = examples["attention"]
    assert example.main(**{**example.SMALL, "batch": 2, "heads": 2, "kv_heads": 1, "queries": 16, "keys": 20}) < 0.02


@pytest.mark.parametrize("name", ["attention", "attention_sink"])
def test_one_wrong_element_is_noticed(
    name: str, examples: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = examples[name]
    right = example.reference

    def wrong(*arguments: Any) -> torch.Tensor:
        result: torch.Tensor = right(*arguments)
        result.view(-1)[-1] += 0.1
        return result

    monkeypatch.setattr(example, "reference", wrong)
    with pytest.raises(AssertionError, match="1 / "):
        example.main(**{**example.SMALL, "queries": 20, "keys": 20})


@pytest.mark.parametrize("causal", [False, True])
def test_the_reference_is_attention(causal: bool, examples: dict[str, ModuleType]) -> None:
    q, k, v = (torch.randn(2, heads, 24, 16, dtype=torch.float64) for heads in (4, 2, 2))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    torch.testing.assert_close(examples["attention"].reference(q, k, v, causal), expected)


def test_pairs_are_counted(examples: dict[str, ModuleType]) -> None:
    for queries, keys, causal, window in [(5, 9, False, 0), (5, 9, True, 0), (9, 5, True, 3), (7, 7, False, 2)]:
        ones = torch.ones(1, 1, queries, 1), torch.ones(1, 1, keys, 1), torch.eye(keys)[None, None]
        weights = examples["attention"].reference(*ones, causal, window)
        assert examples["attention"].seen_pairs(queries, keys, causal, window) == int((weights > 0).sum())


# Against Triton written by hand, compiled without a GPU


def by_hand(name: str) -> ModuleType:
    return load_file(HANDWRITTEN / f"{name}.py", f"handwritten_{name}")


def instructions(kernel: CompiledKernel) -> dict[str, int]:
    """What the tensor cores, the copy engine and the exponential unit are asked to do, and waits for the first."""
    kinds = ("wgmma.mma_async", "cp.async.cg", "ex2.approx", "ld.global", "st.global")
    counts = {kind: len(re.findall(re.escape(kind), kernel.asm["ptx"])) for kind in kinds}
    sass = kernel.asm["sass"]
    # ptxas puts a wait around each wgmma of a sequence that it has to serialise.
    return {
        **counts,
        "WARPGROUP": len(re.findall(r"\bWARPGROUP\b", sass)),
        "HGMMA": len(re.findall(r"\bHGMMA\b", sass)),
    }


def compiled(builder: Any, out_idx: list[int], *arguments: Any, **options: Any) -> tuple[str, CompiledKernel]:
    pointers = {"select-emitter.backend": "triton", "select-access.mode": "pointer", "map-grid.persistent": 0}
    pointers["pipeline-loops.deepen"] = False  # as deep as by hand
    builder = tiledsl.jit(builder.function, out_idx=out_idx, target="cuda:90", pass_configs=pointers)
    kernel = builder(*arguments, **options)
    return kernel.source, next(iter(kernel.compiled.values()))


def assert_alike(ours: CompiledKernel, theirs: CompiledKernel) -> None:
    assert instructions(ours) == instructions(theirs)
    assert ours.resources.shared_bytes == theirs.resources.shared_bytes
    assert ours.resources.spills == theirs.resources.spills == 0
    assert ours.resources.registers is not None and theirs.resources.registers is not None
    assert ours.resources.registers <= theirs.resources.registers + 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("causal", "dim", "block", "warps"), [(False, 64, 64, 4), pytest.param(True, 128, 128, 8, id="causal")]
)
def test_attention_compiles_to_what_the_handwritten_kernel_does(
    causal: bool, dim: int, block: int, warps: int, examples: dict[str, ModuleType]
) -> None:
    shape = (4, 32, 8, 4096, 4096, dim)
    tiles = {"block_M": block, "block_N": block, "threads": 32 * warps}
    source, ours = compiled(examples["attention"].attention, [3, 4], *shape, causal, **tiles)
    assert "mask" not in source
    constants = {
        "HEADS": 32, "KV_HEADS": 8, "QUERIES": 4096, "KEYS": 4096, "DIM": dim, "CAUSAL": causal,
        "BLOCK_M": block, "BLOCK_N": block, "STAGES": 2,
    }  # fmt: skip
    pointers = {"Q": "*fp16", "K": "*fp16", "V": "*fp16", "O": "*fp16", "LSE": "*fp32"}
    theirs = compile_kernel(
        by_hand("attention").attention_kernel, {**pointers, "scale": "fp32"}, constants, Target.parse("cuda:90"), warps,
        attrs=pointers,
    )  # fmt: skip
    assert_alike(ours, theirs)


@pytest.mark.slow
def test_gemm_compiles_to_what_the_handwritten_kernel_does() -> None:
    size = {"M": 8192, "N": 8192, "K": 2048}
    source, ours = compiled(load_example("gemm_lazy").matmul_relu, [-1], *size.values(), 128, 256, 64)
    assert "mask" not in source
    strides = {"stride_am": 2048, "stride_ak": 1, "stride_bk": 1, "stride_bn": 2048}
    blocks = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP": 8, "STAGES": 3}
    pointers = {"A": "*fp16", "B": "*fp16", "C": "*fp16"}
    theirs = compile_kernel(
        by_hand("gemm").matmul_kernel, pointers, {**size, **strides, **blocks, "RELU": True}, Target.parse("cuda:90"),
        8, attrs=pointers,
    )  # fmt: skip
    assert_alike(ours, theirs)


def test_the_widest_backward_kernel_fits_without_spills(examples: dict[str, ModuleType]) -> None:
    _, kernel = compiled(examples["attention_backward"].key_value_gradients, [6, 7], 4, 32, 32, 4096, 4096, 128)
    assert kernel.resources.spills == 0
