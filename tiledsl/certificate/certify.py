"""Verify a kernel: run every checker over its program, its lowering and its source, and write the certificate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tiledsl.certificate.bounds import check_bounds
from tiledsl.certificate.check import Check
from tiledsl.certificate.races import check_races
from tiledsl.certificate.reads import check_reads
from tiledsl.certificate.report import Certificate
from tiledsl.certificate.solver import Solver
from tiledsl.dialects.tile import FuncOp
from tiledsl.ir.pass_manager import PassManager, Program
from tiledsl.ir.text import print_op
from tiledsl.passes import default_pipeline
from tiledsl.passes.guard_accesses import GuardAccesses
from tiledsl.runtime.lowering import rest_of
from tiledsl.runtime.target import Target

if TYPE_CHECKING:
    from tiledsl.runtime.kernel import Kernel

SECONDS = 5.0  # for all questions to the solver about one kernel


@dataclass
class Subject:
    """What is verified: a program, how it was lowered, and what came out.

    `build` elaborates the program, each time anew; `resumed_after` is the pass that it comes after. `seconds` limits
    each checker that asks the solver.
    """

    name: str
    build: Callable[[], FuncOp]
    target: Target
    pass_configs: Mapping[str, Any]
    source: str
    resumed_after: str = ""
    seconds: float = SECONDS

    @classmethod
    def of(cls, kernel: Kernel, seconds: float = SECONDS) -> Subject:
        return cls(
            kernel.name, kernel.program_root, kernel.target, kernel.pass_configs, kernel.source,
            kernel._resumed_after, seconds,
        )  # fmt: skip

    @cached_property
    def passes(self) -> list[Any]:
        """The passes that made the source of the program."""
        return list(rest_of(default_pipeline(self.pass_configs), self.resumed_after))

    def lowered(self) -> FuncOp:
        """The program behind the last pass, made anew."""
        program = Program(self.build(), self.target)
        PassManager(self.passes, verify_each=False).run(program)
        assert isinstance(program.root, FuncOp)
        return program.root


def _bounds(subject: Subject) -> Iterable[Check]:
    guarded = all(each.enabled for each in subject.passes if isinstance(each, GuardAccesses))
    return check_bounds(subject.lowered(), Solver(seconds=subject.seconds), guarded)


def _races(subject: Subject) -> Iterable[Check]:
    return check_races(subject.build(), Solver(seconds=subject.seconds))


def _reads(subject: Subject) -> Iterable[Check]:
    return check_reads(subject.build(), Solver(seconds=subject.seconds))


# Everything that looks at a kernel, by the kind of its checks, in the order of the report.
CHECKERS: tuple[tuple[str, Callable[[Subject], Iterable[Check]]], ...] = (
    ("bounds", _bounds),
    ("race", _races),
    ("read", _reads),
)


def checks_of(subject: Subject) -> Iterator[Check]:
    """The outcome of every checker. One that breaks leaves something unknown, and the others go on."""
    for kind, checker in CHECKERS:
        try:
            yield from checker(subject)
        except Exception as error:
            yield Check(kind, "the check itself", "unknown", f"it broke: {type(error).__name__}: {error}")


def certify(subject: Subject) -> Certificate:
    """The certificate of a kernel, made here and now."""
    start = time.monotonic()
    checks = list(checks_of(subject))
    return certificate_of(subject, checks, time.monotonic() - start)


def certificate_of(subject: Subject, checks: Iterable[Check], seconds: float) -> Certificate:
    """The certificate that says this of a kernel."""
    import tiledsl
    from tiledsl.autotuner.storage.fingerprint import digest, source_digest
    from tiledsl.autotuner.storage.key import compiler_hash, triton_version

    return Certificate(
        kernel=subject.name,
        target=str(subject.target),
        checks=tuple(checks),
        program=digest(print_op(subject.build())),
        source=source_digest(subject.source),
        tiledsl=tiledsl.__version__,
        compiler=compiler_hash(),
        triton=triton_version(),
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
    )
