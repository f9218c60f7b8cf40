"""What launches know of Triton and torch, on pretended ones."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.runtime.fake_gpu import Driver, pretend, tensor
from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime import launch_source, launch_triton


def test_one_device_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (0, 1, 2, 3):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        assert launch_triton.has_one_device() is (count == 1)


def test_the_hash_is_made_ahead_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    monkeypatch.setattr(launch_triton, "library_key", lambda: found.append("made"))
    thread = launch_triton.read_ahead()
    thread.join(10)
    assert found == ["made"] and thread.daemon


def test_the_hash_is_taken_for_its_own_library_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = pytest.importorskip("triton.runtime.cache")
    monkeypatch.setattr(cache, "triton_key", lambda: "of this library")
    assert launch_triton.library_key() == launch_triton.LibraryKey(cache.__file__, "of this library")
    launch_triton.use_library_key(launch_triton.LibraryKey("elsewhere", "of another"))
    assert cache.triton_key() == "of this library"
    launch_triton.use_library_key(launch_triton.LibraryKey(cache.__file__, "given"))
    assert cache.triton_key() == "given"


@pytest.mark.parametrize(
    ("version", "calls"), [("3.6.0", True), ("3.7.1", True), ("3.9.0", True), ("3.5.1", False), ("4.0", False)]
)
def test_only_known_versions_are_launched_cheaply(version: str, calls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton, "__version__", version)
    for cached in (launch_triton._triton_version, launch_triton.knobs):
        cached.cache_clear()
    assert (launch_triton.knobs() is not None) is calls
    assert launch_triton.is_watched() is not calls
    monkeypatch.undo()
    for cached in (launch_triton._triton_version, launch_triton.knobs):
        cached.cache_clear()


def _watch(**values: Any) -> Any:
    runtime = {"launch_enter_hook": None, "launch_exit_hook": None, **values}
    return lambda: (types.SimpleNamespace(**runtime), types.SimpleNamespace(**{"instrumentation_mode": "", **values}))


@pytest.mark.parametrize(
    ("values", "watched"),
    [
        ({}, False),
        ({"launch_enter_hook": print}, True),
        ({"launch_exit_hook": print}, True),
        ({"launch_exit_hook": types.SimpleNamespace(calls=[])}, False),
        ({"launch_exit_hook": types.SimpleNamespace(calls=[print])}, True),
        ({"launch_enter_hook": types.SimpleNamespace(calls=[print])}, True),
        ({"instrumentation_mode": "consan"}, True),
    ],
)
def test_hooks_and_instrumentation_watch(
    values: dict[str, Any], watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_triton, "knobs", _watch(**values))
    assert launch_triton.is_watched() is watched


@pytest.mark.parametrize(
    ("version", "takes"), [("2.12.1", True), ("2.13.0+cpu", True), ("2.14.0", False), ("3.0", False)]
)
def test_torchs_tracer_is_known_up_to_a_version(version: str, takes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    launch_triton.tracer_takes_another.cache_clear()
    assert launch_triton.tracer_takes_another() is takes
    monkeypatch.undo()
    launch_triton.tracer_takes_another.cache_clear()


def test_a_guard_tells_tensors_apart() -> None:
    x, y = torch.zeros(4, 6), torch.zeros(3)
    guard = launch_triton.tensor_guard([x, y])
    assert guard is not None and guard(torch.ones(4, 6), torch.ones(3))
    for other in (x[:3], x.double(), torch.zeros(6, 4).t(), x.view(24), x.clone().requires_grad_()):
        assert not guard(other, y)
    assert not guard(y, x) and not guard(x, torch.zeros(4))


def traits(tensor: Any) -> list[Any]:
    return [tensor.shape, tensor.stride(), tensor.dtype, tensor.device, (type(tensor), tensor.requires_grad)]


@pytest.mark.parametrize("overlooked", [None, 0, 1, 2, 3, 4])
def test_guards_that_overlook_something_are_not_used(overlooked: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Guards:
        def __init__(self, tensor: Any, **sizes: Any) -> None:
            self.traits = traits(tensor)

        def check(self, other: Any) -> bool:
            return all(a == b for n, (a, b) in enumerate(zip(self.traits, traits(other))) if n != overlooked)

    monkeypatch.setattr(torch._C._dynamo.guards, "TensorGuards", Guards)
    works = launch_triton._guard_works.__wrapped__
    monkeypatch.setattr(launch_triton, "_guard_works", works)
    assert works() is (launch_triton.tensor_guard([torch.zeros(4)]) is not None) is (overlooked is None)


def test_what_torchs_tracer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes into the call that everybody can read, and takes what is marked as a constant."""

    @T.prim_func
    def flagged(X: T.Tensor((16,), "float32"), flag: T.bool, n: T.int32):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(16):
                if flag:
                    X[i] = X[i] + n

    driver = Driver()
    kernel = pretend(tiledsl.compile(flagged, target="cuda:90"), driver, monkeypatch)
    x = tensor(16)
    for flag in (True, False, True):
        kernel(x, flag, 3)
    assert type(kernel).__call__._torchdynamo_inline is Kernel.__call__  # type: ignore[attr-defined]
    assert [True in launch[3] for launch in driver.launches] == [True, False, True]
    assert launch_triton.constant_when_traced(lambda: 1)._dynamo_marked_constant is True


def test_a_descriptor_that_the_launcher_takes_apart_is_one_argument() -> None:
    call = launch_triton.DriverCall(print, (), as_tuple=False, descriptors=None)
    assert call.descriptor(0, "described") == ("described",)


@pytest.mark.parametrize("known", [True, False])
def test_who_watches_launches_is_asked_unless_it_is_known_that_nobody_does(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook whose list of calls cannot be looked into may be anything."""
    hook = types.SimpleNamespace(calls=[])
    other = hook if known else types.SimpleNamespace(calls=())
    for hooks in ((hook, other), (other, hook)):
        runtime = types.SimpleNamespace(launch_enter_hook=hooks[0], launch_exit_hook=hooks[1])
        monkeypatch.setattr(launch_triton, "knobs", lambda runtime=runtime: (runtime, types.SimpleNamespace()))
        condition = launch_source.quiet_condition(launch_source.Writer())
        assert condition == "not is_watched()" if not known else "enter_hooks" in condition
    monkeypatch.setattr(launch_triton, "knobs", lambda: None)
    assert launch_source.quiet_condition(launch_source.Writer()) == "not is_watched()"


def test_plans_allocate_as_compiled_graphs_of_torch_do(monkeypatch: pytest.MonkeyPatch) -> None:
    guards = pytest.importorskip("torch._C._dynamo.guards")
    launch_triton.fast_empty.cache_clear()
    assert launch_triton.fast_empty() is guards._empty_strided_cuda
    launch_triton.fast_empty.cache_clear()
    monkeypatch.delattr(guards, "_empty_strided_cuda")
    assert launch_triton.fast_empty() is launch_triton.torch_empty
    launch_triton.fast_empty.cache_clear()


# What torch's insides say


def test_what_a_tracer_is_to_see() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.zeros(4, 3)
    plain = [[x, 3, 0.5, "a", True], [], [x.to("meta")], [torch.nn.Parameter(x)]]
    assert not any(launch_triton.belongs_to_torch(each) for each in plain)
    assert [launch_triton.without_values(each) for each in plain] == [False, False, True, False]
    assert not launch_triton.is_transformed() and not launch_triton.takes_gradients()
    with FakeTensorMode() as mode:
        assert launch_triton.belongs_to_torch([x]) and launch_triton.without_values([])
        fake = mode.from_tensor(x)
    assert launch_triton.belongs_to_torch([3, fake]) and not launch_triton.belongs_to_torch([3])
    seen: list[Any] = []

    def look(row: Any) -> Any:
        seen.append(
            (launch_triton.is_transformed(), launch_triton.without_values([3]), launch_triton.takes_gradients())
        )
        return row.sum()

    torch.vmap(look)(x)
    torch.func.grad(look)(x)
    assert seen == [(True, True, False), (True, True, True)]
    traced = torch.jit.trace(lambda each: seen.append(launch_triton.belongs_to_torch([])) or each, x, check_trace=False)
    assert traced is not None and seen[-1] is True
    torch.fx.symbolic_trace(lambda each: seen.append(launch_triton.belongs_to_torch([each])) or each)
    assert seen[-1] is True


def test_gradients_of_several_at_once_are_torchs() -> None:
    seen: list[bool] = []

    class Seen(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(context: Any, given: Any) -> Any:
            seen.append(launch_triton.belongs_to_torch([given]))
            return given * 2

    x = torch.ones(3, requires_grad=True)
    torch.autograd.grad(Seen.apply(x), x, torch.eye(3), is_grads_batched=True)
    torch.autograd.grad(Seen.apply(x), x, torch.ones(3))
    assert seen == [True, False]


def test_tangents_and_autocast_are_seen() -> None:
    x = torch.zeros(3)
    assert not launch_triton.has_tangents([x]) and not launch_triton.is_autocast([x])
    with torch.autograd.forward_ad.dual_level():
        assert launch_triton.has_tangents([3, torch.autograd.forward_ad.make_dual(x, x)])
        assert not launch_triton.has_tangents([x, 3])
    with torch.autocast("cpu"):
        assert launch_triton.is_autocast([3, x]) and not launch_triton.is_autocast([x.to("meta"), x])
        assert not launch_triton.is_autocast([3])


def test_where_torch_is_not_loaded_nothing_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    for asked in (launch_triton.belongs_to_torch, launch_triton.is_autocast, launch_triton.without_values):
        assert asked([3]) is False


def test_torchs_own_functions_are_taken_where_it_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getDevice", current := lambda: 3, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", stream := lambda device: 64, raising=False)
    functions = launch_triton.device_functions.__wrapped__
    assert functions() == (current, stream, torch.cuda.device)
    monkeypatch.delattr(torch._C, "_cuda_getDevice")
    monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=device + 64))
    current, stream, _ = functions()
    assert current is torch.cuda.current_device and stream(2) == 66


def test_symbols_of_a_graph() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    assert not any(map(launch_triton.is_symbolic, (3, True, 0.5, None, "a")))
    shapes = ShapeEnv()
    symbol = shapes.create_unbacked_symint()
    assert launch_triton.is_symbolic(symbol)


def test_tensors_without_values_have_all_but_memory() -> None:
    made = launch_triton.tensor_without_values((4, 3), (5, 1), torch.float16, "cpu")
    assert (made.shape, made.stride(), made.dtype, made.device.type) == ((4, 3), (5, 1), torch.float16, "cpu")
    assert launch_triton.without_values([3, made])
    made = launch_triton.tensor_without_values((4,), (1,), torch.float16, "cuda:0")
    assert made.device == torch.device("cuda", 0)


def compiled(launch: Any, version_sizes: Any = (0, 0), **more: Any) -> Any:
    class Run:
        launch_cooperative_grid, launch_pdl = "cooperative", "pdl"
        arg_annotations, kernel_signature = "annotations", "signature"
        global_scratch_size, profile_scratch_size = version_sizes

        def __call__(self) -> None: ...

    run = Run()
    vars(run).update(more)
    if launch is not None:
        run.launch = launch  # type: ignore[attr-defined]
    metadata = types.SimpleNamespace(tensordesc_meta=["layout"])
    return types.SimpleNamespace(run=run, function="function", packed_metadata="packed", metadata=metadata)


def wrapped(launcher: Any, other: int) -> Any:
    def call(*given: Any) -> Any:
        return launcher(*given), other

    return call


@pytest.mark.parametrize("version", ["3.6", "3.7", "3.9"])
def test_how_a_kernel_is_launched(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_triton, "_triton_version", lambda: version)
    flags = ("function", "cooperative", "pdl")
    behind = (None, None, "packed", None, None, None)
    if version != "3.6":
        behind = ("packed", None, None, None, None, None, "annotations", "signature")  # type: ignore[assignment]
    expected = launch_triton.DriverCall(print, (*flags, *behind), version != "3.6", ("layout",))
    assert launch_triton.driver_call(compiled(print)) == expected
    assert launch_triton.driver_call(compiled(wrapped(print, 3))) == expected  # what makes descriptors is around it
    unknown = compiled(print)
    del type(unknown.run).profile_scratch_size
    for strange in (
        unknown,
        compiled(None),
        compiled(print, (1, 0)),
        compiled(print, (0, 1)),
        compiled(print, gsan_enabled=True),
    ):
        head = ("function", "packed", None, None, None)
        assert launch_triton.driver_call(strange) == launch_triton.DriverCall(strange.run, head, False, None)
    strange = compiled(lambda *_: expected)  # which closes over something else
    assert launch_triton.driver_call(strange).call is strange.run
    bare = compiled(print)
    del bare.metadata.tensordesc_meta
    assert launch_triton.driver_call(bare).descriptors == ()


@pytest.mark.parametrize(("version", "more"), [("3.6", []), ("3.7", []), ("3.8", [None])])
def test_how_descriptors_are_taken(version: str, more: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    driver = pytest.importorskip("triton.backends.nvidia.driver")
    monkeypatch.setattr(launch_triton, "_triton_version", lambda: version)
    monkeypatch.setattr(driver, "make_tensordesc_arg", lambda *given: [given], raising=False)
    call = launch_triton.DriverCall(print, (), version != "3.6", ("a", "b"))
    assert call.descriptor(1, "described") == (("described", "b", *more),)
    without = launch_triton.DriverCall(print, (), version != "3.6", ())
    assert without.descriptor(1, "described") == (("described", None, *more),)


def test_a_function_compiles_by_what_is_given() -> None:
    function: Any = types.SimpleNamespace(made=0)

    def create_binder() -> Any:
        function.compile = lambda: "by triton"
        function.made += 1
        return "binder"

    function.create_binder = create_binder
    launch_triton.compile_by(function, lambda before: lambda: f"otherwise than {before()}")
    assert function.device_caches[0] == "binder" == function.create_binder() and function.made == 2
    assert function.compile() == "otherwise than by triton"


def test_memory_of_torch_is_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty_strided", lambda *given, **named: (given, named))
    assert launch_triton.torch_empty((2, 3), (3, 1), "dtype") == (
        ((2, 3), (3, 1)),
        {"dtype": "dtype", "device": "cuda"},
    )
    launch_triton.determinism.cache_clear()
    assert launch_triton.determinism()() is False


def test_launchers_are_made_of_a_kernels_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    compiled: Any = types.SimpleNamespace(src="src", metadata="metadata")
    active = types.SimpleNamespace(launcher_cls=lambda *given: made.append(("active", *given)))
    modules = {
        "triton.runtime.driver": types.SimpleNamespace(driver=types.SimpleNamespace(active=active)),
        "triton.backends.nvidia.driver": types.SimpleNamespace(
            CudaLauncher=lambda *given: made.append(("cuda", *given))
        ),
    }
    monkeypatch.setattr(launch_triton.importlib, "import_module", modules.__getitem__)
    launch_triton.make_launcher(compiled)
    launch_triton.compile_launcher(compiled)
    assert made == [("active", "src", "metadata"), ("cuda", "src", "metadata")]
    modules.clear()
    (
        launch_triton.make_launcher(compiled),
        launch_triton.compile_launcher(compiled),
    )  # which whoever launches does otherwise
    assert launch_triton.library_key() is None
