"""`tilelang.env`: TileLang's environment variables and cache switches, put into force as tiledsl's settings.

A variable of tiledsl that the user has set himself wins. What has no meaning here is noted in the log when it is set.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

from tiledsl.logs import note_once
from tiledsl.settings import current

__all__ = ["disable_cache", "enable_cache", "env", "is_cache_enabled"]

_TRUE = ("1", "true", "yes", "on")
_ACTING = frozenset({
    "TILELANG_CACHE_DIR", "TILELANG_DISABLE_CACHE", "TILELANG_AUTO_TUNING_DISABLE_CACHE", "TILELANG_DEFAULT_TARGET",
    "TILELANG_AUTO_TUNING_CPU_COUNTS", "TILELANG_AUTO_TUNING_MAX_CPU_COUNT", "TILELANG_VERBOSE",
})  # fmt: skip


class Environment:
    """`tilelang.env`: its attributes are TileLang's variables, as they are now; one that is set is in force at once."""

    _enabled = True

    def __init__(self) -> None:
        self._forced: dict[str, str] = {}
        self._written: dict[str, str] = {}  # tiledsl's and Triton's variables that were set from TileLang's
        self._store: tempfile.TemporaryDirectory[str] | None = None  # of compiled kernels, while caches are off

    def _get(self, name: str) -> str:
        return self._forced.get(name) or os.environ.get(name, "")

    def __getattr__(self, name: str) -> Any:
        if not name.isupper() or name.startswith("_"):
            raise AttributeError(f"tiledsl's stand-in for tilelang.env has no {name!r}")
        if name == "TILELANG_CACHE_DIR" and not self._get(name):
            return str(current().cache_dir)
        return self._get(name) or ("0" if name.startswith("TILELANG_") else None)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            self._forced[name] = str(value)
            self.apply()

    def is_cache_globally_disabled(self) -> bool:
        return self._get("TILELANG_DISABLE_CACHE").lower() in _TRUE

    def is_autotune_cache_disabled(self) -> bool:
        return self._get("TILELANG_AUTO_TUNING_DISABLE_CACHE").lower() in _TRUE

    def is_cache_enabled(self) -> bool:
        return self._enabled and not self.is_cache_globally_disabled()

    def enable_cache(self) -> None:
        """Recall compiled kernels and tuning results again."""
        self._enabled = True
        self.apply()

    def disable_cache(self) -> None:
        """Compile and tune anew in this process, whatever is stored."""
        self._enabled = False
        self.apply()

    def get_default_target(self) -> str:
        return self._get("TILELANG_DEFAULT_TARGET") or "auto"

    def get_default_verbose(self) -> bool:
        return self._get("TILELANG_VERBOSE").lower() in _TRUE

    def apply(self) -> None:
        """Set tiledsl's variables from TileLang's: before each compilation, as scripts set theirs while they run."""
        for name in sorted({*os.environ, *self._forced}):
            if name.startswith("TILELANG_") and name not in _ACTING:
                note_once(f"{name} has no effect here")
        anew = not self.is_cache_enabled()
        if anew and self._store is None:
            self._store = tempfile.TemporaryDirectory(prefix="tiledsl-no-cache-")
        counts = (self._get(f"TILELANG_AUTO_TUNING_{name}") for name in ("CPU_COUNTS", "MAX_CPU_COUNT"))
        self._write("TILEDSL_CACHE_DIR", self._get("TILELANG_CACHE_DIR"))
        self._write("TILEDSL_ALWAYS_TUNE", "1" if anew or self.is_autotune_cache_disabled() else "")
        self._write("TILEDSL_JOBS", next((each for each in counts if each.isdecimal() and int(each)), ""))
        self._write("TILEDSL_LOG_LEVEL", "info" if self.get_default_verbose() else "")
        self._write("TRITON_CACHE_DIR", self._store.name if anew and self._store is not None else "")

    def _write(self, variable: str, value: str) -> None:
        if os.environ.get(variable) != self._written.get(variable):
            return  # the user's own
        if value:
            os.environ[variable] = self._written[variable] = value
        elif variable in self._written:
            del os.environ[variable], self._written[variable]


env = Environment()
disable_cache, enable_cache, is_cache_enabled = env.disable_cache, env.enable_cache, env.is_cache_enabled


def default_target() -> Any:
    """What TILELANG_DEFAULT_TARGET says, if anything but "auto": a name, or a dictionary where it is JSON."""
    named = env.get_default_target()
    return None if named == "auto" else json.loads(named) if named.startswith("{") else named


def __getattr__(name: str) -> Any:
    return getattr(env, name)
