"""The default pipeline as a whole: after each of its passes the program means what it meant before."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.executor import run
from tests.support.programs import NAMED, copy_arguments, gather_rows, inputs_for, programs, same_array
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation
from tiledsl.ir.parser import parse_op
from tiledsl.ir.pass_manager import PassManager, Program
from tiledsl.ir.printer import print_op
from tiledsl.ir.verifier import verify
from tiledsl.passes import PIPELINE, default_pipeline
from tiledsl.passes.specs import parse_pipeline
from tiledsl.runtime.target import Target

# fp8 and bfloat16 round after each operation; where legalize-arith computes wider, results are nearer to exact ones.
TOLERANCE = 2e-2


def without_names(root: Operation) -> Operation:
    for op in root.walk():
        for value in (*op.results, *(arg for region in op.regions for arg in region.args)):
            value.name = ""
    return root


def check_each_pass(func: Operation, inputs: list[Any], target: Target) -> None:
    expected = copy_arguments(inputs)
    run(func, expected, uninitialised="zero")
    program = Program(func.clone({}), target)
    before = print_op(program.root)
    for step in default_pipeline():
        step.run(program)
        verify(program.root)
        text = print_op(program.root)
        if text == before:  # nothing that would run otherwise
            continue
        before = text
        actual = copy_arguments(inputs)
        run(program.root, actual, uninitialised="zero")
        for name, old, new in zip(func.attributes["parameters"], expected, actual, strict=True):
            if isinstance(old, np.ndarray):
                same_array(old, new, TOLERANCE, f"{name} after {step.spec}:", program.root)
    text = print_op(program.root)
    assert print_op(parse_op(text)) == text


@pytest.mark.parametrize("target", ["cuda:90", "interpret"])
@pytest.mark.parametrize("name", NAMED)
def test_named_programs(name: str, target: str) -> None:
    func = NAMED[name]()
    check_each_pass(func, inputs_for(func, 0), Target.parse(target))


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(programs(), st.integers(0, 99))
def test_random_programs(func: Operation, seed: int) -> None:
    check_each_pass(func, inputs_for(func, seed), Target.parse("cuda:90"))


@pytest.mark.parametrize("each", dict.fromkeys(each.name for each in PIPELINE))
def test_resumes_from_the_text_after_a_pass(each: str) -> None:
    """Printed after any pass and parsed back, the rest of the pipeline gives the same program, but for names."""
    func = NAMED["attention"]()
    names = [one.name for one in default_pipeline()]
    at = len(names) - names[::-1].index(each)
    whole = Program(func.clone({}), Target.parse("cuda:90"))
    PassManager(default_pipeline()[:at]).run(whole)
    resumed = Program(parse_op(print_op(whole.root, locations=True)), whole.target)
    PassManager(default_pipeline()[at:]).run(whole)
    PassManager(default_pipeline()[at:]).run(resumed)
    assert print_op(without_names(resumed.root)) == print_op(without_names(whole.root))


def test_the_pipeline_is_written_as_text() -> None:
    spec = ",".join(each.spec for each in default_pipeline())
    assert parse_pipeline(spec) == default_pipeline()


def test_the_table_of_passes_is_the_pipeline() -> None:
    """Its rows with its defaults, as a specification that is run."""
    page = (Path(__file__).parents[2] / "docs/passes.md").read_text(encoding="utf-8")
    text = page.split("<!-- passes -->")[1].split("<!-- /passes -->")[0]
    rows = [line.strip("|").replace("`", "").split("|") for line in text.strip().splitlines()[2:]]
    shown = {name.strip(): options.strip() for name, _, options in rows}
    defaults = {each.name: ", ".join(f"{one.name}={one.default!r}" for one in fields(each)) for each in PIPELINE}
    assert list(shown.items()) == list(defaults.items())
    PassManager([each() for each in PIPELINE]).run(Program(gather_rows(), Target.parse("cuda:90")))


def test_options_reach_their_pass() -> None:
    passes = default_pipeline({"guard-accesses.enabled": False, "tl.disable_tma_lower": True, "map-grid.group_m": 4})
    shown = [each.spec for each in passes if each.spec != each.name]
    assert shown == ["guard-accesses{enabled=false}", "map-grid{group_m=4}"]
    for wrong, message in (
        ({"guard-accesses.enable": False}, "has no option 'enable'; did you mean 'enabled'"),
        ({"guard": 1}, "is not of the form 'pass-name.option'"),
        ({"guards.enabled": True}, "'guards.enabled': no pass is named 'guards'; did you mean 'guard-accesses'"),
        ({"tl.config_index_bitwidth": "wide"}, "is 'wide'; it sets lower-to-triton.index_bits"),
        ("map-grid", "pass_configs is 'map-grid'; it must be a dict such as {\"select-access.mode\""),
        ({"map-grid.group_m": "4"}, "its type is int"),
        ({"guard-accesses.enabled": None}, "enabled=None, but its type is bool, true or false"),
    ):
        with pytest.raises(TileError, match=message):
            default_pipeline(wrong)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("unroll-loops.limit", -1),
        ("select-emitter.stages", -1),
        ("pad-tiles.min_dot", 17),
        ("pad-tiles.min_dot", -16),
        ("map-grid.group_m", -1),
        ("lower-to-triton.index_bits", 16),
        ("lower-to-triton.num_warps", -1),
        ("lower-to-triton.num_warps", 3),
        ("lower-to-triton.num_warps", 64),
        ("lower-to-triton.num_ctas", 3),
        ("lower-to-triton.num_ctas", 32),
        ("lower-to-triton.maxnreg", -1),
        ("lower-to-triton.maxnreg", 300),
    ],
)
def test_numbers_that_mean_nothing_are_refused(option: str, value: int) -> None:
    with pytest.raises(TileError, match=f"^{option} is {value}; it must be "):
        PassManager(default_pipeline({option: value})).run(Program(gather_rows()))
