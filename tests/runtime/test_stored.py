"""Kernels described as JSON: what comes back is what was described, and what makes no sense is refused."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tiledsl.kernels.stored import StoredKernel, call_fields, describe, describe_call
from tiledsl.runtime.target import Target


@pytest.fixture(scope="module")
def kernel() -> tiledsl.Kernel:
    rows, stride = T.dynamic("rows"), T.dynamic("stride")

    @T.prim_func
    def scaled(
        X: T.StridedTensor((rows, 64), (stride, 1), "float16"), s: T.float32, Y: T.Tensor((rows, 64), "float32")
    ):
        with T.Kernel(T.ceildiv(rows, 16), threads=128) as by:
            for i, j in T.Parallel(16, 64):
                Y[by * 16 + i, j] = X[by * 16 + i, j] * s

    return tiledsl.compile(scaled, target="cuda:90", out_idx=-1, pass_configs={"map-grid.group_m": 2})


@pytest.fixture
def described(kernel: tiledsl.Kernel) -> dict[str, Any]:
    return dict(json.loads(json.dumps(describe(kernel))))


def test_what_is_described_comes_back(kernel: tiledsl.Kernel, described: dict[str, Any]) -> None:
    fields = call_fields(described)
    assert fields["name"] == kernel.name == "scaled" and fields["target"] == Target.parse("cuda:90")
    assert fields["pass_configs"] == dict(kernel.pass_configs) and fields["outputs"] == (2,)
    assert fields["module"] == kernel.module
    shown = lambda params: [(p.name, p.dtype, p.is_output, p.is_tensor, p.shape, p.strides) for p in params]
    assert shown(fields["params"]) == shown(kernel.params) == [
        ("X", "float16", False, True, ("rows", 64), ("stride", 1)),
        ("s", "float32", False, False, (), None),
        ("Y", "float32", True, True, ("rows", 64), None),
    ]  # fmt: skip
    assert shown(fields["_inputs"]) == shown(kernel.params[:2])


def test_a_stored_kernel_is_the_kernel(kernel: tiledsl.Kernel, described: dict[str, Any]) -> None:
    stored = StoredKernel(described)
    assert stored.source == kernel.source and stored.ir() == kernel.ir() and describe(stored) == describe(kernel)
    assert stored.prim_func is None and stored.config is None and stored.latency is None and stored.ref_latency is None
    elsewhere = stored.for_target(Target.parse("cuda:80"))
    assert elsewhere.target == Target.parse("cuda:80") and elsewhere.config is None
    assert elsewhere.pass_configs == kernel.pass_configs == {"map-grid.group_m": 2}
    described["source"] = "# other\n" + described["source"]
    edited = StoredKernel(described)
    assert edited.stages[-1].text == described["source"] and len(edited.stages) == len(kernel.stages)
    assert describe_call(edited)["source"] == described["source"]


MISTAKES: list[tuple[str, Any, str]] = [
    ("name", "no name", "'no name' is not a name"), ("name", 3, "'3' is no text"), ("target", 3, "'3' is no text"),
    ("pass_configs", [], "'\\[\\]' is not an object"), ("outputs", 2, "'2' is not a list"),
    ("outputs", "2", "is not a list"),
    ("outputs", [3], "an output that is not a parameter"), ("outputs", [-1], "'-1' is not a count"),
    ("outputs", [True], "'True' is not a count"), ("outputs", [1 << 63], "is not a count"),
    ("source", None, "'None' is no text"), ("entry", "1x", "'1x' is not a name"), ("into", "", "'' is not a name"),
    ("params.0.name", "x y", "'x y' is not a name"), ("params.0.dtype", "float17", "element type 'float17'"),
    ("params.0.shape", ["two words", 64], "'two words' is not a count"),
    ("params.0.shape", [-1, 64], "'-1' is not a count"),
    ("params.0.strides", 5, "'5' is not a list"), ("params.1.name", "1", "'1' is not a name"),
    ("kernels.0.name", "x(", "is not a name"), ("kernels.0.signature", [], "is not an object"),
    ("kernels.0.signature", {"x y": "i32"}, "is not a name"), ("kernels.0.signature", {"x": 3}, "is no text"),
    ("kernels.0.num_warps", -4, "is not a count"), ("kernels.0.num_stages", 2.5, "'2.5' is not a count"),
    ("kernels.0.options", 3, "is not an object"), ("kernels.0.constexprs", 3, "is not an object"),
    ("kernels.0.divisible_by_16", ["x y"], "is not a name"), ("kernels.0.grid", [-1], "'-1' is not a count"),
]  # fmt: skip


@pytest.mark.parametrize(("where", "value", "message"), MISTAKES, ids=lambda each: str(each)[:24])
def test_what_makes_no_sense_is_refused(described: dict[str, Any], where: str, value: Any, message: str) -> None:
    damaged = copy.deepcopy(described)
    *path, last = where.split(".")
    inside: Any = damaged
    for each in path:
        inside = inside[int(each) if each.isdigit() else each]
    assert last in inside
    inside[last] = value
    with pytest.raises(ValueError, match=message):
        call_fields(damaged)


def test_counts_reach_from_0_to_the_largest_64_bit_integer(described: dict[str, Any]) -> None:
    for count in (0, 1, (1 << 63) - 1):
        described["params"][0]["shape"] = [count, "rows"]
        assert call_fields(described)["params"][0].shape == (count, "rows")


@pytest.mark.parametrize("missing", ["name", "target", "params", "kernels", "outputs", "source"])
def test_what_is_missing_is_named(described: dict[str, Any], missing: str) -> None:
    del described[missing]
    with pytest.raises(KeyError, match=missing):
        call_fields(described)


def test_a_text_that_is_no_program_is_refused(described: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is not a program"):
        StoredKernel({**described, "program": "%0 = arith.constant {value = 2} : int32\n"}).stages
    with pytest.raises(ValueError, match="is no text"):
        StoredKernel({**described, "program": None})


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a description."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*at, key)
        yield from places(inner, (*at, key))


OTHERS: list[Any] = [None, True, 0, -1, 1 << 63, 2.5, "a b", "x", "float32", [], ["x"], [None], {}, {"x": 1}]


@pytest.mark.parametrize("other", OTHERS, ids=map(repr, OTHERS))
def test_what_is_taken_instead_comes_back(described: dict[str, Any], other: Any) -> None:
    """At every place of a description: another value is refused, or it is what the kernel is described by then."""
    taken = []
    for at in list(places(described)):
        changed = copy.deepcopy(described)
        holder = functools.reduce(lambda holder, key: holder[key], at[:-1], changed)
        holder[at[-1]] = other
        try:
            stored = StoredKernel(changed)
        except (ValueError, TypeError, KeyError, tiledsl.TileError):
            continue
        again = json.loads(json.dumps(describe(stored)))
        if at[:1] == ("params",) and other in ({}, None):  # what is left out, or as if it were
            changed, again = ({**each, "params": None} for each in (changed, again))
        assert again == changed, at
        taken.append(at)
    assert taken
