"""Results of functions of arrays, found again by what the operands hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.certificate.algebra import Function

_MOST_BYTES = 1 << 28
_KEY_BYTES = 1 << 10  # what a key takes, about
_FEW_BYTES = 1 << 13
_HALF = np.uint64(31)
_WEIGHTS = np.random.default_rng(0).integers(0, 1 << 64, 1 << 12, np.uint64) | np.uint64(1)


class Remembered:
    """What was computed of which operands: most of what a program computes, it computes after the next pass again."""

    def __init__(self) -> None:
        self.results: dict[Any, np.ndarray] = {}  # the last used at the end
        self.contents: dict[int, dict[Any, Any]] = {}  # of results, by their ids, and of what is shown of them
        self.bytes = 0

    def compute(self, key: Any, function: Function, operands: tuple[Any, ...]) -> Any:
        """function(*operands), which must not be written to."""
        key = key, *map(self._content, operands)
        result = self.results.pop(key, None)
        if result is None:
            result = function(*operands)
            if not isinstance(result, np.ndarray):
                return result
            if result.base is not None:
                result = result.copy()
            result.flags.writeable = False
            self.contents[id(result)] = {}
            self.bytes += result.nbytes + _KEY_BYTES
        self.results[key] = result
        while self.bytes > _MOST_BYTES and len(self.results) > 1:
            forgotten = self.results.pop(next(iter(self.results)))
            del self.contents[id(forgotten)]
            self.bytes -= forgotten.nbytes + _KEY_BYTES
        return result

    def _content(self, x: Any) -> Any:
        known = self.contents.get(id(x if x.base is None else x.base)) if isinstance(x, np.ndarray) else None
        if known is None:
            return _content(x)
        shown = x.__array_interface__["data"][0], x.shape, x.strides, x.dtype
        if shown not in known:
            known[shown] = _content(x)
        return known[shown]


def _content(x: Any) -> Any:
    """What stands for the contents of an operand; sums of products with random numbers take less time than a hash."""
    if not isinstance(x, np.ndarray):
        return x.tobytes() if isinstance(x, np.generic) else x
    if x.nbytes < _FEW_BYTES or x.itemsize % 8:
        return x.shape, hash(x.tobytes())
    words = np.ascontiguousarray(x).reshape(-1).view(np.uint64)
    words = words ^ (words >> _HALF)  # signs are last bits, and of a sum alone two that change would make no difference
    whole = words.size // len(_WEIGHTS) * len(_WEIGHTS)
    lines, rest = words[:whole].reshape(-1, len(_WEIGHTS)), words[whole:]
    return x.shape, hash((lines @ _WEIGHTS).tobytes()), int(rest @ _WEIGHTS[: rest.size])
