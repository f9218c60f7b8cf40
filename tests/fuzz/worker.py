"""A process that tries cases: one line of JSON in, one line out. What crashes or hangs it costs that case alone.

`compile` jobs compile the program for a GPU target instead of running it: by the Triton of this process, and by an
interpreter with another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.fuzz.case import Case
from tests.fuzz.execution import Outcome, attempt, outcome_of, program_of
from tests.fuzz.finding import from_json
from tests.fuzz.generator import generate

LOST = ("CUDA error", "Error [CUDA]", "illegal", "misaligned", "launch failure")  # in messages of a broken context
CLEAN_AFTER = 40  # cases, after which what Triton has cached goes


class Worker:
    def __init__(self, device: str, triton36: str) -> None:
        self.device, self.triton36 = device, triton36
        self.other: subprocess.Popen[str] | None = None
        self.tried = 0

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        started = time.monotonic()
        case = from_json(job["case"]) if "case" in job else generate(job["seed"])
        outcome = self.compiled(case, job["compile"]) if job.get("compile") else attempt(case, self.device)
        self.tried += 1
        if self.tried % CLEAN_AFTER == 0:
            clean()
        return {"status": outcome.status, "detail": outcome.detail, "seconds": time.monotonic() - started}

    def compiled(self, case: Case, target: str) -> Outcome:
        """Compile a case for a target by both Tritons."""
        import tiledsl

        try:
            with program_of(case) as program:
                kernel = tiledsl.compile(program, target=target, pass_configs=case.options)
                if not self.triton36:
                    _ = kernel.compiled
                    return Outcome("right")
                jobs = [
                    {"name": each.name, "signature": each.signature, "constexprs": each.constexprs,
                     "attrs": [[list(place), fact] for place, fact in each.attrs.items()],
                     "options": {"num_warps": each.num_warps, "num_stages": each.num_stages, **each.options}}
                    for each in kernel.module.kernels
                ]  # fmt: skip
                source = kernel.source
                if case.seed % 2:
                    _ = kernel.compiled
        except Exception as error:
            return outcome_of(error)
        answer = self.by_other({"source": source, "kernels": jobs, "target": target})
        return Outcome("right") if not answer else Outcome("triton", f"Triton 3.6, {target}: {answer}")

    def by_other(self, job: dict[str, Any]) -> str:
        if self.other is None or self.other.poll() is not None:
            environment = {
                key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "TRITON_INTERPRET")
            }
            script = Path(__file__).with_name("compile_elsewhere.py")
            command, pipe = [self.triton36, "-I", str(script)], subprocess.PIPE
            self.other = subprocess.Popen(
                command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
            )
        assert self.other.stdin is not None and self.other.stdout is not None
        try:
            self.other.stdin.write(json.dumps(job) + "\n")
            self.other.stdin.flush()
            line = self.other.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.other.wait()
            code, self.other = self.other.returncode, None
            return f"the compiler ended with status {code}"
        return str(json.loads(line))


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


def main(device: str, triton36: str) -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything prints must not be taken for an answer
    worker = Worker(device, triton36)
    for line in sys.stdin:
        answer = worker.answer(json.loads(line))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if device == "cuda" and any(word in answer["detail"] for word in LOST):
            return  # the context of this process is lost
