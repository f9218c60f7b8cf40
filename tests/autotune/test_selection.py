"""Who goes into the final round, what it puts into the trials, and who wins: at each limit."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import pytest

from tiledsl.autotuner.selection import config_order, finalists, lacks_final_round, preferred, record_final, winner
from tiledsl.autotuner.trial import Trial


def trials(*latencies: float | None, **changed: Any) -> list[Trial]:
    """Trials with these milliseconds (None: it fails). changed: fields by place, as `at2={"spread": 0.1}`."""
    made = [
        Trial(index, {"block": 100 - index}, "ok" if each is not None else "crash", latency=each, spread=0.01)
        for index, each in enumerate(latencies)
    ]
    for place, fields in changed.items():
        made[int(place.removeprefix("at"))].update(fields)
    return made


def indices(found: list[Trial]) -> list[int]:
    return [trial.index for trial in found]


@pytest.mark.parametrize(
    ("tried", "incumbent", "expected"),
    [
        (trials(None, None), None, []),
        (trials(1.0), None, []),
        (trials(None, 1.0), None, []),
        (trials(1.0, 1.15), None, [1, 0]),  # the smaller block first
        (trials(1.0, 1.1501), None, []),
        (trials(1.1501, 1.0), None, [1, 0]),  # the default in any case
        (trials(9.0, 1.0, 1.1501), 2, [2, 1, 0]),  # and the earlier winner, which comes first
        (trials(9.0, 1.0, 1.1501), 1, [1, 0]),
        (trials(9.0, 1.0, None), 2, [1, 0]),
        (trials(None, 1.0, 1.1501), 2, [2, 1]),
        (trials(1.0, 1.0, 1.0, at1={"same_as": 0}), None, [2, 0]),
        (trials(9.0, 1.0, 1.1, 9.0, at3={"same_as": 2}), 3, [2, 1, 0]),  # by the trial that it is the same as
        (trials(9.0, 1.0, 1.1, 9.0, at0={"same_as": 2}), None, [2, 1]),
        (trials(1.0, 1.0, 1.0, at1={"objective": 3.0}), None, [2, 0]),
        # five at most, but for those that chance may have kept from being of them
        (trials(9.0, 1.0, 1.01, 1.02, 1.03, 1.1, 1.11), None, [5, 4, 3, 2, 1, 0]),
        (trials(9.0, 1.0, 1.01, 1.02, 1.03, 1.04, 1.06), None, [6, 5, 4, 3, 2, 1, 0]),
        (trials(9.0, 1.0, 1.01, 1.02, 1.03, 1.04, 1.0601), None, [5, 4, 3, 2, 1, 0]),
        (trials(9.0, *[1.0] * 20), None, [*range(16, 0, -1), 0]),
        # by resources before blocks
        (trials(1.0, 1.0, 1.0, at0={"resources": {"spills": 8}}, at1={"resources": {"num_warps": 4}}), None, [2, 1, 0]),
    ],
)  # fmt: skip
def test_finalists(tried: list[Trial], incumbent: int | None, expected: list[int]) -> None:
    assert indices(finalists(tried, incumbent)) == expected
    assert lacks_final_round(tried) == bool(indices(finalists(tried)))
    tried[-1].rounds = 1
    assert not lacks_final_round(tried)


KEPT = {"incumbent": 0}
FINAL = {"rounds": 4, "alone": 1.0, "noise": 0.0}


@pytest.mark.parametrize(
    ("tried", "options", "expected"),
    [
        (trials(), {}, None),
        (trials(None, None), {}, None),
        (trials(2.0, 1.0), {}, 1),
        (trials(1.0, 1.005), {}, 1),  # as good, and the smaller block
        (trials(1.0, 1.0051), {}, 0),
        (trials(1.0, 1.005, at0={"spread": None}), {}, 0),  # what was not measured has no noise
        (trials(1.0, 1.0, at0={"spread": None}), {}, 1),
        (trials(1.0, 1.02, at1={"noise": 0.08}), {}, 1),
        (trials(1.0, 1.0201, at1={"noise": 0.08}), {}, 0),
        # the final round decides among those in it
        (trials(2.0, 1.0, at0=FINAL | {"alone": 1.0}), {}, 0),
        (trials(2.0, 0.953, at0=FINAL | {"alone": 1.0}), {}, 0),
        (trials(2.0, 0.952, at0=FINAL | {"alone": 1.0}), {}, 1),  # that should have been in it
        (trials(2.0, 1.95, at0=FINAL | {"alone": None}), {}, 0),
        (trials(2.0, 1.90, at0=FINAL | {"alone": None}), {}, 1),
        (trials(2.0, 3.0, 1.0, at0=FINAL | {"alone": 1.0}, at1=FINAL | {"alone": 0.5}), {}, 0),
        # the earlier winner
        (trials(1.0, 1.01), {"incumbent": 1}, 1),  # twice the noise is still as good
        (trials(1.0, 1.0101, at0={"spread": 0.1}), {"incumbent": 1}, 0),
        (trials(1.1, 1.0, 1.05), {"incumbent": 2}, 1),
        (trials(1.1, 1.0, 1.05), {"incumbent": 2, "min_improvement": 0.05}, 2),
        (trials(1.1, 1.0, 1.05), {"incumbent": 2, "min_improvement": 0.04}, 1),
        (trials(1.1, 1.0, 1.1), {"incumbent": 2, "min_improvement": 0.1}, 2),
        (trials(1.1, 1.0, 1.12), {"incumbent": 2, "min_improvement": 0.2}, 1),  # slower than the default
        (trials(None, 1.0, 1.12), {"incumbent": 2, "min_improvement": 0.2}, 1),
        (trials(1.1, 1.0, None), {"incumbent": 2, "min_improvement": 0.2}, 1),
        (trials(1.0, 1.05, at1={"noise": 0.1, "rounds": 0}), {"incumbent": 1}, 1),  # what its rounds leave open counts
        (trials(1.0, 1.05, at1={"noise": 0.1, "rounds": 10_000}, at0={"rounds": 8}), {"incumbent": 1}, 1),
        (trials(1.0, 1.05, at1={"noise": 0.01, "rounds": 10_000}, at0={"rounds": 8}), {"incumbent": 1}, 0),
        # what is minimised may be something else
        (trials(1.0, 2.0, at0={"objective": 5.0}, at1={"objective": 4.0}), {}, 1),
        (trials(1.0, 2.0, at0={"objective": 4.0}, at1={"objective": 4.0}), {}, 1),
        (trials(1.0, 2.0, at1={"objective": 4.0}), {}, 0),
        (trials(1.0, 2.0, at0={"objective": 4.0}, at1={"objective": 3.9}), {"incumbent": 0}, 1),
        (trials(1.0, 2.0, at0={"objective": 4.0}, at1={"objective": 3.0}), KEPT | {"min_improvement": 0.25}, 0),
        (trials(1.0, 2.0, at0={"objective": 4.0}, at1={"objective": 3.0}), KEPT | {"min_improvement": 0.24}, 1),
        (trials(1.0, 2.0, at0={"objective": -4.0}, at1={"objective": -5.0}), KEPT | {"min_improvement": 0.25}, 0),
        (trials(1.0, 2.0, at0={"objective": -4.0}, at1={"objective": -5.1}), KEPT | {"min_improvement": 0.25}, 1),
        (trials(1.0, 2.0, at0={"objective": 4.0}, at1={"objective": 4.0}), {"incumbent": 0}, 0),
    ],
)  # fmt: skip
def test_the_winner(tried: list[Trial], options: dict[str, Any], expected: int | None) -> None:
    found = winner(tried, **options)
    assert (None if found is None else found.index) == expected


def test_the_order_of_trials_does_not_count() -> None:
    made = trials(1.0, 1.001, 1.002, 3.0)
    assert {winner(list(each)).index for each in itertools.permutations(made)} == {2}  # type: ignore[union-attr]


def test_how_ties_are_decided() -> None:
    """Spills, warps, shared memory, registers; then names and values, numbers by size and before others."""

    def of(config: Any = None, index: int = 0, **resources: Any) -> Any:
        return preferred(Trial(index, config or {"a": 1}, resources=resources or None))

    ordered = [
        of(), of(index=1), of({"a": 2}), of({"a": 10.0}), of({"a": "1"}), of({"a": True}),
        of({"a": "x"}),
        of({"a": 0, "b": 1}), of({"b": 0}), of(registers=8), of(shared_bytes=1, registers=4), of(num_warps=2),
        of(spills=1),
    ]  # fmt: skip
    by_value = sorted(ordered, key=lambda key: key)
    assert [ordered.index(each) for each in by_value] == [7, 0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12]
    assert of(registers=None) == of(registers="?") == of() == of(registers=0) and of({"x": 1, "a": 2}) == of(
        {"a": 2, "x": 1}
    )
    assert config_order({"b": 2, "a": "z"}) == (("a", True, "a=z"), ("b", False, 2))


def final(rounds: dict[str, Any], lasting: Any = None, failures: Any = (), **changed: Any) -> list[Trial]:
    made = trials(1.0, 1.1, 1.2, **changed)
    outcome: dict[str, Any] = {"rounds": rounds, "failures": dict(failures)}
    record_final(made, outcome if lasting is None else {**outcome, "lasting": lasting})
    return made


def test_what_the_final_round_puts_into_the_trials() -> None:
    one = [[2.0, 2.0, 2.0], [2.1, 2.1, 2.1], [1.9, 1.9, 1.9], [2.0, 2.0, 9.0]]
    other = [[each * 1.02 for each in samples] for samples in one]
    made = final({"0": one, "1": other, "2": []})
    assert [each.latency for each in made] == pytest.approx([2.0, 2.04, 1.2], rel=1e-3)
    assert [each.alone for each in made] == [1.0, 1.1, None] and [each.rounds for each in made] == [4, 4, 0]
    assert made[0].noise == made[1].noise == pytest.approx(0, abs=1e-12) and made[2].noise is None
    medians = [statistics.median(each) for each in one]
    quarters = statistics.quantiles(medians, n=4, method="inclusive")
    assert made[0].spread == pytest.approx(quarters[2] - quarters[0]) and made[2].spread == 0.01
    assert final({"0": one, "1": other}, at1={"alone": 7.0})[1].alone == 7.0  # before an earlier final round


def test_lasting_rounds_count_where_there_are_some() -> None:
    short, slow = [[1.0] * 3] * 4, [[1.05] * 3] * 4
    lasting = {"0": [[3.0] * 3] * 2, "1": [[3.3] * 3] * 2, "2": []}
    made = final({"0": short, "1": slow, "2": [[1.5] * 3] * 2}, lasting)
    assert [each.latency for each in made] == pytest.approx([3.0, 3.3, 4.5])  # the last as it did beside the leader
    assert [each.rounds for each in made] == [6, 6, 2] and made[2].spread == 0.0 and winner(made) is made[0]


def test_what_is_far_behind_has_its_own_median() -> None:
    """Its ratio is a mean of the middle half of its rounds."""
    leader, far = [[1.0]] * 4, [[1.2], [1.2], [1.3], [9.0]]
    assert final({"0": leader, "1": far})[1].latency == pytest.approx(1.25)
    uneven = [[each] for each in (1.2, 1.2, 1.2, 1.2, 1.2, 1.4, 9.0, 9.0)]
    assert final({"0": [[1.0]] * 8, "1": uneven})[1].latency == pytest.approx(1.2)
    near = [[1.1], [1.1], [1.2], [9.0]]  # 1.15 of the leader
    assert final({"0": leader, "1": near})[1].latency == pytest.approx(1.15)
    short = final({"0": leader, "1": far[:2]})[1]
    assert short.latency == pytest.approx(1.2) and short.rounds == 2
    clocks = [[2.0], [1.0], [1.0], [1.0]]
    assert final({"0": clocks, "1": [[4.0], [2.0]]})[1].latency == pytest.approx(2.0)  # not of as many rounds


def test_what_fails_in_the_final_round() -> None:
    failures = {
        "1": {"status": "crash", "message": "it died"}, "2": {"status": "out_of_resources", "message": "no memory"},
    }  # fmt: skip
    made = final({"0": [[2.0]] * 4}, failures=failures)
    assert [each.status for each in made] == ["ok", "crash", "ok"]
    assert made[1].message == "in the final round: it died" and made[0].latency == 2.0 and made[2].latency == 1.2
    assert [each.latency for each in final({"0": [], "1": []})] == [1.0, 1.1, 1.2]
