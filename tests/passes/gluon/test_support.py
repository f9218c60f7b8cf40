"""Which Tritons have the Gluon that is emitted, and how wide rows of boxes are swizzled."""

from __future__ import annotations

import pytest

from tiledsl.analysis.gluon import support


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (None, "Triton is not installed"),
        ((2, 9), "Triton 2.9 has no Gluon for this, 3.6 has"),
        ((3, 5), "Triton 3.5 has no Gluon for this, 3.6 has"),
        ((3, 6), ""),
        ((3, 9), ""),
        ((3, 10), "Gluon of Triton 3.10 is not known here, that of 3.9 is"),
        ((4, 0), "Gluon of Triton 4.0 is not known here, that of 3.9 is"),
    ],
)
def test_tritons_outside_of_what_was_tried_are_refused(
    version: tuple[int, int] | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(support, "version", lambda: version)
    assert support.missing() == reason


@pytest.mark.parametrize(
    ("columns", "dtype", "width"),
    [
        (64, "float16", 128),
        (128, "float16", 128),
        (96, "float16", 64),
        (32, "float16", 64),
        (48, "float16", 32),
        (16, "float16", 32),
        (64, "float8_e4m3fn", 64),
        (8, "float32", 32),
    ],
)
def test_the_widest_swizzle_that_divides_a_row(columns: int, dtype: str, width: int) -> None:
    assert support.swizzle((8, columns), dtype) == width == support.swizzle((2, 1, columns), dtype)
    assert support.swizzle((1, columns), dtype) == 16  # a single row has none
