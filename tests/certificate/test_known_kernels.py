"""No false alarm: what the examples do to memory is proved at their real shapes, but for what depends on data."""

from __future__ import annotations

import pytest

from benchmarks import verify
from tiledsl.certificate import certify

pytest.importorskip("z3")

CHECKERS = [checker for kind, checker in certify.CHECKERS if kind in ("bounds", "race", "read")]
OF_DATA = {"grouped_gemm"}  # which rows of C a block writes stands in memory


@pytest.mark.parametrize("name", verify.example_names())
def test_an_example_is_proved(name: str) -> None:
    for kernel in verify.of_example(name):
        checks = [check for checker in CHECKERS for check in checker(kernel, 20.0)]
        left = [check for check in checks if check.status != "proved"]
        assert len(checks) > 5 and not [check for check in left if check.status == "failed"], left
        if name in OF_DATA:
            assert {check.kind for check in left} == {"race", "read"} and all("what group" in c.detail for c in left)
        else:
            assert not left
