"""The reference meaning of the IR: a program can be run at any level, without the passes below it.

`run(func, arguments)` runs the host region and every kernel over its whole grid, one program instance after another, on
NumPy arrays whose elements are those of an algebra (certificate/algebra.py).

What programs may not do raises ExecutorError: a guarded or on-chip access out of bounds, a pointer access outside of
its allocation, a false assertion or assumption, gather indices out of range, a value used where it is not visible.
"""

from tiledsl.certificate.algebra import ExecutorError
from tiledsl.certificate.executor import (  # noqa: F401  (they say what operations mean)
    blocks,
    memory,
    row_parts,
    threads,
    values,
)
from tiledsl.certificate.executor.machine import MEANINGS, Env, Executor, Memory, Pointer, run

__all__ = ["MEANINGS", "Env", "Executor", "ExecutorError", "Memory", "Pointer", "run"]
