"""What programs lower to stays as it is, unless somebody means to change it.

A changed source is another kernel: results may differ in their last bits, and all that was tuned is tuned again. So a
change of passes that is not meant to reach these programs must not. If it is meant to, look at what became of one
(`tiledsl lower`, before and after the change), and record the new state with `make golden`.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.golden.programs import EXAMPLES, RANDOM, Golden, example_programs, named_programs, random_programs, recorded
from tests.support.programs import NAMED


def check(programs: Iterable[Golden], every_stage: bool = False) -> None:
    before = recorded()
    for golden in programs:
        was = before.get(golden.name, "")
        if not every_stage and was.endswith(f" {golden.end}"):
            continue
        now = golden.line
        if was != now:
            pairs = zip(was.split()[-len(now.split()) :], now.split())
            first = next((new.partition("=")[0] for old, new in pairs if old != new), "the last pass")
            pytest.fail(
                f"{golden.name} is lowered to something else from {first} on. Look at it, and run `make golden` if "
                f"that is meant.\nrecorded: {was}\nnow:      {now}"
            )


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str) -> None:
    check(example_programs(name))


@pytest.mark.parametrize("name", NAMED)
def test_named_programs(name: str) -> None:
    check(named_programs(name))


@pytest.mark.parametrize("part", range(8))
def test_random_programs(part: int) -> None:
    check(random_programs(range(part, RANDOM, 8)))


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_stage_of_examples(name: str) -> None:
    check(example_programs(name), every_stage=True)


@pytest.mark.slow
def test_every_stage_of_random_programs() -> None:
    check(random_programs(), every_stage=True)


def test_no_record_is_left_over() -> None:
    kinds = {name.split()[0] for name in recorded()}
    assert kinds == {*EXAMPLES, "named", "random"}
