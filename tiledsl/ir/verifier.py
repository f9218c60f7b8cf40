"""The IR verifier: declarations, use lists, dominance, and the rules of each operation.

Operations and regions record what changed since they were last verified (`touch`), so the cost of verifying after every
pass is proportional to what the pass changed.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.fields import Field, operand, optional


class VerifyError(Exception):
    """The IR broke a rule: an internal bug, or IR text that is wrong. `op` is the offender."""

    def __init__(self, op: Operation, message: str) -> None:
        super().__init__(f"{op.name}: {message}\n{op!r}")
        self.op = op


def verify(root: Operation, *, everything: bool = True) -> None:
    """Check declarations, use lists, dominance and the rules of each operation. Raises VerifyError.

    Unless `everything`, only operations that changed since they were last verified, and those whose operands moved.
    """
    if everything:
        _touch_all(root)
    if not root.checked:
        _verify_declared(root)
        root.checked = True
    _verify_regions(root, False, {})


def _touch_all(op: Operation) -> None:
    op.checked, op._signature = False, None
    for inner in op.regions:
        if inner.parent is not op:
            raise VerifyError(op, "a region does not know its owner")
        inner.touched = list(inner)
        nested = {child for child in inner if child.regions}
        if inner.nested.keys() != nested or any(a.order >= b.order for a, b in pairwise(inner)):
            raise VerifyError(op, "its operations were changed past insert, move_before, detach and erase")
        for child in inner:
            if child.parent is not inner:
                raise VerifyError(child, "does not know its region")
            _touch_all(child)


def _verify_regions(op: Operation, moved: bool, before: dict[Region, float]) -> None:
    """What changed inside `op`; if that was `moved`, also whether all inside still see their operands.

    They see operations of the regions in `before`, those of a lower order than it has.
    """
    for inner in op.regions:
        if moved or inner.touched:
            for child in inner.ops if moved else dict.fromkeys(inner.touched):
                if child.parent is inner:  # else it is gone
                    _verify_operation(child, inner, before)
            inner.touched = []
        for child in inner.nested:
            inside, child.checked = moved or not child.checked, True
            _verify_regions(child, inside, before | {inner: child.order})


_sound: set[tuple[object, ...]] = set()  # signatures and operand types of what was found right, beside its regions


def _verify_operation(op: Operation, inner: Region, before: dict[Region, float]) -> None:
    order, operands = op.order, op.operands
    for value in operands:
        made = value.op
        if made is None or made.parent is not inner or made.order >= order:
            _verify_visible(value, op, inner, before)
        if op not in value.uses:
            raise VerifyError(op, f"operand {value!r} does not list its use")
    if op.checked:
        return
    op.checked = not op.regions  # else they come next
    if op.is_terminator and op is not inner.ops[-1]:
        raise VerifyError(op, "stands before the end of its region")
    kind: tuple[object, ...] = op._signature or op.signature
    for value in operands:
        kind = kind, value.type
    if kind not in _sound:
        _verify_declared(op)
        if len(_sound) > 100_000:
            _sound.clear()
        _sound.add(kind)
    elif op.regions:
        _verify_own_rules(op)


def _verify_visible(value: Value, op: Operation, inner: Region, before: dict[Region, float]) -> None:
    """A value must be defined before `op`, in its region or around it."""
    owner, made = value.owner, value.op
    home, order, siblings = (owner, -math.inf, owner.args) if made is None else (made.parent, made.order, made.results)  # type: ignore[union-attr]
    if order >= (op.order if home is inner else before.get(home, -math.inf)) or value not in siblings:  # type: ignore[arg-type]
        raise VerifyError(op, f"operand {value!r} is used where it is not defined")


def _verify_declared(op: Operation) -> None:
    position = 0
    typed: list[tuple[Field[Any], Value]] = list(zip(op.result_fields, op.results))
    for field, count in zip(op.operand_fields, op.segments, strict=True):
        if (type(field) is operand and count != 1) or (type(field) is optional and count > 1):
            raise VerifyError(op, f"{field.name} has {count} values")
        typed += [(field, value) for value in op.operands[position : position + count]]
        position += count
    if position != len(op.operands):
        raise VerifyError(op, f"{len(op.operands)} operands instead of {position}")
    if len(op.results) != len(op.result_fields) and not op.variadic_results:
        raise VerifyError(op, f"{len(op.results)} results instead of {len(op.result_fields)}")
    for part, value in typed:
        if part.types and type(value.type) not in part.types:
            raise VerifyError(op, f"{part.name} is of type {value.type}")
    for key, declared in op.attr_fields.items():
        given = op.attributes.get(key)
        if isinstance(declared.type, type) and not isinstance(given, declared.type):
            raise VerifyError(op, f"{key} is {given!r}")
        if declared.known is not None and given not in declared.known:
            raise VerifyError(op, f"{key} is {given!r}, not one of {', '.join(map(repr, declared.known))}")
    _verify_own_rules(op)


def _verify_own_rules(op: Operation) -> None:
    if len(op.regions) != len(op.region_fields):
        raise VerifyError(op, f"{len(op.regions)} regions instead of {len(op.region_fields)}")
    try:
        op.verify()
    except (ValueError, TypeError, LookupError, AssertionError) as error:
        raise VerifyError(op, str(error) or type(error).__name__) from error
