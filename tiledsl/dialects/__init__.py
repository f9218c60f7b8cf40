"""The operations. Importing this package registers them all.

arith   scalars and tensors, elementwise        scf     loops and conditions
tile    programs, buffers, memory accesses      tensor  whole-tile operations on values
thread  what the threads of a block do with each other
triton  pointers and launches, the last level before source
gluon   what the Gluon emitter needs beside them: boxes that TMA moves, and the part of a block's rows
"""

from tiledsl.dialects import arith, gluon, scf, tensor, thread, tile, triton

__all__ = ["arith", "gluon", "scf", "tensor", "thread", "tile", "triton"]
