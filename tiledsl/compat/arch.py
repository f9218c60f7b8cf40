"""`tilelang.carver.arch` and friends: facts about the GPU at hand, or about an H100 where there is none."""

from __future__ import annotations

from typing import Any

from tiledsl.runtime.target import Target

__all__ = [
    "CDNA", "CUDA", "Target", "auto_infer_current_arch", "check_cuda_availability", "check_hip_availability",
    "determine_target", "driver", "get_current_device", "get_max_dynamic_shared_size_bytes", "get_num_sms",
    "get_target_arch", "get_target_compute_version", "is_ampere_arch", "is_blackwell_arch", "is_cdna_arch",
    "is_cuda_arch", "is_hopper_arch", "parse_compute_version", "target_is_cuda", "target_is_hip",
]  # fmt: skip


def _target() -> Target:
    """The GPU at hand. Where programs are interpreted, sizes are those of an H100 (sm_90)."""
    target = Target.parse("auto")
    return Target.parse("cuda:90") if target.kind == "interpret" else target


class Arch:
    """What scripts ask of an architecture object."""

    def __init__(self, target: Any = None) -> None:
        self.target = _target() if target is None else Target.parse(target)
        self.compute_max_core = self.target.sm_count
        self.smem_cap = self.target.max_shared_bytes
        self.reg_cap = self.target.registers_per_sm
        self.warp_size = self.target.warp_size
        self.sm_version = self.target.arch if isinstance(self.target.arch, int) else 0


class CUDA(Arch):
    """An NVIDIA GPU."""


class CDNA(Arch):
    """An AMD GPU."""


def get_current_device() -> Any:
    """The torch device of new tensors: the current GPU, or the CPU where there is none."""
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def auto_infer_current_arch() -> Arch:
    """The architecture at hand."""
    return CUDA() if _target().kind == "cuda" else CDNA()


get_arch = auto_infer_current_arch


def is_cuda_arch(arch: Any) -> bool:
    return isinstance(arch, CUDA)


def is_cdna_arch(arch: Any) -> bool:
    return isinstance(arch, CDNA)


def is_ampere_arch(arch: Any) -> bool:
    return is_cuda_arch(arch) and 80 <= arch.sm_version < 89


def is_hopper_arch(arch: Any) -> bool:
    return is_cuda_arch(arch) and arch.sm_version == 90


def is_blackwell_arch(arch: Any) -> bool:
    return is_cuda_arch(arch) and arch.sm_version >= 100


def get_num_sms(device_id: int = 0) -> int:
    """Multiprocessors of the GPU."""
    return _target().sm_count


def get_max_dynamic_shared_size_bytes(device_id: int = 0) -> int:
    """Shared memory that a block may use."""
    return _target().max_shared_bytes


class _Driver:
    """`tilelang.carver.arch.driver` is a module of these functions."""

    get_num_sms = staticmethod(get_num_sms)
    get_max_dynamic_shared_size_bytes = staticmethod(get_max_dynamic_shared_size_bytes)


driver = _Driver()


def determine_target(target: Any = "auto", return_object: bool = False) -> Any:
    """The target that "auto" stands for: an object, or its name."""
    found = Target.parse(target)
    return found if return_object else found.kind


def check_cuda_availability() -> bool:
    return _target().kind == "cuda"


def check_hip_availability() -> bool:
    return _target().kind == "hip"


def target_is_cuda(target: Any) -> bool:
    return Target.parse(target).kind != "hip"


def target_is_hip(target: Any) -> bool:
    return Target.parse(target).kind == "hip"


def get_target_compute_version(target: Any = None) -> str:
    """The compute capability as text, "9.0"."""
    arch = _target().arch
    return f"{arch // 10}.{arch % 10}" if isinstance(arch, int) else str(arch)


def get_target_arch(compute_version: str) -> str:
    """ "9.0" -> "90"."""
    return compute_version.replace(".", "")


def parse_compute_version(compute_version: str) -> tuple[int, int]:
    """ "9.0" -> (9, 0)."""
    major, _, minor = compute_version.partition(".")
    return int(major), int(minor or 0)
