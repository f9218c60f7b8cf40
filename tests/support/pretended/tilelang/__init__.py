"""A pretended TileLang, for tests of `tiledsl beside`: its kernels are tiledsl's, in the interpreter.

It has what the real package has where the command looks: JITImpl, JITKernel with its adapter, compile, autotune.
"""

import sys

import tiledsl.language as language
from tilelang import autotuner as autotuner
from tilelang.autotuner import autotune as autotune
from tilelang.jit import compile as compile
from tilelang.jit import jit as jit

__version__ = "0.1.15+pretended"
sys.modules["tilelang.language"] = language
