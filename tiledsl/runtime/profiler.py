"""Time a kernel and check it against a reference. Names and defaults are TileLang's profiler's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from tiledsl.errors import TileError
from tiledsl.runtime.supply import ParamInfo, TensorSupplyType, make_inputs
from tiledsl.runtime.timing import FLUSH_BYTES, EventClock, WallClock, capture

Backend = Literal["event", "cupti", "cudagraph"]
_CPU_REPEATS = 3


class MismatchError(TileError):
    """A kernel's output differs from its reference's, or from itself on another run."""


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    _n_warmup: int = 0,
    _n_repeat: int = 0,
    quantiles: Sequence[float] | None = None,
    fast_flush: bool = True,
    backend: Backend = "event",
    return_mode: Literal["min", "max", "mean", "median"] = "median",
    n_warmup: int | None = None,
    n_repeat: int | None = None,
    flush_l2: bool = True,
) -> Any:
    """Milliseconds of one call of `fn`; a list of them with `quantiles`.

    `warmup` and `rep` are budgets in milliseconds, turned into call counts with an estimate of one call; `n_warmup` and
    `n_repeat` give the counts themselves. The second-level cache is overwritten before every timed call. "event" times
    each call between two CUDA events; "cupti" adds up the kernels' own times as torch.profiler records them (a mean,
    so quantiles do not apply); "cudagraph" replays a graph of the calls, without host time and with one flush a replay.

    Without a GPU this is the wall-clock time of at most three calls, after one to warm up, so that scripts run to their
    end; the numbers say nothing about a GPU. `fast_flush` is accepted for compatibility.
    """
    import torch

    if backend not in ("event", "cupti", "cudagraph"):
        raise TileError(f"unknown timing backend {backend!r}", notes=["it is event, cupti or cudagraph"])
    if return_mode not in ("min", "max", "mean", "median"):
        raise TileError(f"unknown return_mode {return_mode!r}", notes=["it is min, max, mean or median"])
    warm_calls, timed_calls = n_warmup or _n_warmup or None, n_repeat or _n_repeat or None
    if not torch.cuda.is_available():
        fn()
        calls = min(timed_calls or _CPU_REPEATS, _CPU_REPEATS)
        return _summary(WallClock().times(fn, calls), quantiles, return_mode)
    fn()
    torch.cuda.synchronize()
    clock = EventClock(FLUSH_BYTES if flush_l2 else 0)
    if warm_calls is None or timed_calls is None:
        estimate = max(clock.times(fn, 5), default=1.0)
        estimate = max(estimate, 1e-3)
        warm_calls = warm_calls or max(1, int(warmup / estimate))
        timed_calls = timed_calls or max(1, int(rep / estimate))
    for _ in range(warm_calls):
        fn()
    torch.cuda.synchronize()
    if backend == "event":
        times = clock.times(fn, timed_calls)
    elif backend == "cupti":
        times = [clock.kernel_time(fn, timed_calls)]
    else:
        times = [each / timed_calls for each in clock.times(capture([fn], timed_calls).replay, 10)]
    return _summary(times, quantiles, return_mode)


def _summary(times: list[float], quantiles: Sequence[float] | None, mode: str) -> Any:
    if quantiles is None:
        summaries: dict[str, Callable[[list[float]], float]] = {"min": min, "max": max}
        summaries |= {"mean": statistics.fmean, "median": statistics.median}
        return float(summaries[mode](times))
    import torch

    wanted = torch.tensor(quantiles, dtype=torch.float64)
    values = torch.tensor(times, dtype=torch.float64).quantile(wanted).tolist()
    return values[0] if len(values) == 1 else values


class Profiler:
    """Runs, times and checks one kernel on inputs made from its parameters.

    `run` takes the inputs in order and returns the outputs: a tensor, a list or tuple of them, or None where the kernel
    writes into its inputs.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        params: Sequence[ParamInfo],
        supply: TensorSupplyType | str = TensorSupplyType.Auto,
        device: str | None = None,
        seed: int | None = None,
    ) -> None:
        self.run = run
        self.params = list(params)
        self.supply = TensorSupplyType.parse(supply)
        self.device = device
        self.seed = seed

    def get_inputs(self, dynamic_symbolic_constraints: Mapping[str, int] | None = None) -> list[Any]:
        """Fresh inputs: new random values at each call, unless the profiler has a seed.

        `dynamic_symbolic_constraints` are sizes of dynamic dimensions by name; TileError where one has none.
        """
        import torch

        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        sizes: Mapping[Any, int] = dynamic_symbolic_constraints or {}
        params = [
            replace(each, shape=tuple(sizes.get(dim, dim) for dim in each.shape)) if each.shape else each
            for each in self.params
        ]
        return make_inputs(params, self.supply, device, self.seed)

    _get_inputs = get_inputs  # what programs written for TileLang call

    @property
    def func(self) -> Callable[..., Any]:
        """The kernel."""
        return self.run

    def run_once(self, func: Callable[..., Any] | None = None) -> Any:
        """Call the kernel (or `func`) once, on fresh inputs."""
        return (func or self.run)(*self.get_inputs())

    __call__ = run_once

    def do_bench(
        self,
        func: Callable[..., Any] | None = None,
        warmup: float = 25,
        rep: float = 100,
        n_warmup: int | None = None,
        n_repeat: int | None = None,
        input_tensors: Sequence[Any] | None = None,
        backend: Backend = "event",
        quantiles: Sequence[float] | None = None,
        return_mode: Literal["min", "max", "mean", "median"] = "mean",
        dynamic_symbolic_constraints: Mapping[str, int] | None = None,
        **options: Any,
    ) -> Any:
        """Milliseconds of a call of the kernel, or of `func` on the same inputs: `input_tensors`, or those of
        `get_inputs`. See `do_bench` for the other arguments.
        """
        inputs = list(input_tensors) if input_tensors is not None else self.get_inputs(dynamic_symbolic_constraints)
        call = func or self.run
        accepted = {"_n_warmup", "_n_repeat", "fast_flush", "flush_l2"}
        return do_bench(
            lambda: call(*inputs),
            warmup=warmup,
            rep=rep,
            n_warmup=n_warmup,
            n_repeat=n_repeat,
            quantiles=quantiles,
            backend=backend,
            return_mode=return_mode,
            **{name: value for name, value in options.items() if name in accepted},
        )

    def assert_allclose(
        self,
        reference_program: Callable[..., Any],
        input_tensors: Sequence[Any] | None = None,
        atol: float = 1e-2,
        rtol: float = 1e-2,
        max_mismatched_ratio: float = 0.01,
    ) -> None:
        """MismatchError unless the kernel's outputs equal the reference's on the same inputs, but for some elements.

        The kernel and the reference each get their own copy of the inputs. Where both return nothing, the inputs are
        compared, which is where such kernels write. NaN equals NaN.
        """
        inputs = list(input_tensors) if input_tensors is not None else self.get_inputs()
        for_kernel, for_reference = _copies(inputs), _copies(inputs)
        outputs, expected = tensors(self.run(*for_kernel)), tensors(reference_program(*for_reference))
        if not outputs and not expected:
            outputs, expected = tensors(for_kernel), tensors(for_reference)
        if len(outputs) != len(expected):
            raise MismatchError(f"the kernel returns {len(outputs)} tensors and the reference {len(expected)}")
        for number, (output, wanted) in enumerate(zip(outputs, expected)):
            name = f"output {number}" if len(outputs) > 1 else "the output"
            assert_close(output, wanted, rtol=rtol, atol=atol, max_mismatched_ratio=max_mismatched_ratio, name=name)

    def assert_consistent(self, repeat: int = 10) -> None:
        """MismatchError unless `repeat` runs on equal inputs give bit-identical outputs: a race shows up here."""
        inputs = self.get_inputs()
        first: list[Any] | None = None
        for number in range(repeat):
            given = _copies(inputs)
            outputs = tensors(self.run(*given)) or tensors(given)
            outputs = [output.clone() for output in outputs]
            if first is None:
                first = outputs
            for output, wanted in zip(outputs, first):
                assert_close(
                    output, wanted, rtol=0, atol=0, max_mismatched_ratio=0, name=f"run {number + 1}, against run 1,"
                )


def assert_close(
    actual: Any,
    expected: Any,
    rtol: float = 1e-2,
    atol: float = 1e-2,
    max_mismatched_ratio: float = 0.01,
    name: str = "the output",
) -> None:
    """MismatchError unless |actual - expected| <= atol + rtol |expected| for all but a ratio of the elements.

    The message has the ratio, the largest absolute and relative difference, and where the largest one is. NaN equals
    NaN, an infinity itself.
    """
    import torch

    if tuple(actual.shape) != tuple(expected.shape):
        raise MismatchError(f"{name} has shape {tuple(actual.shape)}, the reference {tuple(expected.shape)}")
    if actual.numel() == 0:
        return
    wide = torch.float64 if not actual.dtype.is_complex else torch.complex128
    got, want = actual.detach().cpu().to(wide), expected.detach().cpu().to(wide)
    bad = ~torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
    count = int(bad.sum())
    ratio = count / bad.numel()
    if ratio <= max_mismatched_ratio:
        return
    difference = torch.where(bad, (got - want).abs(), torch.zeros_like(want.abs()))
    difference = torch.where(difference.isnan(), torch.full_like(difference, math.inf), difference)
    flat = int(difference.argmax())
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), got.shape)) if got.ndim else ()
    relative = difference / want.abs().clamp_min(torch.finfo(torch.float64).tiny)
    raise MismatchError(
        f"{name} differs from the reference in {count} of {bad.numel()} elements ({ratio:.2%}; "
        f"{max_mismatched_ratio:.2%} allowed)",
        notes=[
            f"largest absolute difference {difference.max().item():.6g}, relative {relative.max().item():.6g} "
            f"(atol={atol:g}, rtol={rtol:g})",
            f"the largest is at index {place}: {got.flatten()[flat].item():.6g}, "
            f"the reference has {want.flatten()[flat].item():.6g}",
        ],
    )


def _copies(inputs: Sequence[Any]) -> list[Any]:
    return [item.clone() if hasattr(item, "clone") else item for item in inputs]


def tensors(value: Any) -> list[Any]:
    """The tensors of what a program returned."""
    items = value if isinstance(value, (list, tuple)) else [value]
    return [item for item in items if hasattr(item, "data_ptr")]
