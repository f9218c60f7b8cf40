"""A kernel in torch's graphs: compiled, exported, differentiated, and what torch's own checks of operators say."""

from __future__ import annotations

import copy
import shutil
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tiledsl
import tiledsl.language as T
from tests.support import eager_programs
from tiledsl.errors import TileError
from tiledsl.kernels.torch_op import definition_of
from tiledsl.runtime import launch_triton
from tiledsl.runtime.launch import write_call


@pytest.fixture(autouse=True)
def _no_graphs_of_other_tests() -> None:
    torch._dynamo.reset()


def scaled(rows: Any = 16) -> Any:
    @T.prim_func
    def scaled(X: T.Tensor((rows, 8), "float32"), s: T.float32, n: T.int32, Y: T.Tensor((rows, 8), "float32")):
        with T.Kernel(T.ceildiv(rows, 16), threads=128) as by:
            for i, j in T.Parallel(16, 8):
                Y[by * 16 + i, j] = X[by * 16 + i, j] * s + n

    return scaled


def split() -> Any:
    @T.prim_func
    def split(X: T.Tensor((16, 8), "float32"), P: T.Tensor((16, 8), "float32"), Q: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=128):
            x, total = T.alloc_fragment((16, 8), "float32"), T.alloc_fragment((16,), "float32")
            T.copy(X, x)
            T.reduce_sum(x, total, dim=1)
            T.copy(total, Q)
            for i, j in T.Parallel(16, 8):
                P[i, j] = T.max(x[i, j], 0.0)

    return split


def accumulating() -> Any:
    @T.prim_func
    def accumulating(X: T.Tensor((16, 8), "float32"), Total: T.Tensor((16, 8), "float32")):
        with T.Kernel(1, threads=128):
            for i, j in T.Parallel(16, 8):
                Total[i, j] += X[i, j]

    return accumulating


def compiled(program: Any, **options: Any) -> Any:
    return tiledsl.compile(program, target="interpret", **options)


COMPILED = [pytest.param("inductor", marks=pytest.mark.slow)] if shutil.which("g++") else []  # for 20 s, by g++
BACKENDS = ["eager", "aot_eager", *COMPILED]


@pytest.mark.parametrize("backend", BACKENDS)
def test_compile_full_graph(backend: str) -> None:
    kernel = compiled(scaled(), out_idx=-1)
    function = lambda x, s: kernel(x + 1, s, 3).relu() * 2
    graph = torch.compile(function, fullgraph=True, backend=backend)
    x = torch.randn(16, 8)
    for s in (2.0, -1.0):
        torch.testing.assert_close(graph(x, s), ((x + 1) * s + 3).relu() * 2)


def test_a_kernel_that_ran_before_compiles_too() -> None:
    kernel = compiled(scaled(), out_idx=-1)
    x = torch.randn(16, 8)
    kernel(x, 2.0, 3)
    assert torch.equal(torch.compile(lambda x: kernel(x, 2.0, n=3), fullgraph=True, backend="eager")(x), x * 2 + 3)


@pytest.mark.parametrize("known", [True, False])
def test_the_tracer_does_not_see_what_calls_run(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_triton, "tracer_takes_another", lambda: known)
    kernel, traces = compiled(scaled(), out_idx=-1), []

    def backend(module: Any, inputs: Any) -> Any:
        traces.append(module)
        return module

    caller = kernel.caller(3)
    caller.can_plan = True  # as on a GPU
    write_call(kernel)
    caller.can_plan = False
    assert ("if compiling():" in kernel.launch_source) != known
    x = torch.randn(16, 8)
    graph = torch.compile(lambda x: kernel(x, 2.0, n=3), fullgraph=True, backend=backend)
    assert torch.equal(kernel(x, 2.0, 3), x * 2 + 3)
    for given in (x, x + 1):
        torch.testing.assert_close(graph(given), given * 2 + 3)
    assert len(traces) == 1


eager_sum = tiledsl.jit(target="interpret")(eager_programs.eager_sum)


@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_eager_functions_compile_too(backend: str) -> None:
    function = lambda x, y: eager_sum(x * 2, y) + eager_sum(x, B=y, block=32)
    graph = torch.compile(function, fullgraph=True, backend=backend)
    for rows in (16, 48, 16):
        x, y = torch.randn(rows, 8), torch.randn(rows, 8)
        torch.testing.assert_close(graph(x, y), 3 * x + 2 * y)
        torch.testing.assert_close(function(x, y), 3 * x + 2 * y)


def test_compile_keeps_one_node(record_property: Any) -> None:
    kernel, nodes = compiled(scaled(), out_idx=-1), []

    def backend(module: Any, inputs: Any) -> Any:
        nodes.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module

    torch.compile(lambda x: kernel(x, 2.0, 3), fullgraph=True, backend=backend)(torch.randn(16, 8))
    assert [node.startswith("tiledsl.scaled_") for node in nodes] == [True]


def test_dynamic_sizes() -> None:
    kernel, traces = compiled(scaled(T.dynamic("rows")), out_idx=-1), []

    def backend(module: Any, inputs: Any) -> Any:
        traces.append(module)
        return module

    graph = torch.compile(lambda x: kernel(x, 2.0, 3) + 1, fullgraph=True, dynamic=True, backend=backend)
    for rows in (16, 33, 7, 48):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(graph(x), x * 2 + 4)
    assert len(traces) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_place_outputs(backend: str) -> None:
    kernel = compiled(accumulating())
    assert definition_of(kernel, 2).schema == "(Tensor X, Tensor(a1!) Total) -> ()"

    def function(x: Any, total: Any) -> Any:
        before = total * 2
        kernel(x, total)
        kernel(x + 1, total)
        return before, total.sum()

    x, total = torch.randn(16, 8), torch.randn(16, 8)
    wanted = total + 2 * x + 1
    before, all_of_it = torch.compile(function, fullgraph=True, backend=backend)(x, start := total.clone())
    torch.testing.assert_close(start, wanted)
    torch.testing.assert_close(before, total * 2)
    torch.testing.assert_close(all_of_it, wanted.sum())


def test_given_outputs_are_returned() -> None:
    kernel = compiled(split(), out_idx=[1, 2])
    x = torch.randn(16, 8)

    def function(x: Any) -> Any:
        p, q = torch.empty(16, 8), torch.empty(16)
        first, second = kernel(x, p, q)
        return first + p, second, *kernel(x)

    for found, wanted in zip(
        torch.compile(function, fullgraph=True, backend="aot_eager")(x),
        (x.relu() * 2, x.sum(1), x.relu(), x.sum(1)),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted)


def test_mistakes_show_when_traced() -> None:
    kernel = compiled(scaled(), out_idx=-1)
    graph = torch.compile(lambda x: kernel(x, 2.0, 3), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=r"X has shape \(4, 8\), but it was compiled for \(16, 8\)"):
        graph(torch.randn(4, 8))


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict: bool) -> None:
    kernel = compiled(scaled(T.dynamic("rows")), out_idx=-1)

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return kernel(x, 2.0, 3) + 1

    sizes = {"x": {0: torch.export.Dim("rows", min=2, max=100)}}
    program = torch.export.export(Module(), (torch.randn(16, 8),), dynamic_shapes=sizes, strict=strict)
    assert any("tiledsl.scaled_" in str(node.target) for node in program.graph.nodes)
    x = torch.randn(33, 8)
    torch.testing.assert_close(program.module()(x), x * 2 + 4)
    torch.testing.assert_close(copy.deepcopy(program).module()(x), x * 2 + 4)


def test_opcheck() -> None:
    x, total = torch.randn(16, 8), torch.randn(16, 8)
    torch.library.opcheck(compiled(scaled(), out_idx=-1).as_torch_op(), (x, 2.0, 3))
    torch.library.opcheck(compiled(accumulating()).as_torch_op(), (x, total))
    torch.library.opcheck(compiled(split(), out_idx=[1, 2]).as_torch_op(), (x,))
    differentiable = compiled(scaled(), out_idx=-1)
    operator = differentiable.as_torch_op(backward=lambda ctx, g: (g * ctx.scalars[0], None, None))
    torch.library.opcheck(operator, (x.requires_grad_(), 2.0, 3))


def test_names() -> None:
    kernel = compiled(scaled(), out_idx=-1)
    operator = kernel.as_torch_op("tiledsl_test::scaled")
    assert operator is torch.ops.tiledsl_test.scaled.default
    x = torch.randn(16, 8)
    assert torch.equal(torch.ops.tiledsl_test.scaled(x, 2.0, 3), x * 2 + 3)
    with pytest.raises(TileError, match="there is an operator tiledsl_test::scaled already"):
        compiled(split(), out_idx=[1, 2]).as_torch_op("tiledsl_test::scaled")
    with pytest.raises(TileError, match="'plain' is not a name of an operator"):
        kernel.as_torch_op("plain")
    same, other = compiled(scaled(), out_idx=-1), compiled(scaled(32), out_idx=-1)
    assert same.as_torch_op() is compiled(scaled(), out_idx=-1).as_torch_op() is not other.as_torch_op()


def backward_kernel() -> Any:
    @T.prim_func
    def scaled_backward(
        X: T.Tensor((16, 8), "float32"),
        Y: T.Tensor((16, 8), "float32"),
        dY: T.Tensor((16, 8), "float32"),
        s: T.float32,
        n: T.int32,
        dX: T.Tensor((16, 8), "float32"),
    ):
        with T.Kernel(1, threads=128):
            for i, j in T.Parallel(16, 8):
                dX[i, j] = dY[i, j] * s

    return compiled(scaled_backward, out_idx=-1)


@pytest.mark.parametrize("backend", [None, *BACKENDS])
@pytest.mark.parametrize("by", ["function", "kernel", "setup_context"])
def test_gradients(by: str, backend: str | None) -> None:
    kernel = compiled(scaled(), out_idx=-1)
    x, weights = torch.randn(16, 8), torch.randn(16, 8)
    kernel(x.requires_grad_(), 2.0, 3)  # known before there are gradients
    if by == "function":
        kernel.register_backward(lambda ctx, g: (g * ctx.scalars[0], None, None))
    elif by == "kernel":
        kernel.register_backward(backward_kernel())
    else:

        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.s = inputs[1]

        kernel.register_backward(lambda ctx, g: (g * ctx.s, None, None), setup_context)
    torch._dynamo.reset()
    run = kernel if backend is None else torch.compile(lambda *a: kernel(*a), fullgraph=True, backend=backend)
    given = x.detach().clone().requires_grad_()
    (run(given, 2.0, 3) * weights).sum().backward()
    torch.testing.assert_close(given.grad, weights * 2)
    run(given, 2.0, 3).sum().backward()  # an expanded gradient
    with torch.no_grad():
        assert not kernel(given, 2.0, 3).requires_grad


def test_gradients_need_returned_outputs() -> None:
    with pytest.raises(TileError, match="writes into tensors that it is given, for which torch keeps no gradients"):
        compiled(accumulating()).register_backward(lambda ctx: None)
    with pytest.raises(TileError, match="backward is a function or a kernel, not int"):
        compiled(scaled(), out_idx=-1).register_backward(3)
    kernel = compiled(scaled(), out_idx=-1)
    kernel.register_backward(lambda ctx, g: (g, None, None))
    with pytest.raises(TileError, match="which torch cannot give through Y"):
        kernel(torch.randn(16, 8).requires_grad_(), 2.0, 3, torch.empty(16, 8))


def test_modes_and_fake_tensors_see_the_operator() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    kernel, seen = compiled(scaled(), out_idx=-1), []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    x = torch.randn(16, 8)
    with Mode():
        torch.testing.assert_close(kernel(x, 2.0, 3), x * 2 + 3)
    assert any(name.startswith("tiledsl.scaled_") for name in seen)
    with FakeTensorMode() as mode:
        made = kernel(mode.from_tensor(x), 2.0, 3)
    assert made.shape == (16, 8) and type(made).__name__ == "FakeTensor"
