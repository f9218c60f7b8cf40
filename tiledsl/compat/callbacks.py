"""`tilelang.engine.callback`: hooks into generated CUDA C, of which there is none here."""

from __future__ import annotations

from typing import Any

__all__ = [
    "register_c_postproc", "register_c_postproc_callback", "register_cuda_postproc", "register_cuda_postproc_callback",
    "register_hip_postproc", "register_hip_postproc_callback",
]  # fmt: skip


def register_cuda_postproc_callback(func: Any = None, override: bool = False) -> Any:
    """Accepted and never called: programs become Triton source, not CUDA C."""
    return func if callable(func) else lambda inner: inner


register_hip_postproc_callback = register_c_postproc_callback = register_cuda_postproc_callback
register_cuda_postproc = register_hip_postproc = register_c_postproc = register_cuda_postproc_callback
