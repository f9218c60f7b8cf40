"""Random pipelined loops on a GPU: what a loop computes does not depend on how far it loads ahead."""

from __future__ import annotations

import pytest
import torch

import tiledsl
from tests.support.pipelined_programs import pipelined_program

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("seed", range(60))
def test_depths_agree(seed: int) -> None:
    text = pipelined_program(seed)
    results: dict[int, list[torch.Tensor]] = {}
    for stages in (1, 2, 3, 4):
        program = tiledsl.parse(text.replace("STAGES", str(stages)))
        kernel = tiledsl.compile(program, target="cuda", pass_configs={"pipeline-loops.deepen": stages > 1})
        generator = torch.Generator("cuda").manual_seed(seed)
        given = {}
        for each in kernel.params:
            shape, dtype = [int(size) for size in each.shape], getattr(torch, each.dtype)
            given[each.name] = torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32).to(dtype)
        try:
            for _ in range(3):
                kernel(*given.values())
                made = [value for name, value in given.items() if name.startswith("R")]
                for got, expected in zip(made, results.setdefault(stages and 1, [each.clone() for each in made])):
                    worst = (got - expected).abs().max() / expected.abs().max()
                    assert worst < 1e-4, f"num_stages={stages}: {worst} of the largest element\n{kernel.source}"
        except tiledsl.TileError as error:
            if "shared memory" not in str(error):
                raise
