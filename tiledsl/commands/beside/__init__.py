"""`tiledsl beside`: TileLang scripts under both compilers, kernel by kernel."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiledsl.commands.beside.process import Job
from tiledsl.commands.beside.results import run_jobs, show, summary
from tiledsl.commands.beside.supervise import Plan
from tiledsl.commands.report import give
from tiledsl.errors import TileError

__all__ = ["Job", "Plan", "beside", "check_installed", "jobs_in", "matching", "run_jobs", "show", "summary"]

_IMPORTS = re.compile(rb"^\s*(import|from) tilelang\b", re.MULTILINE)


def beside(
    where: Path, arguments: Sequence[str], only: str, plan: Plan, file: Path | None, seconds: float | None
) -> int:
    """Run a script, or those of a folder; print what was found. 1 if outputs differ, or a certificate has failed."""
    check_installed()
    jobs = matching(_jobs(where, tuple(arguments)), only)
    scripts = run_jobs(jobs, plan, file, seconds)
    found = summary(scripts)
    give(scripts=scripts, summary=found, file=file)
    show(scripts)
    return 1 if found["different"] or found["failed_certificates"] else 0


def check_installed() -> None:
    """TileError where TileLang is not installed."""
    if importlib.util.find_spec("tilelang") is None:
        raise TileError(
            "tilelang is not installed here, so there is nothing to compare with", notes=["pip install tilelang"]
        )


def _jobs(where: Path, arguments: tuple[str, ...]) -> list[Job]:
    if where.is_file():
        return [Job(where.name, where, arguments)]
    if not where.is_dir():
        raise TileError(f"there is no script and no folder {where}")
    return [replace(job, arguments=arguments) for job in jobs_in(where)]


def jobs_in(folder: Path) -> Iterator[Job]:
    """Every script in a folder that imports TileLang, by its path there."""
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        if (
            not any(part.startswith(".") for part in name.parts)
            and path.is_file()
            and _IMPORTS.search(path.read_bytes())
        ):
            yield Job(name.as_posix(), path)


def matching(jobs: Sequence[Any], only: str) -> list[Any]:
    """The jobs whose names a pattern matches. TileError if there are none."""
    try:
        chosen = [job for job in jobs if re.search(only, job.name)]
    except re.error as error:
        raise TileError(f"--only {only}: not a regular expression: {error}") from None
    if not chosen:
        raise TileError(
            f"--only {only}: none of {len(jobs)} scripts matches" if jobs else "no script here imports tilelang"
        )
    return chosen
