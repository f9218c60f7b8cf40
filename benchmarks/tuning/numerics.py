"""Part `numerics`: do tunings with `numerics` keep the bits of results, and what does that cost?

    classes    of a GEMM's configurations, grouped by bit class: on 1000 inputs, do two of one class ever differ, and do
               two of different classes?
    hashes     ten tunings of that GEMM each, with numerics="same-bits" and without: how many hashes do results have?
    rows       a row's bits for M from 1 to 8192, each M tuned for itself with numerics="batch-invariant"
    slowdown   latency of the same-bits winner over that of the unrestricted one, for GEMM, attention and softmax: with
               the first configuration as the reference, and with the unrestricted winner

Sizes and numbers are such that all of it takes some four minutes of an H200.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import tiledsl
from benchmarks.tuning import cases
from benchmarks.tuning.interleaved import WINDOW_MS, cpu_clock, gpu_clock, interleaved, medians
from benchmarks.tuning.report import Report, machine, table
from benchmarks.tuning.winner import name_of
from tiledsl.autotuner.predicting import model
from tiledsl.autotuner.verifying.bits import adversarial_inputs, fingerprint

INPUTS = 1000
TUNINGS = 10
ROWS = (1, 2, 17, 64, 100, 512, 2048, 8192)
MOST_CONFIGS = 10  # of each case, for the time it takes
MOST_GEMM, MOST_ALL = 0.02, 0.05  # slowdowns

Config = dict[str, Any]


def configs(small: bool) -> list[Config]:
    """Tiles, block_K, depth and warps that give several instructions: a tile of 64 rows and more is a warpgroup's."""
    if small:
        return cases.gemm_configs(True)[:4]
    chosen = ((128, 128, 64, 4, 256), (64, 64, 32, 3, 128), (128, 256, 64, 3, 256), (64, 128, 64, 4, 128), (16, 64, 64, 4, 128), (32, 128, 32, 4, 128))  # fmt: skip # noqa: E501
    return [dict(zip(("block_M", "block_N", "block_K", "num_stages", "threads"), each)) for each in chosen]


def tune(case: Any, arguments: Mapping[str, Any], space: Sequence[Config], small: bool, **options: Any) -> Any:
    """One tuning that reads and writes no results."""
    with tempfile.TemporaryDirectory(prefix="tuning-") as folder:
        given = {**cases.tune_options(small), "store": Path(folder), **options}
        return tiledsl.autotune(configs=list(space), ref_prog=case.reference, **given)(
            cases.example(case.module, case.builder)
        )(**arguments)


def inputs_of(kernel: Any, seed: int) -> list[Any]:
    """Random inputs of a kernel in (-1, 1)."""
    profiler = kernel.get_profiler("auto")
    profiler.seed = seed
    return list(profiler.get_inputs())


def bits(kernel: Any, inputs: Sequence[Any]) -> str:
    """The fingerprint of a kernel's outputs."""
    found = kernel(*inputs)
    return fingerprint(list(found) if isinstance(found, (list, tuple)) else [found])


def classes(report: Report, case: Any, size: int, space: Sequence[Config], small: bool, count: int) -> None:
    """Two configurations of one class have the same bits on all inputs; how often do those of different classes?"""
    arguments = {"M": size, "N": size, "K": 2 * size}
    kernels: dict[str, Any] = {}
    found: dict[str, str] = {}
    for config in space:  # each is its own reference, so that each has a class
        result = tune(case, arguments, [config], small, numerics="same-bits")
        kernels[name_of(config)], found[name_of(config)] = result.kernel, result.bit_class
    names = list(kernels)
    differ = {(one, other): 0 for at, one in enumerate(names) for other in names[at + 1 :]}
    for seed in range(-(-count // 4)):
        plain = inputs_of(kernels[names[0]], seed)
        for inputs in (plain, *adversarial_inputs(plain)):
            each = {name: bits(kernel, inputs) for name, kernel in kernels.items()}
            for pair in differ:
                differ[pair] += each[pair[0]] != each[pair[1]]
    rows = [
        {"one": one, "other": other, "same class": found[one] == found[other], "inputs that differ": number}
        for (one, other), number in differ.items()
    ]
    report.put("inputs", 4 * -(-count // 4))
    report.put("classes", found)
    report.put("pairs", rows)


def hashes(report: Report, case: Any, size: int, space: Sequence[Config], small: bool, times: int) -> None:
    """The results of ten tunings on one set of inputs."""
    arguments = {"M": size, "N": size, "K": 2 * size}
    shown: dict[str, Any] = {}
    for mode in ("same-bits", None):
        winners, kept = [], []
        for _ in range(times):
            result = tune(case, arguments, space, small, numerics=mode)
            winners.append(name_of(result.config))
            kept.append(bits(result.kernel, inputs_of(result.kernel, 0)))
        shown[str(mode)] = {"winners": winners, "hashes": len(set(kept))}
        report.put("hashes", shown)


def rows(report: Report, case: Any, size: int, space: Sequence[Config], small: bool, counts: Sequence[int]) -> None:
    """The first rows of each number of rows, tuned for itself, against the same rows among the most."""
    most = max(counts)
    whole: Any = None
    expected: Any = None
    found = []
    for count in sorted(counts, reverse=True):
        result = tune(case, {"M": count, "N": size, "K": size}, space, small, numerics="batch-invariant")
        if whole is None:
            whole = inputs_of(result.kernel, 0)
            expected = result.kernel(*whole)
        out = result.kernel(whole[0][:count].contiguous(), *whole[1:])
        same = fingerprint([out]) == fingerprint([expected[:count].contiguous()])
        found.append({"M": count, "config": name_of(result.config), f"as among {most}": same})
        report.put("rows", found)


def slowdown(report: Report, chosen: Mapping[str, Any], small: bool) -> None:
    """Unrestricted winners against those with the bits of the first configuration, of the one with the least estimate,
    and of the unrestricted winner. Where that is the same machine code, nothing is slower; what was measured says how
    far two measurements of one kernel are apart."""
    found = []
    for name, case in chosen.items():
        space = case.configs[:: -(-len(case.configs) // MOST_CONFIGS)]
        free = tune(case, case.arguments, space, small)
        first = tune(case, case.arguments, space, small, numerics="same-bits")
        working = [trial for trial in free.trials if trial.ok]
        least = min(working, key=lambda trial: model.predict(trial.kernel, trial.kernel.target)).config
        expected = tune(case, case.arguments, space, small, numerics="same-bits", reference_config=least)
        named = tune(case, case.arguments, space, small, numerics="same-bits", reference_config=free.config)
        same = free.kernel.asm.get("cubin") is not None and free.kernel.asm["cubin"] == named.kernel.asm["cubin"]
        inputs = inputs_of(free.kernel, 0)
        kernels = {"free": free, "first": first, "expected": expected, "named": named}
        calls = {key: (lambda kernel=result.kernel, inputs=inputs: kernel(*inputs)) for key, result in kernels.items()}
        clock = gpu_clock if torch.cuda.is_available() else cpu_clock
        ms = medians(interleaved(calls, 2 if small else 12, clock, window=0.0 if small else WINDOW_MS, screen=False))
        found.append(
            {
                "case": name,
                "unrestricted": str(free.config),
                "as the winner": str(named.config),
                "unrestricted_ms": ms["free"],
                "slower, as the first": ms["first"] / ms["free"] - 1,
                "slower, as the model's first": ms["expected"] / ms["free"] - 1,
                "slower, as the winner": 0.0 if same else ms["named"] / ms["free"] - 1,
                "measured again, as the winner": ms["named"] / ms["free"] - 1,
                "the winner's machine code": same,
                "of configurations": sum(trial.ok for trial in free.trials),
                "with the first's bits": sum(trial.ok for trial in first.trials),
                "with the model's first's bits": sum(trial.ok for trial in expected.trials),
                "with the winner's bits": sum(trial.ok for trial in named.trials),
            }
        )
        report.put("slowdown", found)


def verdicts(entries: Mapping[str, Any]) -> list[str]:
    """What was promised, and whether it holds."""
    wrong = [row for row in entries["pairs"] if row["same class"] and row["inputs that differ"]]
    split = [row for row in entries["pairs"] if not row["same class"] and not row["inputs that differ"]]
    kept, rows = entries["hashes"]["same-bits"], entries["rows"]
    bad = [row["M"] for row in rows if not row[f"as among {max(each['M'] for each in rows)}"]]
    slow = {row["case"]: row["slower, as the winner"] for row in entries["slowdown"]}
    gemm = max((value for name, value in slow.items() if name.startswith("gemm")), default=0.0)
    return [
        f"classes: {len(wrong)} pairs of one class differ on any of {entries['inputs']} inputs: "
        f"{'MISSED' if wrong else 'reached'}; {len(split)} pairs of different classes never do",
        f"hashes: {kept['hashes']} of {len(kept['winners'])} tunings with same-bits, "
        f"{entries['hashes']['None']['hashes']} without: {'reached' if kept['hashes'] == 1 else 'MISSED'}",
        f"rows: {len(rows) - len(bad)} of {len(rows)} numbers of rows keep a row's bits: "
        f"{f'MISSED {bad}' if bad else 'reached'}",
        f"slowdown: GEMM {gemm:.2%} (goal {MOST_GEMM:.0%}), all {max(slow.values()):.2%} (goal {MOST_ALL:.0%}): "
        f"{'reached' if gemm <= MOST_GEMM and max(slow.values()) <= MOST_ALL else 'MISSED'}",
    ]


def run(report: Report, small: bool = False, times: int = TUNINGS) -> None:
    """Measure; entries are put into the report after each step."""
    report.put("machine", machine())
    known = cases.model_cases(small)
    case, space = known["gemm"], configs(small)
    size = 32 if small else 512
    classes(report, case, size, space, small, 8 if small else INPUTS)
    hashes(report, case, size if small else 2048, space, small, times)
    rows(report, case, size if small else 1024, space, small, (1, 17, 40) if small else ROWS)
    chosen = {name: known[name] for name in ("gemm", "attention", "softmax")}
    slowdown(report, {"gemm": chosen["gemm"]} if small else chosen, small)
    report.put("verdicts", verdicts(report.entries))


def show(entries: dict[str, Any]) -> str:
    """Tables of what `run` found."""
    parts = [f"{name}: {found}" for name, found in entries.get("classes", {}).items()]
    parts += [table(entries[name]) for name in ("pairs", "rows", "slowdown") if name in entries]
    parts += [
        f"{mode}: {found['hashes']} hashes, winners {found['winners']}"
        for mode, found in entries.get("hashes", {}).items()
    ]
    return "\n".join(parts)
