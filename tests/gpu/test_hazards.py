"""Programs for the hazards of hazards.py on a GPU: what this Triton and this ptxas make of them is right."""

from __future__ import annotations

import pytest
import torch

from tests.codegen.test_hazards import run
from tests.support.hazard_programs import PROGRAMS

pytestmark = pytest.mark.gpu

WITH_FLOAT8 = ("float8-number", "float8-pair-twice")
SCANS = ("scan-beside-ones", "reversed-scan")
MACHINE_CODE = (
    "float8-pair-twice",
    "add-of-16-bit-pairs",
    "maximum-of-negated",
    "constant-from-float8",
    "carry-of-mulhi",
    "saturating-product",
    "unused-half-of-predicates",
    "lost-product",
    "halves-of-descriptor",
)


def check(name: str) -> None:
    if PROGRAMS[name].hazard in WITH_FLOAT8 and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("the GPU has no float8")
    made, expected = run(PROGRAMS[name], "cuda", "cuda")
    torch.testing.assert_close(made, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", [name for name, case in PROGRAMS.items() if case.hazard in SCANS])
def test_scans(name: str) -> None:
    check(name)


@pytest.mark.parametrize("name", [name for name, case in PROGRAMS.items() if case.hazard == "scattered-reduction"])
def test_reductions(name: str) -> None:
    check(name)


@pytest.mark.parametrize("name", [name for name, case in PROGRAMS.items() if case.hazard in MACHINE_CODE])
def test_machine_code(name: str) -> None:
    check(name)


@pytest.mark.parametrize("name", [name for name, case in PROGRAMS.items() if case.hazard == "copy-under-product"])
def test_copies(name: str) -> None:
    for _ in range(20):  # whether a copy comes too early depends on what else the GPU does
        check(name)


OTHERS = {*SCANS, *MACHINE_CODE, "scattered-reduction", "copy-under-product"}


@pytest.mark.parametrize("name", [name for name, case in PROGRAMS.items() if case.hazard not in OTHERS])
def test_what_was_refused(name: str) -> None:
    check(name)
