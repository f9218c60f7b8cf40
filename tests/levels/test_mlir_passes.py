"""Triton's own passes, one by one."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import tiledsl
from tests.autotune.programs import gemm_builder, scale_builder
from tiledsl.errors import TileError
from tiledsl.levels.mlir_passes import parsed, save_passes


def test_each_pass_with_what_it_changed(tmp_path: Path) -> None:
    passes = tiledsl.jit(out_idx=-1, target="cuda:90")(gemm_builder)().triton_passes()
    names = [each.name for each in passes]
    assert names[0] in ("InlinerPass", "Inliner")  # as Triton 3.6 calls it
    for name in ("ConvertTritonToTritonGPU", "TritonGPUAccelerateMatmul", "TritonGPUPipeline"):
        assert name in names
    by_name = {each.name: each for each in passes}
    convert = by_name["ConvertTritonToTritonGPU"]
    assert convert.changed and "#blocked" not in convert.before and "#blocked" in convert.after
    product = by_name["TritonGPUAccelerateMatmul"]
    assert product.changed and "warp_group_dot" not in product.before and "warp_group_dot" in product.after
    told, _, options = convert.spec.partition("{")
    assert told == "convert-triton-to-tritongpu" and (not options or "target=cuda:90" in options)  # 3.6 prints none
    assert not any("loc(" in each.before or "#loc" in each.before for each in passes)
    assert all(one.after == two.before for one, two in itertools.pairwise(passes)) and passes[-1].after == ""
    assert all(each.changed == (each.before != each.after) for each in passes[:-1])
    assert 0 < sum(each.changed for each in passes) < len(passes)
    written = save_passes(passes, tmp_path / "mlir")
    assert len(written) == len(passes) and written == sorted(written)
    chosen = written[names.index("TritonGPUAccelerateMatmul")]
    assert chosen.name.endswith("-changed-TritonGPUAccelerateMatmul.mlir")
    assert chosen.read_text() == f"// before {product.spec}\n{product.before}"


@pytest.mark.parametrize("told", ["{}: {}", "{} ({})"], ids=["newest", "3.6"])
def test_what_is_printed_is_divided_at_the_passes_over_the_module(told: str) -> None:
    head = f"// -----// IR Dump Before {told} ('{{}}' operation{{}}) //----- //\n"
    printed = (
        "a warning\n"
        + head.format("A", "a{x=1    y=2}", "builtin.module", "")
        + '#loc = loc("f":1:1)\nmodule {\n  op loc(#loc1)\n} loc(#loc)\n#loc1 = loc("x"(#loc))\n\n'
        + head.format("F", "f", "tt.func", ": @zeros(0, 0)c_fp32_")
        + "tt.func\n\n"
        + head.format("B", "b", "builtin.module", "")
        + "module {\n  op\n}\n// -----// internal IR Dump After: Something\nmodule\n"
        + head.format("C", "c", "builtin.module", "")
        + "module {\n  op2\n}\n"
    )
    found = [(each.name, each.spec, each.before, each.changed) for each in parsed(printed)]
    text = "module {\n  op\n}\n"
    assert found == [
        ("A", "a{x=1 y=2}", text, False),
        ("B", "b", text, True),
        ("C", "c", "module {\n  op2\n}\n", False),
    ]


def test_what_has_no_passes_is_refused() -> None:
    kernel = tiledsl.jit(out_idx=-1, target="interpret")(scale_builder)(block=32)
    with pytest.raises(TileError, match="the target 'interpret' compiles nothing"):
        kernel.triton_passes()
    kernel = tiledsl.jit(out_idx=-1, target="cuda:90")(scale_builder)(block=32)
    with pytest.raises(TileError, match="scale has no GPU kernel 'other'; it has scale_kernel"):
        kernel.triton_passes("other")
