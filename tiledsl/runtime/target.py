"""Where a kernel is compiled for, or interpreted, and what that hardware allows."""

from __future__ import annotations

import functools
import importlib.util
import logging
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiledsl.errors import TileError
from tiledsl.ir.types import ELEMENTS
from tiledsl.legality import verdict

_log = logging.getLogger("tiledsl")

FORMS = '"auto", "cuda", "cuda:90", "cuda:sm_90a", "hip:gfx942", "interpret", or {"kind": "cuda", "arch": "sm_90a"}'

# CUDA C++ Programming Guide, tables "Technical Specifications per Compute Capability" and "Shared Memory Capacity":
# capability -> (KiB of shared memory a block may opt in to; KiB, warps and blocks of a multiprocessor)
_CUDA_LIMITS: dict[int, tuple[int, int, int, int]] = {
    70: (96, 96, 64, 32),
    72: (96, 96, 64, 32),
    75: (64, 64, 32, 16),
    80: (163, 164, 64, 32),
    86: (99, 100, 48, 16),
    87: (163, 164, 48, 16),
    89: (99, 100, 48, 24),
    90: (227, 228, 64, 32),
    100: (227, 228, 64, 32),
    101: (227, 228, 48, 24),  # as CUDA 12 calls 11.0
    103: (227, 228, 64, 32),
    110: (227, 228, 48, 24),
    120: (99, 100, 48, 24),
    121: (99, 100, 48, 24),
}
# Largest part of each generation, from NVIDIA's and AMD's data sheets: V100, T4, A100, A10, H100/H200 SXM, B200, ...
_CUDA_SM_COUNT = {70: 80, 75: 40, 80: 108, 86: 84, 87: 16, 89: 142, 90: 132, 100: 148, 103: 148, 120: 188}
_HIP_CU_COUNT = {"gfx90a": 110, "gfx942": 304, "gfx950": 256}
# CDNA3 and CDNA4 instruction set guides: local data share per compute unit.
_HIP_LDS_KIB = {"gfx90a": 64, "gfx942": 64, "gfx950": 160}


@dataclass(frozen=True)
class Target:
    """What source is compiled for: a GPU architecture, or Triton's interpreter on the CPU.

    `kind` is "cuda", "hip" or "interpret". `arch` is the compute capability as an int (90 for sm_90 and sm_90a) for
    cuda, the name ("gfx942") for hip, and None for interpret.
    """

    kind: str
    arch: int | str | None = None

    @staticmethod
    def parse(spec: str | Mapping[str, Any] | Target) -> Target:
        """The target that `spec` names; TileError with the accepted forms where it names none.

        "cuda" without an architecture is the current GPU's, or 90 where there is no GPU. "auto" is the current GPU, or
        interpret where there is none, which is said once on the "tiledsl" logger.
        """
        if isinstance(spec, Target):
            return spec
        if isinstance(spec, Mapping):
            kind, arch = str(spec.get("kind", "")), spec.get("arch")
        else:
            text = str(spec).strip().lower()
            words = text.split()  # TVM's long form: "cuda -arch=sm_90a"
            kind, colon, name = (words[0] if words else "").partition(":")
            if colon and (not name or kind in ("auto", "interpret")):
                raise TileError(f"unknown target {spec!r}", notes=[f"a target is {FORMS}"])
            arch = name or next((w[6:] for w in words[1:] if w.startswith("-arch=")), None)
        match kind:
            case "auto":
                return _auto_target()
            case "interpret":
                return Target("interpret")
            case "cuda":
                return Target("cuda", _cuda_arch(arch, spec))
            case "hip" | "rocm":
                return Target("hip", _hip_arch(arch, spec))
        raise TileError(f"unknown target {spec!r}", notes=[f"a target is {FORMS}"])

    def __str__(self) -> str:
        return self.kind if self.arch is None else f"{self.kind}:{self.arch}"

    @property
    def runs_here(self) -> bool:
        """Whether a kernel for this target can run on this machine now."""
        if self.kind == "interpret":
            return True
        live = _live_gpu()
        return live is not None and live[0] == self.kind and live[1] == self.arch

    @property
    def warp_size(self) -> int:
        """Threads that execute together: 32 on NVIDIA; 64 on AMD's CDNA (gfx9), 32 on RDNA (HIP programming guide)."""
        return 64 if self.kind == "hip" and str(self.arch).startswith("gfx9") else 32

    @property
    def max_shared_bytes(self) -> int:
        """Shared memory one block may use, by opt-in, in bytes. CUDA guide, "Shared Memory Capacity"; AMD: LDS size."""
        match self.kind:
            case "cuda":
                return _cuda_limits(self.arch)[0] * 1024
            case "hip":
                return _HIP_LDS_KIB.get(str(self.arch), 64) * 1024
        return 1 << 30

    @property
    def shared_bytes_per_sm(self) -> int:
        """Shared memory of one multiprocessor (compute unit), in bytes. Same tables as `max_shared_bytes`."""
        match self.kind:
            case "cuda":
                return _cuda_limits(self.arch)[1] * 1024
            case "hip":
                return self.max_shared_bytes
        return 1 << 30

    @property
    def registers_per_sm(self) -> int:
        """32-bit registers of a multiprocessor: 65536 on NVIDIA since sm_50 (CUDA guide); on AMD's CDNA 2 to 4
        512 vector registers x 64 lanes x 4 SIMDs (instruction set guides)."""
        return 131072 if self.kind == "hip" else 65536

    @property
    def multiprocessors(self) -> int | None:
        """Of the GPU that datacentres have with this architecture: A100, H100 and H200 (SXM), B200 (their data sheets);
        None for others."""
        return {"cuda:80": 108, "cuda:90": 132, "cuda:100": 148}.get(str(self))

    @property
    def max_warps_per_sm(self) -> int:
        """Warps a multiprocessor holds. CUDA guide, technical specifications; CDNA: 8 waves on each of 4 SIMDs."""
        match self.kind:
            case "cuda":
                return _cuda_limits(self.arch)[2]
            case "hip":
                return 32
        return 64

    @property
    def max_blocks_per_sm(self) -> int:
        """Blocks a multiprocessor holds. CUDA guide, technical specifications; AMD: bounded by its waves."""
        return _cuda_limits(self.arch)[3] if self.kind == "cuda" else 32

    @property
    def max_threads_per_block(self) -> int:
        """1024 on every part (CUDA guide; HIP hardware limits)."""
        return 1024

    @property
    def has_clusters(self) -> bool:
        """Whether blocks can form clusters (num_ctas): from sm_90 on (CUDA guide, "Thread Block Clusters")."""
        return self.kind == "cuda" and isinstance(self.arch, int) and self.arch >= 90

    @property
    def has_dependent_launches(self) -> bool:
        """Whether a kernel can begin while the one before ends (launch_pdl): from sm_90 on."""
        return self.has_clusters

    @property
    def sm_count(self) -> int:
        """Multiprocessors: the live GPU's if it is of this architecture, else those of the generation's usual part.

        torch is not loaded only to ask: what runs on the live GPU has loaded it.
        """
        live = _live_gpu() if "torch" in sys.modules else None
        if live is not None and live[:2] == (self.kind, self.arch):
            return live[2]
        if self.kind == "hip":
            return _HIP_CU_COUNT.get(str(self.arch), 304)
        return _CUDA_SM_COUNT.get(self.arch, 132) if isinstance(self.arch, int) else 132

    @property
    def dtypes(self) -> frozenset[str]:
        """Names of the supported element types, by tiledsl.legality; interpret: all."""
        return _dtypes(self.kind, self.arch)

    def supports(self, dtype: str) -> bool:
        """Whether the target has element type `dtype` ("float16", "float8_e4m3fn", ...)."""
        return dtype in self.dtypes

    def triton_target(self) -> Any:
        """Triton's GPUTarget. An assertion fails for interpret, which compiles nothing."""
        from triton.backends.compiler import GPUTarget

        assert self.kind in ("cuda", "hip"), f"{self} is not compiled"
        return GPUTarget(self.kind, self.arch, self.warp_size)


@functools.lru_cache  # asked for every value of a program
def _dtypes(kind: str, arch: int | str | None) -> frozenset[str]:
    return frozenset(dtype for dtype in ELEMENTS if not verdict("value", (dtype,), kind, arch or 90).is_refused)


@functools.lru_cache
def _cuda_limits(arch: int | str | None) -> tuple[int, int, int, int]:
    capability = arch if isinstance(arch, int) else 90
    known = [number for number in _CUDA_LIMITS if number <= capability]
    return _CUDA_LIMITS[max(known, default=70)]


def _cuda_arch(arch: object, spec: object) -> int:
    if arch is None:
        live = _live_gpu()
        return live[1] if live is not None and live[0] == "cuda" and isinstance(live[1], int) else 90
    match = re.fullmatch(r"(?:sm_?|compute_)?(\d{2,3})[af]?", str(arch).strip().lower())
    if match is None:
        raise TileError(f"unknown CUDA architecture {str(arch)!r} in target {spec!r}", notes=[f"a target is {FORMS}"])
    number = int(match[1])
    if number < 70:
        raise TileError(f"target {spec!r}: Triton needs compute capability 7.0 or newer, not {number / 10}")
    if number not in _CUDA_LIMITS and (_live_gpu() or ("", 0))[:2] != ("cuda", number):
        known = ", ".join(f"cuda:{each}" for each in _CUDA_LIMITS)
        raise TileError(
            f"target {spec!r}: no GPU of compute capability {number / 10} is known", notes=[f"there are {known}"]
        )
    return number


def _hip_arch(arch: object, spec: object) -> str:
    if arch is None:
        live = _live_gpu()
        return str(live[1]) if live is not None and live[0] == "hip" else "gfx942"
    name = str(arch).strip().lower().split(":")[0]
    if re.fullmatch(r"gfx[0-9a-f]{3,4}", name) is None:
        raise TileError(f"unknown AMD architecture {str(arch)!r} in target {spec!r}", notes=[f"a target is {FORMS}"])
    return name


@functools.cache
def _auto_target() -> Target:
    live = _live_gpu()
    if live is not None:
        return Target(live[0], live[1])
    _log.warning("no GPU found: kernels run in Triton's interpreter on the CPU (slow; timings mean nothing)")
    return Target("interpret")


@functools.cache
def _live_gpu() -> tuple[str, int | str, int] | None:
    """Kind, architecture and multiprocessor count of the current GPU; None without one. Asked once a process."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    if torch.version.hip:
        return "hip", str(properties.gcnArchName).split(":")[0], int(properties.multi_processor_count)
    return "cuda", properties.major * 10 + properties.minor, int(properties.multi_processor_count)
