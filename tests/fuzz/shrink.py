"""Shrink a finding: delta debugging (Zeller and Hildebrandt 2002) by statements, expressions and numbers."""

from __future__ import annotations

import ast
import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.case import Case

Check = Callable[[Case], bool]


def shrunk(case: Case, fails: Check, seconds: float = 60.0) -> Case:
    """The smallest case that was found in that time which still `fails`."""
    deadline = time.monotonic() + seconds
    progress = True
    while progress:
        progress = False
        for candidates in (_options, _statements, _expressions, _parameters, _sizes):
            again = True
            while again:
                again = False
                for candidate in candidates(case):
                    if time.monotonic() > deadline:
                        return case
                    if len(candidate.text) <= len(case.text) and fails(candidate):
                        case, again, progress = candidate, True, True
                        break
    return case


def _options(case: Case) -> Iterator[Case]:
    for key in case.options:
        yield replace(case, options={k: v for k, v in case.options.items() if k != key})
    if any(each.offset for each in case.tensors):
        yield replace(case, tensors=[replace(each, offset=0) for each in case.tensors])


def _edited(case: Case, edit: Callable[[ast.Module, int], bool]) -> Iterator[Case]:
    """The programs that `edit` makes, given a copy of the tree and a number; it returns False beyond the last."""
    number = 0
    while True:
        tree = ast.parse(case.text)
        if not edit(tree, number):
            return
        number += 1
        text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
        if text != case.text:
            yield replace(case, text=text)


def _bodies(tree: ast.Module) -> list[list[ast.stmt]]:
    found = []
    for node in ast.walk(tree):
        for field in ("body", "orelse"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body and not isinstance(node, ast.Module):
                found.append(body)
    return found


def _statements(case: Case) -> Iterator[Case]:
    def drop(tree: ast.Module, number: int) -> bool:
        for size in (8, 4, 2, 1):
            for body in _bodies(tree):
                for at in range(0, len(body), size):
                    if size > 1 and len(body) < size:
                        continue
                    if number == 0:
                        body[at : at + size] = []
                        if not body:
                            body.append(ast.Pass())
                        return True
                    number -= 1
        return False

    def unwrap(tree: ast.Module, number: int) -> bool:
        for body in _bodies(tree):
            for at, statement in enumerate(body):
                inner = [getattr(statement, field, []) for field in ("body", "orelse")]
                if isinstance(statement, ast.FunctionDef):
                    continue
                for part in inner:
                    if part:
                        if number == 0:
                            body[at : at + 1] = part
                            return True
                        number -= 1
        return False

    yield from _edited(case, drop)
    yield from _edited(case, unwrap)


def _expressions(case: Case) -> Iterator[Case]:
    def simplify(tree: ast.Module, number: int) -> bool:
        main = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
        for node in [each for statement in main.body for each in ast.walk(statement)]:
            for field, value in ast.iter_fields(node):
                for at, child in enumerate(value if isinstance(value, list) else [value]):
                    if not isinstance(child, ast.expr) or isinstance(child, (ast.Constant, ast.Tuple, ast.Slice)):
                        continue
                    assigned = field == "value" and isinstance(node, (ast.Assign, ast.AugAssign))
                    if (isinstance(node, ast.Call) and field == "func") or (
                        field in ("targets", "target", "value") and not assigned
                    ):
                        continue
                    choices: list[ast.expr] = [] if isinstance(child, ast.Name) else [
                        each for each in ast.iter_child_nodes(child)
                        if isinstance(each, ast.expr) and not isinstance(each, (ast.Attribute, ast.Slice))
                    ]  # fmt: skip
                    choices += [ast.Constant(0), ast.Constant(1)]
                    for choice in choices:
                        if number == 0:
                            if isinstance(value, list):
                                value[at] = copy.deepcopy(choice)
                            else:
                                setattr(node, field, copy.deepcopy(choice))
                            return True
                        number -= 1
        return False

    yield from _edited(case, simplify)


def _parameters(case: Case) -> Iterator[Case]:
    tree = ast.parse(case.text)
    main = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
    used = {node.id for statement in main.body for node in ast.walk(statement) if isinstance(node, ast.Name)}
    for argument in list(main.args.args):
        name = argument.arg
        if name in used or any(each.same_as == name for each in case.tensors):
            continue
        main.args.args.remove(argument)
        yield replace(
            case,
            text=ast.unparse(tree) + "\n",
            tensors=[each for each in case.tensors if each.name != name],
            scalars={key: value for key, value in case.scalars.items() if key != name},
            inputs={key: value for key, value in case.inputs.items() if key != name},
        )
        main.args.args.append(argument)
    for node in list(tree.body):
        if isinstance(node, ast.FunctionDef) and node.name != "main":
            tree.body.remove(node)
            yield replace(case, text=ast.unparse(tree) + "\n")
            tree.body.append(node)


def _sizes(case: Case) -> Iterator[Case]:
    """Smaller numbers; with a dimension of a parameter, the tensor becomes smaller as well."""

    def numbers(tree: ast.Module) -> list[ast.Constant]:
        return [
            node for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and type(node.value) is int and node.value > 1
        ]  # fmt: skip

    for number in range(len(numbers(ast.parse(case.text)))):
        for smaller in (lambda x: 1, lambda x: x // 2, lambda x: x - 1):
            tree = ast.parse(case.text)
            node = numbers(tree)[number]
            if smaller(node.value) in (node.value, 0):
                continue
            node.value = smaller(node.value)
            made = replace(case, text=ast.unparse(tree) + "\n")
            fitted = _with_shapes(made, tree)
            if fitted is not None:
                yield fitted


def _with_shapes(case: Case, tree: ast.Module) -> Case | None:
    """The case with tensors cut to the shapes that the text declares now."""
    main = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
    declared = {argument.arg: argument.annotation for argument in main.args.args}
    tensors, inputs = [], dict(case.inputs)
    for tensor in case.tensors:
        annotation = declared[tensor.name]
        assert isinstance(annotation, (ast.Call, ast.Attribute))
        if isinstance(annotation, ast.Call) and annotation.func.attr == "Tensor":  # type: ignore[attr-defined]
            dims = annotation.args[0]
            assert isinstance(dims, ast.Tuple)
            shape = tuple(
                dim.value if isinstance(dim, ast.Constant) else size for dim, size in zip(dims.elts, tensor.shape)
            )
            if shape != tensor.shape:
                if tensor.same_as or any(each.same_as == tensor.name for each in case.tensors):
                    return None
                tensor = replace(tensor, shape=shape, strides=())
                if tensor.span > len(inputs[tensor.name]):
                    return None
                inputs[tensor.name] = inputs[tensor.name][: tensor.span]
        tensors.append(tensor)
    return replace(case, tensors=tensors, inputs=inputs)
