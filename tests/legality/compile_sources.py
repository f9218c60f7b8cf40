"""Compiles emitted modules for GPUs that are not there, with the Triton of whatever interpreter runs this file.

    python -m tests.legality.compile_sources JOBS RESULTS [STAGE]

JOBS is JSON: [[file of a module, its kernels, target], ...]; RESULTS becomes a list of what went wrong, "" for nothing.
STAGE is the last one, else the one before assembling. Each module is compiled in a fork of its own, because LLVM ends
the process where it cannot select an instruction. Neither torch nor tiledsl is needed.
"""

import json
import os
import sys
import tempfile

from tests.support.compile_emitted import begin, gpu, sources, stages

# Stages behind these only assemble: ptxas and lld take longer than everything before.
LAST = {"cuda": "ptx", "hip": "amdgcn"}


def _compile(path, kernels, target, last):
    for source, options in sources(path, kernels):
        for stage, _, _ in stages(source, gpu(target), options):
            if stage == last:
                break


def _message(error):
    """The innermost error, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}"


def _in_fork(path, kernels, target, last):
    with tempfile.TemporaryFile() as printed:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            text = "?"
            try:
                _compile(path, kernels, target, last)
                text = ""
            except BaseException as error:
                text = _message(error)
            os.write(writing, (text + "\n").encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as answer:
            text = answer.read().decode(errors="replace")
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if text == "\n" and status == 0:
            return ""
        printed.seek(0)
        lines = printed.read().decode(errors="replace").splitlines()
        told = [line for line in lines if "error" in line.lower() or "Assertion" in line or "LLVM" in line]
        return " | ".join([f"status {status}" if status else "", text.strip(), *told[:1]]).strip(" |")[:500] or "failed"


def main(jobs_path, results_path, last=""):
    begin()
    with open(jobs_path) as file:
        jobs = json.load(file)
    results = [_in_fork(path, kernels, target, last or LAST[target.split(":")[0]]) for path, kernels, target in jobs]
    with open(results_path, "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
