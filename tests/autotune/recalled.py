"""Tuned functions, and a process that calls what was tuned on pretended devices: `python -m tests.autotune.recalled`.

It prints as JSON what was launched and compiled, and which modules it loaded. Compiling is refused without "compiles"
after the name.
"""

from __future__ import annotations

import json
import sys
import types
from typing import Any

import torch

import tiledsl
import tiledsl.language as T
from tests.autotune.programs import gemm_builder
from tests.support.example_modules import load_example
from tests.support.fake_driver import FakeDriver
from tests.support.not_needed import NOT_NEEDED

SIZE = 256
TUNED = {"configs": [{"block": 64}], "target": "cuda:90", "skip_check": True}


# A product through tensor descriptors.
product = tiledsl.autotune(**TUNED)(tiledsl.jit(out_idx=-1)(gemm_builder))


@tiledsl.autotune(**TUNED)
@tiledsl.jit(out_idx=-1)
def scaled(block=None, fixed=True):
    """Through pointers, with scalars."""
    rows = 256 if fixed else T.dynamic("rows")

    @T.prim_func
    def scaled(A: T.Tensor((rows, 64), "float32"), s: T.float32, n: T.int32, B: T.Tensor((rows, 64), "float32")):
        with T.Kernel(T.ceildiv(rows, block), threads=128) as by:
            for i, j in T.Parallel(block, 64):
                B[by * block + i, j] = A[by * block + i, j] * s + n

    return scaled


@tiledsl.autotune(**TUNED)
@tiledsl.jit
def eager(A, block=64):
    """As `scaled`, in the eager style: called with tensors."""
    rows = T.const("rows")
    A: T.Tensor((rows, 64), "float32")
    B = T.empty((rows, 64), "float32")
    with T.Kernel(T.ceildiv(rows, block), threads=128) as by:
        for i, j in T.Parallel(block, 64):
            B[by * block + i, j] = A[by * block + i, j] * 2.0
    return B


_attention = load_example("attention").attention.function
_GLUON = {"out_idx": [3, 4], "pass_configs": {"select-emitter.backend": "gluon"}}
attention = tiledsl.autotune(**{**TUNED, "configs": [{"block_M": 128}]})(tiledsl.jit(_attention, **_GLUON))
FUNCTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "product": (product, {}),
    "scaled": (scaled, {}),
    "dynamic": (scaled, {"fixed": False}),
    "eager": (eager, {"rows": 256}),
    "attention": (attention, {"batch": 1, "heads": 2, "kv_heads": 2, "queries": 256, "keys": 256, "dim": 128}),
}


def not_needed(modules: Any) -> list[str]:
    """Of the names of loaded modules those that a recall does not need."""
    return sorted(each for each in modules if f"{each}.".startswith(tuple(f"{name}." for name in NOT_NEEDED)))


def tuned(name: str) -> Any:
    """The result, tuned or from disk: as in a process that remembers nothing."""
    function, keywords = FUNCTIONS[name]
    function._results.clear()
    function._known.clear()
    return function.compile(**keywords)


def arguments(name: str, tensor: Any) -> tuple[Any, ...]:
    """What a kernel is called with; tensor: (sizes, dtype) to a tensor."""
    if name in ("scaled", "dynamic"):
        return tensor(256, 64, dtype=torch.float32), 2.0, 3
    if name == "eager":
        return (tensor(256, 64, dtype=torch.float32),)
    sizes, count = ((1, 2, 256, 128), 3) if name == "attention" else ((SIZE, SIZE), 2)
    return tuple(tensor(*sizes, dtype=torch.float16) for _ in range(count))


class Driver(FakeDriver):
    """One that launches nothing, and notes what it was to load and launch."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Any] = []
        self.loaded: list[str] = []
        self.utils = self

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232448}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[Any, ...]:
        assert binary[:4] == b"\x7fELF"
        self.loaded.append(name)
        return object(), 99, 32, 0, 1024

    def unload_module(self, module: Any) -> None:
        pass

    def launcher_cls(self, src: Any, metadata: Any) -> Any:
        def launch(x: int, y: int, z: int, *rest: Any) -> None:
            self.launches.append([src.fn.__name__, [x, y, z]])

        sizes = {"global_scratch_size": metadata.global_scratch_size, "profile_scratch_size": 0}
        flags = {"launch_cooperative_grid": False, "launch_pdl": False, "arg_annotations": [], "kernel_signature": b""}
        return Launcher(launch=launch, **sizes, **flags)


class Launcher(types.SimpleNamespace):
    """Stands for Triton's CudaLauncher, which is callable."""

    def __call__(self, x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
        self.launch(x, y, z)


def call(name: str, compiles: bool = False) -> dict[str, Any]:
    """Recall a tuned function and call its kernel twice. compiles: whether Triton may compile."""
    from contextlib import nullcontext

    import triton.compiler.compiler
    import triton.runtime.cache
    from triton.backends.nvidia import driver as nvidia
    from triton.runtime import driver as active

    from tests.runtime import fake_gpu
    from tiledsl.runtime import launch_triton
    from tiledsl.runtime.compile import CompileError
    from tiledsl.runtime.target import Target

    compiled: list[str] = []
    hashed: list[int] = []

    ordinary = triton.compiler.compile

    def compile(src: Any, **options: Any) -> Any:
        compiled.append(src.name)
        if not compiles:
            raise RuntimeError("a compiler was started")
        return ordinary(src, **options)

    result = tuned(name)
    devices = Driver()
    active.set_active(devices)
    triton.runtime.cache.triton_key = lambda: hashed.append(1) or "key"
    triton.compiler.compile = triton.compiler.compiler.compile = compile  # type: ignore[assignment]
    nvidia.make_tensordesc_arg = lambda *_: ("map",)
    Target.runs_here = property(lambda self: True)  # type: ignore[assignment,method-assign]
    launch_triton.device_functions = lambda: (lambda: 0, lambda device: 7, lambda device: nullcontext())  # type: ignore[assignment,return-value]
    launch_triton.fast_empty = lambda: lambda shape, strides, dtype: fake_gpu.tensor(*shape, dtype=dtype)  # type: ignore[assignment,return-value]
    launch_triton.has_one_device = lambda: True
    torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(multi_processor_count=132)  # type: ignore[assignment,return-value]
    failure = ""
    try:
        given = arguments(name, fake_gpu.tensor)
        for _ in range(2):
            result(*given)
    except CompileError as error:
        failure = str(error.__cause__)
    modules = not_needed(sys.modules)
    return {
        "from_cache": result.from_cache,
        "compiled": compiled,
        "hashed": len(hashed),
        "launches": devices.launches,
        "loaded": devices.loaded,
        "failure": failure,
        "plans": "launch(" in result.launch_source,
        "modules": modules,
        "program": result.ir(),
    }


if __name__ == "__main__":
    print(json.dumps(call(sys.argv[1], "compiles" in sys.argv)))
