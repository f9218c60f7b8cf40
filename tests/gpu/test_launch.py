"""Warm launches on a GPU: graphs, streams, threads, devices, misaligned and wrong arguments, torch.compile."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.autotune.programs import gemm_builder
from tests.support import eager_programs
from tests.support.example_modules import load_example
from tiledsl.errors import TileError
from tiledsl.kernels.jit import JitFunction
from tiledsl.runtime.launch import Launcher

pytestmark = pytest.mark.gpu
ROWS, COLUMNS = 128, 64


def scaled(rows: Any = ROWS, dtype: str = "float32") -> Any:
    @T.prim_func
    def scaled(X: T.Tensor((rows, COLUMNS), dtype), s: T.float32, n: T.int32, Y: T.Tensor((rows, COLUMNS), dtype)):
        with T.Kernel(T.ceildiv(rows, 32), threads=128) as by:
            for i, j in T.Parallel(32, COLUMNS):
                Y[by * 32 + i, j] = X[by * 32 + i, j] * s + n

    return scaled


eager_sum = tiledsl.jit(target="cuda")(eager_programs.eager_sum)


def inputs(rows: int = ROWS, device: str = "cuda") -> torch.Tensor:
    return torch.randn(rows, COLUMNS, device=device)


@pytest.fixture
def kernel() -> Any:
    return tiledsl.compile(scaled(), target="cuda", out_idx=-1)


def test_warm_calls_are_recognised(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = inputs(), torch.empty(ROWS, COLUMNS, device="cuda")
    kernel(x, 2.0, 3), kernel(x, 2.0, 3, y)
    monkeypatch.setattr(Launcher, "run", lambda *arguments: pytest.fail("the long way"))
    y.zero_()
    assert kernel(x, 2.0, 3, y) is y
    torch.testing.assert_close(y, x * 2 + 3)
    torch.testing.assert_close(kernel(x, -1.0, 3), 3 - x)


def test_results_of_many_signatures() -> None:
    kernel = tiledsl.compile(scaled(T.dynamic("rows")), target="cuda", out_idx=-1)
    for _ in range(3):
        for rows in (1, 7, 32, 128, 1, 1000):
            for s, n in ((2.0, 1), (0.5, 16), (3, 17), (-1.5, 0)):
                x = inputs(rows)
                torch.testing.assert_close(kernel(x, s, n), x * s + n)


def test_misaligned(kernel: Any) -> None:
    whole = torch.randn(ROWS * COLUMNS + 1, device="cuda")
    views = [whole[:-1].view(ROWS, COLUMNS), whole[1:].view(ROWS, COLUMNS)]
    for x in views * 3:
        torch.testing.assert_close(kernel(x, 2.0, 3), x * 2 + 3)
        torch.testing.assert_close(kernel.bind(x, 2.0, 3)(), x * 2 + 3)


def test_checks_stay(kernel: Any) -> None:
    x, y = inputs(), inputs()
    for _ in range(3):
        kernel(x, 2.0, 3, y)
        for message, arguments in {
            "must be contiguous": (torch.randn(COLUMNS, ROWS, device="cuda").t(), 2.0, 3, y),
            "X has shape": (x[:64], 2.0, 3, y),
            "X must be float32, but the tensor is float16": (x.half(), 2.0, 3, y),
            "is on the CPU": (x.cpu(), 2.0, 3, y.cpu()),
            "Y is on cpu, but X is on cuda:0": (x, 2.0, 3, y.cpu()),
            "n is int32, but the argument is the float 2.5": (x, 2.0, 2.5, y),
            "s is a float32 scalar, not Tensor": (x, x, 3, y),
        }.items():
            with pytest.raises(TileError, match=message):
                kernel(*arguments)
    torch.testing.assert_close(y, x * 2 + 3)


@pytest.mark.usefixtures("hopper")
def test_descriptors() -> None:
    kernel = tiledsl.compile(gemm_builder(size=256), target="cuda", pass_configs={"select-access.mode": "tma"})
    assert "_descriptor(" in kernel.source
    c = torch.empty(256, 256, dtype=torch.float16, device="cuda")
    whole = torch.randn(256 * 256 + 4, dtype=torch.float16, device="cuda")
    for number in range(6):  # the last one begins at no multiple of 16 bytes
        a, b = (torch.randn(256, 256, dtype=torch.float16, device="cuda") for _ in range(2))
        a = whole[4:].view(256, 256) if number == 5 else a
        c.zero_()
        kernel(a, b, c)
        torch.testing.assert_close(c, a @ b, rtol=1e-2, atol=1e-1)
        kernel.bind(b, a, c)()
        torch.testing.assert_close(c, b @ a, rtol=1e-2, atol=1e-1)


@pytest.mark.usefixtures("hopper")
def test_descriptors_of_gluon(monkeypatch: pytest.MonkeyPatch) -> None:
    function = load_example("attention").attention
    options = {"target": "cuda", "out_idx": [3, 4], "pass_configs": {"select-emitter.backend": "gluon"}}
    kernel = JitFunction(function.function, options, function.frame_locals)(1, 4, 2, 512, 512, 64)
    assert "from triton.experimental import gluon" in kernel.source, kernel.remarks
    for number in range(4):
        q, k, v = (torch.randn(1, heads, 512, 64, dtype=torch.float16, device="cuda") for heads in (4, 2, 2))
        found, _ = kernel(q, k, v)
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)
        if number == 0:  # from here on the plan
            monkeypatch.setattr(Launcher, "run", lambda *arguments: pytest.fail("the long way"))


def test_eager_functions() -> None:
    for _ in range(3):
        for rows in (16, 48):
            x, y = torch.randn(rows, 8, device="cuda"), torch.randn(rows, 8, device="cuda")
            torch.testing.assert_close(eager_sum(x, y), x + y)
            torch.testing.assert_close(eager_sum(x, y, 32), x + y)
            with pytest.raises(TileError, match="B must be float32"):
                eager_sum(x, y.half())
    graph = torch.compile(lambda x, y: eager_sum(x * 2, y), fullgraph=True)
    torch.testing.assert_close(graph(x, y), x * 2 + y)


def test_graph_capture(kernel: Any) -> None:
    x, y = inputs(), inputs()
    bound = kernel.bind(x, 4.0, 1)
    kernel(x, 2.0, 3, y), kernel(x, 2.0, 3), bound()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(x, 2.0, 3, y)
        result = kernel(y, 0.5, 1)
        fixed = bound()
    for _ in range(3):
        x.normal_()
        y.zero_(), fixed.zero_()
        graph.replay()
        torch.testing.assert_close(y, x * 2 + 3)
        torch.testing.assert_close(result, (x * 2 + 3) * 0.5 + 1)
        torch.testing.assert_close(fixed, x * 4 + 1)


def test_streams(kernel: Any) -> None:
    streams = [torch.cuda.Stream() for _ in range(4)]
    kernel(inputs(), 1.0, 0)
    torch.cuda.synchronize()
    results = []
    for number in range(40):
        with torch.cuda.stream(streams[number % 4]):
            torch.cuda._sleep(100_000)
            x = torch.full((ROWS, COLUMNS), float(number), device="cuda")
            y = kernel(x, 2.0, 1)  # right only if it is ordered after the fill
            results.append((number, y.clone()))
    torch.cuda.synchronize()
    assert all(bool((y == 2 * number + 1).all()) for number, y in results)


def test_a_call_does_not_wait(kernel: Any) -> None:
    x, y = inputs(), inputs()
    kernel(x, 2.0, 3, y)
    torch.cuda.synchronize()
    event = torch.cuda.Event()
    torch.cuda._sleep(200_000_000)
    kernel(x, 2.0, 3, y)
    event.record()
    assert not event.query()
    torch.cuda.synchronize()


@pytest.mark.parametrize("warm", [False, True])
def test_threads(warm: bool) -> None:
    kernel = tiledsl.compile(scaled(dtype="float32"), target="cuda", out_idx=-1)
    if warm:
        kernel(inputs(), 1.0, 1)
    barrier, failures = threading.Barrier(8), []

    def work(number: int) -> None:
        try:
            stream = torch.cuda.Stream()
            barrier.wait()
            for _ in range(100):
                with torch.cuda.stream(stream):
                    x = torch.full((ROWS, COLUMNS), float(number), device="cuda")
                    y = kernel(x, 2.0, number)
                stream.synchronize()
                assert bool((y == 3 * number).all()), number
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_devices(kernel: Any) -> None:
    for _ in range(3):
        for device in ("cuda:0", "cuda:1"):
            x = inputs(device=device)
            y = kernel(x, 2.0, 3)
            assert y.device == x.device and torch.cuda.current_device() == 0
            torch.testing.assert_close(y, x * 2 + 3)
            torch.testing.assert_close(kernel.bind(x, 2.0, 3)(), x * 2 + 3)
    with pytest.raises(TileError, match="Y is on cuda:1, but X is on cuda:0"):
        kernel(inputs(device="cuda:0"), 2.0, 3, inputs(device="cuda:1"))


def test_tritons_hooks(kernel: Any) -> None:
    from triton import knobs

    x, names = inputs(), []
    hook = lambda metadata: names.append(metadata.get()["name"])
    kernel(x, 2.0, 3)
    bound = kernel.bind(x, 2.0, 3)
    knobs.runtime.launch_enter_hook.add(hook)
    try:
        torch.testing.assert_close(kernel(x, 2.0, 3), x * 2 + 3)
        torch.testing.assert_close(bound(), x * 2 + 3)
    finally:
        knobs.runtime.launch_enter_hook.remove(hook)
    kernel(x, 2.0, 3)
    assert names == ["scaled_kernel"] * 2


def test_inference_mode_autocast_and_parameters(kernel: Any) -> None:
    x = inputs()
    for _ in range(2):
        with torch.inference_mode():
            torch.testing.assert_close(kernel(x, 2.0, 3), x * 2 + 3)
        with torch.autocast("cuda"):
            torch.testing.assert_close(kernel(x, 2.0, 3), x * 2 + 3)
        torch.testing.assert_close(kernel(torch.nn.Parameter(x), 2.0, 3), x * 2 + 3)


def test_compiled_by_torch(kernel: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return kernel(x + 1, 2.0, 3).relu()

    x = inputs()
    for mode in (None, "reduce-overhead"):
        compiled = torch.compile(function, fullgraph=True, mode=mode)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), ((x + 1) * 2 + 3).relu())


def test_gradients(kernel: Any) -> None:
    kernel.register_backward(lambda ctx, gradient: (gradient * ctx.scalars[0], None, None))
    x = inputs().requires_grad_()
    for run in (kernel, torch.compile(lambda *arguments: kernel(*arguments), fullgraph=True)):
        x.grad = None
        run(x, 2.0, 3).sum().backward()
        assert x.grad is not None and bool((x.grad == 2).all())


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("captured", [False, True], ids=["stream", "graph"])
def test_kernels_that_begin_early_see_what_the_one_before_wrote(captured: bool) -> None:
    """A chain of our kernels and torch's, each of which reads what the one before wrote."""
    size = 1 << 22

    @T.prim_func
    def add_one(X: T.Tensor((size,), "float32"), Y: T.Tensor((size,), "float32")):
        with T.Kernel(size // 1024, threads=128, launch_pdl=True) as bx:
            for i in T.Parallel(1024):
                Y[bx * 1024 + i] = X[bx * 1024 + i] + 1

    kernel = tiledsl.compile(add_one, target="cuda", out_idx=-1)
    assert "launch_pdl=True" in kernel.source
    x, y = torch.zeros(size, device="cuda"), torch.empty(size, device="cuda")

    def chain() -> None:
        for step in range(40):
            kernel(x, y)
            kernel(y, x)
            if step % 4 == 0:
                x.add_(1)

    chain()  # compiles
    torch.cuda.synchronize()
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chain()
        x.zero_()
        graph.replay()
    else:
        x.zero_()
        chain()
    assert torch.equal(x, torch.full_like(x, 40 * 2 + 10))


def test_functions_in_graphs_of_dynamic_sizes() -> None:
    """A tuned function and an eager one, whose nodes find their kernels while CUDA graphs are captured and replayed."""
    function = tiledsl.autotune(configs=[{"block": 16}, {"block": 32}])(eager_sum)
    sizes = (16, 48, 40)
    for rows in sizes:
        x = torch.randn(rows, 8, device="cuda")
        function(x, x), eager_sum(x, x)
    for mode in (None, "reduce-overhead"):
        torch._dynamo.reset()
        graph = torch.compile(lambda x: function(x + 1, x) * eager_sum(x, x), fullgraph=True, dynamic=True, mode=mode)
        for rows in sizes * 2:
            x = torch.randn(rows, 8, device="cuda")
            torch.testing.assert_close(graph(x), (2 * x + 1) * 2 * x)


def test_nothing_is_tuned_while_a_graph_is_captured() -> None:
    function = tiledsl.autotune(configs=[{"block": 16}, {"block": 32}], cache=False)(eager_sum)
    x = torch.randn(24, 8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(TileError, match="a CUDA graph is being captured"):
        function(x, x)
    function(x, x)
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        y = function(x, x)
    graph.replay()
    torch.testing.assert_close(y, 2 * x)
