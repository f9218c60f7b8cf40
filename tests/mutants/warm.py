"""Runs tests on copies of the checkout, in forks of a process that has imported what tests need but nothing of tiledsl.

Each fork has a copy of its own: processes that a test starts find the same files, and nothing touches the checkout.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
IMPORTED = (
    "torch", "triton", "triton.language", "triton.runtime.interpreter", "numpy", "ml_dtypes", "lark", "networkx",
    "joblib", "click", "rich.table", "rich.console", "filelock", "platformdirs", "pytest", "_pytest.assertion.rewrite",
    "hypothesis", "hypothesis.extra.numpy", "filecheck.matcher", "coverage", "xdsl.parser",
)  # fmt: skip
MEMORY_BYTES = 12 << 30  # a change may ask for all that there is
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", ".mutants", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", "build", "dist",
    "*.egg-info", "*-pytest-*.pyc",
)  # fmt: skip


@dataclass(frozen=True)
class Test:
    name: str  # its node id
    seconds: float

    @property
    def limit(self) -> float:
        return 20 + 10 * self.seconds


@dataclass
class Job:
    """Pytest runs of one process, one for each list of tests; or one of whole files, with their coverage, or only to
    have them compiled."""

    runs: list[list[Test]] = field(default_factory=list)
    files: tuple[str, ...] = ()
    edit: tuple[str, bytes] | None = None
    covered: tuple[str, ...] | None = None  # files whose lines count
    limit: float = 600.0


@dataclass
class Outcome:
    status: int  # as in subprocess.Popen.returncode
    started: list[str]  # tests, in order
    failed: list[str]
    answer: dict[str, Any]  # of a job with coverage
    printed: str
    timed_out: bool = False

    @property
    def killed_by(self) -> str:
        """What noticed the change; empty if nothing did."""
        if self.failed:
            return self.failed[0]
        last = self.started[-1] if self.started else "an import"
        if self.timed_out or self.status == -signal.SIGALRM:
            return f"time limit in {last}"
        return f"{last} (status {self.status})" if self.status else ""


class Pool:
    def __init__(self, workers: int, folder: Path) -> None:
        for name in IMPORTED:
            try:
                importlib.import_module(name)
            except ImportError:
                print(f"{name} is not installed; tests that need it are left out", file=sys.stderr)
        self.folder = folder
        self.cache = ROOT / ".mutants"
        self.trees = [folder / f"worker{number}" for number in range(workers)]
        for tree in self.trees:
            shutil.copytree(ROOT, tree / "checkout", symlinks=True, ignore=NOT_COPIED)

    def compile_tests(self, files: Iterable[str]) -> None:
        """Have each copy keep the bytecode of these tests and of what they import."""
        self.run([Job(files=tuple(files)) for _ in self.trees], lambda *_: None)

    def run(self, jobs: Iterable[Job], done: Callable[[Job, Outcome], None]) -> None:
        """Run every job, `done` in the order in which they end."""
        waiting = list(jobs)[::-1]
        free = list(self.trees)
        running: dict[int, tuple[Job, Path, float]] = {}
        while waiting or running:
            while free and waiting:
                job, tree = waiting.pop(), free.pop()
                running[self._start(job, tree)] = job, tree, time.monotonic() + job.limit
            for process, (job, tree, end) in list(running.items()):
                ended, status = os.waitpid(process, os.WNOHANG)
                timed_out = not ended and time.monotonic() > end
                if timed_out:
                    os.killpg(process, signal.SIGKILL)
                    ended, status = os.waitpid(process, 0)
                if ended:
                    del running[process]
                    free.append(tree)
                    self._restore(job, tree)
                    done(job, _outcome(tree, os.waitstatus_to_exitcode(status), timed_out))
            time.sleep(0.01)

    def _start(self, job: Job, tree: Path) -> int:
        shutil.rmtree(tree / "tmp", ignore_errors=True)
        (tree / "tmp").mkdir(exist_ok=True)
        for name in ("progress", "answer", "printed"):
            (tree / name).write_text("")
        if job.edit is not None:
            path, text = job.edit
            (tree / "checkout" / path).write_bytes(text)
        process = os.fork()
        if process == 0:
            try:
                os._exit(_in_fork(job, tree, self.cache))
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(3)
        return process

    def _restore(self, job: Job, tree: Path) -> None:
        if job.edit is not None:
            path = job.edit[0]
            shutil.copy2(ROOT / path, tree / "checkout" / path)


def _outcome(tree: Path, status: int, timed_out: bool) -> Outcome:
    lines = (tree / "progress").read_text().splitlines()
    answer = (tree / "answer").read_text()
    return Outcome(
        status,
        [line[1:] for line in lines if line[0] == ">"],
        [line[1:] for line in lines if line[0] == "!"],
        json.loads(answer) if answer else {},
        (tree / "printed").read_text(errors="replace"),
        timed_out,
    )


def _in_fork(job: Job, tree: Path, cache: Path) -> int:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    printed = os.open(tree / "printed", os.O_WRONLY | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((null, printed, printed)):
        os.dup2(file, number)
    checkout = str(tree / "checkout")
    os.chdir(checkout)
    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "tiledsl", "benchmarks")]:
        del sys.modules[name]
    sys.path[:] = [checkout, *_elsewhere(sys.path)]
    sys.dont_write_bytecode = bool(job.runs)  # of changed files
    os.environ.update(
        PYTHONPATH=os.pathsep.join([checkout, *_elsewhere(os.environ.get("PYTHONPATH", "").split(os.pathsep))]),
        PYTHONDONTWRITEBYTECODE="1" if job.runs else "",
        CI="1",  # hypothesis without chance
        COVERAGE_CORE="ctrace",  # which knows contexts
        TMPDIR=str(tree / "tmp"),
        HOME=str(tree / "tmp"),
        TRITON_CACHE_DIR=str(cache / "triton"),
        CUDA_VISIBLE_DEVICES="",
    )
    import tempfile

    tempfile.tempdir = None
    import pytest

    arguments = ["-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={checkout}"]
    if job.covered is None and not job.runs:
        return int(pytest.main([*arguments, "--collect-only", *job.files]))
    if job.covered is not None:
        lines = _Coverage(tree, job.covered)
        status = int(pytest.main([*arguments, *job.files], plugins=[lines, _ParseTable(cache)]))
        (tree / "answer").write_text(json.dumps(lines.answer()))
        return status
    for tests in job.runs:
        files = list(dict.fromkeys(test.name.partition("::")[0] for test in tests))
        status = int(pytest.main([*arguments, "-x", *files], plugins=[_Chosen(tree, tests), _ParseTable(cache)]))
        if status:
            return status
    return 0


def _elsewhere(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if path and Path(path).resolve() != ROOT]


class _ParseTable:
    """The parser's table, which takes a second to make, made once."""

    def __init__(self, cache: Path) -> None:
        self.table = cache / "grammar"

    def pytest_runtest_setup(self, item: Any) -> None:
        folder = os.environ.get("TILEDSL_CACHE_DIR")
        if folder and self.table.is_dir() and not Path(folder, "grammar").exists() and "cache" in Path(folder).name:
            shutil.copytree(self.table, Path(folder, "grammar"))


class _Chosen:
    """Of what is collected the chosen tests, in their order, each with its time limit."""

    def __init__(self, tree: Path, tests: list[Test]) -> None:
        self.tests = {test.name: (number, test.limit) for number, test in enumerate(tests)}
        self.progress = os.open(tree / "progress", os.O_WRONLY | os.O_APPEND)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self.tests), key=lambda i: self.tests[i.nodeid][0])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        os.write(self.progress, f">{nodeid}\n".encode())
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, self.tests[nodeid][1])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            os.write(self.progress, f"!{report.nodeid}\n".encode())

    def pytest_runtest_logfinish(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)


class _Coverage:
    """Which lines each test runs, by coverage's contexts. Set-up counts for all tests of the file: it is shared."""

    def __init__(self, tree: Path, covered: tuple[str, ...]) -> None:
        import coverage

        self.checkout = (tree / "checkout").resolve()
        include = [f"{self.checkout}/{each}" for each in covered]
        self.coverage = coverage.Coverage(data_file=None, config_file=False, include=include)
        self.tests: dict[str, dict[str, Any]] = {}
        self.coverage.start()

    def pytest_runtest_setup(self, item: Any) -> None:
        self.coverage.switch_context("set-up")

    def pytest_runtest_call(self, item: Any) -> None:
        self.coverage.switch_context(item.nodeid)

    def pytest_runtest_teardown(self, item: Any) -> None:
        self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: Any) -> None:
        test = self.tests.setdefault(report.nodeid, {"seconds": 0.0, "passed": True})
        test["seconds"] += report.duration
        test["passed"] &= report.passed

    def answer(self) -> dict[str, Any]:
        self.coverage.stop()
        data = self.coverage.get_data()
        lines: dict[str, dict[str, str]] = {}
        for path in data.measured_files():
            file = str(Path(path).resolve().relative_to(self.checkout))
            masks: dict[str, int] = {}
            for line, contexts in data.contexts_by_lineno(path).items():
                for context in contexts:
                    masks[context] = masks.get(context, 0) | 1 << line
            for context, mask in masks.items():
                lines.setdefault(context, {})[file] = f"{mask:x}"
        return {"tests": self.tests, "lines": lines}
