"""The interpreter computes what a GPU does, on the same source, and leaves real compilation alone."""

from __future__ import annotations

import threading
import types
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.runtime.interpreter import InterpretError
from tiledsl.runtime.interpreter_ops import _fma
from tiledsl.runtime.module import load_module

GEMM, SOFTMAX, MISC = (
    (Path(__file__).parent / "kernels" / f"{n}.triton").read_text() for n in ("gemm", "softmax", "misc")
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("modules")


@pytest.fixture(scope="module")
def misc(cache: Path) -> Any:
    return load_module("misc", MISC, True, cache)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_gemm_with_ragged_shapes(cache: Path, dtype: torch.dtype) -> None:
    module: Any = load_module("gemm", GEMM, True, cache)
    torch.manual_seed(0)
    a, b = torch.randn(70, 45).to(dtype), torch.randn(45, 50).to(dtype)
    c = torch.full((70, 50), float("nan"))
    assert module.run(a, b, c) == [0, 1]
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_softmax(cache: Path, dtype: torch.dtype) -> None:
    module: Any = load_module("softmax", SOFTMAX, True, cache)
    x = torch.randn(5, 100).to(dtype)
    y = torch.empty_like(x)
    module.softmax[(5,)](x, y, 100, BLOCK=128, num_warps=4)
    torch.testing.assert_close(y, torch.softmax(x.float(), 1).to(dtype))


def test_reductions(misc: Any) -> None:
    x = torch.randn(16, 32)
    total, largest, user = torch.zeros(16), torch.zeros(32), torch.zeros(16)
    where = torch.zeros(16, dtype=torch.int32)
    misc.reductions[(1,)](x, total, largest, where, user, 16, 32)
    torch.testing.assert_close(total, x.sum(1))
    torch.testing.assert_close(user, x.sum(1))
    assert torch.equal(largest, x.max(0).values)
    assert torch.equal(where.long(), x.argmax(1))


def test_scans(misc: Any) -> None:
    x, y = torch.rand(64) + 0.5, torch.randn(64)
    forward, backward, affine = torch.zeros(64), torch.zeros(64), torch.zeros(64)
    misc.scans[(1,)](x, y, forward, backward, affine, 64)
    torch.testing.assert_close(forward, x.cumsum(0))
    torch.testing.assert_close(backward, x.flip(0).cumsum(0).flip(0))
    wanted, state = [], 0.0
    for scale, shift in zip(x.double().tolist(), y.double().tolist()):
        state = state * scale + shift
        wanted.append(state)
    torch.testing.assert_close(affine.double(), torch.tensor(wanted).double(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
def test_atomic_add_with_repeated_addresses(misc: Any, dtype: torch.dtype) -> None:
    x = torch.randint(-3, 4, (32,)).to(dtype)
    index = torch.randint(0, 4, (32,), dtype=torch.int32)
    out = torch.zeros(4, dtype=dtype)
    misc.atomics[(2,)](x, index, out, 32)
    wanted = torch.zeros(4).index_add(0, index[:31].long(), x[:31].float()) * 2
    assert torch.equal(out.float(), wanted)


def test_bf16_is_rounded_to_nearest_even(misc: Any) -> None:
    x, y = torch.randn(1024).bfloat16(), torch.randn(1024).bfloat16()
    out = torch.zeros_like(x)
    misc.elementwise[(1,)](x, y, out, 1024)
    assert torch.equal(out, (x.float() + y.float()).bfloat16())


def test_bf16_arithmetic_without_upcasting(misc: Any) -> None:
    x, y = torch.randn(1024).bfloat16(), torch.randn(1024).bfloat16()
    out = torch.zeros_like(x)
    misc.native[(1,)](x, y, out, 1024)
    assert torch.equal(out, torch.where(x > 0, (x * y) - x, 1.5 - x))


SPECIAL = [0.0, -0.0, 1.0, 1.5, -2.5, 3e-5, 447.0, 448.0, -7.25, float("nan"), 1e-3, 0.3, 100.0, -0.01, 2.0**-9, 17.0]


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float16, torch.float64]
)
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
def test_conversions_match_torch(misc: Any, source: torch.dtype, dtype: torch.dtype) -> None:
    x = torch.tensor(SPECIAL).to(source)
    out = torch.zeros(16, dtype=dtype)
    misc.convert[(1,)](x, out, 16)
    torch.testing.assert_close(out.double(), x.to(dtype).double(), rtol=0, atol=0, equal_nan=True)
    back = torch.zeros(16)
    misc.convert[(1,)](out, back, 16)
    torch.testing.assert_close(back, out.float(), rtol=0, atol=0, equal_nan=True)


def test_conversions_saturate_as_the_hardware_does(misc: Any) -> None:
    x = torch.tensor([1e6, -1e6, float("inf"), float("-inf")])
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        out = torch.zeros(4, dtype=dtype)
        misc.convert[(1,)](x, out, 4)
        largest = torch.finfo(dtype).max
        assert out.float().tolist() == [largest, -largest, largest, -largest]
    x = torch.tensor([1e20, -1e20, float("nan"), -2.7])
    for dtype in (torch.int32, torch.int64):
        whole = torch.zeros(4, dtype=dtype)
        misc.convert[(1,)](x, whole, 4)
        info = torch.iinfo(dtype)
        assert whole.tolist() == [info.max, info.min, 0, -2]


def test_dot_precisions_and_integers(misc: Any) -> None:
    a, b, c = torch.randn(16, 16), torch.randn(16, 16), torch.zeros(16, 16)
    for precision in ("ieee", "tf32", "tf32x3"):
        misc.dot[(1,)](a, b, c, 16, precision)
        torch.testing.assert_close(c, a @ b)
    i, j = torch.randint(-128, 128, (2, 32, 32)).to(torch.int8)
    k = torch.zeros(32, 32, dtype=torch.int32)
    misc.int_dot[(1,)](i, j, k, 32)
    assert torch.equal(k, (i.int() @ j.int()))


def test_gather(misc: Any) -> None:
    x, index = torch.randn(8, 16), torch.randint(0, 16, (8, 16), dtype=torch.int32)
    out = torch.zeros(8, 16)
    misc.gather[(1,)](x, index, out, 8, 16)
    assert torch.equal(out, x.gather(1, index.long()))


def test_math_functions(misc: Any) -> None:
    x = torch.rand(64) * 3 + 0.01
    x[:3] = torch.tensor([0.5, 1.5, 2.5])
    out = torch.zeros(12, 64)
    misc.maths[(1,)](x, out, 64)
    wanted = [
        torch.tanh(x), torch.log1p(x), x**1.5, torch.erf(x), torch.tan(x), torch.floor(x + 0.5), torch.isnan(x).float(),
        torch.sigmoid(x), torch.rsqrt(x), torch.erf(x), torch.exp2(x), torch.fmod(x, 0.75),
    ]  # fmt: skip
    torch.testing.assert_close(out, torch.stack(wanted), rtol=1e-5, atol=1e-5)


def test_fused_multiply_add_rounds_once() -> None:
    rng = np.random.default_rng(0)
    x, y = ((rng.standard_normal(2000) * 2.0 ** rng.integers(-20, 20, 2000)).astype(np.float32) for _ in range(2))
    z = -(x * y)
    z[::2] = (rng.standard_normal(1000) * 2.0 ** rng.integers(-40, 40, 1000)).astype(np.float32)
    x[:500], y[:500], z[:500] = 1 + 2.0**-12, 2.0**-24 * rng.integers(1, 8, 500), rng.integers(1, 100, 500)  # ties

    def exact(x: Any, y: Any, z: Any) -> float:
        value = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        near = np.float32(float(value))
        around = [near, *(np.nextafter(near, np.float32(end)) for end in (-np.inf, np.inf))]
        return float(min(around, key=lambda each: (abs(Fraction(float(each)) - value), int(each.view(np.int32)) & 1)))

    assert _fma(x, y, z).tolist() == list(map(exact, x, y, z))
    assert np.isnan(_fma(*(np.float32([each]) for each in (np.inf, 0, 1))))


def test_unsigned_integers(misc: Any) -> None:
    made = torch.zeros(8, dtype=torch.uint8)
    misc.inverted[(1,)](torch.arange(8, dtype=torch.uint8), made)
    assert made.tolist() == [255 - number for number in range(8)]


def test_libdevice_refuses_what_the_gpu_refuses(misc: Any) -> None:
    with pytest.raises(InterpretError, match=r"libdevice.tanh has no form for fp16"):
        misc.maths[(1,)](torch.ones(4).half(), torch.ones(48).half(), 4)


def test_loops(misc: Any) -> None:
    out = torch.zeros(4, dtype=torch.int32)
    misc.loops[(1,)](out, 7, 4, 2.0)
    assert out.tolist() == [12 + sum(j * 3 // 2 for j in range(7)) + 3 + 6 + 2] * 4


def test_device_assert_only_with_debug(misc: Any) -> None:
    out = torch.zeros(4, dtype=torch.int32)
    misc.loops[(1,)](out, 101, 4, 0.0)
    with pytest.raises(InterpretError, match="n is small"):
        misc.loops[(1,)](out, 101, 4, 0.0, debug=True)


def test_sort_and_softmax_of_the_standard_library(misc: Any) -> None:
    x = torch.randn(32)
    out, softened = torch.zeros(32), torch.zeros(32)
    misc.sorting[(1,)](x, out, softened, 32)
    assert torch.equal(out, x.sort().values)
    torch.testing.assert_close(softened, torch.softmax(x, 0))


def test_offsets_beyond_32_bits(misc: Any) -> None:
    x, out = torch.arange(4.0), torch.zeros(3)
    misc.far[(3,)](x, out, 2**33)
    assert out.tolist() == [3.0, 5.0, 7.0]


def test_tensor_descriptors(misc: Any) -> None:
    x, out = torch.randn(20, 40), torch.zeros(20, 40)
    misc.described[(2, 3)](x, out, 20, 40, 16, 16)
    assert torch.equal(out, x * 2)
    descriptor = misc.triton.tools.tensor_descriptor.TensorDescriptor.from_tensor(x, [16, 16])
    tile = torch.zeros(16, 16)
    misc.host_described[(1,)](descriptor, tile, 16, 16)
    assert torch.equal(tile, x[:16, :16])


def test_access_outside_the_tensors_is_an_error(misc: Any) -> None:
    with pytest.raises(InterpretError) as caught:
        misc.outside[(1,)](torch.zeros(8), 8)
    text = str(caught.value)
    assert "load of 7 element(s) outside every tensor argument; the first is 0 bytes past the end" in text
    assert "program (0, 0, 0)" in text and "tl.load(x + r + 7)" in text


def test_no_warnings_for_inf_and_nan(misc: Any, recwarn: pytest.WarningsRecorder) -> None:
    x = torch.tensor([float("inf"), -1.0, 0.0, float("nan")])
    misc.maths[(1,)](x, torch.zeros(12, 4), 4)
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


def test_the_real_triton_is_not_touched(misc: Any, cache: Path) -> None:
    import triton
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    before = dict(vars(tl)), dict(vars(tl.tensor))
    seen: list[bool] = []

    def watch() -> None:
        while not stop.is_set():
            seen.append(all(vars(tl)[name] is value for name, value in before[0].items()))
            seen.append(all(vars(tl.tensor)[name] is value for name, value in before[1].items()))
            seen.append(isinstance(triton.jit(_plain), JITFunction))

    stop = threading.Event()
    thread = threading.Thread(target=watch)
    thread.start()
    out = torch.zeros(4, dtype=torch.int32)
    for _ in range(5):
        misc.loops[(1,)](out, 7, 4, 2.0)
    stop.set()
    thread.join()
    assert seen and all(seen)
    compiled: Any = load_module("misc", MISC, False, cache)
    assert isinstance(compiled.gather, JITFunction) and isinstance(compiled, types.ModuleType)
    assert compiled is not misc


def _plain(x: Any) -> None:
    """Decorated by the test; never run."""


def test_threads_may_interpret_at_once(misc: Any) -> None:
    outs = [torch.zeros(4, dtype=torch.int32) for _ in range(4)]
    threads = [threading.Thread(target=lambda o=o, n=n: misc.loops[(1,)](o, n, 4, 0.0)) for n, o in enumerate(outs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, out in enumerate(outs):
        evens = sum(i for i in range(n) if i % 2 == 0)
        assert out.tolist() == [evens + sum(j * 3 // 2 for j in range(n)) + 9] * 4


def test_a_sum_of_negative_zeros_is_one() -> None:
    """As on a GPU: to start from 0.0 takes the sign away."""

    @T.prim_func
    def total(X: T.Tensor((8,), "float32"), Y: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=32):
            x, y = T.alloc_fragment((8,), "float32"), T.alloc_fragment((1,), "float32")
            T.copy(X, x)
            T.reduce_sum(x, y, dim=0)
            T.copy(y, Y)

    y = torch.zeros(1)
    tiledsl.compile(total, target="interpret")(torch.full((8,), -0.0), y)
    assert y.signbit().item()
