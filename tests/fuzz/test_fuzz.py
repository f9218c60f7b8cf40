"""Random programs against the oracle: fixed seeds, wrong compilers that must be found, and what becomes of findings."""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tiledsl
from tests.fuzz import finding
from tests.fuzz.__main__ import Process
from tests.fuzz.execution import Outcome, attempt, program_of
from tests.fuzz.generator import generate
from tests.fuzz.shrink import shrunk
from tests.fuzz.worker import Worker
from tests.fuzz.wrong_compilers import MISTAKES

SEEDS, CHUNK = 300, 20
# The first seed that shows each mistake; python -m tests.fuzz.wrong_compilers prints them.
SHOWN_BY = {
    "a store under a condition loses its mask": 0,
    "no mask at the lower end": 0,
    "a mask at the upper end is off by one": 0,
    "padding of a product's right side stays": 82,
    "an assumption <= is taken for <": 63,
    "a load survives a store through an alias": 7,
    "a load leaves a loop that writes": 33,
    "floor division of negative numbers truncates": 1,
    "the padding of a tile is not masked": 4,
    "the else branch has the mask of the other": 2,
}


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_results_are_those_of_the_oracle(first: int) -> None:
    outcomes = {seed: attempt(generate(seed)) for seed in range(first, first + CHUNK)}
    told = {
        seed: f"{each.status}: {each.detail}"
        for seed, each in outcomes.items()
        if each.status not in ("right", "discarded")
    }
    assert not told, "\n".join(f"python -m tests.fuzz --show --seed {seed}: {text}" for seed, text in told.items())
    assert sum(each.status == "right" for each in outcomes.values()) >= CHUNK * 0.75


def test_a_seed_gives_one_program() -> None:
    assert generate(7) == generate(7) and generate(7).text != generate(8).text


@pytest.mark.parametrize("seed", [3, 10])
def test_programs_compile_for_a_gpu(seed: int) -> None:
    case = generate(seed)
    with program_of(case) as program:
        kernel = tiledsl.compile(program, target="cuda:90", pass_configs=case.options)
    assert all("ptx" in each.asm for each in kernel.compiled.values())


def test_programs_compile_for_every_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    worker = Worker("interpret", sys.executable, 60)  # that other Triton is this one, too
    assert "float8" in generate(1).text  # which this target lacks
    assert worker.compiled(generate(1), "hip:gfx942", "3.6").status == "right"
    job = {"target": "cuda:90", "kernels": []}
    assert worker.by_other({**job, "source": "raise ValueError('for this test')"}) == "ValueError: for this test"
    ended = worker.by_other({**job, "source": "import os\nos._exit(3)"})
    assert ended.startswith("the compiler ended with status 3")
    refused = worker.compiled(replace(generate(3), options={"pad-tiles.min_dot": 1}), "cuda:90", "3.6")
    assert refused.status == "refused" and "min_dot" in refused.detail


@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_compilers_are_found(mistake: str) -> None:
    case = generate(SHOWN_BY[mistake])
    with MISTAKES[mistake].made():
        assert attempt(case).status in ("wrong", "failed")
    assert attempt(case).status == "right"


def test_a_finding_is_shrunk_and_stands_alone(tmp_path: Path) -> None:
    mistake = "a mask at the upper end is off by one"
    case = generate(SHOWN_BY[mistake])
    tries = itertools.count()
    with MISTAKES[mistake].made():
        small = shrunk(case, lambda each: next(tries) < 25 and attempt(each).status in ("wrong", "failed"))
        assert len(small.text) < len(case.text) and attempt(small).status in ("wrong", "failed")
    path = finding.write(small, "a mask is off by one", tmp_path / "finding.py")
    assert finding.read(path) == small
    root = str(Path(tiledsl.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(path)], env={"PYTHONPATH": root, "HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.stdout == "PASS\n", done.stdout + done.stderr


@pytest.mark.parametrize(
    ("statuses", "told"),
    [(["right"], "right"), (["crashed", "right"], "lost"), (["crashed", "crashed"], "crashed"), (["hung"], "hung")],
)
def test_what_ends_a_worker_is_tried_by_another(
    statuses: list[str], told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outcomes = iter([Outcome(each, "ended by SIGKILL: nothing") for each in statuses])
    process = Process(argparse.Namespace(), tmp_path, 0)
    monkeypatch.setattr(process, "ask_once", lambda job: next(outcomes))
    assert process.ask({}).status == told and next(outcomes, None) is None


def test_a_worker_that_ends_says_how(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "worker"))
    arguments = argparse.Namespace(device="interpret", triton36="", limit=60.0)
    for text, told in (("kill -SEGV $$", "ended by SIGSEGV: "), ("echo no room >&2; exit 3", "ended with status 3: ")):
        (tmp_path / "worker").write_text(f"#!/bin/sh\nread line\n{text}\n")
        (tmp_path / "worker").chmod(0o755)
        outcome = Process(arguments, tmp_path, 0).ask({})
        assert outcome.status == "crashed" and outcome.detail.startswith(told), outcome
