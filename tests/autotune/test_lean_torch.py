"""How the measuring process imports torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tiledsl.autotuner.measuring import bench_worker, lean_torch

ROOT = Path(__file__).resolve().parents[2]
LEAN = """
import sys
from pathlib import Path
from tiledsl.autotuner.measuring import lean_torch
lean_torch.import_torch()
finders = [each for each in sys.meta_path if type(each).__module__ == lean_torch.__name__]
import torch
later = sys.modules["torch._meta_registrations"]
from tiledsl.autotuner.measuring import bench, jobs
from tiledsl.autotuner.verifying.reference import Reference
from tiledsl.autotuner.verifying.verify import Tolerance
values = [torch.randn(8, 8, dtype=torch.float16)]
references = Reference(lambda A: A @ A, values).candidates
policy = jobs.Policy(1, 1, Tolerance(1e-2, 1e-2, 0.0), False, None, None, ".")
bench.Bench("cpu", policy, values, references, Path(".")).warm_up()
print(len(finders), "_loader" in vars(later), callable(later.register_meta), "_loader" in vars(later))
print(tuple((torch.empty(2, 3, device="meta") @ torch.empty(3, 4, device="meta")).shape))
"""


def test_what_measuring_does_not_use_is_loaded_when_it_is_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", LEAN], cwd=ROOT, text=True, capture_output=True, timeout=120)
    assert done.stdout.splitlines() == ["0 True True False", "(2, 4)"], done.stderr


def test_a_torch_that_does_not_bear_it_is_imported_whole_by_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def refuse() -> None:
        raise AttributeError("module 'torch' has no attribute '_C'")

    monkeypatch.setattr(lean_torch, "import_torch", refuse)
    monkeypatch.setattr("os.execv", lambda program, command: started.append([program, *command]))
    monkeypatch.setattr(sys, "argv", ["bench_worker", "5", "6", "cuda"])
    bench_worker._import_torch()
    assert started == [[sys.executable, sys.executable, "-m", bench_worker.__name__, "5", "6", "cuda", "whole"]]
    monkeypatch.setattr(sys, "argv", started.pop()[3:])
    bench_worker._import_torch()
    assert started == []


def test_a_process_that_starts_anew_keeps_its_channel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As above, in a real process, which is told to fail before it imports anything."""
    from tiledsl.autotuner.measuring import bench_process

    marker = tmp_path / "whole"
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, pathlib\n"
        f"sys.orig_argv[-1] == 'whole' and pathlib.Path({str(marker)!r}).touch()\n"
        "from tiledsl.autotuner.measuring import lean_torch\n"
        "def refuse(): raise ImportError('a circle')\n"
        "lean_torch.import_torch = refuse\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    worker = bench_process.Worker("cpu")
    try:
        assert worker._channel.receive(60) == {"ready": worker.process.pid}
    finally:
        worker.close()
    assert marker.exists()
