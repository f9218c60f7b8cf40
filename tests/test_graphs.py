"""Programs as graphs."""

from __future__ import annotations

import networkx as nx

import tiledsl
import tiledsl.language as T
from tests.support.programs import gemm
from tiledsl.graphs import launch_graph, ssa_graph, to_dot
from tiledsl.ir.pass_manager import PassManager, Program
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
    assert list(before.edges(data="buffers")) == [(0, 2, ["part"])]
    assert before.nodes[2]["reads"] == {"A", "part"} and before.nodes[2]["writes"] == {"C"}
    PassManager(default_pipeline()).run(Program(func))
    after = launch_graph(func)  # pointers lead back to the same buffers
    assert nx.utils.graphs_equal(nx.DiGraph(before.edges), nx.DiGraph(after.edges))
    assert [data["writes"] for _, data in after.nodes(data=True)] == [{"part"}, {"D"}, {"C"}]


def test_every_use_is_an_edge() -> None:
    func = gemm(40, 24, 16, 16, 8, 8)
    graph = ssa_graph(func)
    operations = [op for region in func.regions for op in region.walk()]
    assert [data["op"] for _, data in graph.nodes(data=True) if data["op"] is not None] == operations
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
