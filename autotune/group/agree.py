"""How ranks that tune together come to one view: of what is tuned, of what is remembered, and of each trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiledsl.autotuner.group.ranks import Ranks, place
from tiledsl.autotuner.space import config_key
from tiledsl.autotuner.storage.key import Key, differences
from tiledsl.autotuner.trial import config_text
from tiledsl.errors import TileError

# Fields of a key in which ranks may differ: rank 0's count. Closures may hold a rank's number, machines their drivers.
_OWN = ("program", "reference", "gpu", "sm_count", "driver", "ptxas", "policy.host")
_MOST_SHOWN = 5


@dataclass(frozen=True)
class Agreed:
    """What all ranks know when they begin. key: None if nothing is kept; writes: whether this rank writes to disk;
    neighbours: how many keep results in the same place."""

    key: Key | None
    limits: str
    writes: bool
    always_tune: bool
    neighbours: int


def agree_on_problem(
    ranks: Ranks,
    name: str,
    configs: Sequence[Mapping[str, Any]],
    key: Key | None,
    fields: Mapping[str, Any],
    limits: str,
    folder: Path,
    always_tune: bool,
) -> Agreed:
    """See that all ranks tune the same: the function, the configurations, and the fields of its key.

    folder: where results are kept. TileError on all ranks, with what differs, if they do not.
    """
    problems = ranks.exchange(
        "what is tuned",
        {
            "name": name,
            "configs": [[config_key(config), config_text(config)] for config in configs],
            "fields": dict(fields),
            "is_kept": key is not None,
            "limits": limits,
            "place": place(folder),
            "always_tune": always_tune,
        },
    )
    for rank, theirs in enumerate(problems):
        lines = _disagreements(problems[0], theirs, rank)
        if lines:
            raise TileError(f"autotune: {name}: ranks 0 and {rank} disagree about what is tuned", notes=lines)
    first = problems[0]
    common = None
    if all(problem["is_kept"] for problem in problems):
        gpus = sorted({str(problem["fields"].get("gpu", "")) for problem in problems})
        group = {"size": len(problems), "places": len({problem["place"] for problem in problems}), "gpus": gpus}
        common = Key(name, {**first["fields"], "group": group}, key is not None and key.exact)
    places = [problem["place"] for problem in problems]
    writes = places.index(places[ranks.rank]) == ranks.rank
    return Agreed(
        common,
        first["limits"],
        writes,
        any(problem["always_tune"] for problem in problems),
        places.count(places[ranks.rank]),
    )


def _disagreements(first: Mapping[str, Any], other: Mapping[str, Any], rank: int) -> list[str]:
    """A line for each thing in which a rank's problem is not that of rank 0."""
    if first["name"] != other["name"]:
        return [f"rank 0 tunes {first['name']}, rank {rank} tunes {other['name']}"]
    lines = []
    mine, theirs = first["configs"], other["configs"]
    if mine != theirs:
        lines.append(f"rank 0 has {len(mine)} configurations, rank {rank} {len(theirs)}")
        only = [(0, each) for each in mine if each not in theirs] + [
            (rank, each) for each in theirs if each not in mine
        ]
        lines += [f"only rank {where} has {text}" for where, (_, text) in only[:_MOST_SHOWN]]
        if not only:
            lines[-1] += ", in another order"
    for name, (here, there) in differences(first["fields"], other["fields"]).items():
        if name not in _OWN:
            lines.append(f"{name}: {_shown(here)} on rank 0, {_shown(there)} on rank {rank}")
    if any(line.startswith("arguments") for line in lines):
        lines.append("if that is meant, say key=..., a function of the arguments that is equal on all ranks")
    return lines


def _shown(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


FAILED = ("crash", "hang", "launch_error", "out_of_resources", "compile_error", "compile_timeout", "nonfinite",
          "mismatch", "other_bits", "disproved", "pruned", "screened", "new")  # fmt: skip
_LARGEST = ("latency", "spread", "alone", "noise", "max_error", "mean_error", "mismatched_ratio", "compile_seconds")


def merged(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One outcome of all ranks': the largest of each number; the failure if one fails, and on which ranks it does."""
    statuses = [str(each.get("status", "ok")) for each in outcomes]
    status = min(statuses, key=lambda each: FAILED.index(each) if each in FAILED else len(FAILED))
    first = outcomes[statuses.index(status)]
    whole = dict(first)
    for name in _LARGEST:
        found = [each[name] for each in outcomes if each.get(name) is not None]
        if name in first or found:
            whole[name] = max(found, default=None)
    if "rounds" in first:
        whole["rounds"] = min(each.get("rounds", 0) for each in outcomes)
    if "verified" in first:
        whole["verified"] = all(each.get("verified") for each in outcomes)
    where = [rank for rank, each in enumerate(statuses) if each == status]
    if status in FAILED and len(where) < len(outcomes):
        whole["message"] = f"on rank {', '.join(map(str, where))}: {first.get('message', '')}"
    return whole
