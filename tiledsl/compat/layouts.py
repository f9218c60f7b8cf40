"""`tilelang.layout`: layout objects for T.annotate_layout, which is a hint here."""

from __future__ import annotations

from typing import Any

from tiledsl.language.hints import Fragment, Layout

__all__ = ["Fragment", "Layout"]


def _maker(name: str) -> Any:
    def make(*arguments: Any, **keywords: Any) -> Layout:
        return Layout(*arguments, **keywords)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = "A layout that T.annotate_layout accepts; it has no effect."
    __all__.append(name)
    return make


for _kind in ("swizzled", "volta_swizzled", "wgmma_swizzled", "tcgen05mma_swizzled", "mma_swizzle", "linear"):
    globals()[f"make_{_kind}_layout"] = _maker(f"make_{_kind}_layout")
for _part in ("full", "half", "quarter"):
    globals()[f"make_{_part}_bank_swizzled_layout"] = _maker(f"make_{_part}_bank_swizzled_layout")
for _name in ("make_gemm_fragment_8x8", "make_gemm_fragment_8x8_transposed", "make_fully_replicated_layout_fragment"):
    globals()[_name] = _maker(_name)
