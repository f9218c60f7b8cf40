"""The page of a tuning and of a kernel: what is asked first stands there, with the numbers of the result."""

from __future__ import annotations

import html
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
from tests.autotune.test_result import gemm_result, tuned
from tests.report.pages import Read
from tiledsl.autotuner import AutotuneResult, Trial, tune_function
from tiledsl.autotuner.results.report import tuning_page, tuning_part
from tiledsl.kernels.report import kernel_page
from tiledsl.report import page
from tiledsl.report.page import Fact, Group, Step


def facts(found: object) -> dict[str, tuple[str, str]]:
    return {each.label: (each.value, each.note) for each in found}  # type: ignore[attr-defined]


def texts(step: Step) -> list[tuple[str | None, ...]]:
    """What stands side by side, without places: stored programs have none."""
    return [tuple(each and each.text for each in (row.before, row.after)) for row in step.rows]


@pytest.fixture(scope="module")
def result() -> AutotuneResult:
    return gemm_result(0.02, 0.01, None)


def test_the_first_questions_have_answers(result: AutotuneResult) -> None:
    part = tuning_part(result)
    assert facts(part.facts) == {
        "winner": ("block_M=128 block_N=128 num_stages=4", ""),
        "time": ("0.01 ms", "measured"),
        "next best": ("+100.0%", "block_M=64 block_N=64 num_stages=2"),
        "reference": ("50.00×", "of the winner's time: 0.5 ms"),
        # 2 * 1024^3 operations in 10 us of 989 TFLOP/s; 3 * 2 MiB of 4.8 TB/s
        "of what is attainable": ("22%", "bounded by arithmetic; 22% of the peak rate of H200, 13% of its bandwidth"),
        "configurations that work": ("2 of 3", "the slowest takes 2.0× as long"),
    }
    assert part.explanation == result.explain()
    roof = part.plots["roofline"]
    assert (roof["tera"], roof["dram"]) == (989.0, 4.8) and roof["intensity"] == pytest.approx(2 * 1024 / 6)


def test_each_configuration_has_a_row_and_a_point(result: AutotuneResult) -> None:
    part = tuning_part(result)
    heads = "rank,block_M,block_N,num_stages,status,ms,TFLOPS,GB/s,shared,registers,spills,blocks,message".split(",")
    assert [*part.heads] == heads and [*part.numeric] == [head not in ("status", "message") for head in heads]
    assert [[cell.text for cell in entry.cells] for entry in part.entries] == [
        ["1", "128", "128", "4", "ok", "0.0100", "214.7", "629", "65536", "96", "0", "1", ""],
        ["2", "64", "64", "2", "ok", "0.0200", "107.4", "315", "32768", "64", "0", "3", ""],
        ["", "128", "256", "5", "pruned", "-", "-", "-", "-", "-", "-", "-", result.trials[2].message],
    ]  # fmt: skip
    assert part.plots["axes"] == ["rank", "block_M", "block_N", "num_stages", "registers", "shared", "blocks"]
    assert [entry.point["axes"] for entry in part.entries] == [
        [128, 128, 4, 96, 65536, 1], [64, 64, 2, 64, 32768, 3], [128, 256, 5, None, None, None],
    ]  # fmt: skip
    assert [entry.point["ms"] for entry in part.entries] == [0.01, 0.02, None]
    assert [entry.wins for entry in part.entries] == [True, False, False]


def test_failures_are_grouped_by_their_reasons(result: AutotuneResult) -> None:
    messages = {
        "pruned": ["needs 10 bytes", "needs 22 bytes", "not tried: the budget is spent"],
        "crash": ["signal 11\nat line 3", "aborted"],
    }
    failed = [(status, each) for status, all_of in messages.items() for each in all_of]
    trials = [Trial(3 + i, {"block_M": i}, status, message) for i, (status, message) in enumerate(failed)]  # type: ignore[arg-type]
    more = AutotuneResult(result.kernel, result.config, 0.01, None, (*result.trials[:2], *trials), "measured")
    part = tuning_part(more)
    assert part.failures == [
        Group("pruned", "needs 10 bytes", ["block_M=0", "block_M=1"]),
        Group("crash", "signal 11\nat line 3", ["block_M=3"]),
        Group("crash", "aborted", ["block_M=4"]),
    ]
    assert part.untried == [Group("pruned", "not tried: the budget is spent", ["block_M=2"])]
    assert facts(part.facts)["configurations that work"][0] == "2 of 7" and "reference" not in facts(part.facts)


def test_what_is_minimised_orders_the_page() -> None:
    result = gemm_result(0.02, 0.01, None)
    for trial, joules in zip(result.trials, (3.0, 4.5)):
        trial.metrics, trial.objective = {"energy": joules}, joules
    first = result.trials[0]
    cheap = AutotuneResult(first.kernel, first.config, 0.02, None, result.trials, "measured", minimised="energy")
    part = tuning_part(cheap)
    known = facts(part.facts)
    assert known["energy"] == ("3", "what is minimised, and orders the configurations")
    assert known["next best"] == ("+50.0%", "block_M=128 block_N=128 num_stages=4")
    assert part.heads[6] == "energy" and [each.cells[6].text for each in part.entries] == ["3", "4.5", "-"]


def test_the_page_of_a_tuning_has_the_winners_kernel(
    result: AutotuneResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "_plotting", lambda: "const Plotly = {};")
    path = result.report(tmp_path / "tuning.html")
    text = path.read_text()
    seen = Read(text)
    assert "gemm: tuning" in seen.texts and "3 configurations, measured on cuda:90" in seen.texts
    shown = {value for value in seen.texts if value.strip()}
    program = tuning_page(result).program
    assert facts(program.facts)["registers"] == ("96", "a thread")  # as recorded: nothing is compiled again
    assert facts(program.facts)["occupancy"] == ("1 block", "a multiprocessor, bounded by shared memory")
    assert {"acc = T.alloc_fragment((block_M, block_N), acc_t)"} <= {each.strip() for each in shown}
    assert f"<pre>{html.escape(result.kernel.source, quote=False)}".replace('"', "&#34;").replace("'", "&#39;") in text


def test_times_of_the_interpreter_are_not_held_against_a_gpu(tmp_path: Path) -> None:
    result = tuned()
    part = tuning_part(result)
    assert facts(part.facts)["time"][1] == "estimated for H200" and "of memory bandwidth" in facts(part.facts)
    assert part.failures[0].status == "nonfinite" and part.failures[0].configs == ["block=64 variant=unwritten"]
    again = tuning_page(AutotuneResult.load(result.save(tmp_path / "best.json")))
    assert again.tuning is not None and again.tuning.explanation.startswith("block=")  # of the winner's program alone
    assert replace(again.tuning, explanation=part.explanation) == part
    assert [texts(step) for step in again.program.steps] == [texts(step) for step in tuning_page(result).program.steps]
    timed = facts(tuning_part(replace(result, latency_kind="measured")).facts)
    assert timed["time"][1] == "measured in Triton's interpreter, which says nothing of a GPU"
    assert "of memory bandwidth" not in timed


def test_the_page_of_a_kernel(tmp_path: Path) -> None:
    kernel = gemm_result(0.02, 0.01, None, size=128).kernel
    part = kernel_page(kernel).program
    known = facts(part.facts)
    resources = kernel.resources
    assert known["target"] == ("cuda:90", "") and known["registers"] == (str(resources.registers), "a thread")
    assert known["shared memory"] == (f"{resources.shared_bytes:,}", "bytes a block")
    names = [re.match(r"[\w-]+", each.spec)[0] for each in part.steps]  # type: ignore[index]
    texts = {stage.name: stage.text for stage in kernel.stages}
    assert {"lower-tile-ops", "promote-buffers", "lower-to-triton"} <= {*names} and not {*names} & {*part.unchanged}
    assert {*names, *part.unchanged} == {*texts} - {"elaborate", "emit"}
    lowered = next(each for each in part.steps if each.spec == "lower-tile-ops")
    gone = [row.before for row in lowered.rows if row.kind == "changed" and row.before is not None]
    product = next(each for each in gone if each.text.strip().startswith("tile.gemm"))
    assert product.place is not None and product.place.text == "T.gemm(A_s, B_s, acc, transpose_B=trans_B)"
    assert (product.place.name, product.place.line) in {
        (file, line.number) for file, lines in part.quoted.items() for line in lines
    }
    assert kernel.report(tmp_path / "kernel.html").stat().st_size < 500_000  # no plots, so nothing that draws them


def test_a_kernel_that_cannot_be_compiled_or_lowered_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = gemm_result(0.02, 0.01, None, size=128).kernel

    def refuse(*_: object, **__: object) -> None:
        raise tiledsl.TileError("no <such> thing")

    monkeypatch.setattr("tiledsl.runtime.lowering.located_texts", refuse)
    monkeypatch.setattr("tiledsl.kernels.kernel.compile_emitted", refuse)
    kernel.__dict__.pop("compiled", None)
    part = kernel_page(kernel).program
    assert part.problem == "no <such> thing" and not part.steps and part.source == kernel.source
    assert Fact("resources", "unknown", "no <such> thing") in part.facts


def test_a_time_that_nobody_knows_is_not_shown() -> None:
    result = gemm_result(0.02, 0.01, None, size=128)
    nothing = replace(result, latency=0.0)  # as where nothing can be estimated
    assert {"winner", "configurations that work"} <= {*facts(tuning_part(nothing).facts)}
    assert "time" not in facts(tuning_part(nothing).facts)


def milliseconds_of_parts(config: dict[str, Any], call: Any) -> float:
    return {1: 0.5, 2: 0.25}[config["parts"]]


def test_functions_have_pages_without_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_plotting", lambda: "const Plotly = {};")

    times = "tests.autotune.test_report:milliseconds_of_parts"

    @tune_function([{"parts": parts} for parts in (1, 2, 0)], timer=times, cache=False)
    def product(A: torch.Tensor, B: torch.Tensor, parts: int) -> torch.Tensor:
        return torch.cat([piece @ B for piece in A.chunk(parts)])

    result = product.tune(torch.eye(4), torch.eye(4))
    assert repr(result) == "<tuned product: parts=2, 0.2500 ms, 3 trials>"
    rows = [line.split() for line in result.table().splitlines()]
    assert rows[0] == ["rank", "trial", "configuration", "status", "measured", "ms", "spread", "max", "error"]
    assert [row[:6] for row in rows[1:3]] == [
        ["*", "1", "1", "parts=2", "ok", "0.2500"], ["2", "0", "parts=1", "ok", "0.5000", rows[2][5]],
    ]  # fmt: skip
    assert result.explain().splitlines()[1] == "Next is parts=1 with 0.5000 ms, 100.0% more."
    assert result.to_csv().splitlines()[2].startswith("2,1,1,ok,0.25,")
    part = tuning_part(result)
    assert facts(part.facts) == {
        "winner": ("parts=2", ""),
        "time": ("0.25 ms", "measured on the CPU"),
        "next best": ("+100.0%", "parts=1"),
        "configurations that work": ("2 of 3", "the slowest takes 2.0× as long"),
        "where": ("in this process", "it is defined inside of another function"),
    }
    assert [*part.heads] == ["rank", "parts", "status", "ms", "spread", "message"]
    assert part.failures[0].configs == ["parts=0"] and "chunks" in part.failures[0].message
    seen = Read(result.report(tmp_path / "product.html").read_text())
    assert {"product: tuning", "3 configurations, measured on the CPU"} <= {*seen.texts}
    assert not {"The winner's kernel", "Triton source"} & {*seen.texts}
    assert "parts=2" in result._repr_html_()
    again = pickle.loads(pickle.dumps(result))
    assert (again, again.subject, again.tuned_on) == (result, "product", None)
