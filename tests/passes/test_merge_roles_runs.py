"""merge-roles: in how many worlds an order of roles is run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.passes.test_merge_roles_simulation import MANY, roles
from tiledsl.passes.merge_roles import MergeRoles
from tiledsl.passes.merge_roles.simulate import World


def runs_of(monkeypatch: pytest.MonkeyPatch, *texts: str) -> list[tuple[int, int]]:
    """The trips and seeds of the worlds in which an order of roles was run."""
    made: list[tuple[int, int]] = []
    run = World.run

    def noted(world: World, items: Any) -> None:
        made.append((world.trips, world.seed))
        run(world, items)

    monkeypatch.setattr(World, "run", noted)
    MergeRoles().run(roles(*texts))
    return made


@pytest.mark.parametrize(
    ("before", "trips", "seeds"),
    [
        ("", {6}, {0}),  # all is known
        ("loop c9", {6}, {0}),
        ("loop n", {0, 1, 2, 3, 4, 5, 6, 7, 34}, {0, 1, 2, 3}),  # how many turns
        (f"{MANY.format(3)};scf.if %b {{", {6}, {0, 1, 2, 3}),  # whether, alone
    ],
)
def test_orders_are_run_for_what_is_not_known(
    monkeypatch: pytest.MonkeyPatch, before: str, trips: set[int], seeds: set[int]
) -> None:
    opened, end = (f"{before};", ";end" if "loop" in before else ";scf.yield } { scf.yield }") if before else ("", "")
    turn = "wait two odd;" if "loop" in before else "", ";arrive two" if "loop" in before else ""
    parity = "parity k;" if "loop" in before else ""
    even = "even" if "loop" in before else "c0"
    made = runs_of(
        monkeypatch,
        f"{opened}{parity}{turn[0]}put s;arrive one{end}",
        f"{opened}{parity}wait one {even};get s{turn[1]}{end}",
    )
    assert ({each for each, _ in made}, {each for _, each in made}) == (trips, seeds)
