"""Remarks about options that were set but that a kernel's emitter does not use."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tiledsl.dialects import tile
from tiledsl.ir.pass_manager import Pass
from tiledsl.logs import note_once

_TRITON = 'it needs select-emitter.backend="triton"'
_GLUON = 'it needs select-emitter.backend="gluon" and a kernel of that form'
_IN_GLUON = {
    "select-access.mode": f"where tiles are copied by TMA if they can be; {_TRITON}",
    "select-access.operands": f"where tiles are copied by TMA if they can be; {_TRITON}",
    "pipeline-loops.stages": f"where select-emitter.stages is the number of tiles in flight; {_TRITON}",
    "pipeline-loops.streamed": f"where tiles are copied by TMA; {_TRITON}",
    "pipeline-loops.reused": f"where tiles are copied by TMA; {_TRITON}",
    "pipeline-loops.unroll": f"where each loop is emitted once; {_TRITON}",
    "map-grid.persistent": f"where select-emitter.persistent says it; {_TRITON}",
    "peel-loops.mode": f"where only the tiles that need it are masked; {_TRITON}",
    "num_warps": f"where 64 rows of a block have four warps, and loading has its own; {_TRITON}",
    "num_stages": f"where T.Pipelined or select-emitter.stages is the number of tiles in flight; {_TRITON}",
    "num_ctas": f"where blocks form no clusters; {_TRITON}",
    "maxnreg": f"where registers are shared out between warps that load and warps that compute; {_TRITON}",
    "select-emitter.rescale": "for a loop without a softmax",
}
_IN_TRITON = {
    "select-emitter.stages": f"where T.Pipelined or pipeline-loops.stages is the depth; {_GLUON}",
    "select-emitter.rescale": f"where the accumulator is rescaled in each step; {_GLUON}",
}


def changed(each: Pass, *names: str) -> dict[str, object]:
    """The options of a pass that differ from their defaults, by `pass-name.option`."""
    given = {option.name: getattr(each, option.name) for option in dataclasses.fields(each)}
    defaults = {option.name: option.default for option in dataclasses.fields(each)}
    return {f"{each.name}.{name}": given[name] for name in names if given[name] != defaults[name]}


def remark_unused(kernel: tile.KernelOp, options: Mapping[str, object], in_gluon: bool = True) -> None:
    """Add to the kernel's remarks, and once to the log, that these options have no effect, and why."""
    emitter, reasons = ("Gluon", _IN_GLUON) if in_gluon else ("Triton", _IN_TRITON)
    for option, value in options.items():
        reason = reasons.get(option) or reasons[option.rpartition(".")[2]]
        remark = f"{option}={value!r} has no effect in {emitter}, {reason}"
        kernel.add_remark(remark)
        note_once(remark)
