"""The example in the docstring of each name of the language gives what it says, in the interpreter."""

from __future__ import annotations

import inspect
import linecache
import os
import re
import textwrap
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from docs.site.entries import Entry, Example, entries, split

ENTRIES = {entry.names[0]: entry for entry in entries()}


def tensor(text: str, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the right side of a comment says: a list, or an expression with torch's names and the tensors so far."""
    value = eval(text, {**vars(torch), "float": float}, dict(given))
    made = value if isinstance(value, torch.Tensor) else torch.tensor(value)
    return made.to(torch.int32) if made.dtype is torch.int64 else made.contiguous()


def execute(source: str, name: str) -> dict[str, Any]:
    """Run a text as a module whose lines the frontend finds."""
    file = f"<example of T.{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    inspect.modulesbyfile[os.path.abspath(file)] = inspect.modulesbyfile[file] = __name__  # or it searches all modules
    space = {"T": T, "torch": torch, "tiledsl": tiledsl, "__name__": __name__}
    exec(compile(source, file, "exec"), space)
    return space


def run(name: str, example: Example) -> None:
    """Run an example, and check that it gives what it says."""
    if example.is_script:
        execute(example.code, name)
        return
    before, statements, after = example.parts()
    given: dict[str, torch.Tensor] = {}
    for each, text in before.items():
        given[each] = tensor(text, given)
    wanted = {each: tensor(text, given) for each, text in after.items()}
    assert wanted, "it does not say what it gives"
    made = {each: value.clone() for each, value in given.items()}
    made |= {each: torch.full_like(value, 99) for each, value in wanted.items() if each not in given}
    specs = [f"{each}: T.Tensor({tuple(value.shape)}, {str(value.dtype)[6:]!r})" for each, value in made.items()]
    if not re.match("with T.Kernel", statements):
        statements = "with T.Kernel(1, threads=32):\n" + textwrap.indent(statements, "    ")
    source = f"@T.prim_func\ndef example({', '.join(specs)}):\n" + textwrap.indent(statements, "    ") + "\n"
    program = execute(source, name)["example"]
    tiledsl.compile(program, target="interpret")(*made.values())
    for each, value in wanted.items():
        torch.testing.assert_close(made[each], value, equal_nan=True)


@pytest.mark.parametrize("name", ENTRIES)
def test_the_example_gives_what_it_says(name: str) -> None:
    entry = ENTRIES[name]
    assert entry.example is not None
    assert any(re.search(rf"\bT\.{each}\b", entry.example.code) for each in entry.names)
    run(name, entry.example)


def test_a_wrong_example_is_found() -> None:
    wrong = (
        "Adds.\n\nExample:\n    # X = [1, 2]\n    for i in T.Parallel(2):\n        Y[i] = X[i] + 1\n    # Y = [2, 4]\n"
    )
    text, example = split(wrong)
    assert text == "Adds." and example is not None
    with pytest.raises(AssertionError, match="Mismatched elements: 1 / 2"):
        run("wrong", example)
    script = split("Example:\n    assert T.ceildiv(7, 2) == 3")[1]
    assert script is not None
    with pytest.raises(AssertionError):
        run("wrong", script)
    with pytest.raises(AssertionError, match="does not say"):
        run("wrong", Example("T.print(1)"))


def test_aliases_are_one_entry() -> None:
    assert ENTRIES["power"].names == ("power", "pow") and isinstance(ENTRIES["copy"], Entry)
