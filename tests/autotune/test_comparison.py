"""Which configuration is good for all problems, and by what problems are told apart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tiledsl.autotuner.storage.cache import CacheEntry
from tiledsl.autotuner.storage.comparison import ConfigComparison, compare_entries

Tried = tuple[Any, str, Any]  # configuration, status, milliseconds


@dataclass(frozen=True)
class Stored(CacheEntry):
    tried: tuple[Tried, ...] = ()

    def trials(self) -> dict[str, Any]:
        records = [{"config": config, "status": status, "latency": ms} for config, status, ms in self.tried]
        return {str(record["config"]): record for record in records}


def entry(fields: Any, *tried: Tried, digest: str = "0123456789abcdef") -> Stored:
    return Stored(Path(), "matmul", digest, fields, 0.0, tried)


OK: Tried = ({"block": 32}, "ok", 1.0)


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        ([{"arguments": {"M": "int:64", "N": "int:8"}, "gpu": "one"}], ["M=64 N=8"]),
        ([{"arguments": {"M": "int:64", "N": "int:8"}}, {"arguments": {"M": "int:1", "N": "int:8"}}], ["M=64", "M=1"]),
        # what is no argument is told where arguments do not tell problems apart
        ([{"arguments": {"M": "1"}, "gpu": "one"}, {"arguments": {"M": "1"}, "gpu": "two"}], ["gpu=one", "gpu=two"]),
        (
            [
                {"arguments": {"M": "int:64"}, "gpu": "one"},
                {"arguments": {"M": "int:64"}, "gpu": "two"},
                {"arguments": {"M": "int:8"}, "gpu": "two"},
            ],
            ["M=64 gpu=one", "M=64 gpu=two", "M=8 gpu=two"],
        ),
        ([{"a": {"b": {"c": "int:1"}}}, {"a": {"b": {"c": "int:2"}}}], ["a.b.c=1", "a.b.c=2"]),
        ([{"arguments": {"x": "float:0.5"}}, {"arguments": {}}], ["x=0.5 0123456789ab", "0123456789ab"]),
        ([{"arguments": {"x": "str:a"}}, {"arguments": {"x": "bool:True"}}], ["x=a", "x=True"]),
        (
            [
                {"arguments": {"A": "tensor:(64, 32):float16"}},
                {"arguments": {"A": "tensor:vague:(8,):float16"}},
            ],
            ["A=(64, 32)", "A=(8,)"],
        ),
        ([{"key": "x" * 50}, {"key": "other:5"}], ["key=" + "x" * 40, "key=other:5"]),
        ([{"gpu": "one"}], ["0123456789ab"]),
        ([{}, {}], ["0123456789ab", "0123456789ab"]),
    ],
)  # fmt: skip
def test_what_tells_problems_apart(fields: list[Any], labels: list[str]) -> None:
    assert list(compare_entries([entry(each, OK) for each in fields]).problems) == labels


def test_problems_without_names_are_told_by_their_digests() -> None:
    entries = [entry({"gpu": "one"}, OK, digest="a" * 24), entry({"gpu": "one"}, OK, digest="b" * 24)]
    assert compare_entries(entries).problems == ("a" * 12, "b" * 12)


def test_only_configurations_that_work_have_times() -> None:
    wrong = [({"block": 1}, "crash", 0.1), (None, "ok", 0.1), ([1], "ok", 0.1), ({"block": 2}, "ok", None)]
    wrong += [({"block": 3}, "ok", "fast"), ({"block": 4}, "ok", 0), ({"block": 5}, "ok", -1.0)]
    made = compare_entries([entry({"M": "int:1"}, *wrong, ({"block": 6}, "ok", 2)), entry({"M": "int:2"}, *wrong)])
    assert made.problems and len(made.problems) == 1 and made.best == (2.0,)
    assert [row.config for row in made.rows] == [{"block": 6}]


def test_times_are_compared_with_the_best_of_each_problem() -> None:
    made = compare_entries(
        [
            entry({"M": "int:1"}, ({"block": 1}, "ok", 2.0), ({"block": 2}, "ok", 1.0)),
            entry({"M": "int:2"}, ({"block": 1}, "ok", 4.0), ({"block": 3}, "ok", 4.0), ({"block": 4}, "ok", 8.0)),
        ]
    )
    assert made.problems == ("M=1", "M=2") and made.best == (1.0, 4.0)
    assert [(row.config["block"], row.milliseconds, row.slowdowns) for row in made.rows] == [
        (1, (2.0, 4.0), (2.0, 1.0)),  # known for both
        (2, (1.0, None), (1.0, None)),  # of equally good ones the first
        (3, (None, 4.0), (None, 1.0)),
        (4, (None, 8.0), (None, 2.0)),
    ]
    first = made.rows[0]
    assert (first.known, first.worst, first.merit[0]) == (2, 2.0, -2)
    assert first.mean == pytest.approx(2**0.5)
    assert made.rows[3].mean == 2.0 == made.rows[3].worst and made.rows[3].known == 1
    assert made.rows[1].cells(3) == ["1.000", "-"]


def test_columns_of_all_tunables_for_programs() -> None:
    made = ConfigComparison.of(["M=1"], [1.0], [({"a": 1}, [1.0]), ({"b": "x", "a": 2}, [3.0])])
    first, *rows = made.as_csv(["worst", "known"], lambda row: [row.worst, row.known]).splitlines()
    assert first == "a,b,worst,known" and rows == ["1,,1.0,1", "2,x,3.0,1"]
