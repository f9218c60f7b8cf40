"""`tiledsl beside` with a pretended TileLang, whose kernels are tiledsl's: rows, failures, differences, the file."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.test_cli import tiledsl
from tiledsl.child_processes import family
from tiledsl.commands import beside
from tiledsl.commands.beside import process, results, tensors
from tiledsl.commands.beside.hooks import without_tuning
from tiledsl.commands.beside.process import Job, SideProcess, outside
from tiledsl.commands.beside.recording import Call
from tiledsl.commands.beside.side import Measuring
from tiledsl.commands.beside.supervise import Plan, compared, matched
from tiledsl.errors import TileError

PRETENDED = str(Path(__file__).parent / "support" / "pretended")

SCRIPT = """
import sys
import torch
import tilelang
import tilelang.language as T

pretended = "pretended" in tilelang.__version__


@tilelang.jit(out_idx=[-1])
def add(N, B, amount=1.0):
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, B), threads=128) as bx:
            for i in T.Parallel(B):
                C[bx * B + i] = A[bx * B + i] + amount

    return main


@tilelang.jit
def half(N, B):
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=128) as bx:
            for i in T.Parallel(B):
                C[i] = A[i] * 2

    return main


@tilelang.autotune(configs=[{"B": 64}, {"B": 0}])
@tilelang.jit(out_idx=[-1])
def tuned(N, B=None):
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, B), threads=128) as bx:
            for i in T.Parallel(B):
                C[bx * B + i] = -A[bx * B + i]

    return main


assert sys.argv[1:] == ["--given"]
a = torch.randn(256, device="cuda")
x = add(256, 64)(a)
for _ in range(3):
    add(256, 64)(a)
y = add(256, 64, 3.0 if pretended else 2.0)(a)  # differs
c = torch.empty(256, device="cuda")
half(256, 128)(y, c)  # on inputs that differ; writes into half of what it is given
tuned(256)(a)
if pretended:
    add(128, 64)(a[:128].clone())
raise ValueError("done")
"""
CRASH = """
import os, signal, tilelang
if "pretended" in tilelang.__version__:
    print("about to go", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
raise SystemExit("no such size")
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """What is found of two scripts, by their names."""
    folder = tmp_path_factory.mktemp("scripts")
    jobs = []
    for name, text in {"several": SCRIPT, "crash": CRASH}.items():
        (folder / f"{name}.py").write_text(text)
        jobs.append(Job(name, folder / f"{name}.py", ("--given",), paths=(PRETENDED,)))
    plan = Plan(workers=4, timeout=90, warmup=0, window=1, rounds=2, verify=True)
    yield {each["script"]: each for each in compared(jobs, plan)}


def rows(found: dict[str, dict[str, Any]], script: str = "several") -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["kernel"], row["number"]): row for row in found[script]["kernels"]}


def test_each_kernel_is_a_row_once(found: Any) -> None:
    assert list(rows(found)) == [("add", 1), ("add", 2), ("half", 1), ("tuned", 1), ("add", 3)]
    shapes = [row["shapes"] for row in rows(found).values()]
    assert shapes == ["float32[256]", "float32[256]", "float32[256] float32[256]", "float32[256]", "float32[128]"]


def test_times_and_their_ratio(found: Any) -> None:
    for row in list(rows(found).values())[:4]:
        assert row["reasons"] == {"tiledsl": None, "tilelang": None} and row["method"] == "wall clock"
        assert row["ratio"] == row["ms"]["tilelang"] / row["ms"]["tiledsl"] > 0
        assert all(0 < row["compile_s"][side] < 60 for side in ("tiledsl", "tilelang"))


def test_outputs_are_compared_on_the_same_inputs(found: Any) -> None:
    first, second, third = list(rows(found).values())[:3]
    assert (first["same_inputs"], first["difference"]) == (True, "")
    assert second["same_inputs"] and re.fullmatch(r"output 0: relative difference 0\.\d+", second["difference"])
    assert (third["same_inputs"], third["difference"]) == (False, "")  # TileLang's ran on our inputs


def test_a_kernel_that_one_side_alone_runs_has_the_reason(found: Any) -> None:
    last = rows(found)["add", 3]
    assert last["reasons"] == {"tiledsl": "not run, for the script had failed", "tilelang": None}
    assert last["ms"] == {"tiledsl": None, "tilelang": None} and last["ratio"] is None
    assert last["compile_s"]["tiledsl"] is None and last["compile_s"]["tilelang"] > 0


def test_kernels_have_certificates(found: Any) -> None:
    made = [row["certificate"] for row in rows(found).values()]
    assert made[-1] is None  # tiledsl has not run it
    assert all(each["failed"] == "" and re.match(r"\d+ proved, \d+ tested", each["summary"]) for each in made[:-1])


def test_a_script_that_fails_is_a_row(found: Any) -> None:
    assert found["several"]["failures"] == {"tiledsl": "ValueError: done", "tilelang": "ValueError: done"}
    crash = found["crash"]
    assert crash["kernels"] == [] and crash["failures"] == {
        "tiledsl": "no such size", "tilelang": "its process ended with SIGSEGV: about to go"
    }  # fmt: skip


def call(name: str, shapes: str, error: str = "") -> dict[str, Any]:
    return {"name": name, "shapes": shapes, "error": error}


@pytest.mark.parametrize(
    ("ours", "theirs", "pairs"),
    [
        ("a:8 a:16", "a:16 a:8", [(0, 1), (1, 0)]),
        ("a:8 a:8", "a:8 a:8", [(0, 0), (1, 1)]),
        ("a:8", "a:16", [(0, None), (None, 0)]),
        ("a:8 b:8", "b:8", [(0, None), (1, 0)]),
        ("main:8", "kernel:8", [(0, 0)]),
        ("a: b:8", "a:8 b:8", [(0, 0), (1, 1)]),  # ours failed
        ("a:8", "a:", [(0, 0)]),
        ("a:", "b:", [(0, None), (None, 0)]),
        ("", "a:8", [(None, 0)]),
    ],
)
def test_calls_that_belong_together(ours: str, theirs: str, pairs: list[Any]) -> None:
    sides = []
    for text in (ours, theirs):
        split = [each.split(":") for each in text.split()]
        sides.append([call(name, shapes, "" if shapes else "failed") for name, shapes in split])
    assert matched(*sides) == pairs


def test_pauses_do_not_count() -> None:
    assert outside(10.0, 20.0, []) == 10.0
    assert outside(10.0, 20.0, [(0.0, 5.0), (8.0, 11.0), (12.0, 13.0), (19.0, 30.0), (40.0, 50.0)]) == 7.0


def test_a_side_is_stopped_goes_on_and_is_ended(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)\n")
    side = SideProcess(Job("slow", tmp_path / "slow.py"), "tiledsl", tmp_path)

    def state() -> str:
        return Path(f"/proc/{side.process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def wait_for(stopped: bool) -> None:
        limit = time.monotonic() + 30
        while (state() == "T") != stopped:
            assert time.monotonic() < limit
            time.sleep(0.01)

    side.pause()
    wait_for(True)
    side.go_on()
    wait_for(False)
    assert len(side.pauses) == 1
    side.poll(60)
    assert not side.settled
    side.poll(0)
    assert side.settled and side.failure() == "not done after 0 s" and side.process.poll() is not None
    assert side.ask(1, do="sample") == {"error": "not done after 0 s"}


def test_what_one_side_alone_changes_is_compared_with_the_others_input(tmp_path: Path) -> None:
    a, b, c = torch.zeros(4), torch.ones(4), torch.full((4,), 2.0)
    ours = Call("k", [a, b], changed={0: c})
    theirs = Call("k", [a, b], changed={0: c, 1: b * 1.001})
    file = str(tmp_path / "outputs.pt")

    def compared_with(other: Call, inputs: bool = False) -> str:
        assert Measuring([ours]).answer({"do": "save", "call": 0, "file": file, "inputs": inputs}) == {}
        return str(Measuring([other]).answer({"do": "compare", "call": 0, "file": file}))

    assert compared_with(theirs) == "{'difference': ''}"
    theirs.changed[1] = b * 3
    assert compared_with(theirs) == "{'difference': 'argument 1: relative difference 0.67'}"
    assert compared_with(Call("k", [a, b])) == "{'difference': 'argument 0: relative difference inf'}"
    assert compared_with(Call("k", [a, b], returned=[a])) == "{'difference': '0 and 1 outputs'}"
    assert compared_with(Call("k", [b, b], lambda x: x), True).startswith("{'error': 'TypeError: ")

    def doubled(x: Any, y: Any) -> None:
        x.copy_(y * 2)

    assert compared_with(Call("k", [b, b], doubled), True) == "{'difference': ''}"


def test_a_family_has_processes_in_sessions_of_their_own() -> None:
    inner = (
        "import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", inner], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        try:
            assert family(child.pid) == [child.pid, grandchild]
            assert family(os.getpid())[:1] == [os.getpid()] and {child.pid, grandchild} <= set(family(os.getpid()))
        finally:
            os.kill(grandchild, signal.SIGKILL)
            child.kill()


def test_the_environment_of_a_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty caches of its own; byte code is kept where it is not to be written beside the packages."""
    given: list[dict[str, str]] = []

    def popen(command: list[str], env: dict[str, str], **options: Any) -> Any:
        given.append(env)
        raise OSError

    monkeypatch.setattr(process, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": popen}))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    with pytest.raises(OSError):
        SideProcess(Job("a", tmp_path / "a.py", paths=("/more",)), "tilelang", tmp_path)
    environment = given[0]
    assert environment["TRITON_CACHE_DIR"] == str(tmp_path / "tilelang" / "triton_cache_dir")
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == "/more"
    assert environment["PYTHONDONTWRITEBYTECODE"] == ""
    assert environment["PYTHONPYCACHEPREFIX"] == str(tmp_path / "bytecode")


# Tensors

FP8 = torch.ones(4).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (torch.ones(4), torch.ones(4), ""),
        (torch.ones(4) * 1.009, torch.ones(4), ""),
        (torch.ones(4) * 1.011, torch.ones(4), "relative difference 0.011"),
        (torch.ones(4) * 1.05, FP8, "float32[4] and float8_e4m3fn[4]"),
        ((torch.ones(4) * 1.125).to(FP8.dtype), FP8, "relative difference 0.12"),
        (torch.tensor([1.0, float("inf")]), torch.tensor([1.0, float("inf")]), ""),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0]), "1 of 2 elements are finite on one side alone"),
        (torch.tensor([1, 2, 3]), torch.tensor([1, 5, 3]), "1 of 6 words differ"),
        (torch.zeros(2), torch.zeros(3), "float32[2] and float32[3]"),
        (torch.ones(2), torch.zeros(2), "relative difference inf"),
        (torch.zeros(0), torch.zeros(0), ""),
        (3, 3, ""),
        (3, 4, "3 and 4"),
    ],
)  # fmt: skip
def test_results_that_are_equal_but_for_rounding(ours: Any, theirs: Any, said: str) -> None:
    assert tensors.difference(ours, theirs) == said


def test_digests_tell_inputs_apart() -> None:
    x = torch.randn(63).half()
    y = x.clone()
    assert tensors.digest([x, 3]) == tensors.digest([y, 3]) != tensors.digest([y, 4])
    y[[5, 6]] = y[[6, 5]]
    assert tensors.digest([x]) != tensors.digest([y])
    assert tensors.digest([x]) != tensors.digest([x.view(torch.int16)])
    assert tensors.same_bits(x[1:3], x[1:3].clone()) and not tensors.same_bits(x[1:3], -x[1:3])  # not aligned


def test_copies_keep_strides() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    given = [base.T[1:], base[:, 2:4], base[:1].expand(3, 6), torch.empty(0, 3), "text"]
    copies = tensors.copied(given)
    base.zero_()
    assert [each.stride() for each in copies[:4]] == [each.stride() for each in given[:4]]
    assert copies[0].tolist() == (torch.arange(24.0).reshape(4, 6).T[1:]).tolist() and copies[4] == "text"
    assert copies[2].tolist() == [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]] * 3


class Builder:
    """A function under a decorator like `tilelang.jit`."""

    def __init__(self) -> None:
        self.signature = inspect.signature(lambda M, N, block=None, stages=3: None)
        self.pass_configs: dict[str, Any] | None = {"a": 1}
        self.name = "matmul"

    def __call__(self, *arguments: Any, **keywords: Any) -> SimpleNamespace:
        return SimpleNamespace(given=(arguments, keywords), latency=None)

    def compile(self, *arguments: Any, **keywords: Any) -> Any:
        return "compiled", arguments, keywords


def test_nothing_is_tuned() -> None:
    configs = [{"block": 64, "stages": 2}, {"block": 128, "stages": 4}]
    tuned = without_tuning(configs=configs, rep=5)(Builder())
    made = tuned(8, N=16)
    assert made.given == ((8,), {"N": 16, "block": 64, "stages": 2})
    assert (made.latency, made.config) == (1.0, {"block": 64, "stages": 2})
    assert tuned(8, 16, 32).given == ((8, 16, 32), {"stages": 2})  # what a call says stays
    assert tuned.compile(8, 16, stages=7) == ("compiled", (8, 16), {"stages": 7, "block": 64})
    assert tuned.name == "matmul"
    sized = without_tuning(configs=lambda M, N: [{"block": M}])(Builder())
    assert sized(8, 16).given == ((8, 16), {"block": 8})


def test_pass_options_of_a_configuration() -> None:
    inner = Builder()
    assert without_tuning(configs=[{"pass_configs": {"b": 2}}])(inner)(8, 16).given == ((8, 16), {})
    assert inner.pass_configs == {"a": 1, "b": 2}
    ours = Builder()
    ours.options = {"target": "auto"}  # type: ignore[attr-defined]
    without_tuning(configs=[{"pass_configs": {"b": 2}}])(ours)(8, 16)
    assert ours.options["pass_configs"] == {"b": 2} and ours.pass_configs == {"a": 1}  # type: ignore[attr-defined]


# The command


def row(kernel: str, ratio: float | None, **other: Any) -> dict[str, Any]:
    ms = {"tiledsl": None, "tilelang": None} if ratio is None else {"tiledsl": 0.5, "tilelang": 0.5 * ratio}
    return {
        "kernel": kernel, "shapes": "", "ms": ms, "spread_ms": ms, "ratio": ratio, "method": "events",
        "compile_s": {"tiledsl": 1.0, "tilelang": None}, "same_inputs": True, "difference": "", "number": 1,
        "reasons": {"tiledsl": None, "tilelang": None}, "remarks": ["no TMA"], **other,
    }  # fmt: skip


def script(name: str, *kernels: dict[str, Any], **failures: str | None) -> dict[str, Any]:
    failed = {"tiledsl": None, "tilelang": None, **failures}
    return {"script": name, "failures": failed, "seconds": {}, "about": {"device": "a GPU"}, "kernels": list(kernels)}


FOUND = [
    script(
        "a.py",
        row("gemm", 2.0, certificate={"summary": "", "failed": "x.py:1: a race", "unknown": ["x.py:2: slow"]}),
        row("gemm", 0.5, number=2, difference="output 0: relative difference 0.5"),
        row("sort", None, reasons={"tiledsl": "a.py:3:1: error: no", "tilelang": None}, difference=None),
        tiledsl="a.py:3:1: error: no",
    ),
    script("b.py", tilelang="ImportError: no \x1b[1mfla"),
    script("c.py"),
]


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    results.show(FOUND)
    assert capsys.readouterr().out == textwrap.dedent("""\
        script  kernel   tiledsl ms  tilelang ms  ratio  tiledsl compile s  tilelang compile s  outputs
        a.py    gemm         0.5000       1.0000  2.000                1.0                   -  agree
        a.py    gemm #2      0.5000       0.2500  0.500                1.0                   -  differ
        a.py    sort              -            -      -                1.0                   -
        a.py: gemm: certificate: failed: x.py:1: a race
        a.py: gemm: certificate: unknown: x.py:2: slow
        a.py: gemm #2: outputs differ: output 0: relative difference 0.5
        a.py: gemm #2: slower: no TMA
        a.py: sort: tiledsl: a.py:3:1: error: no
        b.py: tilelang failed: ImportError: no \\x1b[1mfla
        c.py: it called no kernel
        tilelang's time over tiledsl's, 2 kernels: geometric mean 1.000, median 1.250; 1 at 1 or more, 1 under 0.9, 0 under 0.5. Outputs agree for 1 of 2.
        1 certificates, 1 failed.
        """)  # noqa: E501


def test_the_file_is_written_after_each_script_and_a_run_goes_on_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "same.json"
    begun: list[list[str]] = []

    def until_killed(jobs: list[Job], plan: Plan, deadline: float | None) -> Iterator[dict[str, Any]]:
        begun.append([job.name for job in jobs])
        for job in jobs:
            if job.name == "c.py" and len(begun) == 1:
                raise KeyboardInterrupt
            yield script(job.name, row("gemm", 2.0))

    monkeypatch.setattr(results, "compared", until_killed)
    jobs = [Job(name, tmp_path / name) for name in ("a.py", "b.py", "c.py")]
    with pytest.raises(KeyboardInterrupt):
        beside.run_jobs(jobs, Plan(), file, None)
    written = json.loads(file.read_text())
    assert [each["script"] for each in written["scripts"]] == ["a.py", "b.py"] and written["summary"]["timed"] == 2
    assert [each["script"] for each in beside.run_jobs(jobs, Plan(), file, None)] == ["a.py", "b.py", "c.py"]
    assert begun == [["a.py", "b.py", "c.py"], ["c.py"]]
    assert "[3/3] c.py: 1 kernels; TileLang's time over ours 2.000" in capsys.readouterr().err
    file.write_text("{}")
    with pytest.raises(TileError, match="is no file of an earlier run"):
        beside.run_jobs(jobs, Plan(), file, None)


def test_a_run_that_is_terminated_ends_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    def terminated(jobs: list[Job], plan: Plan, deadline: float | None) -> Iterator[dict[str, Any]]:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
            yield {}
        finally:
            ended.append(True)

    monkeypatch.setattr(results, "compared", terminated)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit, match="143"):
        beside.run_jobs([Job("a.py", tmp_path)], Plan(), None, None)
    assert ended == [True] and signal.getsignal(signal.SIGTERM) is before


def test_the_deadline(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    assert list(compared([Job("a", tmp_path / "a.py")], Plan(), deadline=0.0)) == []


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Say that TileLang is there, and what becomes of scripts."""
    asked: dict[str, Any] = {}

    def run(jobs: Any, plan: Plan, file: Path | None, seconds: float | None) -> Any:
        asked.update(jobs=[(job.name, job.arguments) for job in jobs], plan=plan, file=file, seconds=seconds)
        return FOUND

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(beside, "run_jobs", run)
    return asked


def test_a_folder(tmp_path: Path, installed: Any) -> None:
    for name in ("b/one.py", "a.py", ".hidden/two.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\nimport tilelang.language as T\n")
    (tmp_path / "part.py").write_text("# import tilelang\n")
    ended = tiledsl("beside", tmp_path, "--workers", 6, "--timeout", 9, "--seconds", 400, "--", "--size", 3)
    assert ended.exit_code == 1 and ended.stdout.startswith("script  kernel ")
    assert installed["jobs"] == [("a.py", ("--size", "3")), ("b/one.py", ("--size", "3"))]
    assert (installed["plan"], installed["seconds"]) == (Plan(6, 9.0), 400.0)
    tiledsl("beside", tmp_path, "--only", "^b/")
    assert [name for name, _ in installed["jobs"]] == ["b/one.py"]


def test_json(tmp_path: Path, installed: Any) -> None:
    (tmp_path / "a.py").write_text("")
    ended = tiledsl("beside", tmp_path / "a.py", "-o", tmp_path / "out.json", "--json")
    found = json.loads(ended.stdout)
    assert (found["status"], found["error"]) == (1, None)
    assert found["data"]["scripts"] == FOUND and found["data"]["file"] == str(tmp_path / "out.json")
    summary = found["data"]["summary"]
    assert summary == {
        "scripts": 3, "failed_scripts": {"tiledsl": 1, "tilelang": 1}, "kernels": 3, "timed": 2, "geometric_mean": 1.0,
        "median": 1.25, "at_least_1": 1, "under_0.9": 1, "under_0.5": 0, "compared": 2, "different": 1,
            "certificates": 1, "failed_certificates": 1,
    }  # fmt: skip


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: Any) -> None:
    (tmp_path / "a.py").write_text("")
    said = {
        "no script here imports tilelang": [tmp_path],
        f"there is no script and no folder {tmp_path}/absent.py": [tmp_path / "absent.py"],
        "--only gemm: none of 1 scripts matches": [tmp_path / "a.py", "--only", "gemm"],
        "--only (: not a regular expression: missing ), unterminated subpattern at position 0": [
            tmp_path / "a.py", "--only", "(",
        ],
    }  # fmt: skip
    for text, words in said.items():
        ended = tiledsl("beside", *words)
        assert (ended.exit_code, ended.stderr.strip()) == (1, text)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    ended = tiledsl("beside", tmp_path / "a.py")
    assert (
        ended.stderr.strip()
        == "tilelang is not installed here, so there is nothing to compare with\n  note: pip install tilelang"
    )
