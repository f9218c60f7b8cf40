"""No false alarm: what the examples do to memory is proved at their real shapes, but for what depends on data."""

from __future__ import annotations

import pytest

from benchmarks import verify
from tiledsl.certificate import certify

pytest.importorskip("z3")

CHECKERS = [checker for kind, checker in certify.CHECKERS if kind in ("bounds", "race", "read")]
# What depends on what stands in memory: which rows of C a block writes, which elements a counter or a place is of, and
# in threads, which exchange by shared memory, what an earlier turn of a loop has written.
OF_DATA = {
    "fused_moe": ({"race", "read"}, "it depends on what"),
    "grouped_gemm": ({"race", "read"}, "what group"),
    "radix_sort": ({"bounds", "read"}, "it depends on what"),
    "rms_norm_threads": ({"read"}, "an earlier iteration may have written it"),
}


LONG = ("kimi_delta_attention", "gated_delta_net", "gated_linear_attention", "linear_attention")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in verify.example_names()]
)
def test_an_example_is_proved(name: str) -> None:
    for kernel in verify.of_example(name):
        checks = [check for checker in CHECKERS for check in checker(kernel, 20.0)]
        unproved = [check for check in checks if check.status != "proved"]
        assert len(checks) > 5 and not [check for check in unproved if check.status == "failed"], unproved
        if name in OF_DATA:
            kinds, reason = OF_DATA[name]
            assert {check.kind for check in unproved} == kinds, unproved
            assert all(reason in check.detail for check in unproved), unproved
        else:
            assert not unproved
