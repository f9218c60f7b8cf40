"""Calls of jitted functions that were seen before: found by what is cheap to ask, before anything is bound or named."""

from __future__ import annotations

import dataclasses
import numbers
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tiledsl.settings import PREFIX, _overrides

building = threading.RLock()
"""Held while a kernel is looked up or built, so that threads that call a function for the first time build it once."""
os.register_at_fork(after_in_child=building._at_fork_reinit)  # type: ignore[attr-defined]  # as logging's locks
MOST_CALLS = 1024
"""Kinds of calls that one function keeps; then it forgets all of them."""
_environment: Any = os.environ
_encode: Any = str
if hasattr(os.environ, "_data") and hasattr(os.environ, "encodekey"):  # what lies under os.environ, not decoded
    _environment, _encode = os.environ._data, os.environ.encodekey
_TARGET, _ALWAYS_TUNE, _TUNED = (_encode(PREFIX + name) for name in ("TARGET", "ALWAYS_TUNE", "TUNED_CONFIGS"))
_PLAIN = frozenset((int, float, bool, str, type(None)))
_tensors: frozenset[type] = frozenset()


def call_key(target: Any, arguments: Sequence[Any]) -> Any:
    """Equal for calls that one kernel serves. None for what has no such key: containers, objects, tracers' tensors.

    target: the decorator's; without one, the setting's counts.
    """
    parts: list[Any] = [target_setting() if target is None else target]
    for value in arguments:
        kind = type(value)
        if kind in _tensors or kind in _known_tensors():
            parts.append((value.dtype, value.shape, value.stride()))
        elif kind is float:
            parts.append(value.hex())  # 0.0 == -0.0, and NaN is unlike itself
        elif kind in _PLAIN:
            parts.append((kind, value))
        else:
            return None
    return tuple(parts)


def _known_tensors() -> frozenset[type]:
    global _tensors
    torch = sys.modules.get("torch")
    if torch is not None and not _tensors:
        _tensors = frozenset((torch.Tensor, torch.nn.Parameter))
    return _tensors


def target_setting() -> Any:
    """What decides `current().target`. To read all settings, or this one as usual, takes as long as a launch."""
    return _overrides.get().get("target"), _environment.get(_TARGET)


def tuner_settings() -> Any:
    """What decides the settings `always_tune` and `tuned_configs`, as `target_setting` has what decides the target."""
    given = _overrides.get()
    return (
        given.get("always_tune"), given.get("tuned_configs"), _environment.get(_ALWAYS_TUNE), _environment.get(_TUNED)
    )  # fmt: skip


def value_key(value: Any) -> Any:
    """A hashable form of builder arguments: numbers with their types, containers, arrays and mutable dataclasses by
    what they hold now, other objects by equality or identity."""
    if isinstance(value, Mapping):
        return tuple((name, value_key(item)) for name, item in value.items())
    kind = type(value).__name__
    if isinstance(value, (list, tuple)):
        return (kind, *map(value_key, value))
    if isinstance(value, (set, frozenset)):
        return (kind, frozenset(map(value_key, value)))
    if isinstance(value, float):
        return (kind, value.hex())  # 0.0 == -0.0, and NaN is unlike itself
    if hasattr(value, "tobytes") and hasattr(value, "shape"):  # of NumPy
        return (kind, str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, numbers.Number):
        return (kind, value)
    try:
        hash(value)
    except TypeError:
        if dataclasses.is_dataclass(value):
            return (type(value), *(value_key(getattr(value, field.name)) for field in dataclasses.fields(value)))
        return _Identity(value)
    return value


class _Identity:
    """An object that is equal to itself alone, and stays while keys have it: another one would get its id."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value
