"""The tile language: `import tiledsl.language as T`. Names and meanings are those of TileLang.

The names are loaded when the first of them is used, together with the IR: a program that only recalls tuned kernels
uses none. An element type alone (`T.float16`) loads little, and so does `T.macro`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from tiledsl.language.names import *  # noqa: F403


# Once the names are here, they hide the builtins of the same names.
def __getattr__(name: str) -> Any:
    if name != "__all__" and name.endswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    dtypes = importlib.import_module("tiledsl.language.dtypes")
    if name in dtypes.DTYPES:
        globals()[name] = found = dtypes.DTYPES[name]
        return found
    if name in ("Macro", "inline", "macro"):
        return getattr(importlib.import_module("tiledsl.language.macros"), name)
    names = importlib.import_module("tiledsl.language.names")
    globals().update({each: getattr(names, each) for each in (*names.NAMES, *names.HIDDEN)}, __all__=names.NAMES)
    if name in globals():
        return globals()[name]
    refused = importlib.import_module("tiledsl.language.refused")
    if reason := refused.refusal(name):
        return refused.Refused(name, reason)
    raise AttributeError(refused.unknown(name, names.NAMES))


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))
