"""What a page says of a kernel: the program, what each pass changed, resources, remarks and the certificate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tiledsl.errors import TileError
from tiledsl.report.page import Certified, Fact, Page, ProgramPart, Step
from tiledsl.report.sides import Line, lines_of, quoted, side_by_side

if TYPE_CHECKING:
    from tiledsl.ir.pass_manager import Stage
    from tiledsl.kernels.kernel import Kernel

WORDS = {"shared_bytes": "shared memory", "registers": "registers", "spills": "spills", "occupancy_limit": "occupancy"}


def kernel_page(kernel: Kernel) -> Page:
    """The page of a kernel. Compiles it for its resources, if it is not compiled yet."""
    return Page(f"{kernel.name}", repr(kernel), program_part(kernel))


def program_part(kernel: Kernel, resources: Mapping[str, Any] | None = None) -> ProgramPart:
    """What there is to say of a kernel. resources: as recorded; else the kernel is compiled for them."""
    facts = [Fact("target", str(kernel.target)), *_launches(kernel, resources)]
    certificate = kernel.certificate
    certified = None if certificate is None else Certified(certificate.ok, certificate.summary, certificate.text(100))
    try:
        stages = located_stages(kernel)
    except TileError as error:
        problem = str(error)
        return ProgramPart(kernel.source, facts, kernel.remarks, certificate=certified, problem=problem)
    texts = [lines_of(stage.text or "") for stage in stages]
    steps, unchanged = _steps(stages, texts)
    return ProgramPart(
        kernel.source,
        facts,
        kernel.remarks,
        quoted(texts[0]),
        steps,
        unchanged,
        _schedule(texts[-1]),
        certified,
    )


def located_stages(kernel: Kernel) -> list[Stage]:
    """The stages of lowering a kernel again, from the elaborated program to the last pass; lines of text end in their
    source locations. TileError where there is no program of tiles."""
    from tiledsl.runtime.lowering import located_texts

    own = kernel.origin or kernel
    return located_texts(own._build, own.target, own.pass_configs, own._resumed_after)


def _steps(stages: list[Stage], texts: list[list[Line]]) -> tuple[list[Step], list[str]]:
    """What each pass changed, and the names of those that changed nothing in any of their runs."""
    steps = []
    idle: dict[str, None] = {}
    active: set[str] = set()
    for stage, before, after in zip(stages[1:], texts, texts[1:]):
        rows = side_by_side(before, after)
        if rows:
            steps.append(Step(stage.spec, stage.milliseconds, rows))
            active.add(stage.name)
        else:
            idle[stage.name] = None
    return steps, [name for name in idle if name not in active]


def _schedule(lines: list[Line]) -> str:
    """The operations that say in which order and clusters a kernel's loops are written, if any do."""
    found = [each.text.strip() for each in lines]
    return "\n".join(each for each in found if each.startswith(("gluon.schedule", "gluon.cluster")))


def _launches(kernel: Kernel, resources: Mapping[str, Any] | None) -> list[Fact]:
    """How the GPU kernels are launched, and what they take of a multiprocessor."""
    by_kernel: dict[str, Mapping[str, Any]] = {}
    problem = ""
    if resources is not None:
        by_kernel = {kernel.module.kernels[0].name: resources}
    elif kernel.target.kind != "interpret":
        try:
            by_kernel = {name: asdict(each.resources) for name, each in kernel.compiled.items()}
        except TileError as error:
            problem = error.message
    facts = []
    for each in kernel.module.kernels:
        several = f"{each.name}: " if len(kernel.module.kernels) > 1 else ""
        facts.append(Fact(f"{several}launch", f"{each.num_warps} warps", f"num_stages={each.num_stages}"))
        facts += resource_facts(by_kernel.get(each.name, {}), several)
    return facts + ([Fact("resources", "unknown", problem)] if problem else [])


def resource_facts(resources: Mapping[str, Any], prefix: str = "") -> list[Fact]:
    """Registers, shared memory, spills and occupancy, those that are known."""
    facts = []
    for name, word in (("registers", "a thread"), ("spills", "bytes a thread"), ("shared_bytes", "bytes a block")):
        if resources.get(name) is not None:
            facts.append(Fact(prefix + WORDS[name], f"{resources[name]:,}", word))
    limit = resources.get("occupancy_limit")
    if limit:
        blocks = f"{limit[0]} block{'s' * (limit[0] != 1)}"
        facts.append(Fact(prefix + WORDS["occupancy_limit"], blocks, f"a multiprocessor, bounded by {limit[1]}"))
    return facts
