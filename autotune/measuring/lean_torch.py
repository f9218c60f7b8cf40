"""Import torch without the part of it that takes longest and that measuring does not use."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

# Formulas for tensors without elements, and with them the decompositions and references of all operators: a quarter of
# the time that torch takes to import. Nothing that runs on a device asks for one.
_LATER = "torch._meta_registrations"


def import_torch() -> None:
    """As `import torch`, with what `_LATER` names loaded when something of it is asked for.

    Only for processes that belong to this package alone. Raises what importing a torch raises that does not bear it:
    then this process cannot import torch any more.
    """
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        import torch  # noqa: F401
    finally:
        sys.meta_path.remove(finder)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the module to be loaded later, and is its loader for now."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        found = importlib.machinery.PathFinder.find_spec(name, path) if name == _LATER else None
        return (
            None if found is None else importlib.machinery.ModuleSpec(name, _Later(found.loader), origin=found.origin)
        )


class _Later(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["_loader"] = self.loader


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_loader" not in self.__dict__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__dict__.pop("_loader").exec_module(self)
        return getattr(self, name)
