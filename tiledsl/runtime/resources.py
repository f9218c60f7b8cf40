"""What a compiled kernel costs the hardware, read from the binary; no GPU needed."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from tiledsl.runtime.target import Target

# A kernel that spills more bytes a thread than this gets a remark: the bytes move through the cache at each use.
SPILLS_WORTH_A_REMARK = 64


def spill_remark(name: str, spills: int) -> str:
    """What to say of a kernel that spills so many bytes a thread; "" if these are too few to matter."""
    if spills <= SPILLS_WORTH_A_REMARK:
        return ""
    return (
        f"{name} spills {spills} bytes a thread for lack of registers: use smaller tiles, or more threads in a block "
        "(num_warps)"
    )


@dataclass(frozen=True)
class Resources:
    """What one block of a kernel uses. Bytes are bytes; registers are 32-bit ones a thread. None: could not be read.

    `spills` counts the bytes a thread keeps in local memory for lack of registers, and `stack` all of its local memory.
    `occupancy_limit` is how many blocks a multiprocessor holds at once, and which resource says so.
    """

    shared_bytes: int
    registers: int | None
    spills: int | None
    stack: int | None
    num_warps: int
    occupancy_limit: tuple[int, str]


def read_resources(
    target: Target, shared_bytes: int, num_warps: int, binary: bytes, asm: Mapping[str, str]
) -> Resources:
    """The resources of a compiled kernel; `binary` is its cubin or hsaco, `asm` has its texts."""
    registers, stack, spills = _amd_usage(asm.get("amdgcn", "")) if target.kind == "hip" else _cuda_usage(binary)
    limit = occupancy_limit(target, num_warps, registers, shared_bytes)
    return Resources(shared_bytes, registers, spills, stack, num_warps, limit)


def occupancy_limit(target: Target, num_warps: int, registers: int | None, shared_bytes: int) -> tuple[int, str]:
    """Blocks a multiprocessor holds at once, and what limits them: "registers", "shared memory", "warps" or "blocks".

    Allocation units are those of NVIDIA's occupancy calculator: registers a warp in steps of 256, warps in groups of 4,
    shared memory in steps of 128 bytes (256 before sm_80), of which the system takes 1024 a block from sm_80 on. On
    AMD's CDNA: 512 vector registers for each of the 4 SIMDs' lanes, in steps of 8 (CDNA3 instruction set guide).
    """
    limits = {"blocks": target.max_blocks_per_sm, "warps": target.max_warps_per_sm // num_warps}
    if target.kind == "hip":
        if registers:
            waves = min(8, 512 // (-(-registers // 8) * 8)) * 4
            limits["registers"] = waves // num_warps
        if shared_bytes:
            limits["shared memory"] = target.shared_bytes_per_sm // shared_bytes
    else:
        modern = isinstance(target.arch, int) and target.arch >= 80
        if registers:
            warps = target.registers_per_sm // (-(-registers * 32 // 256) * 256) // 4 * 4
            limits["registers"] = warps // num_warps
        step, reserved = (128, 1024) if modern else (256, 0)
        block = -(-(shared_bytes + reserved) // step) * step
        if shared_bytes:
            limits["shared memory"] = target.shared_bytes_per_sm // block
    limiting = min(limits, key=lambda name: limits[name])
    return limits[limiting], limiting


def run_tool(tool: str, arguments: list[str], binary: bytes) -> str | None:
    """What a CUDA tool bundled with Triton ("cuobjdump", "nvdisasm") prints about a binary; None if it cannot run."""
    try:
        from triton import knobs

        path = getattr(knobs.nvidia, tool).path
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(binary)
            file.flush()
            done = subprocess.run([path, *arguments, file.name], capture_output=True, text=True, timeout=120)
    except (OSError, RuntimeError, AttributeError, ImportError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def _cuda_usage(cubin: bytes) -> tuple[int | None, int | None, int | None]:
    """Registers, stack and spill bytes a thread. Triton puts nothing else on the stack, so all of it is spills."""
    text = run_tool("cuobjdump", ["--dump-resource-usage"], cubin)
    if text is None:
        return None, None, None
    found = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
    if "REG" not in found:
        return None, None, None
    stack = found.get("STACK", 0) + found.get("LOCAL", 0)
    return found["REG"], stack, stack


def _amd_usage(amdgcn: str) -> tuple[int | None, int | None, int | None]:
    found = {name: int(value) for name, value in re.findall(r"^\s*\.(\w+):\s+(\d+)\s*$", amdgcn, re.MULTILINE)}
    spilled = found.get("vgpr_spill_count")
    return (
        found.get("vgpr_count"),
        found.get("private_segment_fixed_size"),
        None if spilled is None else 4 * spilled,
    )
