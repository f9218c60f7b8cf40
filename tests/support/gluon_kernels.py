"""Kernels written in Gluon: their text in parts, and what Triton and ptxas make of them for cuda:90, without a GPU."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tiledsl
from tests.support.compile_emitted import described, environment

COMPILE = """
import json, os, subprocess, sys
from tests.support.compile_emitted import begin, gpu, sources
begin()
import triton
folder = sys.argv[1]
tools = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin")
def assemble(path):
    # what the newest ptxas that comes with Triton says
    for name in ("ptxas-blackwell", "ptxas"):
        done = subprocess.run([os.path.join(tools, name), "-arch=sm_90a", "-v", path, "-o", "/dev/null"],
                              capture_output=True, text=True)
        if done.returncode == 0:
            return done.stderr
    return done.stderr
results = {}
for name, kernel in json.load(open(folder + "/kernels.json")).items():
    ((source, options),) = sources(f"{folder}/{name}.py", [kernel])
    made = triton.compile(source, target=gpu("cuda:90"), options=options)
    open(f"{folder}/{name}.ptx", "w").write(made.asm["ptx"])
    said = assemble(f"{folder}/{name}.ptx")
    results[name] = {"ptx": made.asm["ptx"], "shared": made.metadata.shared, "ptxas": said}
json.dump(results, open(folder + "/results.json", "w"))
"""


def part_of(source: str, function: str) -> str:
    """The text of the producer, or of the consumers."""
    return source[source.index(f"_{function}(") :].split("\n\n\n")[0]


def compile_kernels(made: Mapping[str, tiledsl.Kernel], python: str, folder: Path, number: int = 0) -> dict[str, Any]:
    """Of one of programs' kernels `ptx`, bytes of `shared` memory and what `ptxas` says, by the Triton of `python`."""
    listed = {}
    for name, kernel in made.items():
        (folder / f"{name}.py").write_text(kernel.source)
        listed[name] = described(kernel.module.kernels[number])
    (folder / "kernels.json").write_text(json.dumps(listed))
    command = [python, "-c", COMPILE, str(folder)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return results
