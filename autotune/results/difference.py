"""What differs between two configurations' kernels at a stage, as a unified diff."""

from __future__ import annotations

import difflib
import re

from tiledsl.autotuner.trial import Trial, config_text
from tiledsl.errors import TileError
from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime.compile import ASSEMBLY

_SOURCE = ("triton", "source")
# Positions in files and names of temporary files differ from kernel to kernel and say nothing.
_NOISE = (
    re.compile(r"^#loc\d* = loc\(.*\)$\n?", re.MULTILINE),
    re.compile(r" ?loc\((?:[^()]|\([^()]*\))*\)"),
    re.compile(r"^\s*\.(?:loc|file)\s.*$\n?", re.MULTILINE),
)


def stage_text(kernel: Kernel, stage: str) -> str:
    """A kernel's text at a stage: "triton" (the source), a pass's name, or ttir, ttgir, llir, ptx, sass, amdgcn."""
    if stage in _SOURCE:
        return kernel.source
    if stage not in ASSEMBLY:
        return kernel.ir(stage)
    if stage not in kernel.asm:
        raise TileError(f"{kernel.name} for {kernel.target} has no {stage}; it has {', '.join(kernel.asm)}")
    text = kernel.asm[stage]
    if not isinstance(text, str):
        raise TileError(f"there is no text of {stage}: the tool that makes it is missing")
    for pattern in _NOISE:
        text = pattern.sub("", text)
    return text


def unified(one: Trial, other: Trial, stage: str, context: int = 3) -> str:
    """The unified diff from one trial's kernel to another's; empty if they are equal at that stage."""
    before, after = (stage_text(trial.kernel, stage).splitlines() for trial in (one, other))
    names = [f"trial {trial.index}: {config_text(trial.config)}" for trial in (one, other)]
    return "\n".join(difflib.unified_diff(before, after, names[0], names[1], lineterm="", n=context))
