"""Verify a kernel: run every checker over its program, its lowering and its source, and write the certificate."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from tiledsl.certificate.bounds import check_bounds, check_tile_bounds
from tiledsl.certificate.check import Check, Status
from tiledsl.certificate.races import check_races
from tiledsl.certificate.reads import check_reads
from tiledsl.certificate.report import Certificate
from tiledsl.certificate.solver import Solver
from tiledsl.certificate.translation import check_translation
from tiledsl.dialects import thread
from tiledsl.dialects.tile import FuncOp
from tiledsl.digests import digest, source_digest
from tiledsl.errors import PassFailure, TileError
from tiledsl.ir.pass_manager import PassManager, Program
from tiledsl.ir.printer import print_op
from tiledsl.passes import default_pipeline
from tiledsl.passes.canonicalize import Canonicalize
from tiledsl.passes.guard_accesses import GuardAccesses
from tiledsl.passes.merge_roles import MergeRoles
from tiledsl.runtime.lowering import rest_of
from tiledsl.runtime.versions import compiler_hash, triton_version
from tiledsl.version import __version__

if TYPE_CHECKING:
    from tiledsl.kernels.kernel import Kernel

_DEPTH = 10_000  # of terms, which are as deep as the longest chain of operations
SECONDS = 5.0  # for all questions of each kind to the solver about one kernel


def _bounds(kernel: Kernel, seconds: float) -> Iterable[Check]:
    passes = rest_of(default_pipeline(kernel.pass_configs), kernel._resumed_after)
    program = Program(kernel.program_root(), kernel.target)
    PassManager(passes, verify_each=False).run(program)
    assert isinstance(program.root, FuncOp)
    guarded = all(each.enabled for each in passes if isinstance(each, GuardAccesses))
    yield from check_bounds(program.root, Solver(seconds=seconds), guarded)
    yield from check_tile_bounds(_of_one_role(kernel), Solver(seconds=seconds))


def _of_one_role(kernel: Kernel) -> FuncOp:
    """The program as it was elaborated; where its warps have roles, in the order in which these are done. That this is
    what they do, the executor says, which runs both."""
    program = Program(kernel.program_root(), kernel.target)
    if any(isinstance(op, thread.InitBarriersOp) for op in program.root.walk()):
        PassManager([Canonicalize(), MergeRoles()], verify_each=False).run(program)
    assert isinstance(program.root, FuncOp)
    return program.root


# Everything that looks at a kernel, by the kind of its checks; the quick ones first, for there may be a time limit.
CHECKERS: tuple[tuple[str, Callable[[Kernel, float], Iterable[Check]]], ...] = (
    ("bounds", _bounds),
    ("race", lambda kernel, seconds: check_races(_of_one_role(kernel), Solver(seconds=seconds))),
    ("read", lambda kernel, seconds: check_reads(_of_one_role(kernel), Solver(seconds=seconds))),
    ("pass", lambda kernel, seconds: check_translation(kernel)),  # and the source
)


def checks_of(kernel: Kernel, seconds: float = SECONDS) -> Iterator[Check]:
    """The outcome of every checker. One that breaks has failed, one without room leaves something unknown, and the
    others go on."""
    limit = sys.getrecursionlimit()
    for kind, checker in CHECKERS:
        sys.setrecursionlimit(max(limit, _DEPTH))
        try:
            checks = list(checker(kernel, seconds))
        except (PassFailure, TileError) as error:  # a pass that does not do each time what it did for the kernel
            checks = [Check(kind, "the lowering, once more", "failed", str(error))]
        except Exception as error:
            status: Status = "unknown" if isinstance(error, (MemoryError, RecursionError)) else "failed"
            told = f"it broke, which is a defect of tiledsl: {type(error).__name__}: {error}"
            checks = [Check(kind, "the check itself", status, told)]
        finally:
            sys.setrecursionlimit(limit)
        yield from checks


def certify(kernel: Kernel, seconds: float = SECONDS) -> Certificate:
    """The certificate of a kernel, made here and now."""
    start = time.monotonic()
    checks = list(checks_of(kernel, seconds))
    return certificate_of(kernel, checks, time.monotonic() - start)


def certificate_of(kernel: Kernel, checks: Iterable[Check], seconds: float) -> Certificate:
    """The certificate that says this of a kernel."""

    return Certificate(
        kernel=kernel.name,
        target=str(kernel.target),
        checks=tuple(checks),
        program=digest(print_op(kernel.program_root())),
        source=source_digest(kernel.source),
        tiledsl=__version__,
        compiler=compiler_hash(),
        triton=triton_version(),
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds=round(seconds, 3),
    )
