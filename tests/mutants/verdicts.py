"""What earlier runs found, so that a sample is run in pieces: `COUNT=100`, then `COUNT=200`, or one that was stopped.

A verdict is that of a mutant in a function whose text has not changed since. One that survived is run again as soon as
a file of the tests that ran has changed, or when other tests run the line.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from collections.abc import Container, Iterable
from pathlib import Path

from tests.mutants.mutations import Mutant


def digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]


class Verdicts:
    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.root = path, root
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.killed: dict[str, str] = {}  # by mutant: by what
        self.survived: set[tuple[str, str]] = set()  # mutants, and the tests that ran
        self.steady: set[str] = set()  # tests that pass without a change
        for kind, *entry in lines:
            if kind == "steady":
                self.steady.add(entry[0])
            else:
                self._note(*entry)

    def of(self, mutant: Mutant, tests: list[str], others: Container[str] = ()) -> str | None:
        """What killed it, of these tests or of others that are there; "" for nothing; None if that is not known."""
        key = self._key(mutant)
        killed_by = self.killed.get(key, "")
        if killed_by in tests or killed_by in others or " " in killed_by:
            return killed_by
        return "" if (key, self._tests(tests)) in self.survived else None

    def keep(self, mutant: Mutant, tests: list[str], killed_by: str) -> None:
        key, ran = self._key(mutant), self._tests(tests)
        self._note(key, ran, killed_by)
        self._append("mutant", key, ran, killed_by)

    def _note(self, key: str, ran: str, killed_by: str) -> None:
        if killed_by:
            self.killed[key] = killed_by
        else:
            self.survived.add((key, ran))

    def not_steady(self, names: Iterable[str]) -> set[str]:
        """Those of which it is not known that they pass without a change."""
        return {name for name in names if self._tests([name]) not in self.steady}

    def keep_steady(self, names: Iterable[str]) -> None:
        for name in names:
            self.steady.add(self._tests([name]))
            self._append("steady", self._tests([name]))

    def _append(self, *entry: str) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def _key(self, mutant: Mutant) -> str:
        return digest(*mutant.key, _functions((self.root / mutant.file).read_text()).get(mutant.function, ""))

    def _tests(self, names: list[str]) -> str:
        files = sorted({name.partition("::")[0] for name in names})
        return digest(*sorted(names), *(digest((self.root / file).read_text()) for file in files))


@functools.cache
def _functions(source: str) -> dict[str, str]:
    """The text of each class and function by its qualified name."""
    found: dict[str, str] = {}

    def walk(node: ast.AST, scope: tuple[str, ...]) -> None:
        for each in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = (*scope, each.name)
                found[".".join(inner)] = found.get(".".join(inner), "") + (ast.get_source_segment(source, each) or "")
            walk(each, inner)

    walk(ast.parse(source), ())
    return found
