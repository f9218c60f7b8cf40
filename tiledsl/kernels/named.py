"""Kernels whose GPU kernels have names that carry a configuration: a profile shows names alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tiledsl.digests import digest
from tiledsl.kernels.kernel import Kernel

_MOST = 120  # characters that are added to a name


def suffix(config: Mapping[str, Any]) -> str:
    """`BLOCK_64_num_warps_4`; of a longer one the beginning, and digits that tell it from others."""
    text = re.sub(r"\W+", "_", "_".join(f"{name}_{value}" for name, value in config.items()), flags=re.ASCII)
    text = text.strip("_")
    return text if len(text) <= _MOST else f"{text[: _MOST - 9]}_{digest(text)[:8]}"


def named_by(kernel: Kernel, config: Mapping[str, Any]) -> Kernel:
    """The same kernel with `_name_value` for each tunable behind the names of its GPU kernels."""
    added = suffix(config)
    if kernel.origin is not None or not added:
        return kernel
    named: dict[str, Kernel] = kernel.__dict__.setdefault("_named", {})
    if added not in named:
        source, kernels = kernel.module.source, []
        for each in kernel.module.kernels:
            name = f"{each.name}_{added}"
            source = re.sub(rf"\b{re.escape(each.name)}\b", name, source)
            kernels.append(replace(each, name=name))
        named[added] = kernel.with_module(replace(kernel.module, source=source, kernels=tuple(kernels)))
        named[added].config = dict(config)
    return named[added]
