"""Run, check and time configurations. Runs in a benchmark process; in the tuner's own under `isolate=False`."""

from __future__ import annotations

import math
import os
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tiledsl.autotuner.measuring import wire
from tiledsl.autotuner.measuring.again import Further
from tiledsl.autotuner.measuring.final_round import Racer, race
from tiledsl.autotuner.measuring.gpu_clock import reader, wait_for_clock
from tiledsl.autotuner.measuring.inputs import changed, copies, nbytes, poison
from tiledsl.autotuner.measuring.jobs import Job, Policy
from tiledsl.autotuner.measuring.metrics import Measurement, evaluate
from tiledsl.autotuner.verifying import bits
from tiledsl.autotuner.verifying.reference import Expected
from tiledsl.autotuner.verifying.verify import KernelOutputs, check_outputs
from tiledsl.digests import digest
from tiledsl.runtime.module import load_module
from tiledsl.runtime.profiler import tensors
from tiledsl.runtime.timing import clock, summarize

_HOPELESS, _HOPELESS_PASS = 2.0, 0.05  # times the best, and the share of `rep` that such a configuration gets
_FAR = 1.3  # times the best quick estimate, which is several percent off: such a configuration is as hopeless
_BEHIND = (
    1.2  # times the best latency: after the first samples such a configuration needs no more; see selection._CLOSE
)
_NEXT_WARMUP = 0.25  # of the warm-up, where the GPU has just run another configuration
# Errors after which a CUDA context answers nothing but errors (CUDA driver API, CUresult).
_STICKY = re.compile(
    r"illegal memory access|misaligned address|unspecified launch failure|illegal instruction|illegal address|"
    r"device-side assert|hardware stack error|invalid program counter|invalid address space|context is destroyed|"
    r"launch timed out|uncorrectable|contained",
    re.IGNORECASE,
)


_CLOCK_STEP = 20.0  # milliseconds of work between two looks at the GPU's clock


class Bench:
    """One device with one set of inputs."""

    def __init__(
        self,
        device: str,
        policy: Policy,
        inputs: Sequence[Any],
        references: Sequence[Expected],
        folder: Path,
        further: Sequence[Further] = (),
    ) -> None:
        self.device = device
        self.policy = policy
        self.inputs = list(inputs)  # never given to a kernel
        self.references = list(references)
        self.further = list(further)
        self.folder = folder
        self._watch: Any = None
        self._warm = False
        self._quickest: float | None = None
        self._nbytes = nbytes(self.inputs)

    @classmethod
    def of_message(cls, message: Mapping[str, Any], device: str) -> Bench:
        """As MeasurementBackend.begin describes it to a process."""
        inputs, references, further = wire.load(message["given"], device)
        others = [
            Further(each["name"], each["inputs"], [Expected(**one) for one in each["candidates"]]) for each in further
        ]
        policy, folder = Policy.from_message(message["policy"]), Path(message["folder"])
        return cls(device, policy, inputs, [Expected(**each) for each in references], folder, others)

    def run(self, job: Job, best: float | None) -> dict[str, Any]:
        """Check and time a configuration: the fields of its Trial. `sticky` is set where this process is spoilt."""
        fields: dict[str, Any] = {}
        try:
            launch = getattr(self._load(job), job.into)
            if job.of_rows is not None:
                return {"status": "ok", "output_bits": self._bits_of_rows(job, launch, **job.of_rows)}
            given = copies(self.inputs)
            ran = self._call(job, launch, given)
            fields.update({} if job.checked else self._check(job, ran))
            if "status" not in fields:
                doubts = {} if job.checked else self._doubts(job, launch)
                if doubts:
                    fields["doubts"] = doubts
                if job.bits:
                    fields["output_bits"] = self._bits(job, launch, ran)
                if job.timed:
                    fields.update(self._time(job, launch, given, ran, best))
                else:
                    fields["status"] = "ok"
        except Exception as error:  # whatever the generated code, Triton or the driver raise
            return {**fields, **self.failure(error)}
        return fields

    def warm_up(self) -> None:
        """What the first check and the first time need of torch, which loads a GPU's functions when they are first
        used: the reference's own outputs are checked. For the time before the first configuration is compiled."""
        try:
            given = copies(self.inputs)
            touched = [at for at, (now, old) in enumerate(zip(given, self.inputs)) if changed(now, old)]
            if self.references:
                outputs = copies(self.references[-1].returned)
                names = [f"input {at}" for at in range(len(given))]
                check_outputs(KernelOutputs(names, outputs, given, touched), self.references, self.policy.tolerance)
                for output in outputs:
                    poison(output)
            if self._watch is None and self.policy.timer is None:
                self._watch = clock(None, self.policy.backend)
                self._watch.quick(lambda: None)
            self._wait()
        except Exception:  # comes again where it matters
            self._free()

    def failure(self, error: Exception) -> dict[str, Any]:
        """Status and message of an exception."""
        shown = str(error) or type(error).__name__
        message = shown if type(error).__name__ == "TileError" else f"{type(error).__name__}: {shown}"
        if _STICKY.search(shown) or (self.device != "cpu" and not is_gpu_alive()):
            return {"status": "crash", "message": message, "sticky": True}
        lack = "out of resource" in shown.lower() or type(error).__name__ in ("OutOfMemoryError", "OutOfResources")
        if lack:
            self._free()
        return {"status": "out_of_resources" if lack else "launch_error", "message": message}

    def final(self, jobs: Sequence[Job], begins: Callable[[Job], None]) -> dict[str, Any]:
        """Time configurations against each other, as `race` does. Samples by index, those that fail left out, with
        their failures. `begins` is told what runs."""
        failures: dict[str, Any] = {}
        by_name = {str(job.index): job for job in jobs}
        racers: list[Racer] = []
        for job in jobs:
            begins(job)
            try:
                launch = getattr(self._load(job), job.into)
                given = copies(self.inputs)
                ran = self._call(job, launch, given)
                quick, prepared = self._prepare(job, launch, given, ran)
                prepared.warm(self.policy.warmup * (_NEXT_WARMUP if racers else 1.0))
                racers.append(Racer(str(job.index), prepared, quick))
            except Exception as error:
                failures[str(job.index)] = self.failure(error)
                if failures[str(job.index)].get("sticky"):
                    return {"rounds": {}, "failures": failures}
        running = ""

        def told(name: str) -> None:
            nonlocal running
            running = name
            begins(by_name[name])

        try:
            rounds, lasting = race(racers, self.policy.rep, told, settle=self.policy.settle)
        except Exception as error:
            failures[running] = self.failure(error)
            return {"rounds": {}, "failures": failures}
        return {"rounds": rounds, "lasting": lasting, "failures": failures}

    def _load(self, job: Job) -> Any:
        return load_module(job.name, job.source, interpret=job.interpret, cache_dir=self.policy.cache_dir)

    def _doubts(self, job: Job, launch: Callable[..., Any]) -> dict[str, str]:
        """On which further inputs the outputs are wrong, and how."""
        doubts = {}
        for case in self.further:
            ran = self._call(job, launch, copies(case.inputs), case.inputs)
            verdict = check_outputs(ran, case.candidates, self.policy.tolerance)
            if "status" in verdict:
                doubts[case.name] = verdict["message"]
        return doubts

    def _bits(self, job: Job, launch: Callable[..., Any], ran: KernelOutputs) -> str:
        """The bits of a kernel's outputs: for the inputs, of which `ran` has the first outputs, and for worse ones."""
        first = bits.fingerprint(_results(ran))
        prints = [bits.fingerprint(_results(self._call(job, launch, copies(self.inputs))))]
        if prints[0] != first:
            return bits.VARIES
        for inputs in bits.adversarial_inputs(self.inputs):
            prints.append(bits.fingerprint(_results(self._call(job, launch, copies(inputs), inputs))))
        return digest(" ".join(prints))[:32]

    def _bits_of_rows(
        self, job: Job, launch: Callable[..., Any], shapes: list[Any], dims: list[int | None], count: int
    ) -> str:
        """The bits of the first `count` rows that the kernel computes from inputs of these shapes."""
        prints = []
        for each in (self.inputs, *bits.adversarial_inputs(self.inputs)):
            inputs = bits.of_rows(each, shapes)
            ran = self._call(job, launch, copies(inputs), inputs)
            prints.append(bits.fingerprint(bits.first_rows(ran.outputs, dims, count)))
        return digest(" ".join(prints))[:32]

    def _call(
        self, job: Job, launch: Callable[..., Any], inputs: list[Any], originals: Sequence[Any] | None = None
    ) -> KernelOutputs:
        """Run the kernel on `inputs`, which it may change, with outputs that held NaN (integers: a far-off number)
        before, so that elements which are never written show up. originals: what `inputs` are copies of, if not of this
        bench's."""
        originals = self.inputs if originals is None else originals
        outputs = self._outputs(job, inputs)
        for output in outputs:
            poison(output)
        launch(*_arguments(job, inputs, outputs))
        self._wait()
        names = [param["name"] for param in job.params if not param["is_output"]]
        touched = [at for at, (now, old) in enumerate(zip(inputs, originals)) if changed(now, old)]
        return KernelOutputs(names, outputs, inputs, touched)

    def _outputs(self, job: Job, inputs: Sequence[Any]) -> list[Any]:
        """New tensors for the outputs; where a size or the strides are not known, those that the program makes."""
        import torch

        sizes: dict[str, int] = {}
        rest = iter(inputs)
        for param in job.params:
            value: Any = None if param["is_output"] else next(rest)
            if hasattr(value, "data_ptr"):
                sizes.update((dim, size) for dim, size in zip(param["shape"], value.shape) if isinstance(dim, str))
        shapes = []
        for position in job.outputs:
            param = job.params[position]
            shapes.append([sizes.get(dim) if isinstance(dim, str) else dim for dim in param["shape"]])
            if None in shapes[-1] or param["strides"] is not None:
                kept = copies(inputs)
                made = tensors(getattr(self._load(job), job.entry)(*inputs))
                for item, before in zip(inputs, kept):
                    if hasattr(item, "data_ptr"):
                        item.copy_(before)
                return made
        place = "cpu" if self.device == "cpu" else "cuda"
        return [
            torch.empty(shape, dtype=getattr(torch, job.params[at]["dtype"]), device=place)
            for at, shape in zip(job.outputs, shapes)
        ]

    def _check(self, job: Job, ran: KernelOutputs) -> dict[str, Any]:
        if self.policy.keep_outputs:
            results = list(ran.outputs) or [ran.after[at] for at in ran.changed]
            return {"outputs": wire.store(results, self.folder, f"out-{job.index}")}
        if not self.references:
            return {}
        verdict = check_outputs(ran, self.references, self.policy.tolerance)
        meant = {at for expected in self.references for at in (*expected.changed, *expected.aliases)}
        stray = [ran.names[at] for at in ran.changed if at not in meant] if ran.outputs else []
        if stray and "message" not in verdict:
            verdict["message"] = f"changes its input {', '.join(stray)}"
        return verdict

    def _time(
        self, job: Job, launch: Callable[..., Any], inputs: list[Any], ran: KernelOutputs, best: float | None
    ) -> dict[str, Any]:
        quick, prepared = self._prepare(job, launch, inputs, ran)
        best = best if self.policy.by_latency else None
        factor = self.policy.early_stop_factor
        if factor is not None and best is not None and quick > best * factor:
            why = f"stopped early: {quick:.4g} ms against {best:.4g} ms for the best so far"
            return {"status": "screened", "message": why, "latency": quick}
        hopeless = best is not None and quick > best * _HOPELESS
        if self.policy.by_latency and self._quickest is not None:
            hopeless = hopeless or quick > self._quickest * _FAR
        self._quickest = quick if self._quickest is None else min(quick, self._quickest)
        prepared.warm(0.0 if hopeless else self.policy.warmup * (job.share if self._warm else 1.0))
        if not self._warm and self.policy.wait_for_clock and self.device != "cpu":
            wait_for_clock(self.policy.wait_for_clock, reader(), lambda: prepared.warm(_CLOCK_STEP))
        self._warm = True
        first = min(job.share, _HOPELESS_PASS)
        samples = prepared.sample(self.policy.rep * first, quick)
        median, limit = statistics.median(samples), math.inf if best is None else best * _BEHIND
        if not hopeless and quick <= limit < median:  # something else may have slowed all of these samples down
            again = prepared.sample(self.policy.rep * first, quick)
            median = min(median, statistics.median(again))
            samples += again
        hopeless = hopeless or median > limit
        if job.share > first and not hopeless:
            samples += prepared.sample(self.policy.rep * (job.share - first), quick)
        timing = summarize(samples, prepared.method)
        done = {"status": "ok", "latency": timing.median, "spread": timing.spread, "timing": timing.method}
        if self.policy.metrics:
            arguments = _arguments(job, inputs, ran.outputs)
            median, spread, samples = timing.median, timing.spread, timing.samples
            taken = Measurement(job.config, median, spread, samples, lambda: launch(*arguments), self._wait)
            done["metrics"] = evaluate(self.policy.metrics, taken)
        return done

    def _prepare(
        self, job: Job, launch: Callable[..., Any], inputs: list[Any], ran: KernelOutputs
    ) -> tuple[float, Any]:
        """A quick estimate in milliseconds, and the call ready to be timed."""
        if self._watch is None:
            self._watch = clock(self.policy.timer, self.policy.backend)
        self._watch.config = job.config

        def calls(count: int) -> list[Callable[[], Any]]:
            first = _arguments(job, inputs, ran.outputs)
            sets = [first, *(copies(first) for _ in range(count - 1))]
            return [lambda chosen=chosen: launch(*chosen) for chosen in sets]  # type: ignore[misc]

        self._restore(inputs)
        reset = (lambda: self._restore(inputs, ran.changed)) if ran.changed else None
        moved = self._nbytes + nbytes(ran.outputs)
        quick = self._watch.quick(calls(1)[0], reset)
        return quick, self._watch.prepare(calls, moved, quick, reset)

    def _restore(self, inputs: Sequence[Any], positions: Sequence[int] | None = None) -> None:
        for at in range(len(inputs)) if positions is None else positions:
            if hasattr(inputs[at], "data_ptr"):
                inputs[at].copy_(self.inputs[at])

    def _wait(self) -> None:
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize()

    def _free(self) -> None:
        if self.device != "cpu":
            import torch

            torch.cuda.empty_cache()


def is_gpu_alive() -> bool:
    """Whether the GPU still does what it is told, after a failure that may have ended this process's context."""
    import torch

    try:
        torch.zeros(1, device="cuda").add_(1).item()
        torch.cuda.synchronize()
    except Exception:
        return False
    return True


def _results(ran: KernelOutputs) -> list[Any]:
    return [*ran.outputs, *(ran.after[at] for at in ran.changed)]


def _arguments(job: Job, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    rest, made = iter(inputs), dict(zip(job.outputs, outputs))
    return [made[at] if at in made else next(rest) for at in range(len(job.params))]


def set_folders(triton_cache_dir: str | None) -> None:
    """Make Triton find what the compile processes compiled."""
    if triton_cache_dir is None:
        os.environ.pop("TRITON_CACHE_DIR", None)
    else:
        os.environ["TRITON_CACHE_DIR"] = triton_cache_dir
