"""What of a configuration can run on this machine, to be checked and timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiledsl.autotuner.predicting.work import work_of
from tiledsl.autotuner.trial import Trial
from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime.target import Target

if TYPE_CHECKING:
    from tiledsl.autotuner.engine import TuningProblem

_MOST_OPERATIONS = 1e11  # a matrix product of 3700 cubed: some minutes in the interpreter
_MOST_BLOCKS = 1 << 14


def runner(problem: TuningProblem, trial: Trial, kernel: Kernel) -> Kernel | None:
    """The kernel itself where it runs here, or its twin for the interpreter. None where that would take too long, or is
    not wanted: on a machine that cannot measure, running serves the check alone."""
    if problem.target.runs_here:
        return kernel
    if not problem.options.checks:
        return None
    if "from_level" in trial.config:
        trial.message = "not verified: the interpreter runs sources, no levels"
        return None
    at = problem.options.verify_at
    if at is not None:
        kernel = problem.build({**trial.config, **at}, Target("interpret"))
    work = work_of(kernel)
    blocks = sum(each.blocks for each in work)
    operations = sum(each.blocks * each.operations for each in work)
    if blocks > _MOST_BLOCKS or operations > _MOST_OPERATIONS:
        trial.message = "not verified: too large for the interpreter; pass verify_at={...} for a smaller shape"
        return None
    return problem.build({**trial.config, **(at or {})}, Target("interpret"))
