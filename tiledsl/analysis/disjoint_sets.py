"""What belongs together, told pair by pair."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

_Member = TypeVar("_Member", bound=Hashable)


class DisjointSets(Generic[_Member]):
    """Sets of members as a forest in which each has a parent; what was never joined is alone."""

    def __init__(self) -> None:
        self.parents: dict[_Member, _Member] = {}

    def root(self, member: _Member) -> _Member:
        """One member that stands for all of the set."""
        while (above := self.parents.get(member, member)) != member:
            self.parents[member] = self.parents.get(above, above)
            member = above
        return member

    def unite(self, first: _Member, second: _Member) -> None:
        """Make one set of two; the first one's root stands for it."""
        self.parents[self.root(second)] = self.root(first)
