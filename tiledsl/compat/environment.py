"""`tilelang.env`: where caches lie."""

from __future__ import annotations

from typing import Any

from tiledsl.settings import current


def __getattr__(name: str) -> Any:
    if name == "TILELANG_CACHE_DIR":
        return str(current().cache_dir)
    raise AttributeError(name)
