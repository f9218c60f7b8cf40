"""Jitted and tuned functions in torch's graphs: one node that finds its kernel when it runs."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.support import eager_programs
from tiledsl.errors import TileError

pytestmark = pytest.mark.usefixtures("fresh_torch")
CONFIGS = [{"block": 16}, {"block": 32}]


def builder(rows: Any, cols: Any, block: int = 16) -> Any:
    @T.prim_func
    def scaled(X: T.Tensor((rows, cols), "float32"), s: T.float32, Y: T.Tensor((rows, cols), "float32")):
        with T.Kernel(T.ceildiv(rows, block), threads=128) as by:
            for i, j in T.Parallel(block, cols):
                Y[by * block + i, j] = X[by * block + i, j] * s

    return scaled


def square(A: Any) -> Any:
    """The size is that of an on-chip tile, which no dynamic size can be."""
    n = T.const("n")
    A: T.Tensor((n, n), "float32")
    C = T.empty((n, 2 * n), "float32")
    with T.Kernel(1, threads=128):
        tile = T.alloc_fragment((n, n), "float32")
        T.copy(A, tile)
        for i, j in T.Parallel(n, n):
            C[i, j] = tile[i, j] * 2
            C[i, n + j] = tile[i, j] * 3
    return C


def shifted(A: Any, s: Any, block: int = 16) -> Any:
    n = T.const("n")
    A: T.Tensor((n,), "float32")
    s: T.float32
    C = T.empty((n,), "float32")
    with T.Kernel(T.ceildiv(n, block), threads=128) as b:
        for i in T.Parallel(block):
            C[b * block + i] = A[b * block + i] + s
    return C


def eager() -> Any:
    return tiledsl.jit(target="interpret")(eager_programs.eager_sum)


def lazy() -> Any:
    return tiledsl.jit(out_idx=-1, target="interpret")(builder)


def tuned(function: Any, **options: Any) -> Any:
    return tiledsl.autotune(configs=CONFIGS, **options)(function)


class Traces:
    """A backend that keeps what it is given."""

    def __init__(self) -> None:
        self.nodes: list[list[str]] = []

    def __call__(self, module: Any, inputs: Any) -> Any:
        self.nodes.append([str(n.target) for n in module.graph.nodes if n.op == "call_function"])
        return module


SIZES = (16, 48, 33, 5, 77)


@pytest.mark.parametrize("make", [eager, lambda: tuned(eager())], ids=["jit", "autotune"])
def test_eager_functions_of_dynamic_sizes_are_traced_once(make: Any) -> None:
    function, traces = make(), Traces()
    graph = torch.compile(lambda x, y: function(x * 2, B=y), fullgraph=True, dynamic=True, backend=traces)
    for rows in SIZES:
        x, y = torch.randn(rows, 8), torch.randn(rows, 8)
        torch.testing.assert_close(graph(x, y), 2 * x + y)
    (nodes,) = traces.nodes
    assert len(nodes) == 2 and nodes[1].startswith("tiledsl.eager_sum_")


@pytest.mark.parametrize("make", [lazy, lambda: tuned(lazy())], ids=["jit", "autotune"])
def test_builders_of_dynamic_sizes_are_traced_once(make: Any) -> None:
    function, traces = make(), Traces()
    graph = torch.compile(lambda x: function(x.shape[0], 8)(x, s=3.0) + 1, fullgraph=True, dynamic=True, backend=traces)
    for rows in SIZES:
        x = torch.randn(rows, 8)
        torch.testing.assert_close(graph(x), 3 * x + 1)
    assert len(traces.nodes) == 1
    out = torch.empty(16, 8)
    into = torch.compile(lambda x: function(16, 8)(x, 2.0, out), fullgraph=True, backend="aot_eager")
    x = torch.randn(16, 8)
    assert into(x) is out and torch.equal(out, 2 * x)


def test_sizes_that_cannot_be_dynamic_are_constants_of_the_graph() -> None:
    function, traces = tiledsl.jit(target="interpret")(square), Traces()
    graph = torch.compile(lambda x: function(x), fullgraph=True, dynamic=True, backend=traces)
    for size in (16, 8, 16):
        x = torch.randn(size, size)
        torch.testing.assert_close(graph(x), torch.cat([2 * x, 3 * x], 1))
    assert len(traces.nodes) == 2
    with pytest.raises(TileError, match="square has no program whose sizes are dynamic"):
        function.as_torch_op("tiledsl_function_op::square")
    operator = function.as_torch_op("tiledsl_function_op::square", example_inputs=(x,))
    torch.testing.assert_close(operator(x), torch.cat([2 * x, 3 * x], 1))


def test_scalars_of_the_kernel_are_arguments_of_the_node() -> None:
    function, traces = tiledsl.jit(target="interpret")(shifted), Traces()
    graph = torch.compile(lambda x, s: function(x, s), fullgraph=True, backend=traces)
    x = torch.randn(20)
    for s in (1.0, 2.5, -3.0):
        torch.testing.assert_close(graph(x, s), x + s)
    assert torch.equal(function.as_torch_op("tiledsl_function_op::shifted", block=32)(x, 2.0), x + 2)


def test_nothing_is_tuned_in_a_graph(caplog: pytest.LogCaptureFixture) -> None:
    function = tuned(eager())
    graph = torch.compile(lambda x, y: function(x, y), fullgraph=True, backend="eager")
    x = torch.randn(16, 8)
    with caplog.at_level(logging.WARNING, "tiledsl"):
        torch.testing.assert_close(graph(x, x), 2 * x)
    assert function._results == {}
    result = function.compile(x, x)  # tuned now
    (operator,) = set(function._operators.values())
    assert operator.known == {}  # so that what was tuned is found
    graph(x, x)
    assert [kernel.config for kernel in operator.known.values()] == [result.config]


def test_what_was_tuned_before_is_recalled_from_disk() -> None:
    x = torch.randn(16, 8)
    found = tuned(eager()).compile(x, x)
    function = tuned(eager())
    operator = function.as_torch_op("tiledsl_function_op::recalled", on_miss="error")
    torch.testing.assert_close(operator(x, x), 2 * x)
    (result,) = function._results.values()
    assert result.config == found.config and result.from_cache == "memory"
    with pytest.raises(TileError, match="eager_sum is not tuned for"):
        operator(torch.randn(32, 8), torch.randn(32, 8))


def test_asked_for_an_operator_tunes() -> None:
    function = tuned(eager())
    operator = function.as_torch_op("tiledsl_function_op::tunes", on_miss="tune")
    x = torch.randn(16, 8)
    torch.testing.assert_close(operator(x, x), 2 * x)
    assert [len(result.trials) for result in function._results.values()] == [2]


def test_named_operators_read_a_builders_sizes_from_tensors() -> None:
    for number, function in enumerate((lazy(), tuned(lazy()))):
        operator = function.as_torch_op(f"tiledsl_function_op::scaled_{number}", cols=8)
        assert str(operator._schema) == f"tiledsl_function_op::scaled_{number}(Tensor X, float s) -> Tensor"
        for rows in (16, 5):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(operator(x, 2.0), 2 * x)
        torch.library.opcheck(operator, (torch.randn(5, 8), 2.0))
    torch.library.opcheck(tuned(eager()).as_torch_op("tiledsl_function_op::sum"), (x, x))
    with pytest.raises(TileError, match="has no parameter 'colums'"):
        lazy().as_torch_op("tiledsl_function_op::other", colums=8)
    with pytest.raises(TileError, match="on_miss is 'first', 'error' or 'tune', not 'search'"):
        lazy().as_torch_op("tiledsl_function_op::other", on_miss="search")
    with pytest.raises(TileError, match="there is an operator tiledsl_function_op::scaled_0 already"):
        lazy().as_torch_op("tiledsl_function_op::scaled_0", cols=8)


@pytest.mark.parametrize("make", [eager, lambda: tuned(eager())], ids=["jit", "autotune"])
def test_lost_gradients_of_functions_in_graphs_are_told(make: Any) -> None:
    function, x = make(), torch.randn(16, 8, requires_grad=True)
    graph = torch.compile(lambda x: function(x, x) + x, fullgraph=True, backend="aot_eager")
    with pytest.warns(UserWarning, match="^eager_sum has no backward: gradients end here"):
        graph(x).sum().backward()
    assert x.grad.unique().tolist() == [1.0]


def test_gradients_of_functions() -> None:
    for number, make in enumerate((eager, lambda: tuned(eager()))):
        function = make()
        function.register_backward(lambda ctx, g: (g * 2, g * 3))
        function.compile(x := torch.randn(16, 8), x)
        operator = function.as_torch_op(f"tiledsl_function_op::with_gradients_{number}")
        for backend in (None, "aot_eager"):
            run = (
                function if backend is None else torch.compile(lambda *a: function(*a), fullgraph=True, backend=backend)
            )
            for call in (run, operator):
                a, b = torch.randn(16, 8, requires_grad=True), torch.randn(16, 8, requires_grad=True)
                call(a, b).sum().backward()
                assert a.grad.unique().tolist() == [2.0] and b.grad.unique().tolist() == [3.0]
        torch.library.opcheck(operator, (a, b))
    scaled = lazy()
    scaled.register_backward(lambda ctx, g: (g * ctx.scalars[0], None))
    graph = torch.compile(lambda x: scaled(x.shape[0], 8)(x, 3.0), fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (16, 5):
        a = torch.randn(rows, 8, requires_grad=True)
        graph(a).sum().backward()
        assert a.grad.unique().tolist() == [3.0]


def test_tensors_without_values_tune_nothing() -> None:
    function = tuned(eager())
    x = torch.randn(3, 16, 8)
    torch.testing.assert_close(torch.vmap(function, in_dims=(0, None))(x, x[0]), x + x[0])
    made = function(x[0].to("meta"), x[1].to("meta"))
    assert made.device.type == "meta" and made.shape == (16, 8) and function._results == {}
    function.register_backward(lambda ctx, g: (g * 2, g * 3))
    found = torch.func.grad(lambda a: torch.vmap(function)(a, x).sum())(x)
    assert found.unique().tolist() == [2.0] and found.shape == x.shape
