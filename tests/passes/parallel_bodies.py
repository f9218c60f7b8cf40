"""Bodies of a T.Parallel over tiles of 4*8, for tests of vectorize-parallel."""

from __future__ import annotations

from tests.passes.ir_cases import kernel
from tiledsl.dialects.tile import FuncOp

# What each body finds on chip.
TILES = """
  %a = tile.alloc : buffer<4*8*float32, fragment>
  %v = tile.alloc : buffer<4*float32, fragment>
  %w = tile.alloc : buffer<8*float32, shared>
  tile.copy %A[%c0, %c0], %a {shape = (4, 8), source_axes = (0, 1), target_axes = (0, 1)}
  %b = tile.alloc : buffer<4*8*float32, shared>
  tile.copy %A[%c0, %c0], %b {shape = (4, 8), source_axes = (0, 1), target_axes = (0, 1)}
  tile.copy %A[%c0, %c1], %v {shape = (4,), source_axes = (0,), target_axes = (0,)}
  tile.copy %A[%c1, %c0], %w {shape = (8,), source_axes = (1,), target_axes = (0,)}
"""
BACK = """
  tile.copy %a, %B[%c0, %c0] {shape = (4, 8), source_axes = (0, 1), target_axes = (0, 1)}
  tile.copy %v, %V[%c0] {shape = (4,), source_axes = (0,), target_axes = (0,)}
"""
# V gets what is on the chip at the end; W is for what bodies write themselves.
PARAMETERS = "A: 4*8*float32, B: 4*8*float32, V: 4*float32, I: 4*8*int32, W: 4*8*float32"


def tiles(body: str) -> FuncOp:
    return kernel(
        PARAMETERS, TILES + body.replace("PAR", "tile.parallel {extents = (4, 8)} (%i: int32, %j: int32)") + BACK
    )
