"""Kernels by hand as candidates: each variant tuned by triton.autotune, the fastest variant taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton

from benchmarks.row import Candidate, Context, Ready, Row, Tensors, Unavailable

_tuned: dict[Any, Any] = {}


@dataclass(frozen=True)
class Variant:
    """One way to write a kernel. launch: runs a (tuned) kernel on inputs and outputs. key: arguments of the kernel for
    each of whose values it is tuned anew. takes: whether it can run these inputs."""

    name: str
    kernel: Any
    configs: Sequence[Any]
    key: Sequence[str]
    launch: Callable[[Any, Tensors, Tensors], Any]
    takes: Callable[[Tensors], bool] = lambda inputs: True


def _bench(call: Callable[[], Any], quantiles: Any = None) -> Any:
    return triton.testing.do_bench(call, warmup=5, rep=25, quantiles=quantiles)


def autotuned(variant: Variant, context: Context) -> Any:
    """The variant's kernel under triton.autotune; one object for all rows, so that binaries are compiled once."""
    key = (id(variant.kernel), str([(str(each), each.pre_hook) for each in variant.configs]), context)
    if key not in _tuned:
        options = {"do_bench": _bench} if context.tune else {}
        _tuned[key] = triton.autotune(configs=context.some(variant.configs), key=list(variant.key), **options)(
            variant.kernel
        )
    return _tuned[key]


def by_hand(variants: Sequence[Variant]) -> Candidate:
    """The fastest of the variants that take the row's inputs."""

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        outputs = row.empty_outputs(str(inputs[0].device))
        start = time.perf_counter()
        best: tuple[float, Variant, Any, Mapping[str, Any]] | None = None
        failures = []
        for variant in variants:
            if not variant.takes(inputs):
                continue
            kernel = autotuned(variant, context)
            try:
                variant.launch(kernel, inputs, outputs)
                took = _timed(variant, kernel, inputs, outputs) if context.tune else 0.0
            except Exception as error:  # this variant does not fit; another one may
                failures.append(f"{variant.name}: {type(error).__name__}: {error}")
                continue
            if best is None or took < best[0]:
                best = (took, variant, kernel, _config(kernel))
        seconds = time.perf_counter() - start
        if best is None:
            raise Unavailable("; ".join(failures) or "no variant takes the row")
        _, chosen, kernel, config = best
        return Ready(
            lambda given, wanted: lambda: chosen.launch(kernel, given, wanted),
            {"variant": chosen.name, **config},
            seconds,
            note="; ".join(failures),
        )

    return Candidate("triton", "Triton by hand", prepare)


def _timed(variant: Variant, kernel: Any, inputs: Tensors, outputs: Tensors) -> float:
    return float(triton.testing.do_bench(lambda: variant.launch(kernel, inputs, outputs), warmup=5, rep=25))


def _config(kernel: Any) -> Mapping[str, Any]:
    config = getattr(kernel, "best_config", None)
    return {} if config is None else {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}


def descriptor(tensor: Any, block: Sequence[int] = (1, 1)) -> Any:
    """A host-side tensor descriptor; the block's shape is set by the configuration's hook."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block))


def multiprocessors(tensor: Any) -> int:
    """Of the tensor's device; 4 for the interpreter."""
    if tensor.device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)


def takes_descriptors(inputs: Tensors) -> bool:
    """Whether rows of the first two inputs are multiples of 16 bytes, on a GPU that has TMA."""
    aligned = all(each.shape[-1] * each.element_size() % 16 == 0 for each in inputs[:2])
    new = inputs[0].device.type != "cuda" or torch.cuda.get_device_capability(inputs[0].device) >= (9, 0)
    return aligned and new
