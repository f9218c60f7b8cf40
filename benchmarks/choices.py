"""What the compiler's choices give: the same program and tiles, compiled in several ways, on a GPU.

    python benchmarks/choices.py [--only TEXT ...] [--json FILE]

The ways of a case run in turns, first as they run one after the other without a pause ("steady", at the clock that the
power limit allows), then as the tuner times them (single calls, the second-level cache overwritten before each). Where
the two disagree, the tuner chooses by the second. Results are checked against torch first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import tiledsl  # noqa: E402
from benchmarks.programs import example  # noqa: E402
from benchmarks.programs.gemm import matmul  # noqa: E402
from benchmarks.programs.tilelang_style import one_loop_attention  # noqa: E402
from benchmarks.rows.attention_math import forward, seen_pairs  # noqa: E402
from benchmarks.rows.spaces import GLUON, PERSISTENT, TMA, TRITON  # noqa: E402
from benchmarks.tuning.interleaved import Clock, gpu_clock, interleaved  # noqa: E402

ROUNDS = 6
SAMPLE_MS = 12.5  # as the tuner takes in a round of its final
LARGEST_ERROR = 5e-3
POINTERS = {**TRITON, "select-access.mode": "pointer", "map-grid.persistent": 0}

Options = Mapping[str, Any]
Calls = Mapping[str, Callable[[], Any]]
Times = dict[str, list[float]]


@dataclass(frozen=True)
class Case:
    """A program with its arguments, and the ways to compile it: pass options, and tiles where they differ.

    inputs: names shapes of float16 tensors; reference: of them, in float32; operations: of a call.
    """

    title: str
    program: Any
    arguments: Mapping[str, Any]
    inputs: Sequence[tuple[int, ...]]
    reference: Callable[..., torch.Tensor]
    operations: float
    ways: Mapping[str, Options]
    tiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def kernel(self, way: str, target: str = "cuda") -> Any:
        options = {**self.program.options, "target": target, "pass_configs": dict(self.ways[way])}
        return tiledsl.jit(**options)(self.program.function).compile(**self.arguments, **self.tiles.get(way, {}))


def gemm_cases() -> list[Case]:
    wide = {"block_M": 128, "block_N": 256, "block_K": 64, "num_stages": 3, "threads": 256}
    square = {"block_M": 128, "block_N": 128, "block_K": 64, "num_stages": 5, "threads": 256}
    ways = {"wide, persistent": PERSISTENT, "wide, one block each": TMA, "wide, Gluon": GLUON, "square, Gluon": GLUON}
    ways["wide, pointers"] = POINTERS
    tiles = {way: square if way.startswith("square") else wide for way in ways}
    cases = []
    for n in (2048, 3072, 4096, 8192):
        title, sizes = f"gemm {n}", {"M": n, "N": n, "K": n}
        cases.append(Case(title, matmul, sizes, [(n, n)] * 2, product, 2.0 * n**3, ways, tiles))
    for m, n, warps in ((128, 128, 8), (64, 128, 4)):
        sizes = {"M": 4096, "N": 4096, "K": 4096, "out_dtype": "float32"}
        sizes |= {"block_M": m, "block_N": n, "block_K": 64, "num_stages": 3, "threads": 32 * warps}
        stores = {"auto": {"map-grid.persistent": 0}, "result by TMA": {**TMA, "select-access.operands": "C=tma"}}
        title = f"gemm 4096 to float32, {m}x{n}"
        cases.append(Case(title, matmul, sizes, [(4096, 4096)] * 2, product, 2.0 * 4096**3, stores))
    return cases


def attention_cases() -> list[Case]:
    cases = []
    for dim, rows in ((128, 128), (64, 128), (64, 192)):
        for causal in (False, True):
            sizes = {"batch": 4, "heads": 32, "kv_heads": 32, "queries": 4096, "keys": 4096, "dim": dim}
            sizes |= {"causal": causal, "block_M": rows}
            ways = {each: {**GLUON, "select-emitter.rescale": each} for each in ("each", "late", "lazy")}
            title = f"attention D{dim} {'causal' if causal else 'full'}, {rows} rows"
            cases.append(_attention(title, example("attention").attention, sizes, 4, 32, 4096, dim, causal, 0, ways))
    modes = {mode: {**POINTERS, "limit-registers.mode": "off", "peel-loops.mode": mode} for mode in ("off", "auto")}
    modes["auto, registers limited"] = POINTERS
    for dim, causal, window, block_N, stages, warps in (
        (64, True, 0, 64, 3, 8), (64, True, 0, 128, 2, 8), (64, False, 0, 128, 2, 8), (128, True, 0, 128, 2, 8),
        (128, True, 0, 64, 2, 4), (128, True, 256, 64, 2, 4), (128, True, 1024, 64, 2, 4),
    ):  # fmt: skip
        sizes = {"batch": 2, "heads": 16, "kv_heads": 16, "queries": 8192, "keys": 8192, "dim": dim}
        sizes |= {"causal": causal, "window": window, "block_N": block_N, "num_stages": stages, "threads": 32 * warps}
        shown = f"window {window}" if window else "causal" if causal else "full"
        title = f"masked attention D{dim} {shown}, 128x{block_N} {warps} warps"
        cases.append(_attention(title, one_loop_attention, sizes, 2, 16, 8192, dim, causal, window, modes))
    return cases


def _attention(
    title: str, program: Any, sizes: Mapping[str, Any], batch: int, heads: int, length: int, dim: int,
    causal: bool, window: int, ways: Mapping[str, Options],
) -> Case:  # fmt: skip
    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return forward(q, k, v, causal, None, window)[0]

    operations = 4.0 * batch * heads * dim * seen_pairs(length, length, causal, window)
    return Case(title, program, sizes, [(batch, heads, length, dim)] * 3, reference, operations, ways)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.float() @ b.float().T


def all_cases() -> list[Case]:
    return [*gemm_cases(), *attention_cases()]


def measure(
    case: Case, target: str = "cuda", clock: Clock = gpu_clock, timed: Callable[[Calls], Times] | None = None
) -> list[dict[str, Any]]:
    """A row for each way: TFLOP/s in both regimes, registers, spills, shared bytes; or why it does not run."""
    device = "cuda" if target == "cuda" else "cpu"
    given = [torch.randn(shape, dtype=torch.float16, device=device) for shape in case.inputs]
    wanted = case.reference(*given).float()
    calls: dict[str, Callable[[], Any]] = {}
    rows = []
    for way in case.ways:
        row: dict[str, Any] = {"case": case.title, "way": way}
        rows.append(row)
        try:
            kernel = case.kernel(way, target)
            made = kernel(*given)
            made = (made[0] if isinstance(made, (tuple, list)) else made).float()
            row["error"] = float((made - wanted).norm() / wanted.norm())
            if not row["error"] < LARGEST_ERROR:
                raise AssertionError(f"relative error {row['error']:.2g}")
            found = kernel.resources if device == "cuda" else None
            row |= {name: getattr(found, name, None) for name in ("registers", "spills", "shared_bytes")}
            calls[way] = kernel.bind(*given)
        except Exception as failure:  # whatever one way raises costs itself alone
            row["failed"] = f"{type(failure).__name__}: {failure}"[:300]
    steady = interleaved(calls, ROUNDS, clock, window=200.0, screen=False)
    single = (timed or as_the_tuner)(calls)
    for row in rows:
        if row["way"] in calls:
            row["steady"] = case.operations / statistics.median(steady[row["way"]]) * 1e-9
            row["tuner"] = case.operations / statistics.median(single[row["way"]]) * 1e-9
    return rows


def as_the_tuner(calls: Calls) -> Times:
    """Medians of the samples of each round, in milliseconds."""
    from tiledsl.runtime.timing import Stopwatch

    watch = Stopwatch()
    quick = {way: watch.quick(call) for way, call in calls.items()}
    ready = {way: watch.prepare(lambda count, way=way: [calls[way]] * count, 1 << 40, quick[way]) for way in calls}
    times: Times = {way: [] for way in calls}
    for number in range(ROUNDS):
        for way in list(calls) if number % 2 == 0 else reversed(list(calls)):
            times[way].append(statistics.median(ready[way].sample(SAMPLE_MS, quick[way])))
    return times


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    print(rows[0]["case"])
    first = next((row for row in rows if "steady" in row), None)
    for row in rows:
        if first is None or "steady" not in row:
            print(f"  {row['way']:26} {row.get('failed', '')}", flush=True)
            continue
        numbers = "".join(f" {name} {row[name]:7.1f} {row[name] / first[name]:6.3f}x" for name in ("steady", "tuner"))
        print(f"  {row['way']:26}{numbers}   {row['registers']} registers, {row['spills']} spilled", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="parts of cases' titles")
    parser.add_argument("--json", help="also write the rows to this file")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; TFLOP/s, and of the first way's speed")
    found = []
    for case in all_cases():
        if any(text in case.title for text in arguments.only):
            rows = measure(case)
            show(rows)
            found += rows
            if arguments.json:
                Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
