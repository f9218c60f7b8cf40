"""`python -m tests.fuzz --count 10000 --seed 0`: random programs against the oracle; prints figures, writes findings.

Each worker is a process of its own, whose crash or hang costs one program. With `--device cuda` programs run on the
GPU. A share is compiled to machine code for GPU targets, which needs no GPU, by this Triton and by the one of
`--triton36`: for one target in turn, or for all that `--compile` names. `--no-run` compiles alone.
"""

from __future__ import annotations

import argparse
import collections
import functools
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz import finding, worker
from tests.fuzz.case import Case
from tests.fuzz.execution import Outcome, attempt
from tests.fuzz.generator import generate
from tests.fuzz.shrink import shrunk

TARGETS = ("cuda:90", "cuda:90", "cuda:80", "cuda:100", "hip:gfx942")
RAN = "ran"
FIRST = 50  # programs that must not all fail alike
ROOT = Path(__file__).resolve().parents[2]
KEPT = {"discarded", "right"}  # statuses that are no findings


@functools.cache
def visible_devices() -> list[str]:
    """The GPUs that workers take in turn, as CUDA_VISIBLE_DEVICES has them."""
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    if told:
        return [each.strip() for each in told.split(",")]
    counting = "import torch; print(torch.cuda.device_count())"  # in a process of its own: a parent opens no GPU
    done = subprocess.run([sys.executable, "-c", counting], capture_output=True, text=True)
    return [str(number) for number in range(int(done.stdout or 1))] or ["0"]


class Process:
    """A worker and its folders, started again when it ends."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, number: int) -> None:
        self.arguments, self.folder, self.number = arguments, folder / str(number), number
        self.process: subprocess.Popen[bytes] | None = None
        self.answered = 0

    def ask(self, job: dict[str, Any]) -> Outcome:
        """The worker's answer; crashed or hung, if there is none within the time limit. A job that ends its worker is
        tried once more: "lost" says that only the first worker ended."""
        first = self.ask_once(job)
        if first.status != "crashed":
            return first
        second = self.ask_once(job)
        if second.status not in (*KEPT, "refused"):
            return second
        return Outcome("lost", f"{first.detail}; {second.status} by another worker")

    def ask_once(self, job: dict[str, Any]) -> Outcome:
        if self.process is None or self.process.poll() is not None or self.answered > 400:
            self.start()
        assert self.process is not None and self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(job).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.start()
            return self.ask_once(job)
        # The first answer also waits for imports.
        limit = self.arguments.limit + (60 if self.answered == 0 else 0)
        ready, _, _ = select.select([self.process.stdout], [], [], limit)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            code = self.stop(0 if not ready else 5)
            if not ready:
                return Outcome("hung", f"no answer within {limit} s")
            ended = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
            return Outcome("crashed", f"{ended}: {worker.last_words(self.folder / 'errors')}")
        self.answered += 1
        answer = json.loads(line)
        return Outcome(answer["status"], answer["detail"])

    def start(self) -> None:
        self.stop()
        folders = {"TRITON_CACHE_DIR": "fuzz-triton", "TMPDIR": "fuzz-tmp"}
        for name in folders.values():
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "TILEDSL_CACHE_DIR": str(self.folder.parent / "tiledsl"),
            **{key: str(self.folder / name) for key, name in folders.items()},
        }  # fmt: skip
        if self.arguments.device == "cuda":
            devices = visible_devices()
            environment["CUDA_VISIBLE_DEVICES"] = devices[self.number % len(devices)]
        command = [sys.executable, "-m", "tests.fuzz", "--worker", "--device", self.arguments.device]
        command += ["--triton36", self.arguments.triton36, "--limit", str(self.arguments.limit)]
        with open(self.folder / "errors", "wb") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
            )
        self.answered = 0

    def stop(self, patience: float = 0) -> int:
        """End the worker, after as many seconds; its exit status, or the number of a signal with a minus."""
        code = 0
        if self.process is not None:
            try:
                code = self.process.wait(patience)
            except subprocess.TimeoutExpired:
                self.process.kill()
                code = self.process.wait()
            self.process = None
        return code


class Run:
    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.arguments, self.folder = arguments, folder
        self.lock = threading.Lock()
        self.counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self.groups: dict[tuple[str, str, str], list[tuple[dict[str, Any], str]]] = collections.defaultdict(list)
        self.seconds: collections.Counter[str] = collections.Counter()
        self.count = self.told = 0
        self.stopped = ""
        self.started = time.monotonic()
        self.jobs = self.all_jobs()

    def all_jobs(self) -> Iterator[dict[str, Any]]:
        """A job for each program to run, and for each that is compiled, each target and each Triton."""
        arguments = self.arguments
        every = 1 if arguments.compile else round(1 / arguments.compile_share) if arguments.compile_share else 0
        named = [
            f"hip:{each}" if each.startswith("gfx") else each for each in filter(None, arguments.compile.split(","))
        ]
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            if time.monotonic() - self.started > arguments.seconds or self.stopped:
                return
            self.count += 1
            if not arguments.no_run:
                yield {"seed": seed}
            if every and seed % every == 0:
                for target in named or [TARGETS[seed // every % len(TARGETS)]]:
                    for triton in arguments.triton.split(","):
                        yield {"seed": seed, "compile": target, "triton": triton}

    def work(self, number: int) -> None:
        """One thread, which owns one worker."""
        process = Process(self.arguments, self.folder, number)
        try:
            while True:
                with self.lock:
                    job = next(self.jobs, None)
                if job is None:
                    return
                begun = time.monotonic()
                outcome = process.ask(job)
                self.note(job, outcome, time.monotonic() - begun)
        finally:
            process.stop()

    def note(self, job: dict[str, Any], outcome: Outcome, seconds: float) -> None:
        kind = f"{job['compile']} by Triton {job['triton']}" if job.get("compile") else RAN
        with self.lock:
            self.counts[kind][outcome.status] += 1
            self.seconds[kind] += seconds
            self.groups[kind, outcome.status, outcome.group].append((job, outcome.detail))
            if outcome.status not in (*KEPT, "refused"):  # at once: a run that is ended early has told them
                print(f"{job['seed']} {kind} {outcome.status}: {outcome.detail}", flush=True)
            if kind == RAN:
                total = sum(self.counts[RAN].values())
                alike = [key for key in self.groups if key[0] == RAN and key[1] != "discarded"]
                if total == FIRST and len(alike) == 1 and alike[0][1] != "right":
                    _, status, group = alike[0]
                    self.stopped = f"the first {FIRST} programs all ended alike: {status}: {group}"
            if self.count % 500 == 0 and self.count != self.told:
                self.told = self.count
                summed = sum(self.counts.values(), collections.Counter())
                print(f"{self.count} programs, {time.monotonic() - self.started:.0f} s: {dict(summed)}", flush=True)

    def findings(self) -> list[tuple[str, str, str]]:
        """Groups to shrink: what is wrong first, then what occurs most."""
        order = ["wrong", "crashed", "hung", "failed", "triton", "refused"]
        found = [key for key in self.groups if key[1] in order]
        return sorted(found, key=lambda key: (order.index(key[1]), -len(self.groups[key])))

    def shrink(self, number: int, keys: Iterator[tuple[str, str, str]]) -> None:
        process = Process(self.arguments, self.folder, number)
        try:
            while True:
                with self.lock:
                    key = next(keys, None)
                if key is None:
                    return
                for job, detail in self.groups[key][: 4 if key[1] == "wrong" else 1]:
                    self.shrink_one(process, key, job, detail)
        finally:
            process.stop()

    def shrink_one(self, process: Process, key: tuple[str, str, str], job: dict[str, Any], detail: str) -> None:
        kind, status, group = key
        seed = job["seed"]

        def fails(case: Case) -> bool:
            outcome = process.ask({**job, "case": finding.to_json(case)})
            return outcome.status == status and (status in ("wrong", "crashed", "hung") or outcome.group == group)

        case = generate(seed)
        if status != "hung":
            case = shrunk(case, fails, self.arguments.shrink_seconds)
        where = self.arguments.device if kind == RAN else kind
        title = f"{status} ({where}): {detail.splitlines()[0] if detail else ''}"
        suffix = "" if kind == RAN else "_" + "".join(c if c.isalnum() else "_" for c in kind)
        path = finding.write(case, title, Path(self.arguments.out) / f"{status}_{seed}{suffix}.py")
        with self.lock:
            print(f"\n{path}: {title}\n{case.text}", flush=True)

    def report(self) -> None:
        print(f"{self.count} programs in {time.monotonic() - self.started:.0f} s")
        for kind, counts in self.counts.items():
            total = sum(counts.values())
            told = ", ".join(f"{number} {status}" for status, number in counts.most_common())
            print(f"{kind}: {total} programs, {self.seconds[kind] / total:.2f} s each: {told}")
        if not self.arguments.no_run:
            compared = self.counts[RAN]["right"] + self.counts[RAN]["wrong"]
            print(f"{compared} compared, {self.counts[RAN]['wrong']} wrong")
        for (kind, status, group), members in sorted(self.groups.items(), key=lambda item: (item[0][1], -len(item[1]))):
            if status != "right":
                seeds = ", ".join(str(job["seed"]) for job, _ in members[:6])
                print(f"{len(members):6} {kind} {status}: {group} ({seeds})")


def run_threads(count: int, target: Any, *arguments: Any) -> None:
    threads = [threading.Thread(target=target, args=(number, *arguments)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_all(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="tiledsl-fuzz-") as folder:
        run = Run(arguments, Path(folder))
        if arguments.device == "cuda":
            print(f"{arguments.workers} workers on {len(visible_devices())} GPUs", flush=True)
        run_threads(arguments.workers, run.work)
        run.report()
        if run.stopped:
            print(f"stopped: {run.stopped}")
            return 2
        found = run.findings()
        if arguments.out:
            most = itertools.islice(iter(found), arguments.most)
            run_threads(min(arguments.workers, len(found)), run.shrink, most)
    return 1 if any(status in ("wrong", "crashed", "hung", "failed", "triton") for _, status, _ in found) else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="programs to make")
    parser.add_argument("--seed", type=int, default=0, help="of the first program; the others count up")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", choices=("interpret", "cuda"), default="interpret")
    parser.add_argument(
        "--compile-share", type=float, default=0.0, help="of the programs, compiled for GPU targets too"
    )
    parser.add_argument("--compile", default="", metavar="TARGETS", help="for which all programs are compiled")
    parser.add_argument(
        "--triton", default="", help='that compile: "newest" (of this Python), "3.6" or both (the default)'
    )
    parser.add_argument("--triton36", default="", help="a Python with Triton 3.6, for compiled programs")
    parser.add_argument("--no-run", action="store_true", help="compile alone")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no program is begun")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one program")
    parser.add_argument("--out", default="", help="a folder for shrunk findings")
    parser.add_argument("--most", type=int, default=40, help="groups of findings to shrink")
    parser.add_argument("--shrink-seconds", type=float, default=40.0, help="for one finding")
    parser.add_argument("--show", action="store_true", help="print the program of --seed, and what becomes of it")
    parser.add_argument("--again", default="", help="run the case of a file that was written as a finding")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker.main(arguments.device, arguments.triton36, arguments.limit)
        return 0
    arguments.triton = arguments.triton or ("newest,3.6" if arguments.triton36 else "newest")
    if not {"newest", "3.6"}.issuperset(arguments.triton.split(",")) or (
        "3.6" in arguments.triton and not arguments.triton36
    ):
        parser.error("--triton is newest, 3.6 or newest,3.6; 3.6 needs --triton36")
    if arguments.show or arguments.again:
        case = finding.read(Path(arguments.again)) if arguments.again else generate(arguments.seed)
        outcome = attempt(case, arguments.device)
        print(case.text)
        print(f"options: {case.options}; {outcome.status} {outcome.detail}")
        return 0 if outcome.status in KEPT else 1
    return run_all(arguments)


if __name__ == "__main__":
    sys.exit(main())
