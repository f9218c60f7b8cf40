"""The rows: what there is, references, and every candidate at small shapes in interpreters."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tiledsl
from benchmarks.__main__ import main
from benchmarks.ours import rivals_of, with_generated_space
from benchmarks.row import KINDS, MOVED_FAMILIES, REDUCED_FAMILIES, Context, Unavailable
from benchmarks.rows import all_rows, select
from benchmarks.rows.attention_math import backward, forward, seen_pairs
from tests.support import forked
from tiledsl.autotuner.space import check_configs
from tiledsl.autotuner.trial import Trial

ROOT = Path(__file__).resolve().parents[2]
NOT_ON_A_CPU = {"fp8 gemm: e4m3 48x80x144": "GPUs only", "block-scaled fp8 gemm: e4m3 40x128x256": "scaled_mm"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, parse_table: Path) -> list[dict[str, Any]]:
    cache = tmp_path_factory.mktemp("cache")
    shutil.copytree(parse_table, cache / "grammar")
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(ROOT),
        "TILEDSL_CACHE_DIR": str(cache),
    }
    done = forked.run([Path(__file__).with_name("small_rows.py")], env=environment, timeout=280)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_every_candidate_is_right_at_small_shapes(small: list[dict[str, Any]]) -> None:
    assert {row["family"] for row in small} == {row.family for row in all_rows()}
    for row in small:
        assert "error" not in row
        for entry in row["candidates"]:
            if entry["kind"] == "library" and row["name"] in NOT_ON_A_CPU:
                assert entry["status"] == "missing" and NOT_ON_A_CPU[row["name"]] in entry["why"]
                continue
            assert entry["status"] == "ok", (row["name"], entry)
            allowed = 4e-2 if row["family"] == "fp8 attention" else 5e-3
            assert entry["kind"] in ("copy", "bf16") or 0 <= entry["error"] < allowed


def test_every_variant_by_hand_is_among_them(small: list[dict[str, Any]]) -> None:
    ran = {entry.get("config", {}).get("variant") for row in small for entry in row["candidates"]}
    assert ran >= {"descriptors", "pointers", "split in 2", "split in 4", "split in 8"}


def test_programs_for_tilelang_are_right_in_tiledsl(small: list[dict[str, Any]]) -> None:
    found = [(row["family"], entry) for row in small for entry in row["candidates"] if entry["kind"] == "tilelang"]
    assert {family for family, _ in found} == {"gemm", "attention"}
    assert all(entry["status"] == "ok" for _, entry in found)


def test_the_rows_are_those_promised() -> None:
    rows = all_rows()
    products = [row.case.split()[1] for row in rows if row.family == "gemm"]
    assert len(set(products)) >= 12
    assert {f"{n}x{n}x{n}" for n in (1024, 2048, 4096, 8192)} <= set(products) and "4091x5120x1024" in products
    assert {1, 16, 64, 128, 512} <= {int(each.split("x")[0]) for each in products}
    tags = [row.tags for row in rows if row.family == "attention"]
    for dim in ("D64", "D128"):
        assert {"full", "causal", "gqa"} <= {tag for each in tags if dim in each for tag in each}
    gradients = {row.case for row in rows if row.family == "attention backward"}
    assert {f"fp16 {mask} B4 H32 S4096 D{dim}" for mask in ("full", "causal") for dim in (64, 128, 192)} <= gradients
    lengths = {part for row in rows if row.family == "attention" for part in row.case.split() if part[0] == "S"}
    assert {"S1024", "S4096", "S16384"} <= lengths
    assert {row.family for row in rows} >= {
        "fp8 gemm", "block-scaled fp8 gemm", "attention backward", "softmax", "layer norm", "rms norm", "elementwise",
        "grouped gemm", *REDUCED_FAMILIES, *MOVED_FAMILIES, "sort", "scan", "top-k",
        "linear attention",
    }  # fmt: skip
    for row in rows:
        assert row.operations > 0 and row.bytes_moved > 0
        assert next(each.kind for each in row.candidates) == "tiledsl"
        assert {each.kind for each in row.candidates} <= set(KINDS)


def test_spaces_are_sets_of_configurations() -> None:
    import inspect

    from benchmarks.rows import (
        any_width,
        attention,
        backward,
        elementwise,
        float8,
        gemm,
        grouped,
        linear_attention,
        linear_losses,
        moves,
        quantised,
        sorting,
    )

    spaces = [gemm.space(M, 4096, 4096) for M in (1, 16, 64, 128, 512)] + [
        attention.SPACE,
        float8.SPACE,
        grouped.SPACE,
        float8.LARGE_SCALED,
        float8.SMALL_SCALED,
    ]
    spaces += [elementwise.ROW_SPACE, elementwise.FLAT_SPACE]
    wide = (
        any_width.softmax_space,
        any_width.rms_norm_space,
        any_width.layer_norm_space,
        any_width.wide_gradient_space,
    )
    spaces += [make(N) for N in (65536, 262144) for make in wide]
    made = (any_width.whole_space, any_width.norm_space, any_width.piece_space, any_width.prefetched_space)
    spaces += [make(N) for N in any_width.WIDTHS for make in made if make(N)]
    spaces += [moves.TOKEN_SPACE, moves.GROUP_SPACE, moves.ROPE_SPACE, moves.STREAM_SPACE, moves.HEADS_SPACE]
    spaces += [linear_attention.DELTA_SPACE, linear_attention.CHANNEL_SPACE, linear_attention.GATED_SPACE]
    spaces += [backward.FULL_SPACE, backward.FULL_KEY_VALUES, backward.FULL_QUERIES]
    spaces += [quantised.DECODE, quantised.ATTENTION, linear_losses.SPACE]
    spaces += [moves.TRANSPOSE_SPACE, sorting.SORT_SPACE, sorting.SCAN_SPACE, *map(sorting.top_k_space, (64, 2048))]
    anything = inspect.signature(lambda **_: None)
    for space in spaces:
        assert 4 <= len(check_configs(space, anything, "a row")) <= 21


def test_every_row_has_a_generated_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """For cuda:90, of which nothing is compiled: each row's programs get proposals, among which is its default tile; of
    a scan's sizes it cannot be seen what they are for, so that it gets that one alone."""
    asked: list[tuple[Any, Any, Any, Any]] = []

    def autotune(configs: Any, **_: Any) -> Any:
        def asks(jit: Any) -> Any:
            def compile(*values: Any, **arguments: Any) -> Any:
                asked.append((configs, jit, values, arguments))
                raise tiledsl.TileError("that is enough")

            return SimpleNamespace(compile=compile)

        return asks

    monkeypatch.setattr(tiledsl, "autotune", autotune)
    first = {row.family: row for row in reversed(all_rows())}
    assert len(first) == 29
    for row in map(with_generated_space, first.values()):
        generated, own = row.candidates
        assert (generated.kind, own.kind) == ("generated", "tiledsl")
        asked.clear()
        with pytest.raises(Unavailable):
            generated.prepare(Context("cuda", generated=True), row, row.inputs("meta"))
        (configs, jit, values, arguments), *_ = asked
        assert configs is tiledsl.spaces.for_program
        assert len(configs(jit, *values, target="cuda:90", **arguments)) >= (1 if row.family == "scan" else 4), row.name


def test_only_refuses_what_selects_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--list", "--only", "gemm", "gem: fp16"])
    message = capsys.readouterr().err
    assert "no row is called 'gem: fp16'" in message and "softmax" in message


def test_only_and_quick_select() -> None:
    rows = all_rows()
    assert select(rows, [], False) == rows
    assert {row.family for row in select(rows, ["SOFTMAX", "rms"], False)} == {
        "softmax", "rms norm", "rms norm backward",
    }  # fmt: skip
    assert {row.family for row in select(rows, ["gemm"], False)} == {"gemm"}
    assert {row.family for row in select(rows, ["gemm: bf16 64"], False)} == {"gemm", "grouped gemm"}
    quick = select(rows, [], True)
    families = list(dict.fromkeys(row.family for row in rows))
    assert [row.family for row in quick[: len(families)]] == families and all(row.quick for row in quick)
    assert select(rows, ["softmax"], True) == select(rows, ["softmax"], False)


def test_quick_tries_fewer_configurations() -> None:
    assert len(Context().some(range(9))) == 9
    assert len(Context(quick=True).some(range(9))) == 3
    assert Context(tune=False).some(range(9)) == [0]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_reference_is_torchs(causal: bool) -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 4, 50, 8, dtype=torch.float32, requires_grad=True)
    k, v = (torch.randn(2, 2, 50, 8, dtype=torch.float32, requires_grad=True) for _ in range(2))
    want = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    out, lse = forward(q.detach(), k.detach(), v.detach(), causal)
    torch.testing.assert_close(out, want)
    grad = torch.randn_like(out)
    wanted = torch.autograd.grad(want, (q, k, v), grad)
    found = backward(q.detach(), k.detach(), v.detach(), out, grad, lse, causal)
    for actual, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_attention_reference_has_sinks_and_windows() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 20, 8) for _ in range(3))
    sink = torch.tensor([0.5])
    scores = (q[0, 0] @ k[0, 0].T) / math.sqrt(8)
    age = torch.arange(20)[:, None] - torch.arange(20)[None, :]
    scores = scores.masked_fill((age < 0) | (age >= 5), -math.inf)
    weights = torch.softmax(torch.cat([scores, sink.expand(20, 1)], 1), 1)[:, :20]
    out, _ = forward(q, k, v, True, sink, 5)
    torch.testing.assert_close(out[0, 0], weights @ v[0, 0])


@pytest.mark.parametrize(("queries", "keys", "window"), [(7, 7, 0), (5, 9, 0), (9, 9, 4), (9, 5, 0)])
def test_seen_pairs_counts_the_mask(queries: int, keys: int, window: int) -> None:
    age = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)[None, :]
    seen = (age >= 0) & (age < (window or 10**6))
    assert seen_pairs(queries, keys, True, window) == int(seen.sum())
    assert seen_pairs(queries, keys, False) == queries * keys


def test_what_the_winner_was_chosen_from_is_kept() -> None:
    trials = [
        Trial(0, {"block": 1}, "ok", latency=0.25, spread=0.01, rounds=4),
        Trial(1, {"block": 2}, "ok", latency=0.5),  # not in the final round
        Trial(2, {"block": 3}, "mismatch", "wrong in 3 elements"),
        Trial(3, {"block": 4}, "ok", latency=0.2, spread=0.0, rounds=4),
        Trial(4, {"block": 5}, "pruned", "too large"),
    ]
    assert rivals_of(trials) == [
        {"config": {"block": 4}, "ms": 0.2, "spread": 0.0, "rounds": 4},
        {"config": {"block": 1}, "ms": 0.25, "spread": 0.01, "rounds": 4},
        {"config": {"block": 3}, "status": "mismatch", "why": "wrong in 3 elements"},
    ]
