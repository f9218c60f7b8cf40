"""A stored kernel that is lowered only when it is inspected: loading and calling it loads no part of the compiler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from tiledsl.digests import source_digest
from tiledsl.kernels.kernel import Kernel

_log = logging.getLogger("tiledsl")
_FOR_CALLS = frozenset(("name", "target", "pass_configs", "outputs", "params", "_inputs", "module"))


class UnbuiltKernel(Kernel):
    """Becomes what `make` returns as soon as something of it is asked for that has not been set.

    `recall` gives what calls need, if that was kept: then a call runs the source that was tuned and the binaries that
    were measured, and `make` waits for the first question about the program (`ir`, `stages`, `prim_func`).
    `source_hash`: of the source that was tuned. Without `recall`, another source runs as it is, with a warning: only
    the choice of the configuration may be out of date, never the program.

    A first call takes Triton's C launcher from Triton's cache; where that has none, as on a machine to which only the
    result was copied, a C compiler makes it once.
    """

    def __init__(
        self,
        make: Callable[[], Kernel],
        source_hash: str = "",
        recall: Callable[[], Mapping[str, Any] | None] | None = None,
    ) -> None:
        self.__dict__["_make"] = make
        self.__dict__["_source_hash"] = source_hash
        self.__dict__["_recall"] = recall

    def __getattr__(self, name: str) -> Any:
        make = self.__dict__.get("_make")
        if make is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        if name in _FOR_CALLS and self._recalled() and name in self.__dict__:
            return self.__dict__[name]
        built = vars(make())
        self.__dict__.update({**built, **self.__dict__})
        self.__dict__.pop("_make", None)
        wanted = self.__dict__.pop("_source_hash", "")
        if wanted and source_digest(self.source) != wanted:
            _log.warning(
                "autotune: the source of %s has changed since it was tuned; tune again to choose anew", self.name
            )
        return getattr(self, name)

    def note_spills(self, name: str, spills: int) -> None:
        """Add a remark, but do not build the kernel for it: it was there when the kernel was tuned."""
        if "remarks" in self.__dict__:
            super().note_spills(name, spills)

    def _recalled(self) -> bool:
        recall = self.__dict__.get("_recall")
        if recall is not None:
            found = recall()
            self.__dict__.update({**(found or {}), **self.__dict__})
            self.__dict__["_recall"] = None
        return "module" in self.__dict__


def is_unbuilt(kernel: Kernel) -> bool:
    """Whether a question about the program would lower a kernel first."""
    return "_make" in vars(kernel)
