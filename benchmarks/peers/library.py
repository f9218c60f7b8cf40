"""Calls of torch that end in cuBLAS, cuDNN or CUTLASS, and torch.compile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.row import Candidate, Context, Ready, Row, Tensors, Unavailable


def cublas() -> Candidate:
    """A @ B.T of 16-bit floats."""

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        return Ready(lambda given, outputs: lambda: torch.mm(given[0], given[1].T, out=outputs[0]))

    return Candidate("library", "cuBLAS", prepare)


def cublas_of(weights: Callable[..., Any], rows: Callable[..., Any] = lambda a, *_: a) -> Candidate:
    """A @ B.T of 16-bit floats, A made of all of the row's inputs, B of all but the first, before anything is timed."""

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        def bind(given: Tensors, outputs: Tensors) -> Callable[[], Any]:
            a = rows(*given)
            wide = weights(*given[1:]).to(a.dtype)
            return lambda: torch.mm(a, wide.T, out=outputs[0])

        return Ready(bind)

    return Candidate("library", "cuBLAS, 16-bit weights", prepare)


def cublas_bfloat16() -> Candidate:
    """The product of float8 operands converted to bfloat16: the yardstick of what block scaling costs and gains."""

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        def bind(given: Tensors, outputs: Tensors) -> Callable[[], Any]:
            a, b = (each.to(torch.bfloat16) for each in given[:2])
            return lambda: torch.mm(a, b.T, out=outputs[0])

        return Ready(bind)

    return Candidate("bf16", "cuBLAS, bfloat16", prepare)


def cublas_float8(scale: float, *, fast: bool) -> Candidate:
    """scale * A @ B.T of e4m3 operands. fast: with the tensor cores' own accumulation of some 14 bits."""

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        if context.device == "cpu":
            raise Unavailable("torch has it for GPUs only")
        (N, K) = inputs[1].shape
        if K % 16 or N % 16:
            raise Unavailable(f"takes multiples of 16 only, not N={N}, K={K}")
        one = torch.ones((), device=context.device)
        factor = torch.full((), scale, device=context.device)

        def bind(given: Tensors, outputs: Tensors) -> Callable[[], Any]:
            a, b, out = given[0], given[1].T, outputs[0]
            return lambda: torch._scaled_mm(a, b, factor, one, out_dtype=out.dtype, use_fast_accum=fast, out=out)

        try:
            bind(inputs, row.empty_outputs(context.device))()
        except Exception as error:
            raise Unavailable(f"torch._scaled_mm: {_first_line(error)}") from error
        return Ready(bind, {"use_fast_accum": fast})

    return Candidate("library", "cuBLAS", prepare)


def cublas_block_scaled() -> Candidate:
    """Float8 with 1 x 128 scales for X and 128 x 128 scales for W, in the layouts that cuBLAS wants for them."""

    def old(x: Any, w: Any, x_scale: Any, w_scale: Any) -> Any:
        return torch._scaled_mm(x, w.T, x_scale, w_scale.T, out_dtype=torch.bfloat16)

    def new(x: Any, w: Any, x_scale: Any, w_scale: Any) -> Any:
        kinds = F.ScalingType
        return F.scaled_mm(
            x, w.T, x_scale, kinds.BlockWise1x128, w_scale.T, kinds.BlockWise128x128, output_dtype=torch.bfloat16
        )

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        failures = []
        for function in (new, old):

            def bind(given: Tensors, outputs: Tensors, function: Any = function) -> Callable[[], Any]:
                x, w, x_scale, w_scale = given
                columns = x_scale.T.contiguous().T
                return lambda: function(x, w, columns, w_scale)

            try:
                bind(inputs, ())()
            except Exception as error:
                failures.append(f"{function.__name__} scaled_mm: {_first_line(error)}")
                continue
            return Ready(bind, {"call": f"{function.__name__} scaled_mm"}, own_outputs=True)
        raise Unavailable("; ".join(failures))

    return Candidate("library", "cuBLAS", prepare)


def grouped_mm() -> Candidate:
    """torch's grouped product of bfloat16."""

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        function = getattr(F, "grouped_mm", None) or torch._grouped_mm

        def bind(given: Tensors, outputs: Tensors) -> Callable[[], Any]:
            a, b, offsets = given
            ends = offsets[1:].contiguous()
            return lambda: function(a, b.transpose(1, 2), offs=ends)

        try:
            bind(inputs, ())()
        except Exception as error:
            raise Unavailable(f"torch grouped_mm: {_first_line(error)}") from error
        return Ready(bind, own_outputs=True)

    return Candidate("library", "torch grouped_mm", prepare)


_BACKENDS = (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FlashAttention-2", SDPBackend.FLASH_ATTENTION))


def _backends(context: Context) -> Sequence[tuple[str, Any]]:
    return _BACKENDS if context.device == "cuda" else (("torch, unfused", SDPBackend.MATH),)


def fused_attention(causal: bool, widened: Callable[..., Tensors] | None = None) -> Candidate:
    """scaled_dot_product_attention through cuDNN or, where cuDNN does not take the row, FlashAttention-2.

    widened: makes its operands of the row's inputs, before anything is timed.
    """

    def bind(backend: Any, inputs: Tensors, gqa: bool) -> Callable[[], Any]:
        q, k, v = inputs[:3] if widened is None else widened(*inputs)

        def call() -> Any:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=gqa)

        return call

    return _by_first_backend(bind)


def fused_attention_backward(causal: bool) -> Candidate:
    """The gradient of scaled_dot_product_attention, without the forward pass, which runs once when it is bound."""

    def bind(backend: Any, inputs: Tensors, gqa: bool) -> Callable[[], Any]:
        leaves = [each.detach().requires_grad_() for each in inputs[:3]]
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=gqa)
        return lambda: torch.autograd.grad(out, leaves, inputs[4], retain_graph=True)

    return _by_first_backend(bind, graph=False)  # the forward pass belongs to another stream than a capture would use


def _by_first_backend(bind: Callable[[Any, Tensors, bool], Callable[[], Any]], graph: bool = True) -> Candidate:
    """What `bind` makes of inputs, and whether several queries share a key, for the first backend that takes a row."""

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        gqa = inputs[0].shape[1] != inputs[1].shape[1]
        failures = []
        for name, backend in _backends(context):

            def bound(given: Tensors, outputs: Tensors, backend: Any = backend) -> Callable[[], Any]:
                return bind(backend, given, gqa)

            try:
                bound(inputs, ())()
            except Exception as error:
                failures.append(f"{name}: {_first_line(error)}")
                continue
            return Ready(bound, {"backend": name}, own_outputs=True, graph=graph, note="; ".join(failures))
        raise Unavailable("; ".join(failures))

    return Candidate("library", "cuDNN", prepare)


def compiled(function: Callable[..., Any]) -> Candidate:
    """torch.compile of a function of the inputs."""

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        if context.device == "cpu":
            return Ready(lambda given, outputs: lambda: function(*given), {"mode": "eager"}, own_outputs=True)
        start = time.perf_counter()
        torch._dynamo.reset()
        fast = torch.compile(function, dynamic=False)
        fast(*inputs)
        seconds = time.perf_counter() - start
        return Ready(lambda given, outputs: lambda: fast(*given), {}, seconds, own_outputs=True)

    return Candidate("library", "torch.compile", prepare)


def eager(name: str, function: Callable[..., Any]) -> Candidate:
    """torch's own kernels for a function of the inputs."""

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        return Ready(lambda given, outputs: lambda: function(*given), own_outputs=True)

    return Candidate("library", name, prepare)


def copy_ceiling() -> Candidate:
    """A copy that reads and writes as many bytes as the row must."""

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        def bind(given: Tensors, outputs: Tensors) -> Callable[[], Any]:
            half = max(1, int(row.bytes_moved) // 2)
            source = torch.randint(0, 255, (half,), dtype=torch.uint8, device=given[0].device)
            target = torch.empty_like(source)
            return lambda: target.copy_(source)

        return Ready(bind)

    return Candidate("copy", "copy", prepare)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
