"""The order of the house: what stands on a floor imports from its own and from lower ones; no module is on a circle.

Imports inside of functions count. Those for type checkers alone do not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parent.parent
TOP = {"tiledsl": ROOT / "tiledsl", "tiledsl.passes": ROOT / "passes", "tiledsl.autotuner": ROOT / "autotune"}

# From the lowest floor up. A line's rooms do not know of each other; ARCHITECTURE.md shows the same picture.
FLOORS = (
    "version location digests directed_rounding formulas",
    "errors",
    "logs",
    "settings files launch_options",
    "ir math_functions",
    "legality",
    "dialects",
    "analysis graphs",
    "passes language",
    "codegen frontend",
    "runtime language.names",  # language.names: what `T` is, with the decorators of frontend.program
    "levels certificate",
    "kernels",
    "autotuner",
    "compat",
    "commands",
    "cli",
    "__main__",
)
PLACE = {room: number for number, floor in enumerate(FLOORS) for room in floor.split()}


def modules() -> dict[str, Path]:
    """Every module with its file; a package stands for its __init__."""
    found = {}
    for package, folder in TOP.items():
        for file in folder.rglob("*.py"):  # which follows no links
            parts = file.relative_to(folder).with_suffix("").parts
            found[".".join([package, *parts]).removesuffix(".__init__")] = file
    return found


def imported(file: Path, names: frozenset[str]) -> Iterator[str]:
    """The modules of tiledsl that a file imports."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    for_types = {inner for test in tests for statement in test.body for inner in ast.walk(statement)}
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in names else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def room(module: str) -> str:
    inner = module.removeprefix("tiledsl.")
    return inner if inner in PLACE else inner.partition(".")[0]


@pytest.fixture(scope="module")
def graph() -> nx.DiGraph[str]:
    found, edges = modules(), nx.DiGraph()
    for module, file in found.items():
        edges.add_node(module)
        for other in imported(file, frozenset(found)):
            if other.split(".")[0] == "tiledsl" and other != module:
                edges.add_edge(module, other)
    return edges


def test_every_module_stands_on_a_floor(graph: nx.DiGraph[str]) -> None:
    assert {room(module) for module in graph} - {"tiledsl"} == set(PLACE)


def test_imports_go_down(graph: nx.DiGraph[str]) -> None:
    up = [
        f"{module} ({room(module)}) imports {other} ({room(other)})"
        for module, other in graph.edges
        if module != "tiledsl"
        and room(module) != room(other)
        and (other == "tiledsl" or PLACE[room(other)] >= PLACE[room(module)])
    ]
    assert up == []


def test_no_module_is_on_a_circle(graph: nx.DiGraph[str]) -> None:
    circles = [sorted(group) for group in nx.strongly_connected_components(graph) if len(group) > 1]
    assert circles == []
