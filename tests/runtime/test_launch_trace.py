"""What plans hand to the driver, beside what Triton itself hands to it for the same call: emitted modules compiled by
Triton, with a driver that has no GPU."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.autotune.programs import gemm_builder
from tests.autotune.triton_programs import scale_rows
from tests.support.example_modules import load_example
from tests.support.fake_driver import FakeDriver
from tiledsl.kernels.jit import JitFunction
from tiledsl.kernels.kernel import Kernel
from tiledsl.kernels.triton_function import TritonFunction
from tiledsl.runtime import launch_source, launch_stored, launch_triton
from tiledsl.runtime.launch_trace import Descriptor, Pointer, Trace, trace
from tiledsl.runtime.module import load_module
from tiledsl.runtime.target import Target

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(launch_triton.knobs() is None, reason="needs a Triton whose launcher is known")


class Driver(FakeDriver):
    """A driver for sm_90 that notes what is launched, as (grid, stream, kernel's arguments)."""

    def __init__(self) -> None:
        from triton.backends.nvidia import driver

        super().__init__()
        self.launches: list[tuple[Any, ...]] = []
        self.launcher_cls = driver.CudaLauncher
        properties = {"max_shared_mem": 232448, "multiprocessor_count": 3}
        self.utils = types.SimpleNamespace(
            launch=self.launch,
            get_device_properties=lambda device: properties,
            load_binary=lambda name, *rest: (object(), name, 32, 0, 1024),
            unload_module=lambda module: None,
            fill_tma_descriptor=lambda *arguments: ("map", *_plain(arguments)),
            fill_tma_descriptor_tiled=lambda *arguments: ("map", *_plain(arguments)),
        )

    def launch(self, x: int, y: int, z: int, stream: int, function: str, *rest: Any) -> None:
        last = rest[8:] if launch_triton._triton_version() == "3.6" else rest[-1]
        self.launches.append((function, (x, y, z), stream, _plain(last)))


def _plain(value: Any) -> Any:
    """Addresses for tensors, tuples for lists."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    return value.data_ptr() if hasattr(value, "data_ptr") else value


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    from triton.backends.nvidia import driver as nvidia

    fake = Driver()
    monkeypatch.setattr(triton.runtime.driver, "_active", fake)
    built = types.SimpleNamespace(launch=fake.launch)
    monkeypatch.setattr(nvidia, "compile_module_from_src", lambda **_: built, raising=False)
    for name in ("annotate_arguments", "make_kernel_signature"):  # which need a C module
        monkeypatch.setattr(nvidia, name, lambda signature: None, raising=False)
    monkeypatch.setattr(nvidia, "library_dirs", list, raising=False)
    monkeypatch.setattr(launch_triton, "device_functions", lambda: (int, lambda device: 7, None))
    monkeypatch.setattr(launch_triton, "has_one_device", lambda: True)
    empty = lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype)
    monkeypatch.setattr(launch_triton, "fast_empty", lambda: empty)
    yield fake


def launched(kernel: Kernel, arguments: Sequence[Any], driver: Driver) -> tuple[list[Any], list[Any], Trace, Any]:
    """What the host function launches for these arguments and what a plan does; the trace; what the plan returns."""
    module = load_module(kernel.name, kernel.source, interpret=False)
    for each in vars(module).values():
        if hasattr(each, "device_caches"):
            each.device_caches.clear()  # of another driver
    params = kernel.params if len(arguments) == len(kernel.params) else kernel._inputs
    function = kernel.module.into if len(arguments) == len(kernel.params) else kernel.module.entry
    names = [f"arg_{each.name}" for each in params]
    tensors = [name for name, each in zip(names, params) if each.is_tensor]
    getattr(module, function)(*arguments)
    ordinary, driver.launches = driver.launches, []
    traced, writer = trace(module, function, names, arguments), launch_source.Writer()
    assert not driver.launches
    launch_source.write_plan(writer, traced, 0, tensors, [name for name in names if name not in tensors])
    plan = writer.define("plan", "plan of a test")
    pointers = [each.data_ptr() for each in arguments if isinstance(each, torch.Tensor)]
    returned = plan(*pointers, *(each for each in arguments if not isinstance(each, torch.Tensor)))
    planned, driver.launches = driver.launches, []
    return ordinary, planned, traced, returned


def product() -> tuple[Kernel, list[torch.Tensor]]:
    """A kernel that Triton compiles, and its arguments."""
    kernel = tiledsl.compile(gemm_builder(size=128), target="cuda:90", pass_configs={"select-access.mode": "tma"})
    return kernel, [torch.zeros(128, 128, dtype=torch.float16) for _ in range(3)]


def attention() -> tuple[Kernel, list[torch.Tensor]]:
    """A kernel that Gluon compiles, and its arguments."""
    function = load_example("attention").attention
    options = {"target": "cuda:90", "out_idx": [3, 4], "pass_configs": {"select-emitter.backend": "gluon"}}
    kernel = JitFunction(function.function, options, function.frame_locals)(1, 4, 2, 256, 256, 64)
    assert "from triton.experimental import gluon" in kernel.source, kernel.remarks
    heads = [torch.zeros(1, number, 256, 64, dtype=torch.float16) for number in (4, 2, 2, 4)]
    return kernel, [*heads, torch.zeros(1, 4, 256)]


def tuned_in_triton() -> tuple[Kernel, list[torch.Tensor]]:
    """A kernel of Triton's with one configuration, and its arguments."""
    function = TritonFunction(scale_rows, (4,), descriptors={"a": ("BM", "BN"), "out": ("BM", 32)})
    a, out = torch.zeros(64, 64), torch.zeros(64, 64)
    values = {"a": a, "out": out, "factor": 3.0, "M": 64, "N": 64}
    return function.kernel_for(values, {"BM": 16, "BN": 32}, Target("cuda", 90)), [a, out]


def test_a_trace_takes_the_binary_that_is_kept(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, arguments = product()
    _, _, traced, _ = launched(kernel, arguments, driver)
    (compiled,) = [each.compiled for each in traced.launches]
    asked = []

    def kept(function: Any, given: Sequence[Any], options: dict[str, Any]) -> Any:
        asked.append((function.fn.__name__, len(given), options["num_warps"]))
        return compiled

    monkeypatch.setattr(launch_stored, "find", kept)
    ordinary, planned, again, _ = launched(kernel, arguments, driver)
    assert [each.compiled for each in again.launches] == [compiled] and planned == ordinary
    assert asked == [(compiled.name, len(traced.launches[0].arguments), compiled.metadata.num_warps)]


def test_two_kernels_with_descriptors(driver: Driver) -> None:
    """Both are Triton's: Gluon's beside Triton's failed on an H200."""

    @T.prim_func
    def project_and_attend(
        X: T.Tensor((256, 64), "float16"),
        W: T.Tensor((64, 64), "float16"),
        K: T.Tensor((256, 64), "float16"),
        Q: T.Tensor((256, 64), "float16"),
        O: T.Tensor((256, 64), "float16"),
    ):
        with T.Kernel(2, threads=128) as bx:
            x = T.alloc_shared((128, 64), "float16")
            w = T.alloc_shared((64, 64), "float16")
            projected = T.alloc_fragment((128, 64), "float32")
            T.clear(projected)
            T.copy(X[bx * 128, 0], x)
            T.copy(W, w)
            T.gemm(x, w, projected)
            T.copy(projected, Q[bx * 128, 0])
        with T.Kernel(2, threads=256) as bx:
            q = T.alloc_shared((128, 64), "float16")
            k = T.alloc_shared((64, 64), "float16")
            v = T.alloc_shared((64, 64), "float16")
            scores = T.alloc_fragment((128, 64), "float32")
            weights = T.alloc_fragment((128, 64), "float16")
            acc = T.alloc_fragment((128, 64), "float32")
            T.copy(Q[bx * 128, 0], q)
            T.clear(acc)
            for tile in T.Pipelined(4, num_stages=2):
                T.copy(K[tile * 64, 0], k)
                T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                T.copy(scores, weights)
                T.copy(K[tile * 64, 0], v)
                T.gemm(weights, v, acc)
            T.copy(acc, O[bx * 128, 0])

    kernel = tiledsl.compile(project_and_attend, target="cuda:90", pass_configs={"select-access.mode": "tma"})
    assert "gluon" not in kernel.source and any("several kernels" in text for text in kernel.remarks)
    tensors = [torch.zeros(rows, 64, dtype=torch.float16) for rows in (256, 64, 256, 256, 256)]
    ordinary, planned, _, _ = launched(kernel, tensors, driver)
    assert planned == ordinary and len(planned) == 2


@pytest.mark.parametrize("case", [product, attention, tuned_in_triton])
def test_descriptors(case: Any, driver: Driver) -> None:
    kernel, tensors = case()
    ordinary, planned, found, _ = launched(kernel, tensors, driver)
    assert planned == ordinary and len(planned) == 1
    descriptors = [each for each in found.launches[0].arguments if isinstance(each, Descriptor)]
    assert [each.number for each in descriptors] == list(range(len(descriptors)))
    addresses = {f"arg_{param.name}": each.data_ptr() for param, each in zip(kernel.params, tensors)}
    maps = [each for each in planned[0][3] if isinstance(each, tuple) and each[0] == "map"]
    assert [each[1] for each in maps] == [addresses[each.pointer.of] for each in descriptors]
    assert {each.pointer for each in descriptors} >= {Pointer(name) for name in list(addresses)[: len(descriptors)]}


def traced_total(rows: int = 64) -> Any:
    @T.prim_func
    def traced_total(X: T.Tensor((rows, 32), "float32"), s: T.float32, n: T.int32, Y: T.Tensor((rows,), "float32")):
        parts = T.alloc_global((rows, 32), "float32")
        with T.Kernel(T.ceildiv(rows, 16), threads=128) as by:
            for i, j in T.Parallel(16, 32):
                parts[by * 16 + i, j] = X[by * 16 + i, j] * s + n
        with T.Kernel(T.ceildiv(rows, 32), threads=128) as by:
            x, total = T.alloc_fragment((32, 32), "float32"), T.alloc_fragment((32,), "float32")
            T.copy(parts[by * 32, 0], x)
            T.reduce_sum(x, total, dim=1)
            T.copy(total, Y[by * 32])

    return traced_total


@pytest.mark.parametrize("given", [True, False], ids=["output given", "output allocated"])
def test_two_kernels_with_a_workspace(given: bool, driver: Driver) -> None:
    kernel = tiledsl.compile(traced_total(), target="cuda:90", out_idx=-1)
    x, y = torch.zeros(64, 32), torch.zeros(64)
    ordinary, planned, traced, returned = launched(kernel, (x, 2.5, 7, *([y] if given else [])), driver)
    assert [each[:3] for each in planned] == [each[:3] for each in ordinary]
    assert [each[1] for each in planned] == [(4, 1, 1), (2, 1, 1)]
    first, second = (each[3] for each in planned)
    workspace = next(each for each in first if each not in (x.data_ptr(), 2.5, 7))
    output = y.data_ptr() if given else returned.data_ptr()
    assert set(first) == {x.data_ptr(), workspace, 2.5, 7} and set(second) == {workspace, output}
    assert [type(each) for each in first] == [type(each) for each in ordinary[0][3]]
    assert not traced.read and [each.function for each in traced.allocations] == ["empty_strided"] * (1 if given else 2)
    if not given:
        assert returned.shape == (64,) and returned.dtype == torch.float32


def test_views_of_another_width(driver: Driver) -> None:
    """A view of another width is the same address, with the pointer's other element type."""

    @T.prim_func
    def views(X: T.Tensor((6, 3), "float32"), Y: T.Tensor((4, 9), "float16")):
        with T.Kernel(1, threads=32):
            T.copy(T.view(X, (4, 9), dtype="float16"), Y)

    kernel = tiledsl.compile(views, target="cuda:90")
    x, y = torch.zeros((6, 3)), torch.zeros((4, 9), dtype=torch.float16)
    ordinary, planned, _, _ = launched(kernel, [x, y], driver)
    assert planned == ordinary and set(planned[0][3][:2]) == {x.data_ptr(), y.data_ptr()}
