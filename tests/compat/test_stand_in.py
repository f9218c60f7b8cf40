"""The stand-in for `tilelang`: what can be imported from it, and what its names do."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiledsl
import tiledsl.language
from tiledsl.compat import MODULES, StandIn, install
from tiledsl.errors import TileError


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    install()
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def test_every_module_can_be_imported() -> None:
    for name in MODULES:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", []):
            assert getattr(module, public) is not None, f"{name}.{public}"


def test_the_language_is_ours() -> None:
    import tilelang.language as T

    assert T is tiledsl.language


def test_names_that_scripts_import() -> None:
    namespace: dict[str, Any] = {}
    exec(
        "import tilelang, tilelang.testing, tilelang as tl\n"
        "from tilelang import language, tvm, jit, DataType\n"
        "from tilelang.autotuner import *\n"
        "from tilelang.autotuner import AutoTuner, autotune, set_autotune_inputs\n"
        "from tilelang.carver.arch import CDNA, CUDA, driver\n"
        "from tilelang.carver.roller.rasterization import NoRasterization\n"
        "from tilelang.carver.template import MatmulTemplate\n"
        "from tilelang.contrib import nvcc\n"
        "from tilelang.engine.callback import register_cuda_postproc_callback\n"
        "from tilelang.language.fp8 import determine_fp8_type\n"
        "from tilelang.layout import make_swizzled_layout\n"
        "from tilelang.profiler import do_bench\n"
        "from tilelang.tileop.base import GemmWarpPolicy\n"
        "from tilelang.transform import PassConfigKey, simplify_prim_func\n"
        "from tilelang.intrinsics.mma_layout import make_mma_swizzle_layout\n"
        "from tilelang.cuda.intrinsics.layout.mma_layout import make_mma_swizzle_layout\n"
        "from tilelang.layout.swizzle import make_swizzled_layout\n"
        "from tilelang.utils.tensor import TensorSupplyType, get_tensor_supply, torch_assert_close\n"
        "from tvm import tirx\n",
        namespace,
    )
    assert callable(namespace["jit"])
    assert type(namespace["make_mma_swizzle_layout"](None)).__name__ == "Layout"
    assert namespace["tl"].jit is namespace["jit"]
    assert namespace["driver"].get_num_sms() > 0
    assert namespace["nvcc"].get_target_compute_version() >= "7.0"
    assert namespace["determine_fp8_type"]() == "float8_e4m3fn"
    assert namespace["DataType"]("float16").bits == 16


def test_names_of_the_language_are_told_apart() -> None:
    with pytest.raises(ImportError, match=r"cannot import name 'teleport' from 'tiledsl\.language'"):
        exec("from tilelang.language import teleport")


def test_parts_that_are_not_there_say_so_when_used() -> None:
    namespace: dict[str, Any] = {}
    exec(
        "from abc import ABC\n"
        "import tilelang.quantize.lop3, tvm.tirx.analysis\n"
        "from tilelang.jit.adapter import base\n"
        "from tilelang.carver.template import MatmulTemplate\n"
        "from tilelang.carver import roller\n"
        "from tilelang.jit import JITImpl, kernel\n"
        "from tilelang.autotuner import jit\n"
        "class Adapter(base.BaseKernelAdapter, ABC): ...\n"
        "def f(template: MatmulTemplate | None, other: roller.Node[int]): ...\n"
        "assert not isinstance(3, MatmulTemplate) and MatmulTemplate is not None\n",
        namespace,
    )
    assert namespace["kernel"].JITKernel is tiledsl.Kernel
    uses = {
        "MatmulTemplate(M=1)": "tilelang.carver.template.MatmulTemplate",
        "Adapter()": "tilelang.jit.adapter.base.BaseKernelAdapter",
        "roller.policy.Default()": "tilelang.carver.roller.policy.Default",
        "tilelang.quantize.lop3.get_intrinsics()": "tilelang.quantize.lop3.get_intrinsics",
        "bool(tilelang.engine.FLAG)": "tilelang.engine.FLAG",
        "list(tilelang.engine.TABLE)": "tilelang.engine.TABLE",
        "tvm.tirx.analysis.verify(3)": "tvm.tirx.analysis.verify",
    }
    for use, name in uses.items():
        with pytest.raises(TileError) as caught:
            eval(use, namespace)
        assert caught.value.message == f"{name} is not part of tiledsl", use
    with pytest.raises(TileError, match="note: list the configurations, or let @tiledsl"):
        eval("MatmulTemplate()", namespace)


def test_a_function_of_a_modules_name_stays_a_function() -> None:
    import tilelang
    import tilelang.engine.callback
    import tilelang.jit.env

    assert tilelang.jit is importlib.import_module("tiledsl.compat.host").jit
    assert isinstance(sys.modules["tilelang.jit.env"], StandIn)


def test_installing_replaces_a_real_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MODULES:
        sys.modules.pop(name, None)
    (tmp_path / "tilelang").mkdir()
    (tmp_path / "tilelang" / "__init__.py").write_text("ORIGINAL = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("tilelang").ORIGINAL
    install()
    assert isinstance(importlib.import_module("tilelang"), StandIn)


def test_pass_keys() -> None:
    from tilelang import PassConfigKey

    assert PassConfigKey.TL_ENABLE_FAST_MATH == "tl.enable_fast_math"
    assert PassConfigKey.TIR_DISABLE_VECTORIZE == "tir.disable_vectorize"
    assert PassConfigKey.TL_DISABLE_TMA_LOWER.value == "tl.disable_tma_lower"
    with pytest.raises(AttributeError, match="PassConfigKey has no 'FAST'"):
        PassConfigKey.FAST


def test_arithmetic_of_the_host() -> None:
    import tilelang
    import torch

    assert [tilelang.next_power_of_2(n) for n in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]
    assert tilelang.math.next_power_of_2(5) == 8
    assert tilelang.cdiv(7, 2) == 4
    assert tilelang.cdiv(torch.tensor([7, 8]), 2).tolist() == [4, 4]


def test_jit_knows_tilelangs_options_only() -> None:
    import tilelang

    tilelang.jit(out_idx=-1, execution_backend="cython", verbose=True)(lambda: None)
    with pytest.raises(TypeError, match=r"tilelang\.jit has no option 'outidx'"):
        tilelang.jit(outidx=-1)


@pytest.fixture
def relu() -> Any:
    import tilelang
    import tilelang.language as T

    @tilelang.jit(target="interpret", pass_configs={tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True})
    def relu(X: Any, block: int = 16) -> Any:
        N = T.const("N")
        X: T.Tensor((N,), "float32")  # type: ignore[valid-type,no-redef]
        Y = T.empty((N,), "float32")
        with T.Kernel(T.ceildiv(N, block), threads=32) as bx:
            T.annotate_layout({Y: tilelang.layout.make_swizzled_layout(Y)})
            for i in T.Parallel(block):
                Y[bx * block + i] = T.max(X[bx * block + i], 0.0)
        return Y

    return relu


def test_a_kernel(relu: Any) -> None:
    import torch
    from tilelang.utils.tensor import torch_assert_close

    x = torch.randn(40)
    assert torch_assert_close(relu(x), x.relu())
    assert "tl.maximum" in relu.get_kernel_source(x)
    assert (relu.func.__name__, relu.mode, relu.target, relu.out_idx, relu.verbose) == (
        "relu", "eager", "interpret", None, None
    )  # fmt: skip
    assert "T.annotate_layout" in relu.func_source
    kernels = relu.par_compile([{"N": 32}, {"N": 64}])
    assert [kernel.params[0].shape for kernel in kernels] == [(32,), (64,)]


def test_comparison_says_what_differs() -> None:
    import torch
    from tilelang.utils.tensor import torch_assert_close

    with pytest.raises(TileError, match=r"W differs from the reference in 1 of 4 elements"):
        torch_assert_close(torch.zeros(4), torch.tensor([0.0, 0.0, 1.0, 0.0]), base_name="W")


def test_supplied_tensors() -> None:
    import torch
    from tilelang.utils.tensor import TensorSupplyType, get_tensor_supply

    param = torch.empty((3, 5), dtype=torch.int8)
    made = get_tensor_supply(TensorSupplyType.Integer)(param)
    assert (tuple(made.shape), made.dtype) == ((3, 5), torch.int8)


def test_marks_for_tests(capsys: pytest.CaptureFixture[str]) -> None:
    import tilelang.testing as testing

    def test() -> str:
        return "ran"

    assert testing.requires_cuda(test) is test
    assert testing.requires_cuda()(test) is test
    assert testing.requires_package("torch")(test) is test
    assert testing.requires_cuda_compute_version_ge(3, 0)(test) is test
    assert testing.requires_cuda_compute_version(99, mode="lt")(test) is test
    for skipped in (
        testing.requires_package("no_such_package")(test),
        testing.requires_cuda_compute_version_eq(1, 0)(test),
        testing.requires_metal(test),
    ):
        assert "skip" in [mark.name for mark in skipped.pytestmark]
    assert testing.process_func(lambda size: 2.0 * size, "double", size=3) == 6.0
    assert capsys.readouterr().out == "double: 6.0 ms\n"
