"""What is said of near misses of texts stays as it is: a message, its place and its notes, or the IR.

If a change is meant, look at some of the differences, and record the new state with `make golden`.
"""

from __future__ import annotations

import pytest

from tests.frontend.near_texts import near
from tests.golden.texts import TEXTS, line, recorded

PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_near_misses(part: int) -> None:
    for number, ((name, seed), was) in enumerate(recorded().items()):
        if number % PARTS == part and (now := line(name, seed)) != was:
            pytest.fail(
                f"Of this text something else is said. Look at it, and run `make golden` if that is meant.\n"
                f"recorded: {was}\nnow:      {now}\n{near(TEXTS[name], seed)}"
            )
