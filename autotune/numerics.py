"""`numerics="same-bits"` and `"batch-invariant"`: which configurations may win, decided while a tuning runs.

A configuration may win if its class is that of the reference configuration (bit_class.py: what its program says before
it is compiled, and what Triton made of it after) and if its outputs have the reference's bits on the device, for the
inputs of the tuning and for worse ones (bits.py). Both are needed; neither makes up for the other. Without a device
that can run the target, classes alone decide.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.forks import Ended, in_forks
from tiledsl.autotuner.measuring.jobs import Job
from tiledsl.autotuner.trial import Trial, config_text
from tiledsl.autotuner.verifying.bits import VARIES, rows_of
from tiledsl.digests import short_digest
from tiledsl.errors import TileError

if TYPE_CHECKING:
    from tiledsl.autotuner.engine import TuningProblem
    from tiledsl.autotuner.verifying.bit_class import BitClass
    from tiledsl.kernels.kernel import Kernel

_log = logging.getLogger("tiledsl")
_ROWS = (1, 48)  # other numbers of rows at which the reference configuration computes the same ones
_NO_ROWS = "numerics='batch-invariant' must know which argument counts rows"


def reference_index(configs: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any] | None) -> int:
    """The first configuration that has these values. TileError if none has."""
    for index, config in enumerate(configs):
        if all(name in config and config[name] == value for name, value in (wanted or {}).items()):
            return index
    raise TileError(
        f"autotune: no configuration has the values of reference_config, {config_text(wanted or {})}",
        notes=["add it to the configurations, or name one of them"],
    )


def unfit_reference(mode: str | None, reference: Trial, why: str, *notes: str) -> TileError:
    """The error for a reference configuration that cannot be one."""
    shown = config_text(reference.config)
    return TileError(
        f"autotune: numerics={mode!r}: the reference configuration, {shown}, {why}",
        notes=[*notes, "name another one with reference_config={...}"],
    )


def no_reference(mode: str | None, reference: Trial) -> TileError:
    """The error for a reference configuration that has failed."""
    return unfit_reference(mode, reference, "does not work", f"{reference.status}: {reference.message.strip()}")


def settle_doubts(trials: Sequence[Trial], name: str) -> None:
    """Configurations that are wrong on further inputs fail, if any is right on them; else these were no inputs for the
    program."""
    working = [trial for trial in trials if trial.ok]
    for inputs in dict.fromkeys(each for trial in working for each in trial.doubts or {}):
        doubted = [trial for trial in working if inputs in (trial.doubts or {})]
        if len(doubted) == len(working):
            _log.info("autotune: %s: no configuration is right on %s, which count for nothing", name, inputs)
            continue
        for trial in doubted:
            trial.fail("mismatch", f"on {inputs}: {(trial.doubts or {})[inputs]}")


class Bits:
    """What is known of the bits of a run's configurations."""

    def __init__(self, problem: TuningProblem, trials: Sequence[Trial]) -> None:
        """TileError where the reference configuration cannot be one."""
        self._problem, self._trials = problem, trials
        self.mode = problem.options.numerics
        self.index = reference_index(problem.configs, problem.options.reference_config)
        self.reference = trials[self.index]
        self.runs_here = problem.target.runs_here
        if self.reference.status not in ("new", "ok"):
            raise no_reference(self.mode, self.reference)
        try:
            self._wanted = self._read(self.reference.kernel)
        except Exception as error:
            raise unfit_reference(self.mode, self.reference, f"has no kernel: {error}") from error
        why = self._wanted.varies or (self._wanted.by_rows if self.mode == "batch-invariant" else "")
        if why:
            raise unfit_reference(self.mode, self.reference, "cannot keep its bits", why)

    @property
    def _text(self) -> str:
        return config_text(self.reference.config)

    def _read(self, kernel: Kernel) -> BitClass:
        from tiledsl.autotuner.verifying.bit_class import program_class

        return program_class(kernel)

    def lowered(self, trial: Trial, kernel: Kernel) -> None:
        """Take out a configuration whose program rounds otherwise."""
        bit_class = self._wanted if trial is self.reference else self._read(kernel)
        trial.bit_class = bit_class.signature
        if bit_class.varies:
            trial.fail("other_bits", f"its bits change from run to run: {bit_class.varies}")
        elif bit_class.by_rows and self.mode == "batch-invariant":
            trial.fail("other_bits", f"a row's bits depend on how many rows there are: {bit_class.by_rows}")
        elif bit_class.signature != self._wanted.signature:
            trial.fail("other_bits", f"other bits than {self._text}: its program adds or rounds in another order")

    def compiled(self, trial: Trial, orders: str) -> None:
        """Note what Triton made of a configuration; take it out if the reference's is known and other."""
        if orders:
            trial.bit_class = short_digest(f"{trial.bit_class} {orders}")
            self._compare_class(trial)

    def _compare_class(self, trial: Trial) -> None:
        wanted = self.reference.bit_class
        if self.reference.status == "ok" and trial.bit_class != wanted and trial.status in ("new", "ok"):
            trial.fail(
                "other_bits", f"other bits than {self._text}: its instructions add in another order{_time(trial)}"
            )

    def ran(self, trial: Trial) -> None:
        """Take out a configuration whose outputs have other bits, if the reference's are known."""
        if not trial.ok:
            return
        if trial.output_bits == VARIES:
            trial.fail("other_bits", f"its bits change from run to run{_time(trial)}")
            return
        self._compare_class(trial)
        if trial.ok and self.reference.ok and trial.output_bits != self.reference.output_bits:
            trial.fail("other_bits", f"other bits than {self._text}, on the device{_time(trial)}")

    def settle(self) -> None:
        """Take out what could not be compared before. TileError if the reference does not work."""
        if not self.reference.ok:
            raise no_reference(self.mode, self.reference)
        for trial in self._trials:
            self.ran(trial)

    # A row's bits at other numbers of rows

    def row_jobs(self, kernel: Kernel) -> list[tuple[int, Job, Job]]:
        """For other numbers of rows: that number, and two jobs whose bits must be the same, of the reference
        configuration's kernel and of the one for that number. TileError if it is not known what counts rows."""
        here = {param.name: list(param.shape) for param in kernel.params}
        jobs = []
        for count, resized_kernel, sizes in self._kernels(kernel):
            dims = rows_of(here, sizes)
            outputs = [kernel.params[at].name for at in kernel.outputs]
            inputs = [param for param in kernel.params if not param.is_output]
            if not outputs or any(name not in dims for name in outputs):
                return []
            number = here[outputs[0]][dims[outputs[0]]]
            least = min(count, number) if isinstance(number, int) else count
            keep = {"dims": [dims.get(name) for name in outputs], "count": least}
            same = {"shapes": [None for _ in inputs], **keep}
            resized = {"shapes": [sizes[p.name] if p.is_tensor and p.name in dims else None for p in inputs], **keep}
            jobs.append((count, _row_job(self.index, kernel, same), _row_job(self.index, resized_kernel, resized)))
        return jobs

    def _kernels(self, kernel: Kernel) -> list[tuple[int, Kernel, dict[str, list[Any]]]]:
        """(rows, kernel for them, shapes of its parameters) for other numbers of rows than the call's."""
        options, values = self._problem.options, self._problem.values
        name = options.rows or options.bucket or "M"
        sizes = {size for param in kernel.params for size in param.shape if isinstance(size, str)}
        if name in sizes:  # one kernel for all
            kernels = []
            for count in _ROWS:
                shapes = {p.name: [count if size == name else size for size in p.shape] for p in kernel.params}
                kernels.append((count, kernel, shapes))
            return kernels
        rows = values.get(name)
        if not isinstance(rows, int) or isinstance(rows, bool):
            known = [each for each, value in values.items() if isinstance(value, int) and not isinstance(value, bool)]
            named = ", ".join([*known, *sorted(sizes)]) or "the sizes, of which there are none"
            raise TileError(
                f"autotune: {_NO_ROWS}, and {name!r} is none",
                notes=[f"pass rows=..., one of {named}"],
            )
        counts = [count for count in _ROWS if count != rows]
        self._rehearse(name, counts)
        built = [self._build(name, count) for count in counts]
        return [
            (count, other, {param.name: list(param.shape) for param in other.params})
            for count, other in zip(counts, built)
        ]

    def _build(self, name: str, count: int) -> Kernel:
        return self._problem.build({**self.reference.config, name: count}, self._problem.target)

    def _rehearse(self, name: str, counts: Sequence[int]) -> None:
        """Build them in a fork, as configurations are: TileError where that ends the process, or takes too long."""
        options = self._problem.options
        if not options.isolate:
            return
        for count, answer in zip(
            counts, in_forks(lambda count: len(self._build(name, count).source), counts, options.timeout)
        ):
            if isinstance(answer, Ended):
                raise unfit_reference(self.mode, self.reference, f"cannot be built for {count} rows", answer.message)

    def check_rows(self, count: int, here: Mapping[str, Any], there: Mapping[str, Any]) -> None:
        """TileError where a row of the reference configuration has other bits among `count` rows."""
        for each in (here, there):
            if each.get("status") != "ok":
                why = str(each.get("message", ""))
                raise unfit_reference(self.mode, self.reference, f"does not work for {count} rows", why)
        if here["output_bits"] != there["output_bits"]:
            raise unfit_reference(self.mode, self.reference, f"has rows with other bits among {count} rows")


def _row_job(index: int, kernel: Kernel, wanted: dict[str, Any]) -> Job:
    return replace(Job.of(index, kernel, False), of_rows=wanted)


def _time(trial: Trial) -> str:
    """What it would have taken: failing takes the latency away."""
    return "" if trial.latency is None else f" ({trial.latency:.4g} ms)"
