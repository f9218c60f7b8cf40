"""Programs as graphs."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable

import networkx as nx
import pytest

import tiledsl
import tiledsl.language as T
from tests.support.programs import gemm
from tiledsl.dialects.tile import FuncOp
from tiledsl.graphs import launch_graph, ssa_graph, to_dot
from tiledsl.ir.pass_manager import PassManager, Program
from tiledsl.ir.printer import print_op
from tiledsl.passes import default_pipeline


@T.prim_func
def three_kernels(
    A: T.Tensor((64,), "float32"),
    B: T.Tensor((64,), "float32"),
    C: T.Tensor((64,), "float32"),
    D: T.Tensor((64,), "float32"),
):
    part = T.alloc_global((64,), "float32")
    with T.Kernel(2, threads=32) as bx:
        for i in T.Parallel(32):
            part[bx * 32 + i] = A[bx * 32 + i] * 2
    with T.Kernel(2, threads=32) as bx:
        for i in T.Parallel(32):
            D[bx * 32 + i] = B[bx * 32 + i]
    with T.Kernel(2, threads=32) as bx:
        for i in T.Parallel(32):
            C[bx * 32 + i] = part[bx * 32 + i] + A[bx * 32 + i]


def test_launches_wait_for_what_they_use() -> None:
    func = three_kernels.build()
    before = launch_graph(func)
    assert list(before.edges(data="buffers")) == [(0, 2, "part")]
    assert (before.nodes[2]["reads"], before.nodes[2]["writes"]) == ("A, part", "C")
    PassManager(default_pipeline()).run(Program(func))
    after = launch_graph(func)  # pointers lead back to the same buffers
    assert nx.utils.graphs_equal(nx.DiGraph(before.edges), nx.DiGraph(after.edges))
    assert [data["writes"] for _, data in after.nodes(data=True)] == ["part", "D", "C"]


def test_every_use_is_an_edge() -> None:
    func = gemm(40, 24, 16, 16, 8, 8)
    graph = ssa_graph(func)
    operations = [op for region in func.regions for op in region.walk()]
    named = [data["name"] for _, data in graph.nodes(data=True) if data["name"] != "argument"]
    assert named == [op.name for op in operations]
    assert graph.number_of_edges() == sum(len(op.operands) for op in operations)
    assert nx.is_directed_acyclic_graph(graph)
    inner = [node for node, data in graph.nodes(data=True) if data["name"] == "tile.gemm"]
    around = [graph.nodes[graph.nodes[inner[0]]["parent"]]["name"]]
    assert around == ["scf.for"]


def test_graph_of_a_kernel_and_its_text() -> None:
    kernel = tiledsl.compile(three_kernels, target="interpret")
    graph = kernel.graph(after="promote-buffers")
    assert {"tile.load", "tile.store", "tensor.iota"} <= {data["name"] for _, data in graph.nodes(data=True)}
    text = to_dot(graph)
    assert text.count("subgraph cluster_") == 3 and text.count(" -> ") == graph.number_of_edges()
    assert text.count("{") == text.count("}")


def test_labels_are_the_lines_of_the_program() -> None:
    func = gemm(40, 24, 16, 16, 8, 8)
    graph = ssa_graph(func)
    labels = [data["label"] for _, data in graph.nodes(data=True) if data["name"] != "argument"]
    lines = [line.strip().removesuffix(" {") for line in print_op(func).splitlines()[1:]]
    with_arguments = [
        re.sub(r" \(%.*\)$", "", line) if line.startswith(("tile.kernel", "scf.")) else line for line in lines
    ]
    assert labels == [line for line in with_arguments if not line.startswith("}")]
    for source, to, value in graph.edges(data="value"):
        head = graph.nodes[source]["label"]
        assert re.search(rf"{value}\b", graph.nodes[to]["label"]) and (
            re.search(rf"{value}\b", head.partition(" = ")[0]) or head.startswith(f"{value}: ")
        )


@pytest.mark.parametrize("make", [ssa_graph, launch_graph])
def test_every_writer_takes_the_graphs(make: Callable[[FuncOp], nx.DiGraph]) -> None:
    graph = make(three_kernels.build())
    for write in (nx.write_graphml, nx.write_gexf, nx.write_gml):
        write(graph, io.BytesIO())
    file = io.BytesIO()
    nx.write_graphml(graph, file)
    again = nx.read_graphml(io.BytesIO(file.getvalue()), node_type=int, force_multigraph=graph.is_multigraph())
    assert dict(again.nodes(data=True)) == dict(graph.nodes(data=True))
    assert sorted(again.edges(data=True), key=str) == sorted(graph.edges(data=True), key=str)
    data = json.loads(json.dumps(nx.node_link_data(graph, edges="edges")))
    assert nx.utils.graphs_equal(nx.node_link_graph(data, edges="edges"), graph)
