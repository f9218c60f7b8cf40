"""What objects show of themselves, in notebooks and as text."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

import tiledsl
import tiledsl.language as T
from tests.autotune.test_result import gemm_result, tuned
from tests.report.pages import Read
from tiledsl.kernels.kernel import Kernel
from tiledsl.kernels.stored import StoredKernel, describe


@T.prim_func
def cleared(X: T.Tensor((32,), "float16")):
    with T.Kernel(1, threads=32) as _:
        for i in T.Parallel(32):
            if i < 16 and i > 2:
                X[i] = 0.0


@tiledsl.jit
def builder(N, block=16):
    return cleared


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return tiledsl.compile(cleared, target="cuda:90")


def test_texts_have_no_addresses_and_no_escaped_lines(kernel: Kernel) -> None:
    assert repr(cleared) == "<T.prim_func cleared(X)>" and repr(builder) == "<tiledsl.jit function builder(N, block)>"
    lines = repr(kernel.stages).splitlines()
    count = len((kernel.stages[0].text or "").splitlines())
    assert re.fullmatch(rf"<stage elaborate: \d+\.\d\d ms, {count} lines>", lines[0]) and "emit" in lines[-1]
    assert len(lines) == len(kernel.stages) and isinstance(kernel.stages, list)


def test_notebooks_show_programs_kernels_and_stages(kernel: Kernel) -> None:
    program = Read(cleared._repr_html_())
    assert [tag for tag, _ in program.tags] == ["pre"] and "if i < 16 and i > 2:" in program.texts[0]
    shown = Read(kernel._repr_html_())
    assert shown.texts == [repr(kernel), "Triton source", kernel.source]
    stored = StoredKernel(describe(kernel))
    for stages in (kernel.stages, stored.stages):
        read = Read(stages._repr_html_())
        changed = [stages[0], *(b for a, b in pairwise(stages) if a.text != b.text)]
        assert [each for each in read.texts if "\n" in each] == [each.text for each in changed]
        assert [tag for tag, _ in read.tags].count("p") == len(stages) - len(changed) > 0
    prim_func = type(cleared)
    lost = prim_func.__new__(prim_func)
    lost.name, lost.function = "lost", eval("lambda A: 0")
    assert Read(lost._repr_html_()).texts == ["<T.prim_func lost(A)>"]


def test_notebooks_show_what_won_and_what_failed() -> None:
    result = gemm_result(0.02, 0.01, None)
    result.trials[2].message = "no <script>alert(1)</script>\nat all"
    read = Read(result._repr_html_())
    assert {tag for tag, _ in read.tags} == {"table", "thead", "tbody", "tr", "th", "td"}
    assert read.texts[:3] == ["winner", "block_M=128 block_N=128 num_stages=4", "time"]
    assert read.texts[-3:] == ["1", "pruned", "no <script>alert(1)</script>"]
    found = tuned()
    assert "nonfinite" in Read(found._repr_html_()).texts and found._repr_html_() != found.kernel._repr_html_()
