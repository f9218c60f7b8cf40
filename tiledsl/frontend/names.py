"""Names of a program: local bindings, what lies outside, and what becomes of bindings made in device code."""

from __future__ import annotations

import builtins
import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tiledsl.errors import TileError
from tiledsl.ir.location import Loc
from tiledsl.language.buffer import Reference, Var
from tiledsl.language.expression import Expr, Scalar, is_number, plain


@dataclass(frozen=True)
class Gone:
    """The binding of a name after the device loop or branch that made it."""

    loc: Loc
    rebound: bool


class Names:
    """Local names on top of an outer lookup (closure, frame, globals, builtins)."""

    def __init__(self, outer: Callable[[str], Any]) -> None:
        self.local: dict[str, Any] = {}
        self.outer = outer
        self._trackers: list[tuple[dict[str, Any], set[str], set[str]]] = []  # before, read before rebound, rebound

    def get(self, name: str) -> Any:
        """The value of a name. Raises TileError for an unknown one, or one that ended with a loop or branch."""
        if name not in self.local:
            return self.outer(name)
        value = self.local[name]
        if isinstance(value, Gone):
            what = "was assigned again" if value.rebound else "was first assigned"
            raise TileError(
                f"{name} {what} in device code that has ended, so its value is not known here",
                notes=[(f"{name} {what}", value.loc), f"make it a variable: {name} = T.alloc_var(dtype, init) before that"],
            )
        for before, read, rebound in self._trackers:
            if name in before and name not in rebound:
                read.add(name)
        return value

    def set(self, name: str, value: Any) -> None:
        for before, _, rebound in self._trackers:
            if name in before:
                rebound.add(name)
        self.local[name] = value

    @contextmanager
    def device_region(self, loc: Loc, repeats: bool) -> Iterator[None]:
        """A loop body or branch: bindings made in it end with it. `repeats`: the region may run more than once."""
        before = dict(self.local)
        tracker: tuple[dict[str, Any], set[str], set[str]] = (before, set(), set())
        if repeats:
            self._trackers.append(tracker)
        try:
            yield
        finally:
            if repeats:
                self._trackers.pop()
        for name, value in self.local.items():
            old = before.get(name, before)
            if value is old:
                continue
            if name in tracker[1] & tracker[2] and (is_number(plain(old)) or isinstance(old, Scalar)):
                raise TileError(
                    f"{name} is read and then assigned again in a device loop, so its value would have to go from one "
                    "iteration to the next",
                    loc,
                    [f"make it a variable: {name} = T.alloc_var(dtype, init) before the loop"],
                )
            if _is_device(value) or old is not before:
                self.local[name] = Gone(loc, old is not before)


def _is_device(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_is_device(item) for item in value)
    return isinstance(value, (Scalar, Reference)) or (isinstance(value, Expr) and not isinstance(value, Var))


def outer_names(function: Any, frame_locals: Mapping[str, Any]) -> Callable[[str], Any]:
    """Looks up free names of a function as Python does; names that only annotations use come from its frame."""
    code = function.__code__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    globals_ = function.__globals__

    def look(name: str) -> Any:
        if name in cells:
            try:
                return cells[name].cell_contents
            except ValueError:
                raise TileError(f"{name} has no value yet when {function.__name__} is built") from None
        for names in (globals_, frame_locals, vars(builtins)):
            if name in names:
                return names[name]
        raise unknown_name(name, [*cells, *globals_, *frame_locals])

    return look


def unknown_name(name: str, known: Any) -> TileError:
    """The error for a name that is defined nowhere."""
    near = difflib.get_close_matches(name, list(known), 1)
    return TileError(f"{name} is not defined" + (f"; did you mean {near[0]}?" if near else ""))
