"""Load a program of examples/ as a module. The folder is not a package: its programs are also plain scripts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

BASIC = (
    "cast_fp8_per_token",
    "elementwise",
    "fused_moe",
    "gemm_dynamic",
    "gemm_epilogue",
    "gemm_fp4",
    "gemm_fp8",
    "gemm_fp8_blockscale",
    "gemm_int8_preshuffled",
    "gemm_lazy",
    "gemm_split_k",
    "grouped_gemm",
    "histogram",
    "kda_gate",
    "layer_norm",
    "online_softmax",
    "radix_sort",
    "retention",
    "rms_norm",
    "rms_norm_threads",
    "route_top_1",
    "softmax",
    "top_k",
    "weight_dequant",
)


def load_example(name: str) -> ModuleType:
    """A fresh module of examples/<name>.py, which finds its neighbours as it does as a script."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.modules.pop("_check_and_time", None)  # it looks for a GPU when it is imported
    sys.path.insert(0, str(EXAMPLES))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(EXAMPLES))
    return module
