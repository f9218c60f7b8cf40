"""Which sizes are divided, and into what."""

from __future__ import annotations

import pytest

from tiledsl.analysis.tile_parts import divided, gains, padded, parts_of


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (192, [128, 64]), (576, [512, 64]), (448, [256, 128, 64]), (9, [8, 1]), (7, [4, 2, 1]),
        (64, []), (1, []), (480, []), (1000, []),
    ],
)  # fmt: skip
def test_parts(size: int, parts: list[int]) -> None:
    assert parts_of(size) == parts


def test_every_size_is_the_sum_of_its_parts_or_padded() -> None:
    for size in range(1, 1100):
        parts = parts_of(size)
        assert not parts or sum(parts) == size and all(padded(part) == part for part in parts) and len(parts) <= 3
        held = divided(size)
        assert held in (size, padded(size)) and held <= padded(size) < 2 * size or size == 1
        assert (held < padded(size)) == (gains(size) and bool(parts) and parts[-1] >= 16)


def test_what_is_too_short_or_adds_little_is_padded() -> None:
    assert [size for size in (48, 56, 96, 112, 120, 192, 224, 240) if gains(size)] == [96, 112, 192, 224]
    assert (divided(72), divided(80), divided(96, 64), divided(192, 64)) == (128, 80, 128, 192)
