"""Emitted modules in processes of their own: run in Triton's interpreter, or compiled for a GPU that is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import forked
from tests.support.compile_emitted import described, environment
from tiledsl.codegen.triton_source import EmittedModule, emit
from tiledsl.ir.pass_manager import parse_program
from tiledsl.ir.verifier import verify
from tiledsl.passes.canonicalize import Canonicalize
from tiledsl.passes.cse import Cse
from tiledsl.passes.dce import Dce
from tiledsl.passes.licm import Licm
from tiledsl.passes.lower_to_triton import LowerToTriton
from tiledsl.passes.map_grid import MapGrid

RUN = """
import json, pathlib, sys
import numpy as np, torch
from tests.support.load_file import load_file
folder = pathlib.Path(sys.argv[1])
for number, (name, entry, scalars) in enumerate(json.loads((folder / "jobs.json").read_text())):
    inputs = np.load(f"{folder}/{number}.npz")
    arguments = [torch.from_numpy(inputs[key]) if key in inputs else scalars[key] for key in scalars]
    try:
        outputs = getattr(load_file(folder / f"{name}.py", f"emitted {name}"), entry)(*arguments)
    except Exception as error:
        cause = error.__cause__ or error
        open(f"{folder}/{number}.error", "w").write(f"{type(error).__name__}: {error}\\n{cause!r}")
        continue
    outputs = [] if outputs is None else [outputs] if isinstance(outputs, torch.Tensor) else outputs
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    np.savez(f"{folder}/{number}.out.npz", *[each.numpy() for each in [*outputs, *tensors]])
"""

COMPILE = """
import json, sys
from tests.support.compile_emitted import begin, gpu, sources, stages
begin()
import triton
folder, target, results = sys.argv[1], gpu("cuda:90"), []
for name, kernels in json.load(open(folder + "/compile.json")):
    for source, options in sources(f"{folder}/{name}.py", kernels):
        try:
            if sys.argv[3] == "full":
                text = triton.compile(source, target=target, options=options).asm["ttgir"]
            else:
                for stage, made, facts in stages(source, target, options):
                    text = str(made) if stage == "ttgir" else text if stage == "llir" else ""
                    if stage == "llir":
                        break
                text = str(facts["shared"]) if sys.argv[3] == "shared" else text
        except Exception as error:
            results.append([name, f"{type(error).__name__}: {error} {error.__cause__!r}", ""])
        else:
            results.append([name, "", text])
json.dump(results, open(sys.argv[2], "w"))
"""


def lower(text: str, **options: Any) -> EmittedModule:
    """IR text through the last passes to source."""
    program = parse_program(text)
    clean = [Canonicalize(), Cse(), Licm(), Dce()]
    for each in (MapGrid(**options.get("map_grid", {})), LowerToTriton(**options.get("lower", {})), *clean):
        each.run(program)
        verify(program.root)
    return emit(program.root)


@pytest.fixture(scope="session")
def lowered() -> Callable[..., EmittedModule]:
    return lower


Job = tuple[EmittedModule, Mapping[str, Any]]


@pytest.fixture(scope="session")
def run_modules(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[Job]], list[list[np.ndarray] | str]]:
    """Run modules in Triton's interpreter, all in one process: outputs and then arguments of each, or the error."""

    def run(jobs: list[Job]) -> list[list[np.ndarray] | str]:
        folder = tmp_path_factory.mktemp("run")
        listed = []
        for number, (module, arguments) in enumerate(jobs):
            (folder / f"m{number}.py").write_text(module.source)
            arrays = {key: value for key, value in arguments.items() if isinstance(value, np.ndarray)}
            np.savez(folder / f"{number}.npz", **arrays)
            scalars = {key: None if key in arrays else value for key, value in arguments.items()}
            listed.append((f"m{number}", module.entry, scalars))
        (folder / "jobs.json").write_text(json.dumps(listed))
        done = forked.run(["-c", RUN, folder], env={**os.environ, "TRITON_INTERPRET": "1"}, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        results: list[list[np.ndarray] | str] = []
        for number in range(len(jobs)):
            error = folder / f"{number}.error"
            if error.exists():
                results.append(error.read_text())
            else:
                results.append(list(np.load(folder / f"{number}.out.npz").values()))
        return results

    return run


@pytest.fixture(scope="session")
def compile_modules(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[tuple[str, str, str]]]:
    """Compile all kernels of some modules for cuda:90 with the Triton of an interpreter: (module, error, ttgir) each.

    Unless `full`, down to LLVM IR, where most of what Triton cannot do has shown, and machine code is not made.
    """

    def compile(
        modules: Mapping[str, EmittedModule], python: str = sys.executable, full: bool = True
    ) -> list[tuple[str, str, str]]:
        return _compile(tmp_path_factory.mktemp("compile"), modules, python, "full" if full else "lowered")

    return compile


@pytest.fixture(scope="session")
def shared_bytes(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, int]]:
    """The bytes of shared memory of each module's kernel that needs most on cuda:90, by the Triton of an interpreter.

    No machine code is made for that: it takes 0.2 s a kernel.
    """

    def measure(modules: Mapping[str, EmittedModule], python: str = sys.executable) -> dict[str, int]:
        most: dict[str, int] = {}
        for name, error, number in _compile(tmp_path_factory.mktemp("shared"), modules, python, "shared"):
            assert not error, (name, error)
            most[name] = max(most.get(name, 0), int(number))
        return most

    return measure


def _compile(
    folder: Path, modules: Mapping[str, EmittedModule], python: str, wanted: str
) -> list[tuple[str, str, str]]:
    listed = []
    for name, module in modules.items():
        (folder / f"{name}.py").write_text(module.source)
        listed.append((name, [described(each) for each in module.kernels]))
    (folder / "compile.json").write_text(json.dumps(listed))
    command = [python, "-c", COMPILE, str(folder), str(folder / "results.json"), wanted]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return [(name, error, text) for name, error, text in json.loads((folder / "results.json").read_text())]
