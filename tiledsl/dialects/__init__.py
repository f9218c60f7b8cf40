"""The operations. Importing this package registers them all.

arith   scalars and tensors, elementwise        scf     loops and conditions
tile    programs, buffers, memory accesses      tensor  whole-tile operations on values
triton  pointers and launches, the last level before source
"""

from tiledsl.dialects import arith, scf, tensor, tile, triton

__all__ = ["arith", "scf", "tensor", "tile", "triton"]
