"""The float8 formats of AMD's CDNA3, which have no infinity, no -0 and one NaN, against torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.certificate.formats import decoded, encoded
from tiledsl.dialects.arith import rounded
from tiledsl.errors import TileError

FNUZ = ["float8_e4m3fnuz", "float8_e5m2fnuz"]


def _product(dtype: str) -> Any:
    @T.prim_func
    def main(
        A: T.Tensor((16, 32), dtype), B: T.Tensor((32, 16), dtype), C: T.Tensor((16, 16), "float32"),
        D: T.Tensor((16, 32), dtype),
    ):  # fmt: skip
        with T.Kernel(1):
            a, b = T.alloc_shared((16, 32), dtype), T.alloc_shared((32, 16), dtype)
            c = T.alloc_fragment((16, 16), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.clear(c)
            T.gemm(a, b, c)
            T.copy(c, C)
            for i, j in T.Parallel(16, 32):
                D[i, j] = T.max(a[i, j] * 2.0, -0.5)

    return main


@pytest.mark.parametrize("dtype", FNUZ)
def test_products_and_arithmetic(run: Any, dtype: str) -> None:
    torch_dtype = getattr(torch, dtype)
    torch.manual_seed(1)
    a, b = torch.randn(16, 32).to(torch_dtype), torch.randn(32, 16).to(torch_dtype)
    product, doubled = run(_product(dtype), a, b, out_idx=(2, 3))
    assert torch.equal(product, a.float() @ b.float())
    expected = (a.float() * 2).clamp(min=-0.5).to(torch_dtype)
    assert torch.equal(doubled.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("dtype", FNUZ)
def test_numbers_and_bits(dtype: str) -> None:
    torch_dtype = getattr(torch, dtype)
    bits = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    numbers = bits.view(torch_dtype).double().numpy()
    np.testing.assert_array_equal(decoded(bits.numpy(), dtype), numbers)
    np.testing.assert_array_equal(encoded(numbers, dtype), bits.numpy())
    few = np.random.default_rng(0).standard_normal(2000) * 2.0 ** np.random.default_rng(1).integers(-20, 5, 2000)
    few = np.r_[few.astype(np.float32).astype(np.float64), 0.0, -0.0, 1e9]
    expected = torch.from_numpy(few).float().to(torch_dtype)
    np.testing.assert_array_equal(encoded(few, dtype), expected.view(torch.uint8).numpy())
    held = [rounded(float(each), dtype) for each in few]
    np.testing.assert_array_equal(np.array(held), expected.double().numpy())
    assert not any(np.signbit(each) for each in held if each == 0)


@pytest.mark.parametrize(
    ("dtype", "name", "instruction"),
    [("float8_e4m3fnuz", "tl.float8e4b8", "fp8_fp8"), ("float8_e5m2fnuz", "tl.float8e5b16", "bf8_bf8")],
)
def test_gfx942_multiplies_them(dtype: str, name: str, instruction: str) -> None:
    kernel = tiledsl.compile(_product(dtype), target="hip:gfx942")
    assert f"x = tl.maximum(a.to(tl.float32) * 2.0, -0.5).to({name})\n" in kernel.source
    assert "c = tl.dot(a, b)\n" in kernel.source
    assert f"v_mfma_f32_16x16x32_{instruction}" in kernel.asm["amdgcn"]


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("cuda:90", "float8_e4m3fnuz, which cuda:90 does not have"),
        ("hip:gfx950", "float8_e4m3fnuz, which hip:gfx950 does not have"),
        ("hip:gfx90a", "float8_e4m3fnuz, which hip:gfx90a does not have"),
    ],
)
def test_others_do_not(target: str, wanted: str) -> None:
    with pytest.raises(TileError) as raised:
        tiledsl.compile(_product("float8_e4m3fnuz"), target=target)
    assert wanted in str(raised.value) and "test_fnuz.py:" in str(raised.value)
