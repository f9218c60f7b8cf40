"""A process that tries cases: one line of JSON in, one line out. What crashes or hangs it costs that case alone.

`compile` jobs compile the program for a GPU target instead of running it: by the Triton of this process, or by an
interpreter with another one, which is kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.fuzz.case import Case
from tests.fuzz.execution import Outcome, attempt, outcome_of, program_of
from tests.fuzz.finding import from_json
from tests.fuzz.generator import generate
from tests.support.compile_emitted import described, environment

LOST = ("CUDA error", "Error [CUDA]", "illegal", "misaligned", "launch failure")  # in messages of a broken context
CLEAN_AFTER = 40  # cases, after which what Triton has cached goes


class Worker:
    def __init__(self, device: str, triton36: str, limit: float) -> None:
        self.device, self.triton36, self.limit = device, triton36, limit
        self.process: subprocess.Popen[bytes] | None = None
        self.lowered: tuple[Any, Any] = (None, None)  # the last program and target, and the kernel or why there is none
        self.tried = 0

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        started = time.monotonic()
        case = from_json(job["case"]) if "case" in job else generate(job["seed"])
        if job.get("compile"):
            outcome = self.compiled(case, job["compile"], job["triton"])
        else:
            outcome = attempt(case, self.device)
        self.tried += 1
        if self.tried % CLEAN_AFTER == 0:
            clean()
        return {"status": outcome.status, "detail": outcome.detail, "seconds": time.monotonic() - started}

    def compiled(self, case: Case, target: str, triton: str) -> Outcome:
        """Compile a case for a target to machine code, by this process's Triton or, "3.6", by the other one."""
        if self.lowered[0] != (case.text, case.options, target):
            self.lowered = (case.text, case.options, target), lowered(case, target)
        kernel = self.lowered[1]
        if isinstance(kernel, Outcome):
            return kernel
        if triton == "3.6":
            jobs = [described(each) for each in kernel.module.kernels]
            answer = self.by_other({"source": kernel.source, "kernels": jobs, "target": target})
            return Outcome("triton", answer) if answer else Outcome("right")
        try:
            _ = kernel.compiled
        except Exception as error:
            return outcome_of(error)
        return Outcome("right")

    def by_other(self, job: dict[str, Any]) -> str:
        """What the other Triton says, "" if it compiles."""
        if self.process is None or self.process.poll() is not None:
            command, pipe = [self.triton36, "-s", "-m", "tests.fuzz.compile_elsewhere"], subprocess.PIPE
            with open(self.errors, "wb") as errors:
                self.process = subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe, stderr=errors)
        assert self.process.stdin is not None and self.process.stdout is not None
        line = b""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(job).encode() + b"\n")
            self.process.stdin.flush()
            # Less than the parent waits for this process.
            ready, _, _ = select.select([self.process.stdout], [], [], 0.8 * self.limit)
            if not ready:
                self.process.kill()
            line = self.process.stdout.readline()
        if not line:
            code, self.process = self.process.wait(), None
            return f"the compiler ended with status {code}: {last_words(self.errors)}"
        return str(json.loads(line))

    @property
    def errors(self) -> Path:
        return Path(os.environ.get("TMPDIR", "/tmp")).parent / "errors of the other Triton"


def lowered(case: Case, target: str) -> Any:
    """The kernel of a case, or the Outcome of what keeps it from being one. With 16 bits for float8 where a target has
    none: nearly half of all programs use some."""
    import tiledsl
    from tiledsl.runtime.target import Target

    try:
        if not Target.parse(target).supports("float8_e5m2"):
            text = case.text.replace("float8_e4m3fn", "float16").replace("float8_e5m2", "bfloat16")
            case = replace(case, text=text)
        with program_of(case) as program:
            return tiledsl.compile(program, target=target, pass_configs=case.options)
    except Exception as error:
        return outcome_of(error)


def last_words(errors: Path) -> str:
    """What a process that ended said last, an assertion before anything else."""
    lines = errors.read_bytes()[-4000:].decode(errors="replace").strip().splitlines()
    told = [line for line in lines if "ssert" in line or "rror" in line or "Fatal" in line] or lines[-1:]
    return (told or ["it ended without a word"])[0][-300:]


def clean() -> None:
    """Remove what Triton has cached and what failed compilations left, both in folders of this worker's own."""
    for name in ("TRITON_CACHE_DIR", "TMPDIR"):
        folder = Path(os.environ.get(name, ""))
        for path in folder.glob("*") if folder.name.startswith("fuzz-") else ():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    path.unlink()


def main(device: str, triton36: str, limit: float) -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything prints must not be taken for an answer
    worker = Worker(device, triton36, limit)
    for line in sys.stdin:
        answer = worker.answer(json.loads(line))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if device == "cuda" and any(word in answer["detail"] for word in LOST):
            return  # the context of this process is lost
