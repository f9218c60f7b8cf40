"""The programs that measure the autotuner: what they compute, and that they run to their end without a GPU."""

from __future__ import annotations

import importlib
import json
import os
import py_compile
import shutil
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchmarks.rows import all_rows
from benchmarks.tuning import __main__ as command
from benchmarks.tuning import (
    cases,
    cold,
    interleaved,
    large_space,
    model_check,
    processes,
    stages,
    start,
    suite_check,
    winner,
)
from benchmarks.tuning.report import Report, read_json, table
from tests.support import forked

pytestmark = pytest.mark.usefixtures("cache_dir")


@pytest.fixture(autouse=True)
def _same_everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEDSL_TARGET", "interpret")
    monkeypatch.chdir(tmp_path)


# What is tuned


def test_the_spaces_have_the_sizes_that_are_promised() -> None:
    configs = cases.gemm_configs()
    assert len(configs) == len({json.dumps(each) for each in configs}) == 40
    assert {"block_M": 128, "block_N": 256, "block_K": 64, "num_stages": 3, "threads": 256} in configs
    assert len(cases.large_space()) == 3456
    sizes = {name: len(case.configs) for name, case in cases.model_cases().items()}
    assert sizes == {"gemm": 40, "attention": 36, "softmax": 20, "gemm-few-rows": 48, "attention-causal": 36}


def test_ordering_the_large_space_accounts_for_every_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    some = list(cases.large_space())[::97]
    some[3] = {**some[3], "block_K": 0}
    bound: list[Any] = []
    monkeypatch.setattr(cases, "large_space", lambda: some)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: bound.append(cores))
    found = large_space.order()
    assert found["configurations"] == len(some) == found["kept"] + found["pruned"] + found["failed"]
    assert found["failed"] == 1 and found["first"] in some
    assert len(bound) == 1 and len(bound[0]) <= 2
    assert found["more_held_mib"] < found["peak_mib"]


# Timing calls against each other


class Clocked:
    """A clock for calls that say their own milliseconds; `order` is what was timed for a window."""

    def __init__(self) -> None:
        self.order: list[float] = []

    def __call__(self, run: Any, times: int) -> float:
        ms: float = run()
        if times == int(interleaved.WINDOW_MS / ms):
            self.order.append(ms)
        return ms


def test_rounds_alternate_and_slow_calls_end_early() -> None:
    clock = Clocked()
    calls = {name: (lambda ms=ms: ms) for name, ms in (("a", 1.0), ("b", 2.0), ("c", 1.1))}
    times = interleaved.interleaved(calls, 4, clock)
    assert {name: len(each) for name, each in times.items()} == {"a": 4, "b": 2, "c": 4}
    assert clock.order == [1.0, 2.0, 1.1, 1.1, 2.0, 1.0, 1.0, 1.1, 1.1, 1.0]
    assert interleaved.medians(times) == {"a": 1.0, "b": 2.0, "c": 1.1}


def test_without_screening_every_call_has_every_round() -> None:
    times = interleaved.interleaved({"a": lambda: 1.0, "b": lambda: 9.0}, 4, Clocked(), screen=False)
    assert [len(each) for each in times.values()] == [4, 4]
    assert interleaved.interleaved({}, 4, Clocked()) == {}


# Verdicts


def test_winners_are_judged_by_their_own_latencies() -> None:
    found = winner.judge(["a", "b", "c"], {"a": 1.0, "b": 1.01, "c": 1.03, "d": 2.0})
    assert (found["best"], found["within"], found["runs"]) == ("a", 2, 3)
    assert found["worst_loss"] == pytest.approx(0.03) and found["variation"] == pytest.approx(0.03)
    assert [line.rsplit(" ", 1)[1] for line in winner.verdicts(found, "steady")] == ["MISSED", "MISSED"]
    same = winner.judge(["b", "b"], {"a": 1.0, "b": 1.019})
    assert [line.rsplit(" ", 1)[1] for line in winner.verdicts(same, "steady")] == ["reached", "reached"]


def test_ratios_are_of_the_same_shape() -> None:
    systems = {
        "tiledsl": {"rows": [{"shape": [1, 2, 3], "seconds": 2.0}, {"shape": [4, 5, 6], "seconds": 4.0}]},
        "triton": {"rows": [{"shape": [1, 2, 3], "seconds": 9.0}]},
        "tilelang": {"error": "not installed"},
    }
    first, second = cold.ratios(systems)
    assert (first["shape"], first["triton_times"], first["caches"]) == ("1x2x3", 4.5, "cold")
    assert "triton_times" not in second and second["caches"] == "warm process"
    assert cold.verdicts([first, second]) == [
        "cold: triton takes 4.5 times as long (goal 4): reached",
        "cold: no time of tilelang",
    ]
    assert cold.verdicts(cold.ratios({})) == ["cold: tiledsl gave no time"]


# The model against recordings


def test_rank_correlation() -> None:
    assert model_check.spearman([1, 2, 3, 4], [10, 20, 30, 40]) == 1
    assert model_check.spearman([1, 2, 3, 4], [4, 3, 2, 1]) == -1
    assert model_check.spearman([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == 0.8  # 1 - 6 * 4 / (5 * 24)
    assert model_check.spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(0.866, abs=1e-4)
    assert model_check.spearman([1, 2], [1, 2]) is None and model_check.spearman([1, 1, 1], [1, 2, 3]) is None


def recorded(change: Any) -> dict[str, Any]:
    """A recording whose times are the model's own, changed."""
    case = cases.model_cases()["gemm"]
    recording = {
        "case": "gemm", "module": case.module, "builder": case.builder, "arguments": case.arguments,
        "target": "cuda:90",
        "trials": [{"config": config, "status": "ok", "ms": 1.0} for config in case.configs],
    }  # fmt: skip
    builder = cases.gemm()
    found = model_check.rank.rank(
        lambda config: builder.program_for(case.arguments, config), case.configs, model_check.Target("cuda", 90)
    )
    for at, trial in enumerate(recording["trials"]):
        trial["ms"] = change(found.predicted.get(at, 100.0))
    return recording


def test_a_right_model_has_the_best_first() -> None:
    found = model_check.compare(recorded(lambda ms: 3 * ms))
    assert (found["spearman"], found["rank_of_best"], found["loss_of_top"]["1"]) == (1, 1, 0)
    assert found["compared"] + found["pruned"] == found["configs"] == 40 and found["pruned"] > 0
    assert found["estimate_over_time"] == pytest.approx(1 / 3) and found["pruned_best"] > 1


def test_a_wrong_model_has_the_best_last() -> None:
    found = model_check.compare(recorded(lambda ms: 1 / ms))
    assert found["spearman"] == -1 and found["rank_of_best"] == found["compared"]
    assert found["loss_of_top"]["10"] > 0


def test_a_recording_replays_to_what_was_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(tmp_path / "out.json")
    model_check.run(report, small=True, names=["softmax"])
    (row,) = read_json(tmp_path / "out.json")["cases"]
    recording = tmp_path / row["recording"]
    assert row["work"] == row["configs"] == 4 and row["best_ms"] > 0
    (again,) = model_check.replay([recording])
    assert again.items() <= row.items()
    assert command.main(["--replay", str(recording)]) == 0
    printed = capsys.readouterr().out
    assert "block_M" in printed and str(row["best_ms"]) in printed
    with pytest.raises(FileNotFoundError, match=r"nowhere\.json"):
        model_check.replay([tmp_path / "nowhere.json"])


# Whole parts, small


def test_ten_tunings_are_judged(tmp_path: Path) -> None:
    report = Report(tmp_path / "out.json")
    winner.run(report, small=True, times=2, rounds=1)
    found = read_json(tmp_path / "out.json")
    assert found["winners"] == ["32x16x32 s2 t128"] * 2  # by the made-up clock
    assert len(found["exhaustive_ms"]) == 8 and found["refused"] == {}
    assert found["steady"]["runs"] == found["flushed"]["runs"] == 2 and found["steady"]["variation"] == 0
    assert len(found["verdicts"]) == 4 and "32x16x32 s2 t128" in winner.show(found)


@pytest.mark.parametrize("system", ["tiledsl", "triton"])
def test_a_system_tunes_in_a_process_of_its_own(
    system: str, monkeypatch: pytest.MonkeyPatch, parse_table: Path
) -> None:
    def environment(folder: Path) -> dict[str, str]:
        chosen = empty(folder)
        shutil.copytree(parse_table, Path(chosen["TILEDSL_CACHE_DIR"], "grammar"), dirs_exist_ok=True)
        return chosen

    empty = cold.environment
    monkeypatch.setattr(cold, "environment", environment)
    answer = cold.run_system(system, small=True)
    assert "error" not in answer, answer["error"]
    assert [row["shape"] for row in answer["rows"]] == [list(shape) for shape in cases.SMALL_SHAPES]
    assert all(row["seconds"] > 0 and row["ms"] > 0 for row in answer["rows"])
    if system == "tiledsl":
        assert sum(answer["rows"][0]["statuses"].values()) == 8 and answer["rows"][0]["stages_s"]
        assert "waiting: measuring" in cold.show({"systems": {"tiledsl": answer}})


def test_tilelangs_program_computes_the_same(tmp_path: Path) -> None:
    """TileLang is not here; its program runs on tiledsl's stand-in."""
    script = (
        "from tiledsl.compat import install; install()\n"
        "from benchmarks.tuning import cold_system; from benchmarks.tuning.report import Report\n"
        "cold_system.measure('tilelang', True, Report('report.json'))"
    )
    done = forked.run(["-c", script], cwd=tmp_path, env=processes.with_root(os.environ))
    assert done.returncode == 0, done.stderr
    assert len(read_json(tmp_path / "report.json")["rows"]) == 2


def test_tilelangs_program_can_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """TileLang's tuner takes a function if its closure has numbers and texts alone."""
    stand_in, language = ModuleType("tilelang"), ModuleType("tilelang.language")
    decorator = lambda **options: lambda function: function
    stand_in.__dict__.update(jit=decorator, autotune=decorator, language=language)
    monkeypatch.setitem(sys.modules, "tilelang", stand_in)
    monkeypatch.setitem(sys.modules, "tilelang.language", language)
    monkeypatch.delitem(sys.modules, "benchmarks.tuning.gemm_tilelang", raising=False)
    function = importlib.import_module("benchmarks.tuning.gemm_tilelang").tuned_builder(cases.gemm_configs(True))
    sys.modules.pop("benchmarks.tuning.gemm_tilelang")
    cells = function.__closure__ or ()
    assert function.__code__.co_varnames[:3] == ("M", "N", "K")
    assert [each.cell_contents for each in cells if not isinstance(each.cell_contents, (int, float, str))] == []


def test_a_system_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], environment: dict[str, str], folder: Path, seconds: float) -> str:
        return forked.run(command[1:], folder, processes.with_root(environment), seconds).stderr

    monkeypatch.setattr(processes, "run", run)
    monkeypatch.setattr(cold, "environment", lambda folder: {**os.environ, "TILEDSL_TARGET": "nonsense"})
    assert "nonsense" in cold.run_system("tiledsl", small=True)["error"]


# Where the time goes


def inside(names: list[str], of: Any, filename: str) -> Any:
    """What stage_of says of a stack of functions of these names, the outermost first, in a file."""
    text = "from benchmarks.tuning.stages import stage_of\nimport sys\n"
    text += "".join(
        f"def {name}(self):\n    return {'stage_of(sys._getframe())' if last else names[at + 1] + '(self)'}\n"
        for at, name in enumerate(names)
        for last in [at == len(names) - 1]
    )
    space: dict[str, Any] = {}
    exec(compile(text, filename, "exec"), space)
    return space[names[0]](of)


def test_the_innermost_stage_counts() -> None:
    run = SimpleNamespace(_compiling={1, 2}, _running=set())
    assert inside(["tune", "_loop", "get"], run, "autotune/run.py") == ("waiting: compiling", 2, 0)
    assert inside(["_loop", "_lower"], run, "autotune/run.py") == ("lowering to Triton source", 0, 0)
    run._running.add(3)
    assert inside(["_loop"], run, "autotune/run.py") == ("waiting: compiling and measuring", 2, 1)
    assert inside(["_loop"], run, "somewhere/else.py") == ("other", 0, 0)
    assert stages.stage_of(None) == ("other", 0, 0)


def test_the_watch_adds_up_to_the_wall_time() -> None:
    with stages.StageWatch() as watch:
        time.sleep(0.2)
    assert watch.total >= 0.2 and watch.seconds["other"] == pytest.approx(watch.total, abs=0.1)
    assert watch.timeline == []


# The command


def test_a_part_that_fails_keeps_what_it_had_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "folder" / "out.json"

    def run(argv: Any, environment: Any, folder: Any, seconds: float) -> str:
        arguments = command.parse(argv[3:])
        assert arguments.in_this_process and arguments.small and arguments.times == 3 and seconds == 7
        (part,) = arguments.parts
        report = Report(command.part_file(arguments.out, part))
        report.put("verdicts", [f"{part}: good"])
        return "ended with 1\nValueError: no" if part == "cold" else ""

    monkeypatch.setattr(processes, "run", run)
    options = ["cold", "space", "--small", "--times", "3", "--out", str(out), "--part-seconds", "7"]
    assert command.main(options) == 1
    found = read_json(out)
    assert [*found] == ["cold", "space"] and "ValueError" in found["cold"]["error"] and "error" not in found["space"]
    assert found["cold"]["verdicts"] == ["cold: good"] and [*out.parent.iterdir()] == [out]
    printed = capsys.readouterr().out
    assert "cold failed:\nended with 1\nValueError: no" in printed
    assert printed.index("cold: good") < printed.index("space: good") < printed.index("written:")


def test_every_option_reaches_the_parts_process() -> None:
    given = [
        "--out=/a.json",
        "--systems=triton",
        "--times=2",
        "--cases=gemm",
        "--trials=4",
        "--recordings=/r",
        "--small",
    ]
    arguments = command.parse(["model", *given])
    assert command.parse(["model", *command.forwarded(arguments)]) == arguments
    with pytest.raises(SystemExit):
        command.parse(["nonsense"])


def test_a_process_that_takes_too_long_ends_with_its_children(tmp_path: Path) -> None:
    script = "import subprocess, sys; subprocess.Popen(['sleep', '60']); print('hello', flush=True); sys.stdin.read()\n"
    script += "import time; time.sleep(60)"
    start = time.monotonic()
    wrong = processes.run([sys.executable, "-c", script], dict(os.environ), tmp_path, 2)
    assert wrong == "stopped after 2 s\nhello" and time.monotonic() - start < 20
    assert processes.run([sys.executable, "-c", "print(1)"], dict(os.environ), tmp_path, 20) == ""
    assert "ZeroDivisionError" in processes.run([sys.executable, "-c", "1/0"], dict(os.environ), tmp_path, 20)


def test_tables_have_every_column() -> None:
    assert table([{"a": 1, "b": None}, {"a": 0.123456, "c": "x"}]).splitlines() == [
        "a        b  c",
        "1        -  -",
        "0.12346  -  x",
    ]


# What a measuring process waits for


def test_ways_to_start_are_timed_alone_and_beside_others(tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    code = f"open({str(noted)!r}, 'a').write('x')"
    ways = {"waits": "time.sleep(0.2)", "does not": "pass"}
    rows = start.measure(ways, 3, (0, 2), code)
    assert [(row["other processes"], row["way"]) for row in rows] == [(n, way) for n in (0, 2) for way in ways]
    assert [row["s"] >= 0.2 for row in rows] == [True, False, True, False]
    assert len(noted.read_text()) == 2 * 2 * 3


def test_byte_code_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "some_package"
    package.mkdir()
    for name in ("__init__", "one"):
        (package / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert start.without_byte_code("some_package") == (2, 2)
    py_compile.compile(str(package / "one.py"))
    assert start.without_byte_code("some_package") == (1, 2)


def test_the_systems_keep_byte_code_as_python_does_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("ELSE", "kept")
    found = cold.environment(tmp_path)
    assert "PYTHONDONTWRITEBYTECODE" not in found and found["ELSE"] == "kept"


SUITE = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "suite-nvidia-h200.json"
OF_SUITE = (
    "fp16 full B4 H32 S4096 D128",
    "fp16 causal B4 H32 S4096 D64",
    "1x8192x8192",
    "4096x7168x16384",
    "131072x1024",
)


def test_the_model_tries_what_won_in_the_suite_among_its_first(tmp_path: Path) -> None:
    """`--suite` has all rows; benchmarks/results/README.md says of how many this holds."""
    whole = json.loads(SUITE.read_text())
    rows = [row for row in whole["rows"] if any(text in row["case"] for text in OF_SUITE)]
    # Ties, options and weights of four bits, of which the model knows too little.
    unknown = ("softmax backward", "attention backward", "w4a16 gemm")
    rows = [row for row in rows if row["family"] not in unknown]
    (tmp_path / "suite.json").write_text(json.dumps({"rows": rows}))
    found = list(suite_check.replay(tmp_path / "suite.json"))
    assert len(found) >= len(OF_SUITE) and all(each["place"] <= suite_check.FIRST for each in found), found
    assert f"in {len(found)} of {len(found)} rows" in suite_check.show(found)


def test_ties_stand_for_a_winner_and_lost_configurations_do_not_count() -> None:
    (row,) = (row for row in all_rows() if row.name == "softmax: fp16 8192x8192")
    _, _, configs = suite_check.asked(row)
    order = [{"config": config, "ms": 1.0, "spread": 0.0} for config in configs]
    order[7] |= {"ms": 0.99, "spread": 0.02}
    gone = {"config": {"block_M": 3, "threads": 32}, "ms": 0.5, "spread": 0.0}
    found = suite_check.compare(row, [*order, gone])
    assert found["alike"] == 1 and found["place"] > 1
    assert suite_check.compare(row, [{**each, "spread": 0.0} for each in order])["alike"] == found["place"]
