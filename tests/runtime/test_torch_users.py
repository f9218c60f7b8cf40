"""What users of torch do with a module that calls kernels: train, copy, checkpoint, transform, distribute, serve."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import tiledsl
import tiledsl.language as T
from tests.support.torch_functions import Mlp, Rows, reference, swiglu, swiglu_gradient
from tiledsl.errors import TileError

pytestmark = pytest.mark.usefixtures("fresh_torch")
ROOT = Path(__file__).resolve().parents[2]


def pair(activation: Any = swiglu) -> tuple[Mlp, Mlp]:
    """A module with a kernel, and torch's with the same weights."""
    ours, theirs = Mlp(activation), Mlp(reference)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def gradients(run: Callable[[Any], Any], module: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.detach().requires_grad_()
    return list(torch.autograd.grad(run(x).square().sum(), [x, *module.parameters()]))


def test_a_module_with_a_tuned_kernel_trains_copies_and_loads(tmp_path: Path) -> None:
    tuned = tiledsl.autotune(configs=[{"block": 32}, {"block": 64}])(swiglu)
    tuned.register_backward(swiglu_gradient)
    ours, theirs = pair(tuned)
    x = torch.randn(5, 8)
    wanted = gradients(theirs, theirs, x)
    torch.save(ours.state_dict(), tmp_path / "weights.pt")
    loaded = Mlp(tuned)
    loaded.load_state_dict(torch.load(tmp_path / "weights.pt"))
    for module in (ours, copy.deepcopy(ours), loaded):
        torch.testing.assert_close(gradients(module, module, x), wanted)
    for reentrant in (False, True):
        given = x.clone().requires_grad_()
        checkpoint(ours, given, use_reentrant=reentrant).square().sum().backward()
        torch.testing.assert_close(given.grad, wanted[0])
    with torch.inference_mode():
        torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(gradients(ours, ours, x), wanted)  # after inference, too


def test_second_gradients_are_refused_where_a_kernel_ends_them() -> None:
    def of(f: Any, x: torch.Tensor) -> torch.Tensor:
        return f(x, x).square().sum()

    x = torch.randn(3, 8)
    y = x.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # first gradients lose nothing, whoever keeps their graph
        (first,) = torch.autograd.grad(of(swiglu, y), y, create_graph=True)
        torch.testing.assert_close(torch.func.grad(lambda x: of(swiglu, x))(x), first.detach())
    (wanted,) = torch.autograd.grad(of(reference, y), y)
    torch.testing.assert_close(first.detach(), wanted)
    twice = torch.func.grad(lambda x: torch.func.grad(lambda x: of(swiglu, x))(x).sum())
    penalty = of(reference, y) + first.square().sum()  # only a part of it would be wrong
    for differentiate in (
        lambda: torch.autograd.grad(first.sum(), y, retain_graph=True),
        penalty.backward,
        lambda: twice(x),
        lambda: torch.vmap(twice)(x[None]),
    ):
        with pytest.raises(TileError, match="from swiglu_gradient, which has no backward: they cannot be") as error:
            differentiate()
        assert error.value.loc is not None and error.value.loc.file == __file__


def test_second_gradients_of_formulas_and_of_kernels_with_a_backward() -> None:
    function = tiledsl.jit(swiglu.function, target="interpret")
    of_kernel = tiledsl.jit(swiglu_gradient.function, target="interpret")

    def formula(gate: torch.Tensor, up: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sigmoid = gate.sigmoid()
        return grad * up * sigmoid * (1 + gate * (1 - sigmoid)), grad * gate * sigmoid

    def twice(ctx: Any, *gradients: Any) -> Any:
        gate, up, _, grad = ctx.saved_tensors[:4]
        found = torch.func.vjp(formula, gate, up, grad)[1](gradients)
        return found[0], found[1], None, found[2]

    of_kernel.register_backward(twice)
    x = torch.randn(3, 8, requires_grad=True)

    def second(f: Any) -> torch.Tensor:
        (first,) = torch.autograd.grad(f(x, x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    for backward in (of_kernel, lambda ctx, grad: formula(*ctx.saved_tensors[:2], grad)):
        function.register_backward(backward)
        torch.testing.assert_close(second(function), second(reference))


def forms() -> dict[str, Any]:
    """SwiGLU as what users may hold: a function, a tuned one, a kernel, a result."""
    tuned = tiledsl.autotune(configs=[{"block": 32}, {"block": 64}])(swiglu)
    x = torch.zeros(3, 8)
    return {"jit": swiglu, "autotune": tuned, "kernel": swiglu.compile(x, x), "result": tuned.compile(x, x)}


def test_older_tracers_see_the_operator() -> None:
    x, y = torch.randn(3, 8), torch.randn(3, 8)
    for name, function in forms().items():
        function(x, x)  # known, which a tracer must not notice
        call = lambda x, y: function(x, y)
        with torch.no_grad():
            scripted = torch.jit.trace(call, (x, x))
        traced = torch.fx.symbolic_trace(call)
        (node,) = [str(each.target) for each in traced.graph.nodes if each.op == "call_function"]
        assert node.startswith("tiledsl.swiglu_"), name
        for run in (scripted, traced):
            torch.testing.assert_close(run(y, x), reference(y, x))


def test_tensors_whose_memory_is_not_what_they_say() -> None:
    x, y = torch.randn(3, 8), torch.randn(3, 8)
    negative = torch._neg_view(x)
    for function in forms().values():
        torch.testing.assert_close(function(x, y), reference(x, y))
        torch.testing.assert_close(function(negative, y), reference(-x, y))
        with pytest.raises(TileError, match="gate is a tensor of layout sparse_coo, but must be strided"):
            function(x.to_sparse(), y)


def test_forward_mode_is_refused() -> None:
    forward, x = torch.autograd.forward_ad, torch.randn(3, 8)
    for function in forms().values():
        with forward.dual_level():
            torch.testing.assert_close(function(x, x), reference(x, x))  # without a tangent
            with pytest.raises(TileError, match="an argument has a tangent, and kernels have no forward-mode deriv"):
                function(forward.make_dual(x, x), x)
        with pytest.raises(TileError, match="an argument has a tangent"):
            torch.func.jvp(lambda x: function(x, x), (x,), (x,))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_data_loader_run_kernels(start: str) -> None:
    x = torch.zeros(3, 8)
    tuned = tiledsl.autotune(configs=[{"block": 32}, {"block": 64}])(swiglu)
    rows = Rows([swiglu, swiglu.compile(x, x), tuned.compile(x, x)])
    wanted = [rows[number] for number in range(len(rows))]  # they have run in this process, too
    loader = torch.utils.data.DataLoader(rows, batch_size=None, num_workers=1, multiprocessing_context=start)
    for found, each in zip(loader, wanted, strict=True):
        assert torch.equal(found, each)


@pytest.mark.slow
def test_ranks_of_a_job_train_together(tmp_path: Path) -> None:
    """DistributedDataParallel over gloo: the mean of both ranks' gradients, which are those of the whole batch."""
    code = f"""
import sys, torch
from tests.support.torch_functions import Mlp, Rows, reference, swiglu
rank = int(sys.argv[1])
torch.distributed.init_process_group("gloo", init_method="file://{tmp_path}/meeting", rank=rank, world_size=2)
torch.manual_seed(0)
x, module = torch.randn(4, 8), Mlp(swiglu)
whole = Mlp(reference)
whole.load_state_dict(module.state_dict())
whole(x).square().mean().backward()
parallel = torch.nn.parallel.DistributedDataParallel(module)
parallel(x[rank * 2 : rank * 2 + 2]).square().mean().backward()
for ours, theirs in zip(module.parameters(), whole.parameters()):
    torch.testing.assert_close(ours.grad, theirs.grad)
torch.distributed.destroy_process_group()
"""
    ranks = [subprocess.Popen([sys.executable, "-c", code, str(rank)], cwd=ROOT) for rank in range(2)]
    assert [each.wait(100) for each in ranks] == [0, 0]


def product(x: Any, y: Any) -> Any:
    n = T.const("n")
    x: T.Tensor((n,), "float64")
    y: T.Tensor((n,), "float64")
    out = T.empty((n,), "float64")
    with T.Kernel(T.ceildiv(n, 16), threads=32) as b:
        for i in T.Parallel(16):
            out[b * 16 + i] = x[b * 16 + i] * y[b * 16 + i]
    return out


def test_torchs_own_checks_of_gradients() -> None:
    """With batches of gradients too, for which torch.autograd has a vmap of its own, and second gradients."""
    once, twice = (tiledsl.jit(product, target="interpret") for _ in range(2))

    def formula(ctx: Any, grad: Any) -> Any:
        x, y, _ = ctx.saved_tensors
        return grad * y, grad * x

    twice.register_backward(formula)
    once.register_backward(lambda ctx, grad: (twice(grad, ctx.saved_tensors[1]), twice(grad, ctx.saved_tensors[0])))
    x, y = (torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    for function in (once, once.compile(x, y)):
        assert torch.autograd.gradcheck(function, (x, y), check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, (x, y))
        found = torch.autograd.functional.jacobian(lambda x: function(x, y), x, vectorize=True)
        torch.testing.assert_close(found, torch.diag(y))


def test_a_backward_with_another_number_of_gradients() -> None:
    x = torch.ones(5, dtype=torch.float64, requires_grad=True)
    for wrong, count in ((lambda ctx, grad: grad, 1), (lambda ctx, grad: (grad, grad, None), 3)):
        function = tiledsl.jit(product, target="interpret")
        function.register_backward(wrong)
        with pytest.raises(TileError, match=f"a backward returns {count} gradients for 2 inputs: x, y"):
            function(x, x).sum().backward()


def test_gradients_of_torch_func_go_around_compiled_code_alone() -> None:
    x = torch.randn(3, 8)
    for function in (swiglu, swiglu.compile(x, x)):
        run = lambda x: function(x, x).square().sum()
        wanted = torch.func.grad(run)(x)
        inside = torch.func.grad(torch.compile(run, backend="aot_eager"))
        torch.testing.assert_close(inside(x), wanted)
        batched = torch.compile(torch.vmap(run), fullgraph=True, backend="eager")
        torch.testing.assert_close(batched(x[None]), run(x)[None])
        with pytest.raises(Exception, match=r"takes no gradients of torch\.func through custom operators"):
            torch.compile(torch.func.grad(run), fullgraph=True, backend="eager")(x)


def test_under_autocast_functions_are_tuned_for_what_the_program_declares() -> None:
    """A tensor of bfloat16 goes to the tuner as float32: where it runs configurations, there is no autocast."""
    tuned = tiledsl.autotune(configs=[{"block": 32}, {"block": 64}])(swiglu)
    tuned.register_backward(swiglu_gradient)
    ours, theirs = pair(tuned)
    x = torch.randn(5, 8)
    with torch.autocast("cpu", torch.bfloat16):
        y = ours(x)
        torch.testing.assert_close(y, theirs(x), rtol=3e-2, atol=3e-2)
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16 and ours.gate.weight.grad.dtype == torch.float32
    of_float32 = tuned.compile(torch.randn(5, 8), torch.randn(5, 8))
    assert of_float32.from_cache == "memory" and len(tuned._results) == 2
    assert {id(result.kernel) for result in tuned._results.values()} == {id(of_float32.kernel)}
