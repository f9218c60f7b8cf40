"""The walk that finds what values depend on."""

from __future__ import annotations

from tiledsl.analysis.dependence import reached

CIRCLE = {"a": ["b", "c"], "b": ["d"], "c": ["d", "a"], "d": []}


def test_each_is_reached_once_depth_first() -> None:
    assert list(reached(["a"], CIRCLE.__getitem__)) == ["a", "c", "d", "b"]
    assert list(reached(["b", "d"], CIRCLE.__getitem__)) == ["d", "b"]


def test_the_walk_goes_no_further_than_it_is_followed() -> None:
    asked: list[str] = []

    def following(node: str) -> list[str]:
        asked.append(node)
        return CIRCLE[node]

    assert "c" in reached(["a"], following)
    assert asked == ["a"]
