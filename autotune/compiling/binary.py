"""When two compiled modules do the same: their machine code and the way they launch it are equal."""

from __future__ import annotations

import re
from ast import FunctionDef, parse, unparse
from collections.abc import Sequence
from typing import Any

from tiledsl.digests import digest

_DEBUG_LINE = re.compile(r"\s*(\.loc|\.file)\s|\s*(\$L__|\.L)(tmp|func)\w*:")


def binary_hash(source: str, kernels: Sequence[Any]) -> str:
    """Equal for modules whose compiled kernels (CompiledKernel, in order) and host functions are."""
    return digest("\n".join([_launcher(source), *map(_code, kernels)]))


def _code(compiled: Any) -> str:
    """The assembly without what only debuggers read: names and lines of the source are in it, and in the binary."""
    text, binary = ("amdgcn", "hsaco") if compiled.target.kind == "hip" else ("ptx", "cubin")
    if text not in compiled.asm:  # it was compiled from the binary
        return digest(compiled.asm[binary])
    text = compiled.asm[text]
    kept = (line.split("//")[0].rstrip() for line in text.partition("\t.section\t.debug")[0].splitlines())
    return "\n".join(line for line in kept if line and not _DEBUG_LINE.match(line))


def _launcher(source: str) -> str:
    """The host functions: everything that is not in a kernel, without options that show in the machine code."""
    functions = [each for each in parse(source).body if isinstance(each, FunctionDef) and not each.decorator_list]
    return re.sub(r"num_stages=\d+", "", "\n".join(map(unparse, functions)))
