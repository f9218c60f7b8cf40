"""A remembered kernel that is lowered when it is first used: until then, loading it loads no part of the compiler."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tiledsl.autotuner.storage.fingerprint import digest
from tiledsl.runtime.kernel import Kernel

_log = logging.getLogger("tiledsl")


class UnbuiltKernel(Kernel):
    """Becomes what `make` returns as soon as something of it is asked for that has not been set.

    `source_hash`: of the source that was tuned. Another source runs as it is, with a warning: only the choice of the
    configuration may be out of date, never the program.
    """

    def __init__(self, make: Callable[[], Kernel], source_hash: str = "") -> None:
        self.__dict__["_make"] = make
        self.__dict__["_source_hash"] = source_hash

    def __getattr__(self, name: str) -> Any:
        make = self.__dict__.get("_make")
        if make is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        built = vars(make())
        self.__dict__.update({**built, **self.__dict__})
        self.__dict__.pop("_make", None)
        wanted = self.__dict__.pop("_source_hash", "")
        if wanted and digest(self.source) != wanted:
            _log.warning(
                "autotune: the source of %s has changed since it was tuned; tune again to choose anew", self.name
            )
        return getattr(self, name)
