"""Of benchmarks/serial_loops.py: each kernel's loop goes with the rules, and stays without them."""

from __future__ import annotations

import pytest

import tiledsl
from benchmarks.serial_loops import KERNELS, WAYS


@pytest.mark.parametrize("name", KERNELS)
def test_loops_go_with_the_rules_alone(name: str) -> None:
    program = KERNELS[name][0]
    sources = {
        way: tiledsl.compile(program, target="cuda:90", pass_configs=options).source for way, options in WAYS.items()
    }
    assert {way: "    for " in source for way, source in sources.items()} == {"on": False, "off": True}
