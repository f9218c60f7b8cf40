"""A module with a tuned kernel on a GPU: CUDA graphs, mixed precision, exports, second gradients, compiled beforehand;
the small model of the examples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tiledsl
from tests.support.example_modules import load_example
from tests.support.torch_functions import Mlp, reference, swiglu, swiglu_gradient
from tiledsl.errors import TileError

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh_torch")]
ROOT = Path(__file__).resolve().parents[2]


def activation(tuned: bool = True) -> Any:
    """SwiGLU for the GPU, with gradients, tuned for inputs of 16 x 8."""
    function = tiledsl.jit(swiglu.function, target="cuda")
    if tuned:
        function = tiledsl.autotune(configs=[{"block": 32}, {"block": 64}])(function)
    function.register_backward(tiledsl.jit(swiglu_gradient.function, target="cuda"))
    if tuned:
        function.compile(torch.randn(16, 8, device="cuda"), torch.randn(16, 8, device="cuda"))
    return function


def pair(tuned: bool = True) -> tuple[Mlp, Mlp]:
    """A module with a kernel, and torch's with the same weights."""
    ours, theirs = Mlp(activation(tuned)).cuda(), Mlp(reference).cuda()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def trained(module: Any, run: Any, inputs: list[torch.Tensor]) -> list[float]:
    """Losses of plain gradient descent to zero."""
    losses = []
    for x in inputs:
        loss = run(x).square().mean()
        module.zero_grad(set_to_none=True)
        loss.backward()
        with torch.no_grad():
            for each in module.parameters():
                each -= 0.1 * each.grad
        losses.append(loss.item())
    return losses


def test_training_and_serving_are_captured_in_cuda_graphs() -> None:
    ours, theirs = pair()
    inputs = [torch.randn(16, 8, device="cuda") for _ in range(8)]
    graph = torch.compile(ours, fullgraph=True, mode="reduce-overhead")

    def step(x: torch.Tensor) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return graph(x)

    torch._dynamo.utils.counters.clear()
    torch.testing.assert_close(
        torch.tensor(trained(ours, step, inputs)), torch.tensor(trained(theirs, theirs, inputs)), rtol=1e-3, atol=1e-4
    )
    with torch.no_grad():
        for x in inputs:
            torch.testing.assert_close(step(x), theirs(x), rtol=1e-3, atol=1e-3)
    assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixed_precision(dtype: torch.dtype) -> None:
    ours, theirs = pair()
    x = torch.randn(16, 8, device="cuda")
    runs = [ours] if dtype == torch.float16 else [ours, torch.compile(ours, fullgraph=True)]
    for run in runs:
        gradients = []
        for module, forward in ((ours, run), (theirs, theirs)):
            scaler = torch.amp.GradScaler("cuda")
            module.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype):
                y = forward(x)
            assert y.dtype == dtype
            scaler.scale(y.float().square().mean()).backward()
            gradients.append([each.grad / scaler.get_scale() for each in module.parameters()])
        torch.testing.assert_close(gradients[0], gradients[1], rtol=5e-2, atol=5e-3)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_dynamic_sizes_with_gradients(backend: str) -> None:
    ours, theirs = pair()
    graph = torch.compile(ours, fullgraph=True, dynamic=True, backend=backend)
    for rows in (16, 5, 33, 16):
        x = torch.randn(rows, 8, device="cuda", requires_grad=True)
        ours_at, theirs_at = (torch.autograd.grad(run(x).square().sum(), x)[0] for run in (graph, theirs))
        torch.testing.assert_close(ours_at, theirs_at, rtol=1e-3, atol=1e-3)


def test_second_gradients_are_refused_by_warm_calls_too() -> None:
    function = activation(tuned=False)
    x = torch.randn(16, 8, device="cuda", requires_grad=True)
    for _ in range(3):
        (first,) = torch.autograd.grad(function(x, x).square().sum(), x, create_graph=True)
        (wanted,) = torch.autograd.grad(reference(x, x).square().sum(), x)
        torch.testing.assert_close(first.detach(), wanted, rtol=1e-4, atol=1e-4)
        with pytest.raises(TileError, match="from swiglu_gradient, which has no backward"):
            torch.autograd.grad(first.sum(), x)


def test_warm_calls_leave_transformations_to_torch() -> None:
    function = activation(tuned=False)
    x = torch.randn(3, 16, 8, device="cuda")
    for _ in range(3):
        function(x[0], x[1])
    of_one = torch.func.grad(lambda x: function(x, x).sum())
    wanted = torch.func.grad(lambda x: reference(x, x).sum())
    torch.testing.assert_close(torch.vmap(of_one)(x), torch.vmap(wanted)(x), rtol=1e-4, atol=1e-4)


def test_an_exported_module_runs_in_another_process(tmp_path: Path) -> None:
    function = activation(tuned=False)
    function.as_torch_op("tiledsl_gpu::swiglu")
    ours = Mlp(function).cuda()
    rows = torch.export.Dim("rows", min=2, max=100)
    x = torch.randn(16, 8, device="cuda")
    exported = torch.export.export(ours, (x,), dynamic_shapes=({0: rows},), strict=True)
    assert "tiledsl_gpu.swiglu" in str(exported.graph)
    torch.export.save(exported, tmp_path / "model.pt2")
    x = torch.randn(33, 8, device="cuda")
    torch.save((x, ours(x).detach()), tmp_path / "wanted.pt")
    code = f"""
import torch, tiledsl
from tests.support.torch_functions import swiglu, swiglu_gradient
function = tiledsl.jit(swiglu.function, target="cuda")
function.register_backward(tiledsl.jit(swiglu_gradient.function, target="cuda"))
function.as_torch_op("tiledsl_gpu::swiglu")
model = torch.export.load({str(tmp_path / "model.pt2")!r}).module()
x, wanted = torch.load({str(tmp_path / "wanted.pt")!r})
torch.testing.assert_close(model(x), wanted, rtol=1e-4, atol=1e-4)
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_what_was_compiled_beforehand_is_not_compiled_in_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`compiled` needs no tensors with values: it fills the cache from which the first launch takes the binary."""
    from triton import knobs

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    function = tiledsl.jit(swiglu.function, target="cuda")
    shape = torch.empty(48, 8, device="meta")
    function.compile(shape, shape).compiled
    hits: list[bool] = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda *, cache_hit, **_: hits.append(cache_hit))
    x = torch.randn(48, 8, device="cuda")
    graph = torch.compile(lambda x: function(x, x), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(graph(x), reference(x, x), rtol=1e-4, atol=1e-4)
    assert hits == [True]


def test_the_small_model_trains_and_serves(capsys: pytest.CaptureFixture[str]) -> None:
    example = load_example("small_model")
    example.main(steps=40, batch=4)
    assert "served 5 sequences: 100% of the digits right" in capsys.readouterr().out


def test_the_small_model_in_cuda_graphs() -> None:
    example = load_example("small_model")
    torch.manual_seed(0)
    model = example.Model().cuda()
    torch._dynamo.utils.counters.clear()
    graph = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(40):
        tokens, following = example.sequences(4)
        torch.compiler.cudagraph_mark_step_begin()
        loss = F.cross_entropy(graph(tokens).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3
    with torch.no_grad():
        for _ in range(4):
            tokens, following = example.sequences(4)
            torch.compiler.cudagraph_mark_step_begin()
            assert (graph(tokens).argmax(-1) == following).float().mean().item() > 0.9
    assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0
