"""Load a program of examples/ as a module. The folder is not a package: its programs are also plain scripts."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from tests.support.load_file import load_file

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

BASIC = (
    "cast_fp8_per_token",
    "cross_entropy",
    "elementwise",
    "fused_moe",
    "gated_delta_net",
    "gated_linear_attention",
    "gemm_dynamic",
    "gemm_epilogue",
    "gemm_fp4",
    "gemm_fp8",
    "gemm_fp8_blockscale",
    "gemm_int4",
    "gemm_int8_preshuffled",
    "gemm_lazy",
    "gemm_split_k",
    "gemm_w4a8",
    "grouped_gemm",
    "histogram",
    "kda_gate",
    "kimi_delta_attention",
    "layer_norm",
    "linear_attention",
    "linear_cross_entropy",
    "online_softmax",
    "radix_sort",
    "retention",
    "rms_norm",
    "rms_norm_threads",
    "rope",
    "route_top_1",
    "softmax",
    "swiglu",
    "top_k",
    "weight_dequant",
)


def load_example(name: str) -> ModuleType:
    """A fresh module of examples/<name>.py, which finds its neighbours as it does as a script."""
    sys.modules.pop("_check_and_time", None)  # it looks for a GPU when it is imported
    sys.path.insert(0, str(EXAMPLES))
    try:
        return load_file(EXAMPLES / f"{name}.py", f"example_{name}")
    finally:
        sys.path.remove(str(EXAMPLES))
