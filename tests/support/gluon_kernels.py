"""Kernels written in Gluon: their text in parts, and what Triton and ptxas make of them for cuda:90, without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tiledsl

COMPILE = """
import importlib.util, json, os, subprocess, sys, types
sys.modules["torch"] = types.ModuleType("torch")  # only launching needs it; the import takes seconds
import triton, triton.runtime.cache
triton.runtime.cache.triton_key = lambda: triton.__version__  # Triton hashes its whole library: a second
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
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
    spec = importlib.util.spec_from_file_location(name, f"{folder}/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    attrs = {(number,): facts for number, facts in kernel["attrs"]}
    source = GluonASTSource(getattr(module, kernel["name"]), kernel["signature"], kernel["constexprs"], attrs)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=kernel["options"])
    open(f"{folder}/{name}.ptx", "w").write(made.asm["ptx"])
    said = assemble(f"{folder}/{name}.ptx")
    results[name] = {"ptx": made.asm["ptx"], "shared": made.metadata.shared, "ptxas": said}
json.dump(results, open(folder + "/results.json", "w"))
"""


def part_of(source: str, function: str) -> str:
    """The text of the producer, or of the consumers."""
    return source[source.index(f"_{function}(") :].split("\n\n\n")[0]


def compile_kernels(made: Mapping[str, tiledsl.Kernel], python: str, folder: Path) -> dict[str, Any]:
    """Of programs' first kernels `ptx`, bytes of `shared` memory and what `ptxas` says, by the Triton of `python`."""
    listed = {}
    for name, kernel in made.items():
        (folder / f"{name}.py").write_text(kernel.source)
        each = kernel.module.kernels[0]
        listed[name] = {
            "name": each.name,
            "signature": each.signature,
            "constexprs": each.constexprs,
            "attrs": [[number, facts] for (number,), facts in each.attrs.items()],
            "options": {"num_warps": each.num_warps, "num_stages": each.num_stages, **each.options},
        }
    (folder / "kernels.json").write_text(json.dumps(listed))
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", COMPILE, str(folder)],
        env={**environment, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return results
