"""`tiledsl explain`: forms of accesses, what limits launches, remarks and advice, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_cli import tiledsl

GEMM = """
import tiledsl
import tiledsl.language as T


@tiledsl.jit(out_idx=[-1])
def matmul(M, N, K, block=64, stages=3):
    @T.prim_func
    def matmul(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=128) as (bx, by):
            a = T.alloc_shared((block, 64), "float16")
            b = T.alloc_shared((64, block), "float16")
            c = T.alloc_fragment((block, block), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=stages):
                T.copy(A[by * block, k * 64], a)
                T.copy(B[k * 64, bx * block], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * block, bx * block])

    return matmul


@T.prim_func
def counted(X: T.Tensor((T.dynamic("n"),), "int32"), Y: T.Tensor((8,), "int32")):
    with T.Kernel(4, threads=32) as bx:
        for i in T.Parallel(32):
            T.atomic_add(Y[X[bx * 32 + i]], 1)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explain") / "explained.py"
    path.write_text(GEMM)
    return path


def explained(*words: object, target: str = "cuda:90") -> dict[str, Any]:
    ended = tiledsl("explain", *words, "--target", target, "--no-compile", "--json")
    assert ended.exit_code == 0, ended
    return json.loads(ended.stdout)["data"]  # type: ignore[no-any-return]


def sized(file: Path, m: int, n: int, k: int, *more: str) -> list[object]:
    return [f"{file}:matmul", "-D", f"M={m}", "-D", f"N={n}", "-D", f"K={k}", *more]


def forms(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(e["what"], e["tensor"], e["shape"], e["form"], e["masked"], e["line"], e["count"]) for e in found["accesses"]]  # fmt: skip # noqa: E501


def test_a_product_by_tma_and_by_pointers(file: Path) -> None:
    explanation = explained(*sized(file, 4096, 4096, 4096))
    assert forms(explanation)[:2] == [
        ("load", "A", [64, 64], "TMA", False, 16, 1),
        ("load", "B", [64, 64], "TMA", False, 17, 1),
    ]
    (launch,) = explanation["launches"]
    assert (launch["emitter"], launch["blocks"], launch["limit"]) == ("Triton", 4096, "tensor cores")
    assert launch["waves"] == -(-4096 // (132 * launch["occupancy"])) and explanation["estimated_for"] == "H200"
    assert launch["parts"]["tensor cores"] == max(launch["parts"].values()) <= explanation["milliseconds"]
    assert (explanation["remarks"], explanation["advice"], explanation["resources"]) == ([], [], None)
    assert "select-access" in [each["name"] for each in explanation["passes"]]

    by_pointers = explained(*sized(file, 4096, 4096, 4096, "--pass-config", "select-access.mode=pointer"))
    assert {(e["form"], e["masked"]) for e in by_pointers["accesses"]} == {("pointers", False)}
    assert "select-access" not in [each["name"] for each in by_pointers["passes"]]
    ragged = explained(*sized(file, 100, 100, 100), target="cuda:80")
    assert {(e["form"], e["masked"]) for e in ragged["accesses"]} == {("pointers", True)}
    assert file.name and all(e["file"] == str(file) for e in ragged["accesses"])


def test_few_blocks_and_waves_are_told(file: Path) -> None:
    (few,) = explained(*sized(file, 128, 128, 4096))["advice"]
    assert few == "kernel: 4 blocks leave 128 multiprocessors idle: smaller tiles, or split-k.splits"
    none = explained(*sized(file, 0, 128, 4096))
    assert [each["blocks"] for each in none["launches"]] == [0] and none["advice"] == []
    split = explained(*sized(file, 128, 128, 4096, "--pass-config", "split-k.splits=4"))
    assert any(e["tensor"] not in "ABC" and e["what"] == "store" for e in split["accesses"])


def test_a_request_that_was_not_fulfilled_has_its_remark(file: Path) -> None:
    found = explained(*sized(file, 100, 99, 100, "--pass-config", "select-access.mode=tma"))
    assert any("B" in remark for remark in found["remarks"])
    text = tiledsl("explain", *sized(file, 100, 99, 100, "--pass-config", "select-access.mode=tma"), "--no-compile")
    assert all(f"  {remark}" in text.stdout.splitlines() for remark in found["remarks"])


def test_atomics_and_sizes_that_are_not_known(file: Path) -> None:
    found = explained(f"{file}:counted")
    assert ("atomic", "Y", [32], "atomic", True, 28, 1) in forms(found)
    assert {e["tensor"] for e in found["accesses"]} == {"X", "Y"}


def test_the_text_says_the_same(file: Path) -> None:
    words = sized(file, 4096, 4096, 4096)
    lines = tiledsl("explain", *words, "--target", "cuda:90", "--no-compile").stdout.splitlines()
    explanation = explained(*words)
    launch = explanation["launches"][0]
    assert lines[0] == "matmul for cuda:90" and lines[2] == "kernel, written in Triton"
    assert lines[3] == (
        f"  4096 blocks in {launch['waves']} waves, {launch['occupancy']} at a time on a multiprocessor"
    )
    assert "  load A 64x64: TMA  explained.py:16" in lines
    assert f"estimated: {explanation['milliseconds']:.4f} ms" in lines


def test_an_example_has_its_small_sizes() -> None:
    found = explained("softmax", "-D", "M=8")
    assert found["kernel"] == "softmax" and [e["tensor"] for e in found["accesses"]] == ["X", "Y"]
    assert found["launches"][0]["blocks"] == 2
    assert tiledsl("explain", "no_example").stderr.startswith("there is no file no_example")
