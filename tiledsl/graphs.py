"""Programs as networkx graphs: the values of a program, the order that its launches need, and both as Graphviz text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import networkx as nx

from tiledsl.dialects import tile, triton
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.printer import Names, head_text


def ssa_graph(root: Operation) -> nx.MultiDiGraph:
    """The operations below `root` as nodes 0, 1, ... in program order, an edge for each use of a value.

    Nodes have `name`, `label` (the first line, as print_op has it) and, but at the top, `parent` (the node of the
    operation around); region arguments are nodes named "argument". Edges have `value`, the value's name in the labels,
    and `of`, its type. All are texts and numbers, so that each writer of networkx takes the graph.
    """
    graph = nx.MultiDiGraph()
    of: dict[Value, int] = {}
    names = Names()  # asked for in print_op's order, they are its own
    head_text(root, names)

    def add(name: str, label: str, parent: int | None) -> int:
        node = int(graph.number_of_nodes())
        graph.add_node(node, name=name, label=label, **({} if parent is None else {"parent": parent}))
        return node

    def walk(region: Region, parent: int | None) -> None:
        for arg in region.args:
            of[arg] = add("argument", f"{names[arg]}: {arg.type}", parent)
        for op in region:
            node = add(op.name, head_text(op, names), parent)
            for value in op.operands:
                graph.add_edge(of[value], node, value=names[value], of=str(value.type))
            for inner in op.regions:
                walk(inner, node)
            of.update(dict.fromkeys(op.results, node))

    for region in root.regions:
        walk(region, None)
    return graph


def launch_graph(func: tile.FuncOp) -> nx.DiGraph:
    """The kernels of a program, by position among its launches; an edge where a later one must wait for an earlier.

    A kernel waits for another if one of them writes a global buffer that the other reads or writes. Nodes have `name`,
    `reads` and `writes`; edges have `buffers`. All are texts: names, in order, with a comma between.
    """
    graph = nx.DiGraph()
    launches = [op for op in func.body if isinstance(op, (tile.KernelOp, triton.LaunchOp))]
    found: list[tuple[set[str], set[str]]] = []
    for number, op in enumerate(launches):
        reads, writes = _accesses(op)
        graph.add_node(number, name=op.attributes["sym_name"], reads=_listed(reads), writes=_listed(writes))
        for earlier, (read_before, written_before) in enumerate(found):
            shared = written_before & (reads | writes) | read_before & writes
            if shared:
                graph.add_edge(earlier, number, buffers=_listed(shared))
        found.append((reads, writes))
    reduced = nx.transitive_reduction(graph)  # without the edges that others imply
    reduced.add_nodes_from(graph.nodes(data=True))
    reduced.add_edges_from((a, b, graph.edges[a, b]) for a, b in reduced.edges)
    return reduced


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _accesses(launch: Operation) -> tuple[set[str], set[str]]:
    """Names of the global buffers that a kernel reads and writes; views and pointers count as what they come from."""
    reads: set[str] = set()
    writes: set[str] = set()
    for op in launch.walk():
        if isinstance(op, tile.CopyOp):
            touched: Iterable[tuple[Value, set[str]]] = ((op.source, reads), (op.target, writes))
        elif isinstance(op, tile.LoadOp):
            touched = ((op.buffer, reads),)
        elif isinstance(op, tile.StoreOp):
            touched = ((op.buffer, writes),)
        elif isinstance(op, tile.AtomicOp):
            touched = ((op.buffer, reads), (op.buffer, writes))
        elif isinstance(op, triton.LoadOp):
            touched = ((op.pointer, reads),)
        elif isinstance(op, triton.StoreOp):
            touched = ((op.pointer, writes),)
        elif isinstance(op, triton.AtomicOp):
            touched = ((op.pointer, reads), (op.pointer, writes))
        else:
            continue
        for value, names in touched:
            root = _root(value)
            if root is not None:
                names.add(root.name)
    return reads, writes


def _root(value: Value) -> Value | None:
    """The buffer that a view, pointer or kernel argument comes from; None for buffers on chip."""
    while True:
        op = value.op
        if isinstance(op, tile.ViewOp):
            value = op.source
        elif isinstance(op, triton.AddPtrOp):
            value = op.pointer
        elif isinstance(value.owner, Region) and isinstance(value.owner.parent, triton.LaunchOp):
            value = value.owner.parent.arguments[value.owner.args.index(value)]
        else:
            break
    scope: Any = getattr(value.type, "scope", "global")
    return value if scope == "global" else None


def to_dot(graph: nx.MultiDiGraph) -> str:
    """An ssa_graph as Graphviz text; regions are boxes around what is in them."""
    inside: dict[int | None, list[int]] = {}
    for node, data in graph.nodes(data=True):
        inside.setdefault(data.get("parent"), []).append(node)
    lines = ["digraph program {", "  node [shape=box, fontname=monospace, fontsize=10];"]

    def write(parent: int | None, indent: str) -> None:
        for node in inside.get(parent, ()):
            lines.append(f"{indent}n{node} [label={_quoted(graph.nodes[node]['label'])}];")
            if node in inside:
                lines.append(f"{indent}subgraph cluster_{node} {{")
                lines.append(f"{indent}  label={_quoted(graph.nodes[node]['name'])};")
                write(node, indent + "  ")
                lines.append(indent + "}")

    write(None, "  ")
    lines += [f"  n{a} -> n{b} [label={_quoted(data['value'])}];" for a, b, data in graph.edges(data=True)]
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
