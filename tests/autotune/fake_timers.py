"""Clocks for tests: they take a configuration and the call to time, and return milliseconds. See TuneOptions.timer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

installed: list[Callable[[dict[str, Any]], float]] = []  # by the fixture `timer`, in this process


def by_fixture(config: dict[str, Any], call: Callable[[], Any]) -> float:
    return installed[-1](config)


def by_tile(config: dict[str, Any], call: Callable[[], Any]) -> float:
    """Larger tiles are faster; a configuration that says so ends its process."""
    if config.get("num_stages") == 7:
        os.kill(os.getpid(), 9)
    call()
    return 64.0 / config["BLOCK"]


def by_block(config: dict[str, Any], call: Callable[[], Any]) -> float:
    """Larger blocks are faster."""
    call()
    return 64.0 / config["block"]


def slow_and_noted(config: dict[str, Any], call: Callable[[], Any]) -> float:
    """Half a second each; the process is written to the file that the configuration names."""
    with open(config["variant"], "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(0.5)
    return 64.0 / config["block"]


def each_call_noted(config: dict[str, Any], call: Callable[[], Any]) -> float:
    """`process block` is written to the file that the configuration names; large blocks are faster."""
    call()
    time.sleep(600 if config["variant"].endswith("endless") else 0.1)
    with open(config["variant"], "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {config['block']}\n")
    return 64.0 / config["block"]


def noted(config: dict[str, Any], call: Callable[[], Any]) -> float:
    """A tenth of a second each; `process tag block` is written to the file TILEDSL_TEST_NOTES. Large blocks are
    faster, unless the file TILEDSL_TEST_NOTES.reversed is there."""
    notes = os.environ["TILEDSL_TEST_NOTES"]
    call()
    time.sleep(0.1)
    with open(notes, "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {config['tag']} {config['block']}\n")
    return config["block"] / 64.0 if os.path.exists(f"{notes}.reversed") else 64.0 / config["block"]


def by_way(config: dict[str, Any], call: Callable[[], Any]) -> float:
    """What is "fast" takes half as long as others."""
    call()
    return 0.5 if config["way"] == "fast" else 1.0
