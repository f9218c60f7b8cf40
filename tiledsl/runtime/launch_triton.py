"""What is known of Triton's and torch's insides for cheap launches. No other module uses names that may move.

Where a version is not known, `knobs` says None, and kernels are launched as everybody launches them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# How Triton's C launcher takes its arguments after (grid x, y, z, stream, function, cooperative, pdl): the scratch
# pointers before the metadata and the kernel's arguments one by one, or the scratch pointers behind it and the
# arguments as one tuple.
_ONE_BY_ONE, _AS_TUPLE = "one by one", "as a tuple"
_CONVENTIONS = {"3.6": _ONE_BY_ONE, "3.7": _AS_TUPLE, "3.8": _AS_TUPLE, "3.9": _AS_TUPLE}
# Up to here torch's tracer goes into a function's `_torchdynamo_inline` in its place.
_LAST_KNOWN_TORCH = (2, 13)
MISSING = object()
"""An argument that a call does not have."""


@dataclass(frozen=True)
class DriverCall:
    """A compiled kernel as the C function that launches it: `call(x, y, z, stream, *head, *arguments)`; the arguments
    as one tuple where `as_tuple`.

    A pointer is given as an int, a tensor descriptor as the values that `descriptor` makes of it.
    """

    call: Callable[..., None]
    head: tuple[Any, ...]
    as_tuple: bool
    descriptors: tuple[Any, ...] | None

    def descriptor(self, number: int, described: Any) -> tuple[Any, ...]:
        """The C arguments for the kernel's `number`-th descriptor: a tensor map, the shape and the strides."""
        if self.descriptors is None:
            return (described,)
        from triton.backends.nvidia import driver

        layout = self.descriptors[number] if self.descriptors else None  # None: the kernel takes it apart
        more = [None] if self.as_tuple and _triton_version() != "3.7" else []
        return tuple(driver.make_tensordesc_arg(described, layout, *more))


def compile_by(function: Any, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Have a jitted function that has not run yet compile, on each device, by what `wrapped` makes of the way in which
    it would compile otherwise: a function of Triton's ASTSource, `target`, `options` and others by keyword."""
    create = function.create_binder

    def create_binder() -> Any:
        binder = create()  # sets `compile`, for each device
        function.compile = wrapped(function.compile)
        return binder

    function.create_binder = create_binder
    function.device_caches = defaultdict(create_binder)


def driver_call(compiled: Any) -> DriverCall:
    """How to launch what JITFunction.run returned, on the device that is current now; loads the binary there.

    Kernels that need scratch memory or instrumentation go through Triton's own launcher, which knows how. Only for
    versions for which `knobs()` is not None.
    """
    run = compiled.run  # loads the binary, or raises OutOfResources
    launch = getattr(run, "launch", None)
    descriptors = tuple(getattr(compiled.metadata, "tensordesc_meta", None) or ())
    if getattr(launch, "__closure__", None):  # wrapped to make descriptors at every launch: take what is inside
        launch = _closed_over(launch, "launcher")
    has_scratch = any(getattr(run, name, None) != 0 for name in ("global_scratch_size", "profile_scratch_size"))
    if launch is None or has_scratch or getattr(run, "gsan_enabled", False):
        return DriverCall(run, (compiled.function, compiled.packed_metadata, None, None, None), False, None)
    flags = (compiled.function, run.launch_cooperative_grid, run.launch_pdl)
    if _CONVENTIONS[_triton_version()] is _AS_TUPLE:
        hooks = (None, None, None)
        head = (*flags, compiled.packed_metadata, *hooks, None, None, run.arg_annotations, run.kernel_signature)
        return DriverCall(launch, head, True, descriptors)
    return DriverCall(launch, (*flags, None, None, compiled.packed_metadata, None, None, None), False, descriptors)


@dataclass(frozen=True)
class LibraryKey:
    """Triton's hash of its own library, which is part of the key of all that is in its cache; `path` says of which."""

    path: str
    text: str


def library_key() -> LibraryKey | None:
    """This process's, made if it was not: up to two seconds of a processor. None where Triton has none."""
    with contextlib.suppress(Exception):  # a private name: without it the first compilation takes longer
        cache = importlib.import_module("triton.runtime.cache")
        return LibraryKey(str(cache.__file__), str(cache.triton_key()))
    return None


def use_library_key(key: LibraryKey) -> None:
    """Have this process take a hash that another one has made. For processes that belong to this package alone."""
    with contextlib.suppress(ImportError, AttributeError):
        cache: Any = importlib.import_module("triton.runtime.cache")
        if cache.__file__ == key.path and cache.triton_key:
            cache.triton_key = lambda: key.text


def read_ahead() -> threading.Thread:
    """Make the hash in the background, which Triton leaves to the first compilation of a process."""
    thread = threading.Thread(target=library_key, daemon=True)
    thread.start()
    return thread


def make_loader() -> threading.Thread:
    """Import Triton in the background, and see to the C functions that load a binary, which it compiles where its cache
    has none. Until the thread has ended, nothing in this process launches a kernel. This needs no torch."""

    def make() -> None:
        # Each CudaUtils has a type of its own for tensor maps: a launcher made before the last one refuses its maps.
        with contextlib.suppress(Exception):
            importlib.import_module("triton.backends.nvidia.driver").CudaUtils()

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    return thread


def make_launcher(compiled: Any) -> None:
    """Have Triton compile the C function that launches kernels with these parameters (of a triton.compile'd one), so
    that its cache has it for other processes."""
    with contextlib.suppress(Exception):  # whoever launches the kernel does it otherwise
        importlib.import_module("triton.runtime.driver").driver.active.launcher_cls(compiled.src, compiled.metadata)


def compile_launcher(compiled: Any) -> None:
    """The same in a process that launches nothing afterwards: it opens no GPU and needs no torch, but NVIDIA's driver
    library."""
    with contextlib.suppress(Exception):
        importlib.import_module("triton.backends.nvidia.driver").CudaLauncher(compiled.src, compiled.metadata)


def _closed_over(function: Any, name: str) -> Any:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
    return cells[name].cell_contents if name in cells else None


@functools.cache
def _triton_version() -> str:
    import triton

    return ".".join(str(triton.__version__).split(".")[:2])


@functools.cache
def knobs() -> tuple[Any, Any] | None:
    """Triton's `runtime` and `compilation` knobs, where launch hooks and instrumentation are set."""
    if _triton_version() not in _CONVENTIONS:
        return None
    from triton import knobs

    return knobs.runtime, knobs.compilation


def is_watched() -> bool:
    """Whether somebody wants to see launches (a profiler's hooks) or has kernels instrumented. Then Triton launches."""
    found = knobs()
    if found is None:
        return True
    runtime, compilation = found
    hooks = (runtime.launch_enter_hook, runtime.launch_exit_hook)
    return bool(compilation.instrumentation_mode) or any(
        hook is not None and getattr(hook, "calls", True) for hook in hooks
    )


@functools.cache
def device_functions() -> tuple[Callable[[], int], Callable[[int], int], Callable[[int], Any]]:
    """The number of the current device; a device's current stream as an int; a context in which a device is current."""
    import torch

    current = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
    stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return current, stream or (lambda device: int(torch.cuda.current_stream(device).cuda_stream)), torch.cuda.device


def has_one_device() -> bool:
    """Whether there is one GPU, which then is the current one of every thread."""
    import torch

    return bool(torch.cuda.device_count() == 1)


@functools.cache
def tracer_takes_another() -> bool:
    """Whether torch's tracer, where it meets a function with `traced_as`, goes into the other one."""
    import torch

    return tuple(map(int, torch.__version__.split(".")[:2])) <= _LAST_KNOWN_TORCH


def traced_as(function: Any, other: Callable[..., Any]) -> None:
    """Have torch's tracer go into `other` where `function` is called: so a call need not ask whether it is traced."""
    function._torchdynamo_inline = other


def constant_when_traced(function: Any) -> Any:
    """Have torch's tracer call a function whose arguments it knows, and take its result as a constant: as
    torch.compiler.assume_constant_result does, which loads the whole tracer."""
    function._dynamo_marked_constant = True
    return function


@functools.cache
def fast_empty() -> Callable[[Sequence[int], Sequence[int], Any], Any]:
    """`(shape, strides, dtype)` to a tensor on the current CUDA device, as compiled graphs of torch allocate theirs."""
    try:
        from torch._C._dynamo.guards import _empty_strided_cuda
    except ImportError:
        return torch_empty
    return _empty_strided_cuda  # type: ignore[no-any-return]


def torch_empty(shape: Sequence[int], strides: Sequence[int], dtype: Any) -> Any:
    """The same as torch allocates: filled with NaN where `torch.utils.deterministic` asks for it."""
    import torch

    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


@functools.cache
def determinism() -> Callable[[], bool]:
    """Whether torch's algorithms are to be deterministic, and what it allocates may be filled; in 25 ns."""
    import torch

    return getattr(torch._C, "_get_deterministic_algorithms", torch.are_deterministic_algorithms_enabled)  # type: ignore[no-any-return]


def tensor_guard(tensors: Sequence[Any]) -> Callable[..., bool] | None:
    """A C++ function that says of as many tensors whether each has the same Python type, dtype, device, shape, strides
    and need of gradients as the one given here, and that no mode of torch has been entered. None if torch has none."""
    import torch

    try:
        guards = torch._C._dynamo.guards.TensorGuards(
            *tensors,
            dynamic_dims_sizes=[list(each.shape) for each in tensors],
            dynamic_dims_strides=[list(each.stride()) for each in tensors],
        )
        return guards.check if _guard_works() and guards.check(*tensors) else None
    except (AttributeError, TypeError, RuntimeError):
        return None


@functools.cache
def _guard_works() -> bool:
    """Whether the guards of this torch, whose interface is private, tell what we rely on."""
    import torch

    tensor = torch.empty(4, 6)
    guards = torch._C._dynamo.guards.TensorGuards(tensor, dynamic_dims_sizes=[[4, 6]], dynamic_dims_strides=[[6, 1]])
    others = (tensor[:3], tensor.double(), torch.empty(6, 4).t(), tensor.view(24), tensor.to("meta"), torch.nn.Parameter(tensor))  # fmt: skip # noqa: E501
    return not any(guards.check(other) for other in others)


def is_symbolic(value: Any) -> bool:
    """Whether an integer is a symbol of a graph, which stands for several values. Torch's tracer goes into this."""
    import torch
    from torch.fx.experimental import symbolic_shapes

    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        return False
    return hasattr(symbolic_shapes, "has_static_value") and not symbolic_shapes.has_static_value(value)


def belongs_to_torch(arguments: Sequence[Any]) -> bool:
    """Whether a tracer or a mode of torch that works on tensors without values is to see a call."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() is not None:  # torch.jit.trace's
        return True
    if any(_is_batched(each) for each in arguments if isinstance(each, torch.Tensor)):
        return True
    if all(type(each) in (torch.Tensor, int, str, float, bool) for each in arguments):
        return False
    plain = torch.Tensor.__torch_dispatch__
    others = (getattr(type(each), "__torch_dispatch__", plain) for each in arguments)
    return any(each is not plain for each in others) or any(
        isinstance(each, (torch.SymInt, torch.fx.Proxy)) for each in arguments
    )


def _is_batched(tensor: Any) -> bool:
    """Whether it is a tensor of the vmap before torch.func's, in which torch.autograd takes several gradients."""
    import torch

    asked = getattr(getattr(torch._C, "_functorch", None), "is_legacy_batchedtensor", None)
    return asked is not None and bool(asked(tensor))


def has_tangents(arguments: Sequence[Any]) -> bool:
    """Whether a tensor carries a tangent of forward-mode differentiation."""
    import torch

    forward = torch.autograd.forward_ad
    if forward._current_level < 0:
        return False
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    return any(forward.unpack_dual(each).tangent is not None for each in tensors)


def is_transformed() -> bool:
    """Whether torch.vmap or a transformation of torch.func is under way."""
    import torch

    functorch = getattr(torch._C, "_functorch", None)
    peek = getattr(functorch, "peek_interpreter_stack", None)
    return peek is not None and peek() is not None


def takes_gradients() -> bool:
    """Whether the innermost transformation of torch.func takes gradients."""
    import torch

    functorch = getattr(torch._C, "_functorch", None)
    peek = getattr(functorch, "peek_interpreter_stack", None)
    inner = peek and peek()
    return inner is not None and inner.key() == functorch.TransformType.Grad  # type: ignore[union-attr]


def is_autocast(tensors: Sequence[Any]) -> bool:
    """Whether torch.autocast is on for the device of the first tensor."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    device = next((each.device.type for each in tensors if isinstance(each, torch.Tensor)), "")
    return device in ("cpu", "cuda") and bool(torch.is_autocast_enabled(device))


def without_values(arguments: Sequence[Any]) -> bool:
    """Whether tensors of a call have no values that could be looked at: a tracer's, a mode's, torch.vmap's, meta."""
    if "torch" not in sys.modules:
        return False
    return belongs_to_torch(arguments) or is_transformed() or any(getattr(each, "is_meta", False) for each in arguments)


def tensor_without_values(shape: Sequence[int], strides: Sequence[int], dtype: Any, device: str) -> Any:
    """A tensor that has everything but memory. No mode of torch sees that it is made."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), FakeTensorMode():
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)
