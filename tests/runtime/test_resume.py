"""Kernels from the text of the IR after any pass, as it is and edited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.support.example_modules import load_example
from tiledsl.passes import default_pipeline

STAGES = ["elaborate", *dict.fromkeys(each.name for each in default_pipeline({}))]
M, N, K = 50, 40, 36


@T.prim_func
def product(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=64) as (bx, by):
        A_shared = T.alloc_shared((32, 16), "float16")
        B_shared = T.alloc_shared((16, 32), "float16")
        C_local = T.alloc_fragment((32, 32), "float32")
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, 16), num_stages=2):
            T.copy(A[by * 32, k * 16], A_shared)
            T.copy(B[k * 16, bx * 32], B_shared)
            T.gemm(A_shared, B_shared, C_local)
        for i, j in T.Parallel(32, 32):
            C_local[i, j] = C_local[i, j] * 3.0
        T.copy(C_local, C[by * 32, bx * 32])


@pytest.fixture(scope="module")
def kernel() -> tiledsl.Kernel:
    return tiledsl.compile(product, out_idx=-1, target="interpret")


@pytest.mark.parametrize("after", STAGES)
def test_every_stage_goes_on_to_the_same_kernel(kernel: tiledsl.Kernel, after: str) -> None:
    A, B = torch.randn(M, K).half(), torch.randn(K, N).half()
    resumed = tiledsl.resume(kernel.ir(after), after, target="interpret")
    assert torch.equal(resumed(A, B), kernel(A, B))
    assert resumed.ir() == tiledsl.resume(resumed.ir(), after, target="interpret").ir()
    assert [stage.name for stage in resumed.stages][-1] == "emit" and resumed.stages[-1].text == resumed.source


def test_edited_ir_is_another_kernel(kernel: tiledsl.Kernel, tmp_path: Path) -> None:
    A, B = torch.randn(M, K).half(), torch.randn(K, N).half()
    file = tmp_path / "edited.mlir"
    file.write_text(kernel.ir("promote-buffers").replace("value = 3.0", "value = 5.0"))
    edited = tiledsl.resume(file, "promote-buffers", target="interpret")
    torch.testing.assert_close(edited(A, B), kernel(A, B) / 3 * 5)


def test_all_kernels_are_compiled_wherever_they_begin() -> None:
    """Split along K there are two, of one T.Kernel; behind lower-to-triton there are launches only."""
    options = {"split-k.splits": 2}
    whole = tiledsl.compile(product, out_idx=-1, target="cuda:90", pass_configs=options)
    text = whole.ir("lower-to-triton")
    resumed = tiledsl.resume(text, "lower-to-triton", target="cuda:90")
    assert list(resumed.compiled) == list(whole.compiled) == [each.name for each in whole.module.kernels]
    assert len(resumed.compiled) == 2


@pytest.mark.parametrize(
    "after", ["select-emitter", *(pytest.param(each, marks=pytest.mark.slow) for each in ("promote-buffers", "dce"))]
)
def test_gluon_stays_gluon(after: str) -> None:
    options = {"select-emitter.backend": "gluon"}
    sizes = {"batch": 1, "heads": 2, "kv_heads": 2, "queries": 256, "keys": 256, "dim": 64}
    program = load_example("attention").attention.build(sizes)
    whole = tiledsl.compile(program, target="cuda:90", pass_configs=options)
    resumed = tiledsl.resume(whole.ir(after), after, target="cuda:90", pass_configs=options)
    assert "gluon" in whole.source and "gluon" in resumed.source
    assert resumed.asm["ptx"].count("wgmma.mma_async") == whole.asm["ptx"].count("wgmma.mma_async") > 0


@pytest.mark.parametrize(
    ("text", "after", "message"),
    [
        ("nowhere.mlir", "dce", "nowhere.mlir cannot be read"),
        ("tile.func {", "dce", "<ir>:1:1: error: tile.func needs the attribute"),
        ("%0 = arith.constant {value = 2} : int32\n", "dce", "the IR is arith.constant, not tile.func"),
        ("", "dce", "an empty path cannot be read"),
        (3, "dce", "the IR is int; it is a text, or the path of a file with it"),
        (None, "no-such-pass", "the pipeline has no pass 'no-such-pass'; it has canonicalize"),
    ],
)
def test_mistakes(kernel: tiledsl.Kernel, text: Any, after: str, message: str) -> None:
    with pytest.raises(tiledsl.TileError) as caught:
        tiledsl.resume(kernel.ir() if text is None else text, after, target="interpret")
    assert message in str(caught.value)
