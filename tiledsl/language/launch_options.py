"""What T.Kernel, a configuration and the pass lower-to-triton all may say of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiledsl.errors import TileError

LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Keywords of T.Kernel that Triton takes."""


def pass_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of `pass_configs`, empty for None. Raises TileError for what is no dict."""
    if given is not None and not isinstance(given, Mapping):
        raise TileError(f'pass_configs is {given!r}; it is a dict such as {{"select-access.mode": "pointer"}}')
    return dict(given or {})
