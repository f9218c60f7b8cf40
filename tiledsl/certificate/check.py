"""One statement of a certificate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["proved", "tested", "unknown", "failed"]


@dataclass(frozen=True)
class Check:
    """What was looked at and what came out.

    `kind` is "pass", "source", "bounds", "race" or "read"; `subject` names the pass or the access; `detail` says how it
    was established, or why not, with values; `place` is a position in the user's file ("matmul.py:27:13") or "".
    """

    kind: str
    subject: str
    status: Status
    detail: str = ""
    place: str = ""
