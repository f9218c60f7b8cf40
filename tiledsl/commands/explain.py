"""`tiledsl explain`: what was made of a kernel and why, what limits it, and what to try."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tiledsl.analysis.block_access import root_buffer
from tiledsl.autotuner.predicting import model
from tiledsl.autotuner.predicting.machines import machine_of
from tiledsl.autotuner.predicting.work import work_of
from tiledsl.commands.lower import Request, import_file, kernel_of
from tiledsl.commands.report import give
from tiledsl.dialects import tile
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation
from tiledsl.ir.parser import parse_op
from tiledsl.ir.pass_manager import Pass
from tiledsl.kernels.kernel import Kernel
from tiledsl.location import UNKNOWN
from tiledsl.passes import PIPELINE
from tiledsl.runtime.resources import Resources
from tiledsl.runtime.target import Target

LAST_LEVEL = "order-accesses"  # the last pass whose IR still says what an access is, and of which tensor
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"  # of a checkout
_FULL = 0.75  # of the last of few waves: less leaves multiprocessors idle
_FEW_WAVES = 4


@dataclass(frozen=True)
class AccessForm:
    """How blocks reach a tensor at a place. form: "TMA", "pointers" or "atomic"; masked: whether each element is
    checked; count: how often it is in the kernel, as peeled loops and epilogues repeat it."""

    what: str
    tensor: str
    shape: tuple[Any, ...]
    form: str
    masked: bool
    file: str | None
    line: int | None
    count: int = 1


@dataclass(frozen=True)
class LaunchLimit:
    """A launch: its blocks, how many a multiprocessor holds, and estimated milliseconds of each thing alone; `limit`
    takes longest. None where sizes are not known."""

    kernel: str
    emitter: str
    blocks: int | None
    occupancy: int | None
    waves: int | None
    parts: dict[str, float] = field(default_factory=dict)
    limit: str | None = None


@dataclass(frozen=True)
class Explanation:
    """What is known of a kernel. passes: that changed the IR; milliseconds: as the cost model of the tuner estimates,
    for the GPU `estimated_for`; resources: of the compiled kernel, if it was compiled."""

    kernel: str
    target: str
    passes: list[dict[str, str]]
    accesses: list[AccessForm]
    launches: list[LaunchLimit]
    milliseconds: float | None
    estimated_for: str
    resources: Resources | None
    remarks: list[str]
    advice: list[str]


def example_of(name: str, values: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The file of an example that is named like `softmax`, and the values with its small sizes. TileError for another
    name, and where there is no checkout."""
    path = EXAMPLES / f"{name}.py"
    if not name.isidentifier() or not path.is_file():
        notes = []
        if name.isidentifier() and EXAMPLES.is_dir():
            near = difflib.get_close_matches(name, [each.stem for each in EXAMPLES.glob("*.py")], 1)
            notes = [f"did you mean {near[0]}?"] if near else []
        elif name.isidentifier():
            notes = ["names of examples are for a checkout of the repository: pip installs none"]
        raise TileError(f"there is no file {name}", notes=notes)
    return path, {**getattr(import_file(path), "SMALL", {}), **values}


def explain(request: Request, compiles: bool = True) -> Explanation:
    """Lower a program, and compile it for a GPU unless that is not wanted. Raises as `lower` does."""
    kernel = kernel_of(request)
    target, stages = request.target, kernel.stages
    before: str | None = None
    changes = []
    for stage in stages:
        if stage.text != before and stage.name not in ("elaborate", "emit"):
            changes.append({"name": stage.name, "text": _first_line(stage.name)})
        before = stage.text
    resources = kernel.resources if compiles and target.kind != "interpret" else None
    root = parse_op(kernel.ir(LAST_LEVEL, locations=True))
    emitters = ["Gluon" if targets_gluon(op) else "Triton" for op in root.walk() if isinstance(op, tile.KernelOp)]
    machine = machine_of(_estimated_for(target)).name
    launches, milliseconds = _limits(kernel, target, emitters, resources)
    remarks = list(kernel.remarks)
    return Explanation(
        kernel.name, str(target), changes, list(_accesses(root)), launches, milliseconds, machine, resources, remarks,
        list(_advice(kernel, target, launches, resources)),
    )  # fmt: skip


def _estimated_for(target: Target) -> Target:
    """What the model estimates for: cuda:90 in place of the interpreter."""
    return Target("cuda", 90) if target.kind == "interpret" else target


def _first_line(name: str) -> str:
    found: type[Pass] | None = next((each for each in PIPELINE if each.name == name), None)
    return "" if found is None else (inspect.getdoc(found) or "").partition("\n")[0]


def _accesses(root: Operation) -> Iterator[AccessForm]:
    parameters = dict(zip(root.regions[0].args, root.attributes.get("parameters", ())))
    kinds = {
        tile.LoadOp: ("load", "pointers"), tile.StoreOp: ("store", "pointers"), tile.AtomicOp: ("atomic", "atomic"),
        tile.LoadBlockOp: ("load", "TMA"), tile.StoreBlockOp: ("store", "TMA"),
    }  # fmt: skip
    counts: dict[AccessForm, int] = {}
    for op in root.walk():
        if type(op) not in kinds:
            continue
        what, form = kinds[type(op)]
        access: Any = op
        buffer = root_buffer(access.buffer)
        moved = access.out if what != "store" else access.value
        name = parameters.get(buffer) or buffer.name or "a workspace"
        loc = None if op.loc is UNKNOWN else op.loc
        masked = form != "TMA" and access.mask is not None
        where = (None, None) if loc is None else (loc.file, loc.line)
        each = AccessForm(what, str(name), tuple(moved.type.shape or ()), form, masked, *where)
        counts[each] = counts.get(each, 0) + 1
    for each, count in counts.items():
        yield AccessForm(**{**asdict(each), "count": count})


def _limits(
    kernel: Kernel, target: Target, emitters: Sequence[str], resources: Resources | None
) -> tuple[list[LaunchLimit], float | None]:
    works, limits = work_of(kernel), []
    where = _estimated_for(target)
    for number, work in enumerate(works):
        emitter = emitters[number] if number < len(emitters) else "Triton"
        if not work.is_static:
            limits.append(LaunchLimit(work.name, emitter, None, None, None))
            continue
        own = resources if len(works) == 1 else None
        parts = model.parts(work, where, own)
        held = model.occupancy(work, where, own)
        waves = max(1, math.ceil(work.blocks / (where.sm_count * held)))
        limit = max(parts, key=parts.__getitem__)
        limits.append(LaunchLimit(work.name, emitter, work.blocks, held, waves, parts, limit))
    known = bool(works) and all(work.is_static for work in works)
    return limits, model.predict(kernel, where, resources if len(works) == 1 else None) if known else None


def _advice(
    kernel: Kernel, target: Target, launches: Sequence[LaunchLimit], resources: Resources | None
) -> Iterator[str]:
    """What to try, from what is known; the tuner tells whether it helps."""
    multiprocessors = _estimated_for(target).sm_count
    for work, launch in zip(work_of(kernel), launches):
        if launch.blocks is None or launch.occupancy is None or launch.waves is None:
            yield f"{launch.kernel}: give sizes by -D in place of dynamic ones: then waves and times are estimated"
            continue
        held = launch.occupancy * multiprocessors
        if 0 < launch.blocks < multiprocessors:
            split = ", or split-k.splits" if work.dots else ""
            why = f"{launch.blocks} blocks leave {multiprocessors - launch.blocks} multiprocessors idle"
            yield f"{launch.kernel}: {why}: smaller tiles{split}"
        elif 1 < launch.waves <= _FEW_WAVES and launch.blocks / (launch.waves * held) < _FULL and not work.persistent:
            share = launch.blocks / (launch.waves * held)
            ways = "split-k.streams or other tiles" if work.dots else "map-grid.persistent or other tiles"
            yield f"{launch.kernel}: {launch.waves} waves of {held} blocks are {share:.0%} full: {ways}"
        if any(loop.stages <= 1 and loop.iterations > 1 for loop in work.loops) and launch.limit == "waiting":
            yield f"{launch.kernel}: a loop loads and waits: T.Pipelined(..., num_stages=3) loads ahead"
    if resources is not None and resources.spills:
        yield f"{resources.spills} bytes a thread are spilled: smaller tiles, or more threads in a block"


def text_of(explanation: Explanation) -> str:
    """The explanation for people."""
    lines = [f"{explanation.kernel} for {explanation.target}"]
    for launch in explanation.launches:
        lines += ["", f"{launch.kernel}, written in {launch.emitter}"]
        if launch.blocks is None:
            lines.append("  its grid or loops depend on sizes that are not known")
            continue
        waves = "a wave" if launch.waves == 1 else f"{launch.waves} waves"
        lines.append(f"  {launch.blocks} blocks in {waves}, {launch.occupancy} at a time on a multiprocessor")
        parts = ", ".join(f"{name} {1e3 * value:.3g} us" for name, value in launch.parts.items() if value)
        lines.append(f"  limited by {launch.limit}, as estimated for {explanation.estimated_for}; each alone: {parts}")
    lines += ["", "accesses"]
    for each in explanation.accesses:
        place = "" if each.file is None else f"  {Path(each.file).name}:{each.line}"
        shape = "x".join(map(str, each.shape)) or "one element"
        how = f"{each.form}{', masked' if each.masked else ''}{f', {each.count} times' if each.count > 1 else ''}"
        lines.append(f"  {each.what} {each.tensor} {shape}: {how}{place}")
    if explanation.resources is not None:
        used = explanation.resources
        blocks, limiting = used.occupancy_limit
        shown = f"{used.registers} registers and {used.spills} spilled bytes a thread, {used.shared_bytes} bytes shared"
        lines += ["", f"compiled: {shown}; {limiting} limits a multiprocessor to {blocks} blocks"]
    if explanation.milliseconds is not None:
        lines.append(f"estimated: {explanation.milliseconds:.4f} ms")
    lines += ["", "passes that changed it"]
    lines += [f"  {each['name']:22}{each['text']}" for each in explanation.passes]
    for title, said in (("remarks", explanation.remarks), ("to try", explanation.advice)):
        if said:
            lines += ["", title, *(f"  {each}" for each in said)]
    return "\n".join(lines)


def show(request: Request, compiles: bool) -> str:
    """The explanation as text, and as data for --json."""
    found = explain(request, compiles)
    give(**asdict(found))
    return text_of(found)
