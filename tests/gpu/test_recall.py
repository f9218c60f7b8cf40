"""On a GPU: a new process imports tiledsl and calls a kernel tuned before in under 100 ms. It starts no compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]
COMPILERS = ("gcc", "cc", "clang", "ptxas", "ptxas-blackwell", "nvcc", "nvdisasm")
LIMIT_MS = 100


def run(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.gpu.time_recall", *arguments]
    environment = {**os.environ}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # byte code is there, as in every process but the first
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", ["product", "scaled", "attention", "eager"])
def test_a_recalled_kernel_is_called_at_once(name: str, cache_dir: Path) -> None:
    """`product` takes tensor descriptors, `scaled` pointers and scalars, `attention` is written in Gluon, and
    `eager` is a program itself, no builder."""
    import torch

    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernels are for Hopper GPUs")
    first = run("tune", name)
    assert first["from_cache"] == "" and first["right"]
    report = run(name)
    times = ", ".join(f"{each} {report[each]:.1f}" for each in ("import_ms", "load_ms", "call_ms", "total_ms"))
    print(f"\n{name}, Triton {report['triton']}: {times}; started {report['programs'] or 'nothing'}")
    assert report["from_cache"] == "disk" and report["right"]
    assert report["modules"] == [] and report["without_byte_code"] == 0
    assert not [each for each in report["programs"] if os.path.basename(each) in COMPILERS]
    assert report["total_ms"] < LIMIT_MS
