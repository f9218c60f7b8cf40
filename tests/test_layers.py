"""The order of the house: what stands on a floor imports from its own and from lower ones; no module is on a circle.

Imports inside of functions count, and have a reason. Those for type checkers alone do not count.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import pytest

from tests.support.not_needed import NOT_NEEDED

ROOT = Path(__file__).resolve().parent.parent
TOP = {"tiledsl": ROOT / "tiledsl", "tiledsl.passes": ROOT / "passes", "tiledsl.autotuner": ROOT / "autotune"}

# From the lowest floor up. A line's rooms do not know of each other; ARCHITECTURE.md shows the same picture.
FLOORS = (
    "version location tables digests directed_rounding formulas tracebacks child_processes strict_json",
    "errors",
    "logs",
    "settings files launch_options pass_promises mistakes",
    "ir math_functions",
    "legality",
    "dialects",
    "interchange",
    "analysis graphs",
    "passes language",
    "codegen frontend",
    "language.macros",  # macros are expanded by the frontend
    "runtime language.names",  # language.names: what `T` is, with the decorators of frontend.program
    "levels certificate report",
    "kernels",
    "autotuner",
    "compat",
    "commands",
    "cli",
    "__main__",
)
PLACE = {room: number for number, floor in enumerate(FLOORS) for room in floor.split()}


# An import stands inside of a function where this puts off what a program may not need at all.
# - Other packages: tiledsl is imported in under 150 ms, and lowering needs neither torch nor triton.
# - The compiler and what only tuning needs: importing the language and the tuner, and recalling a kernel, load none.
# - The checkers of certificates, and kernels from files.
SLOW = tuple(
    f"{name}."
    for name in (
        "torch", "triton", "numpy", "networkx", "joblib", "rich", "lark", "filelock", "platformdirs", "z3", "pytest",
        "jinja2", "plotly",
        *NOT_NEEDED, "tiledsl.certificate", "tiledsl.levels",
    )
)  # fmt: skip
# - What is loaded beside these, before anything is called: each call and each command loads the rest of what it needs.
STARTS = (
    ("tiledsl", "tiledsl.language", "tiledsl.kernels.jit", "tiledsl.autotuner.decorator"),
    ("tiledsl.autotuner.functions",),
    ("tiledsl.autotuner.context.decorator",),
    ("tiledsl.cli",),
)
_WORKER = "tiledsl.autotuner.measuring.bench_worker"
_COMPILER = "tiledsl.autotuner.compiling.compile_worker"
# - What has a reason of its own.
KEPT_LATE = {
    (_WORKER, "tiledsl.runtime.launch_triton"): "a worker opens its device beside the import of torch",
    (_WORKER, "tiledsl.autotuner.measuring.wire"): "garbage is not collected while a worker imports",
    ("tiledsl.autotuner", "importlib"): "names are loaded when they are asked for",
    ("tiledsl.tracebacks", "sysconfig"): "only a mistake asks which files are of libraries",
    ("tiledsl.errors", "traceback"): "only a notebook, and the failure of a pass, shows tracebacks as text",
    ("tiledsl.passes.specs", "importlib.metadata"): "only for a name that no module has defined",
    (_COMPILER, "tiledsl.runtime.compile"): "a worker loads it beside Triton, once for all of its forks",
    (_COMPILER, "tiledsl.runtime.module"): "the same",
    (_COMPILER, "tiledsl.runtime.target"): "the same",
}


def modules() -> dict[str, Path]:
    """Every module with its file; a package stands for its __init__."""
    found = {}
    for package, folder in TOP.items():
        for file in folder.rglob("*.py"):  # which follows no links
            parts = file.relative_to(folder).with_suffix("").parts
            found[".".join([package, *parts]).removesuffix(".__init__")] = file
    return found


class Import(NamedTuple):
    """A module that a file imports. late: inside of a function."""

    name: str
    late: bool


@functools.cache
def imported(file: Path, names: frozenset[str]) -> tuple[Import, ...]:
    """What a file imports, but for type checkers alone."""
    return tuple(_imports(ast.parse(file.read_text(encoding="utf-8")), names, False))


def _imports(node: ast.AST, names: frozenset[str], late: bool) -> Iterator[Import]:
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield Import(inner if inner in names else node.module, late)
    elif isinstance(node, ast.Import):
        yield from (Import(alias.name, late) for alias in node.names)
    late = late or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    is_for_types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    for part in node.orelse if isinstance(node, ast.If) and is_for_types else ast.iter_child_nodes(node):
        if not isinstance(part, ast.expr):
            yield from _imports(part, names, late)


def room(module: str) -> str:
    inner = module.removeprefix("tiledsl.")
    return inner if inner in PLACE else inner.partition(".")[0]


@pytest.fixture(scope="module")
def graph() -> nx.DiGraph[str]:
    found, edges = modules(), nx.DiGraph()
    for module, file in found.items():
        edges.add_node(module)
        for other, _ in imported(file, frozenset(found)):
            if other.split(".")[0] == "tiledsl" and other != module:
                edges.add_edge(module, other)
    return edges


def late_without_reason(files: Mapping[str, Path]) -> list[str]:
    """Late imports that put nothing off, and that KEPT_LATE does not list."""
    names, early, late = frozenset(files), nx.DiGraph(), set()
    for module, file in files.items():
        parts = module.split(".")
        early.add_edges_from((module, ".".join(parts[:count])) for count in range(1, len(parts)))
        for other, is_late in imported(file, names):
            late.add((module, other)) if is_late else early.add_edge(module, other)

    @functools.cache
    def loaded_with(module: str) -> frozenset[str]:
        return frozenset([module, *(nx.descendants(early, module) if module in early else ())])

    def puts_off(module: str, other: str) -> bool:
        if any(module in start and other not in start for start in starts):
            return True
        return any(f"{each}.".startswith(SLOW) for each in loaded_with(other) - loaded_with(module))

    starts = [frozenset().union(*map(loaded_with, start)) for start in STARTS]
    return [
        f"{module} imports {other}"
        for module, other in sorted(late)
        if (module, other) not in KEPT_LATE and not puts_off(module, other)
    ]


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


def test_late_imports_put_something_off() -> None:
    assert late_without_reason(modules()) == []


def test_a_late_import_without_a_reason_is_found(tmp_path: Path) -> None:
    texts = {
        "tiledsl.codegen.a": "import tiledsl.codegen.b\ndef f():\n    import torch",
        "tiledsl.codegen.b": "def f():\n    import tiledsl.codegen.c\ndef g():\n    import tiledsl.codegen.d",
        "tiledsl.codegen.c": "from __future__ import annotations",
        "tiledsl.codegen.d": "import torch\ndef f():\n    import torch.fx",
    }
    files = {module: tmp_path / f"{module}.py" for module in texts}
    for module, text in texts.items():
        files[module].write_text(text)
    assert late_without_reason(files) == ["tiledsl.codegen.b imports tiledsl.codegen.c"]


def test_what_is_kept_late_is_there() -> None:
    names = frozenset(modules())
    late = {(module, name) for module, file in modules().items() for name, is_late in imported(file, names) if is_late}
    assert KEPT_LATE.keys() - late == set()
