"""Launch options, which T.Kernel, configurations and the pass lower-to-triton share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiledsl.errors import TileError, brief

LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl")
"""Keywords of T.Kernel that Triton takes. launch_pdl: begin while the kernel before ends, and wait for what it wrote
(programmatic dependent launch, CUDA C++ Programming Guide); without effect where the target has no such launches."""

MOST_STAGES = 64  # that a loop may load ahead

# What each may be on any GPU: 1024 threads a block, the largest cluster, and the registers that an instruction can name
# (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; Triton wants powers of two).
_MOST = {"num_warps": 32, "num_ctas": 16, "maxnreg": 255}
_POWERS = ("num_warps", "num_ctas")


def check_launch_option(what: str, name: str, value: Any, otherwise: str = "") -> None:
    """Raise TileError for a value that no GPU supports.

    `what` is the option as the user wrote it; `otherwise` is appended to the message: what else is allowed there.
    """
    if name == "launch_pdl":
        if not isinstance(value, int) or value not in (0, 1):
            raise TileError(f"{what} is {brief(value)}; it must be True or False")
        return
    most = _MOST.get(name)
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if is_number and (most is None or value <= most) and (name not in _POWERS or value & (value - 1) == 0):
        return
    allowed = "at least 1" if most is None else f"a number from 1 to {most}"
    if name in _POWERS:
        allowed = f"a power of two from 1 to {most}"
    raise TileError(f"{what} is {brief(value)}; it must be {allowed}{otherwise}")


def warp_size(target: Any) -> int:
    """Threads that execute together on a target; as long as there is none (None), 32."""
    return 32 if target is None else int(target.warp_size)


def pass_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of `pass_configs`, empty for None. Raises TileError unless it is a dict."""
    if given is not None and not isinstance(given, Mapping):
        raise TileError(f'pass_configs is {given!r}; it must be a dict such as {{"select-access.mode": "pointer"}}')
    return dict(given or {})
