"""Names of a program: local bindings, what lies outside, and what becomes of bindings made in device code."""

from __future__ import annotations

import builtins
import difflib
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType, ModuleType
from typing import Any

from tiledsl.errors import TileError
from tiledsl.frontend import syntax
from tiledsl.language.buffer import Buffer, Var
from tiledsl.language.expression import Expr, Scalar, is_number, plain
from tiledsl.location import Loc


@dataclass(slots=True)
class OutOfScope:
    """The binding of a name after the device loop or branch that made it."""

    loc: Loc
    rebound: bool
    is_buffer: bool = False

    def error(self, name: str) -> TileError:
        """What is wrong with reading the name."""
        if self.is_buffer:
            return TileError(
                f"{name} is an on-chip buffer of a T.Kernel that has ended",
                notes=[("that kernel begins", self.loc), "pass data between kernels through T.alloc_global"],
            )
        what = "was assigned again" if self.rebound else "was first assigned"
        return TileError(
            f"{name} {what} in device code that has ended, so its value is not known here",
            notes=[
                (f"{name} {what}", self.loc),
                f"make it a variable: {name} = T.alloc_var(dtype, init) before that",
            ],
            code="carried-value",
        )


@dataclass(slots=True)
class _Region:
    """A device region: the names before it, those read in it as they were, and those bound in it and then read.

    `rebound`: those bound in it; `read`: of one that repeats, those read before they were bound anew.
    """

    before: dict[str, Any]
    repeats: bool
    read_old: set[str] = field(default_factory=set)
    read_new: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    rebound: set[str] = field(default_factory=set)


class Scope:
    """Local names on top of an outer lookup (closure, frame, globals, builtins)."""

    def __init__(self, outer: Callable[[str], Any]) -> None:
        self.local: dict[str, Any] = {}
        self.outer = outer
        self.assigned: Set[str] = frozenset()  # by the function: these are not read from around, as in Python
        self._regions: list[_Region] = []  # the device regions around, innermost last

    def read(self, name: str) -> Any:
        """The value of a local name. Raises TileError for one that ended with a loop or branch."""
        value = self.local[name]
        if type(value) is OutOfScope:
            raise value.error(name)
        for region in self._regions:
            if name in region.before:
                (region.read_old if region.before[name] is value else region.read_new).add(name)
                if region.repeats and name not in region.rebound:
                    region.read.add(name)
        return value

    def read_outer(self, name: str) -> Any:
        """The value of a name that is not local. Raises TileError."""
        if name in self.assigned:
            raise TileError(f"{name} is read before it is assigned")
        try:
            return self.outer(name)
        except UnknownName as error:
            raise unknown_name(name, [*self.local, *error.known], error.modules) from None

    def is_older(self, value: Any) -> bool:
        """Whether a host object was there before the innermost device region."""
        known = [*self._regions[-1].before.values()] if self._regions else []
        return any(each is value for each in known) or not any(each is value for each in self.local.values())

    def set(self, name: str, value: Any) -> None:
        for region in self._regions:
            region.rebound.add(name)
        self.local[name] = value

    @contextmanager
    def device_region(self, loc: Loc, repeats: bool, in_kernel: bool = False) -> Iterator[None]:
        """A loop body or branch: bindings made in it end with it. `repeats`: the region may run more than once.

        `in_kernel`: it is the whole of a kernel, so that on-chip buffers end with it, too.
        """
        before = dict(self.local)
        region = _Region(before, repeats)
        rebound_before = [frozenset(outer.rebound) for outer in self._regions]
        self._regions.append(region)
        try:
            yield
        finally:
            self._regions.pop()
        for name in region.read_new - region.read_old:
            if self.local.get(name) is not before[name]:
                self._ends_with_block(name, loc, rebound_before)
        for name, value in self.local.items():
            old = before.get(name, before)
            if value is old:
                continue
            if name in region.read & region.rebound and (is_number(plain(old)) or isinstance(old, Scalar)):
                raise TileError(
                    f"{name} is read and then assigned again in a device loop, so its value would have to go from one "
                    "iteration to the next",
                    loc,
                    [f"make it a variable: {name} = T.alloc_var(dtype, init) before the loop"],
                    code="carried-value",
                )
            if in_kernel and (isinstance(value, Var) or (isinstance(value, Buffer) and value.scope() != "global")):
                self.local[name] = OutOfScope(loc, False, is_buffer=True)
            elif _is_device(value) or old is not before:
                self.local[name] = OutOfScope(loc, old is not before)

    def _ends_with_block(self, name: str, loc: Loc, rebound_before: Sequence[frozenset[str]]) -> None:
        """A block that binds a name before it reads it has a name of its own: loops around keep theirs."""
        for outer, known in zip(self._regions, rebound_before, strict=True):
            if name in outer.rebound and name not in known:
                outer.rebound.discard(name)
                if name in outer.read:
                    logging.getLogger("tiledsl").warning(
                        "%s: %s is bound anew in this block and ends with it; the loop around keeps its own value",
                        loc, name,
                    )  # fmt: skip


def _is_device(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_is_device(item) for item in value)
    return isinstance(value, Expr) and not isinstance(value, Var)


def outer_names(function: Any, frame_locals: Mapping[str, Any]) -> Callable[[str], Any]:
    """Looks up free names of a function as Python does; names that only annotations use come from its frame."""
    function = inspect.unwrap(function)
    code = function.__code__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    globals_ = function.__globals__

    def look(name: str) -> Any:
        if name in cells:
            try:
                return cells[name].cell_contents
            except ValueError:
                raise TileError(f"{name} has no value yet when {function.__name__} is built") from None
        if name in globals_:
            return globals_[name]
        for names in (frame_locals, vars(builtins)):
            if name in names:
                return names[name]
        raise unknown_name(name, [*cells, *globals_, *frame_locals], {**frame_locals, **globals_})

    return look


class UnknownName(TileError):
    """A name that is defined nowhere; `known` are those that are."""

    known: Sequence[str] = ()
    modules: Mapping[str, Any] = MappingProxyType({})


def unknown_name(name: str, known: Iterable[str], values: Mapping[str, Any] = MappingProxyType({})) -> UnknownName:
    """The error for a name that is defined nowhere. `values` may have the language, whose names count with its own."""
    names = list(known)
    ours = ("tiledsl.language", "tilelang.language")
    modules = {to: each for to, each in values.items() if isinstance(each, ModuleType) and each.__name__ in ours}
    written = {each.lower(): each for each in reversed(names)}
    near = difflib.get_close_matches(name.lower(), written)
    if not near:
        written = {each.lower(): f"{alias}.{each}" for alias, module in modules.items() for each in dir(module)}
        near = difflib.get_close_matches(name.lower(), written, cutoff=0.8)
    error = UnknownName(f"{name} is not defined" + (f"; did you mean {written[near[0]]}?" if near else ""))
    error.known, error.modules = names, modules
    return error


def targets(node: object) -> set[str]:
    """Names that statements assign, those of nested blocks included."""
    if isinstance(node, (tuple, list)):
        return set().union(*map(targets, node))
    if isinstance(node, syntax.Name):
        return {node.id}
    if isinstance(node, syntax.Starred):
        return targets(node.value)
    if isinstance(node, (syntax.Tuple, syntax.List)):
        return targets(node.elements)
    if isinstance(node, syntax.Function):
        return {node.name}
    if isinstance(node, syntax.Import):
        return {bound for _, _, bound in node.names}
    bound_names: set[str] = set()
    if isinstance(node, syntax.Assign):
        bound_names |= targets(node.targets)
    elif isinstance(node, (syntax.AnnotatedAssign, syntax.AugmentedAssign, syntax.For)):
        bound_names |= targets(node.target)
    elif isinstance(node, syntax.With):
        bound_names |= targets([target for _, target in node.items if target is not None])
    if isinstance(node, (syntax.If, syntax.For, syntax.While)):
        bound_names |= targets(node.orelse)
    if isinstance(node, (syntax.If, syntax.For, syntax.While, syntax.With)):
        bound_names |= targets(node.body)
    return bound_names
