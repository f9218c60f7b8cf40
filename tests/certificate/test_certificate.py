"""Certificates: text, JSON, files, the command, and that one that is not of a kernel does not count."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tiledsl
from tests.support import racing_copy
from tiledsl.certificate import Certificate, Check, certify, process
from tiledsl.certificate.check import Status
from tiledsl.cli import main
from tiledsl.errors import TileError
from tiledsl.ir import pass_manager
from tiledsl.ir.pass_manager import Pass, Program

pytest.importorskip("z3")

copied = tiledsl.jit(out_idx=[-1], target="cuda:80")(racing_copy.copied_builder)


def test_a_right_kernel_is_proved_and_an_overlap_is_named() -> None:
    right, wrong = copied(100).verify(), copied(100, 33).verify()
    assert right.ok and not right.of("unknown") and right.reason == ""
    assert {each.kind for each in right.checks} >= {"bounds", "race", "read"}
    (failed,) = wrong.failed
    assert failed.kind == "race" and "blocks that write B" in wrong.reason and failed.place in wrong.reason
    assert failed.place.startswith("racing_copy.py:")


def test_json_and_text() -> None:
    certificate = copied(100, 33).verify()
    assert Certificate.from_json(certificate.to_json()) == certificate
    assert all(len(line) <= 60 for line in certificate.text(60).splitlines())
    text = certificate.text()
    assert certificate.summary in " ".join(text.split()) and certificate.failed[0].place in text
    assert text.index("failed: blocks that write B") < text.index("proved, bounds")
    assert certificate.program[:16] in text and certificate.source[:16] in text and certificate.triton in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 99}, "no certificate of schema"),
        ({"kernel": 3}, "kernel is '3'"),
        ({"seconds": True}, "seconds is"),
        ({"checks": [{"kind": "bounds"}]}, "a check of the certificate"),
        ({"checks": [{"kind": "luck", "subject": "", "status": "proved", "detail": "", "place": ""}]}, "luck"),
        ({"checks": [{"kind": "race", "subject": "", "status": "sure", "detail": "", "place": ""}]}, "sure"),
    ],
)
def test_nonsense_is_refused(change: dict[str, Any], message: str) -> None:
    data = {**copied(64).verify().data(), **change}
    with pytest.raises(TileError, match=message):
        Certificate.from_json(json.dumps(data))
    with pytest.raises(TileError, match="not JSON"):
        Certificate.from_json("{")


def test_what_is_exported_brings_its_certificate(tmp_path: Path) -> None:
    kernel, other = copied(101), copied(201)
    kernel.export(tmp_path / "plain.py")
    assert not (tmp_path / "plain.certificate.json").exists()
    certificate = kernel.verify()
    kernel.export(tmp_path / "copied.py")
    path = tmp_path / "copied.certificate.json"
    assert Certificate.load(path, kernel) == certificate == kernel.certificate
    with pytest.raises(TileError, match="its source is another one"):
        Certificate.load(path, other)
    other.certificate = certificate  # of another source: it is not written
    other.export(tmp_path / "other.py")
    assert not (tmp_path / "other.certificate.json").exists()


@pytest.mark.parametrize("error, status", [(ZeroDivisionError, "failed"), (MemoryError, "unknown")])
def test_a_checker_that_breaks_has_failed_unless_it_had_no_room(
    error: type[Exception], status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(kernel: Any, seconds: float) -> Any:
        raise error("by design")

    reads = next(each for each in certify.CHECKERS if each[0] == "read")
    monkeypatch.setattr(certify, "CHECKERS", (("bounds", broken), reads))
    made = copied(100).verify()
    (found,) = made.of(status)
    assert found.kind == "bounds" and f"{error.__name__}: by design" in found.detail and made.of("proved")
    assert made.ok == (status == "unknown")


@pytest.mark.parametrize(
    "given, message",
    [
        ({"reasociation"}, "careless: allowances returned {'reasociation'}, where a frozenset of these names is asked"),
        ("reassociation", "careless: allowances returned 'reassociation', where"),
        (1 / 2, "careless: allowances returned 0.5, where"),
        (None, "careless: ZeroDivisionError: division by zero, at "),
    ],
)
def test_what_a_pass_allows_and_nobody_knows_is_a_failure(
    given: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pass_manager, "PASSES", {**pass_manager.PASSES})

    @dataclass(frozen=True)
    class Careless(Pass):
        name = "careless"

        def run(self, program: Program) -> None:
            pass

        def allowances(self, program: Program) -> frozenset[str]:
            return given if given is not None else frozenset({1 / 0})  # type: ignore[arg-type]

    program = racing_copy.copied_builder(100)
    made = tiledsl.compile(program, target="interpret", passes={"after:canonicalize": [Careless()]}).verify()
    assert message in made.failed[0].detail and not made.ok


def test_allowances_are_a_method() -> None:
    with pytest.raises(TileError, match="Attribute: allowances is set, where a method is asked: def allowances"):

        class Attribute(Pass):
            allowances = {"reassociation"}  # type: ignore[assignment]


def test_without_the_solver_what_it_would_prove_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    from tiledsl.certificate import solver

    monkeypatch.setattr(solver, "z3", lambda: None)
    made = copied(100, 33).verify()
    assert made.ok and "pip install 'tiledsl[verify]'" in made.of("unknown")[0].detail


def test_in_a_process_of_its_own_the_same_comes_out() -> None:
    kernel = copied(100, 33)
    here, there = certify.certify(kernel), process.certify_apart(kernel, 60)
    assert list(map(outcome, there.checks)) == list(map(outcome, here.checks))
    assert (there.program, there.source, there.kernel) == (here.program, here.source, here.kernel)


def outcome(check: Check) -> tuple[str, ...]:
    """Of several counterexamples, the solver may find any."""
    return check.kind, check.subject, check.status, check.place


def test_a_process_that_does_not_end_is_killed() -> None:
    made = process.certify_apart(copied(100), 0.01)
    assert made.of("unknown")[-1] == Check("pass", "the verification", "unknown", "it did not end within 0.01 s")


def test_the_command() -> None:
    path = racing_copy.__file__
    run = CliRunner().invoke(main, ["verify", f"{path}:copied", "-D", "M=100", "--target", "cuda:80"])
    assert run.exit_code == 0 and "0 failed" in " ".join(run.output.split()), run.output
    run = CliRunner().invoke(main, ["verify", f"{path}:copied", "-D", "M=100", "-D", "rows=33", "--json"])
    made = Certificate.from_data(json.loads(run.stdout)["data"]["certificate"])
    assert run.exit_code == 1 and made.target == "cuda:90" and made.failed[0].place == "racing_copy.py:14:17"


def test_reading_one_loads_neither_the_compiler_nor_the_solver() -> None:
    code = "import sys, tiledsl.certificate; print({'z3', 'triton', 'torch', 'tiledsl.passes'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
