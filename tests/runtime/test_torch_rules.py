"""Kernels under torch's transformations: vmap, func.grad, meta tensors, autocast; lost gradients; pickles, exports."""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
from tests.runtime.test_torch_op import accumulating, compiled, scaled, split
from tests.support import forked, pickled_functions
from tiledsl.errors import TileError

ROOT = Path(__file__).resolve().parents[2]


def differentiable() -> Any:
    kernel = compiled(scaled(), out_idx=-1)
    kernel.register_backward(pickled_functions.double)
    return kernel


def test_vmap_is_a_loop_over_the_batch() -> None:
    x = torch.randn(16, 3, 8)
    run = torch.vmap(lambda x: compiled(scaled(), out_idx=-1)(x, 2.0, 3), in_dims=1)
    torch.testing.assert_close(run(x), x.transpose(0, 1) * 2 + 3)
    p, q = torch.vmap(compiled(split(), out_idx=[1, 2]), in_dims=1)(x)
    torch.testing.assert_close(p, x.transpose(0, 1).relu())
    torch.testing.assert_close(q, x.sum(2).T)
    total = torch.randn(16, 3, 8)
    wanted = total + x
    torch.vmap(compiled(accumulating()), in_dims=(1, 1), out_dims=None)(x, total)
    torch.testing.assert_close(total, wanted)
    with pytest.raises(TileError, match="under vmap every call would write into the same Total"):
        torch.vmap(compiled(accumulating()), in_dims=(1, None))(x, torch.zeros(16, 8))


def test_torch_func_has_gradients() -> None:
    kernel, x = differentiable(), torch.randn(3, 16, 8)
    of_one = torch.func.grad(lambda x: kernel(x, 2.0, 3).sum())
    assert of_one(x[0]).unique().tolist() == [2.0]
    assert torch.vmap(of_one)(x).unique().tolist() == [2.0]
    assert torch.func.grad(lambda x: torch.vmap(lambda y: kernel(y, 5.0, 3))(x).sum())(x).unique().tolist() == [5.0]


def test_meta_tensors() -> None:
    p, q = compiled(split(), out_idx=[1, 2])(torch.randn(16, 8, device="meta"))
    assert (p.device.type, p.shape, q.shape) == ("meta", (16, 8), (16,))
    with pytest.raises(TileError, match=r"X has shape \(4, 8\)"):
        compiled(split(), out_idx=[1, 2])(torch.randn(4, 8, device="meta"))


def test_autocast_gives_the_declared_types() -> None:
    kernel, x = differentiable(), torch.randn(16, 8).bfloat16().requires_grad_()
    with pytest.raises(TileError, match="X must be float32, but the tensor is bfloat16"):
        kernel(x.detach(), 2.0, 3)
    graph = torch.compile(lambda x: kernel(x, 2.0, 3), fullgraph=True, backend="aot_eager")
    for run in (kernel, graph):
        with torch.autocast("cpu", torch.bfloat16):
            y = run(x, 2.0, 3) if run is kernel else run(x)
        torch.testing.assert_close(y, x.float() * 2 + 3)
        x.grad = None
        y.sum().backward()
        assert x.grad.dtype == torch.bfloat16 and x.grad.unique().tolist() == [2.0]
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(TileError, match="X must be float32, but the tensor is fl"),
    ):
        kernel(x.detach().double(), 2.0, 3)


@pytest.mark.parametrize("traced", [False, True])
def test_lost_gradients_are_told_once_a_line(traced: bool) -> None:
    kernel, x = compiled(scaled(), out_idx=-1), torch.randn(16, 8, requires_grad=True)
    run = torch.compile(lambda x: kernel(x, 2.0, 3), fullgraph=True, backend="aot_eager") if traced else kernel
    given = (x,) if traced else (x, 2.0, 3)
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(2):
            assert not run(*given).requires_grad
        with torch.no_grad():
            compiled(scaled(), out_idx=-1)(x, 4.0, 3)
    ours = [str(each.message) for each in told if "has no backward" in str(each.message)]
    assert len(ours) == 1 and ours[0].startswith("scaled has no backward: gradients end here.")


def test_kernels_pickle(tmp_path: Path) -> None:
    kernel, x = differentiable(), torch.randn(16, 8)
    again = pickle.loads(pickle.dumps(kernel))
    assert again.source == kernel.source and torch.equal(again(x, 2.0, 3), x * 2 + 3)
    again(x.requires_grad_(), 2.0, 3).sum().backward()
    assert x.grad.unique().tolist() == [2.0]

    torch.save({"kernel": again}, tmp_path / "kernel.pt")
    code = f"""
import torch
kernel = torch.load({str(tmp_path / "kernel.pt")!r}, weights_only=False)["kernel"]
assert torch.equal(kernel(torch.ones(16, 8), 2.0, 3), torch.full((16, 8), 5.0))
"""
    done = forked.run(["-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr


def test_results_and_functions_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path))
    x = torch.randn(16, 8)
    tuned = tiledsl.autotune(configs=[{"block": 16}, {"block": 32}])(pickled_functions.summed)
    result = tuned.compile(x, x)
    again = pickle.loads(pickle.dumps(result))
    assert (again.config, len(again.trials)) == (result.config, 2) and torch.equal(again(x, x), 2 * x)
    assert pickle.loads(pickle.dumps(pickled_functions.summed)) is pickled_functions.summed
    with pytest.raises(pickle.PicklingError, match="Can't pickle <autotuned eager_sum>"):
        pickle.dumps(tuned)


def test_an_exported_program_loads_elsewhere(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return pickled_functions.summed(x, x) + 1

    rows = torch.export.Dim("rows", min=2, max=100)
    exported = torch.export.export(Model(), (torch.randn(16, 8),), dynamic_shapes={"x": {0: rows}}, strict=True)
    assert "tiledsl_pickled.sum" in str(exported.graph)
    torch.export.save(exported, tmp_path / "model.pt2")
    code = f"""
import torch
import tests.support.pickled_functions
model = torch.export.load({str(tmp_path / "model.pt2")!r}).module()
assert torch.equal(model(torch.ones(33, 8)), torch.full((33, 8), 3.0))
"""
    done = forked.run(["-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
