"""Kernels launched from every level on a GPU: the source's results, an edited file's results, and nothing mixed up."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
from tests.autotune.programs import doubled
from tests.levels.conftest import SCALE, program
from tests.support.example_modules import load_example
from tiledsl.autotuner import tune_function
from tiledsl.errors import TileError
from tiledsl.runtime.module import load_module

pytestmark = pytest.mark.gpu
CUDA = ("ttir", "ttgir", "llir", "ptx", "cubin")
NAME = "scaled_kernel"


@pytest.fixture(scope="module")
def kernel() -> tiledsl.Kernel:
    return tiledsl.compile(program(), target="cuda", out_idx=-1)


@pytest.fixture(scope="module")
def saved(kernel: tiledsl.Kernel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("levels")
    kernel.save_levels(folder)
    return folder


def inputs(rows: int = 70) -> torch.Tensor:
    return torch.randn(rows, 64, device="cuda")


@pytest.mark.parametrize("level", CUDA)
def test_each_level_computes_the_same(kernel: tiledsl.Kernel, saved: Path, level: str) -> None:
    from_level = kernel.from_level(level, saved)
    for rows in (70, 1, 128, 70):
        x = inputs(rows)
        expected = kernel(x, 3.0)
        assert torch.equal(from_level(x, 3.0), expected) and torch.equal(expected, x * 3)
        assert torch.equal(from_level.bind(x, 3.0)(), expected)
        y = torch.empty_like(x)
        assert from_level(x, 3.0, y) is y and torch.equal(y, expected)


@pytest.mark.parametrize("level", ["ttgir", "ptx"])
def test_an_edited_level_computes_as_edited(kernel: tiledsl.Kernel, saved: Path, level: str, tmp_path: Path) -> None:
    old, new = ("arith.mulf", "arith.addf") if level == "ttgir" else ("mul.f32", "add.f32")
    text = (saved / f"{NAME}.{level}").read_text()
    assert old in text
    edited = kernel.from_level(level, text.replace(old, new))
    x = inputs()
    for _ in range(3):  # cold, then by guards
        torch.testing.assert_close(edited(x, 3.0), x + 3)
        torch.testing.assert_close(kernel(x, 3.0), x * 3)
        torch.testing.assert_close(kernel.from_level(level, saved)(x, 3.0), x * 3)
    assert "(edited)" in edited.remarks[0]
    again = tiledsl.compile(program(), target="cuda", out_idx=-1)  # Triton's caches know the unedited one only
    torch.testing.assert_close(again(x, 3.0), x * 3)


def test_graphs_and_torch_compile(kernel: tiledsl.Kernel, saved: Path) -> None:
    text = (saved / f"{NAME}.ptx").read_text()
    edited = kernel.from_level("ptx", text.replace("mul.f32", "add.f32"))
    x, out = inputs(), torch.empty(70, 64, device="cuda")
    edited(x, 3.0, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        edited(x, 3.0, out)
    out.zero_(), x.fill_(5.0)
    graph.replay()
    torch.testing.assert_close(out, torch.full_like(out, 8.0))
    function = torch.compile(lambda x: edited(x, 3.0) - kernel(x, 3.0), fullgraph=True)
    torch.testing.assert_close(function(x), torch.full_like(x, -7.0))


def test_a_misaligned_call_is_refused(kernel: tiledsl.Kernel, saved: Path) -> None:
    from_level = kernel.from_level("cubin", saved)
    odd = torch.randn(70 * 64 + 1, device="cuda")[1:].view(70, 64)
    torch.testing.assert_close(kernel(odd, 3.0), odd * 3)
    for _ in range(2):
        with pytest.raises(TileError, match="X being an address that is a multiple of 16 bytes"):
            from_level(odd, 3.0)
    torch.testing.assert_close(from_level(inputs(70), 0.0), torch.zeros(70, 64, device="cuda"))


@pytest.mark.parametrize("options", [{}, {"split-k.splits": 4}, {"select-emitter.backend": "gluon"}])
def test_products(hopper: None, tmp_path: Path, options: dict[str, Any]) -> None:
    """Descriptors, persistent grids, two kernels with a workspace, and Gluon."""
    matmul = load_example("gemm_lazy").matmul_relu
    sizes = {"M": 1024, "N": 1024, "K": 1024, "block_M": 128, "block_N": 256, "block_K": 64, "threads": 256}
    built = getattr(matmul, "jit", matmul).build(sizes)
    kernel = tiledsl.compile(built, target="cuda", out_idx=-1, pass_configs=options)
    kernel.save_levels(tmp_path)
    a, b = (torch.randn(1024, 1024, device="cuda", dtype=torch.float16) for _ in range(2))
    expected = kernel(a, b)
    for level in CUDA:
        if (tmp_path / f"{kernel.module.kernels[0].name}.{level}").exists():
            made = kernel.from_level(level, tmp_path)
            for _ in range(3):
                assert torch.equal(made(a, b), expected), level


def test_triton_kernels(tmp_path: Path) -> None:
    scale: Any = load_module("scale", SCALE, interpret=False).scale
    x, n = torch.randn(1001, device="cuda"), 1001
    y = torch.empty_like(x)
    grid = lambda meta: (-(-meta["n"] // meta["B"]),)
    tiledsl.triton_kernel(scale).save_levels(tmp_path, x, y, n, 2.0, B=128, num_warps=2)
    for level in CUDA:
        for made in (tiledsl.triton_kernel(scale).from_level(level, tmp_path), tiledsl.triton_kernel(tmp_path, level)):
            for given in ({"B": 128}, {}):
                y.zero_()
                made[grid](x, y, n, 2.0, **given)
                torch.testing.assert_close(y, x * 2)
    text = (tmp_path / "scale.ptx").read_text()
    assert "mul.f32" in text
    (tmp_path / "scale.ptx").write_text(text.replace("mul.f32", "add.f32"))
    edited = tiledsl.triton_kernel(scale).from_level("ptx", tmp_path)
    edited[grid](x, y, n, 2.0)
    torch.testing.assert_close(y, x + 2)
    scale[(8,)](x, y, n, 2.0, B=128, num_warps=2)
    torch.testing.assert_close(y, x * 2)


def test_a_bundle_of_triton_runner(tmp_path: Path) -> None:
    scale: Any = load_module("scale", SCALE, interpret=False).scale
    x, y = torch.randn(1001, device="cuda"), torch.empty(1001, device="cuda")
    tiledsl.triton_kernel(scale).save_levels(tmp_path, x, y, 1001, 2.0, B=128)
    values = json.loads((tmp_path / "scale.json").read_text())
    for name in ("schema", "language", "options", "arguments", "parameter_bytes", "source_sha256", "files"):
        del values[name]
    values["kernel_signature"] = (
        "(('x', '*fp32', 'D', False), ('y', '*fp32', 'D', False), ('n', 'i32', '', False), "
        "('factor', 'fp32', None, False), ('B', 'constexpr', 128, True), ('RELU', 'constexpr', False, False))"
    )
    (tmp_path / "scale.json").write_text(json.dumps(values))
    made = tiledsl.triton_kernel(tmp_path)
    made[(8,)](x, y, 1001, 2.0)
    torch.testing.assert_close(y, x * 2)
    with pytest.raises(TileError, match="compiled for B=128, and the call has 64"):
        made[(16,)](x, y, 1001, 2.0, B=64)


def test_tuning_over_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured and verified as others are: an edited file that computes something else does not win."""
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path / "cache"))
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    kernel = tiledsl.compile(doubled(4096), target="cuda", out_idx=-1)
    kernel.save_levels(right), kernel.save_levels(wrong)
    path = wrong / "doubled_kernel.ptx"
    text = path.read_text()
    old = "add.f32" if "add.f32" in text else "mul.f32"
    path.write_text(text.replace(old, "max.f32"))
    space = tiledsl.space(tile=[16, 32]) | tiledsl.space(
        tile=16, from_level=[("ttgir", right), ("cubin", right), ("ptx", wrong), ("cubin", tmp_path)]
    )
    tuned = lambda: tiledsl.autotune(configs=space, ref_prog=lambda x: x * 2)(tiledsl.jit(out_idx=-1)(doubled))(4096)
    result = tuned()
    assert [each.status for each in result.trials] == ["ok", "ok", "ok", "ok", "mismatch", "pruned"]
    assert result.trials[3].verified and result.trials[3].latency is not None
    x = torch.randn(4096, 64, device="cuda")
    again = tuned()
    assert again.from_cache == "disk" and torch.equal(again(x), x * 2) and torch.equal(result(x), x * 2)
    only = tiledsl.autotune(configs=[{"from_level": ("cubin", right)}], ref_prog=lambda x: x * 2)(
        tiledsl.jit(out_idx=-1)(doubled)
    )
    assert torch.equal(only(4096)(x), x * 2) and torch.equal(only(4096)(x), x * 2)


def check_tuning_over(kernels: Any, x: torch.Tensor) -> None:
    """A function that doubles x with one of two saved kernels is tuned, and both work."""

    @tune_function([{"saved": name} for name in kernels], ref_prog=lambda x: x * 2, cache=False)
    def doubling(x, saved):
        y = torch.empty_like(x)
        kernels[saved][lambda meta: (-(-x.numel() // meta["B"]),)](x, y, x.numel(), 2.0)
        return y

    torch.testing.assert_close(doubling(x), x * 2)
    trials = doubling.tune(x).trials
    assert [(trial.ok, trial.message) for trial in trials] == [(True, "")] * 2


def test_tuning_over_binaries_of_a_triton_kernel(tmp_path: Path) -> None:
    scale: Any = load_module("scale", SCALE, interpret=False).scale
    x = torch.randn(1 << 20, device="cuda")
    for tile in (128, 512):
        tiledsl.triton_kernel(scale).save_levels(tmp_path / str(tile), x, x, 1 << 20, 2.0, B=tile)
    (tmp_path / "nothing").mkdir()
    kernels = tiledsl.triton_kernels(tmp_path)
    assert list(kernels) == ["128", "512"] and list(kernels.left_out) == ["nothing"]

    check_tuning_over(kernels, x)


@pytest.mark.parametrize("level", ["ttir", "ttgir"])
def test_values_of_the_ir(tmp_path: Path, level: str) -> None:
    """The sum of a product, after its loop, and rows of what is computed of it, of one block and of all."""
    from tests.levels.test_dump import PRODUCT

    product: Any = load_module("product", PRODUCT, interpret=False).product
    a, b = (torch.randn(128, 128, device="cuda", dtype=torch.float16) for _ in range(2))
    b, c = b[:, :32].contiguous(), torch.empty(128, 32, device="cuda")
    tiledsl.triton_kernel(product).save_levels(tmp_path, a, b, c, 128, B=32, num_warps=4)
    kernel = tiledsl.triton_kernel(tmp_path, level)
    text = kernel.artifact.file.content  # type: ignore[union-attr]
    (total,) = re.findall(r"(%\w+)(?::\d+)? = scf\.for", str(text))
    (top,) = re.findall(r'(%\w+) = "tt.reduce"', str(text))
    expected = (a.float() @ b.float()).view(4, 32, 32)
    for value, wanted in ((f"{total}#0" if f"{total}:" in str(text) else total, expected), (top, expected.amax(2))):
        one, every = torch.zeros_like(wanted[0]), torch.zeros_like(wanted)
        kernel.dump(value, block=(2,))[(4,)](a, b, c, 128, dump=one)
        kernel.dump(value, block=None)[(4,)](a, b, c, 128, dump=every)
        torch.testing.assert_close(one, wanted[2], rtol=1e-3, atol=1e-2)
        assert torch.equal(every[2], one)
        torch.testing.assert_close(every, wanted, rtol=1e-3, atol=1e-2)


def test_a_folder_of_cubins_of_an_older_triton(tmp_path: Path) -> None:
    """As Triton Runner keeps them: a folder for each configuration, whose JSON file has a kernel_signature."""
    scale: Any = load_module("scale", SCALE, interpret=False).scale
    x = torch.randn(1 << 16, device="cuda")
    for tile in (128, 512):
        folder = tmp_path / f"TILE{tile}"
        tiledsl.triton_kernel(scale).save_levels(folder, x, x, x.numel(), 2.0, B=tile)
        values = json.loads((folder / "scale.json").read_text())
        for name in ("schema", "language", "options", "arguments", "parameter_bytes", "source_sha256", "files"):
            del values[name]
        values["triton_version"] = "3.5.0"
        values["kernel_signature"] = (
            "(('x', '*fp32', 'D', False), ('y', '*fp32', 'D', False), ('n', 'i32', 'D', False), "
            f"('factor', 'fp32', None, False), ('B', 'constexpr', {tile}, True), ('RELU', 'constexpr', False, False))"
        )
        (folder / "scale.json").write_text(json.dumps(values))
        for level in ("ttir", "ttgir", "llir", "ptx"):
            (folder / f"scale.{level}").unlink()
    with pytest.raises(TileError, match="has no folder with a kernel to run"):
        tiledsl.triton_kernels(tmp_path)
    kernels = tiledsl.triton_kernels(tmp_path, allow=["triton_version"])
    assert list(kernels) == ["TILE128", "TILE512"]

    check_tuning_over(kernels, x)
