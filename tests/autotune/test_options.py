"""Options, each stated once: what signatures and help() make of the fields. Their checks are in test_measure."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import tiledsl
from tiledsl.autotuner import TuneOptions, tune_function, tune_in_context
from tiledsl.autotuner.context.options import ContextOptions
from tiledsl.autotuner.function_options import FunctionOptions
from tiledsl.autotuner.option import by_section


@pytest.mark.parametrize(
    ("decorator", "first", "options", "another"),
    [
        (tiledsl.autotune, "configs", TuneOptions, "warmup"),
        (tune_function, "configs", FunctionOptions, "warmup"),
        (tune_in_context, "function", ContextOptions, "timer"),
    ],
)
def test_help_shows_every_option(decorator: Any, first: str, options: Any, another: str) -> None:
    parameters = inspect.signature(decorator).parameters
    own = {first, "grid", "make_inputs", "descriptors"} if decorator is tiledsl.autotune else {first}
    assert next(iter(parameters)) == first
    assert {*parameters} == {*own, *(each.name for each in fields(options))}
    text = inspect.getdoc(options)
    assert text is not None and max(map(len, text.splitlines())) <= 120
    for each in fields(options):
        shown = parameters[each.name]
        assert (shown.default, shown.annotation, shown.kind) == (each.default, each.type, shown.KEYWORD_ONLY)
        assert f"\n{each.name}: {each.metadata['doc'].splitlines()[0]}" in text
        assert getattr(options(), each.name) == each.default
    with pytest.raises(tiledsl.TileError, match=rf"has no option 'wormup'\n  note: there are .*, {another}"):
        decorator(**{first: [{"block": 1}], "wormup": 1})


def test_sections_have_one_order() -> None:
    text = inspect.getdoc(TuneOptions) or ""
    named = [line for line in text.splitlines() if line in by_section(TuneOptions)]
    assert named == [
        "Measuring", "Checking", "Numbers that do not depend on luck", "Searching", "Remembering", "Tuned-config files",
    ]  # fmt: skip
    assert [*by_section(ContextOptions)] == ["Measuring", "Remembering"]


def test_lists_become_tuples() -> None:
    given = {"devices": [0, 1], "do_not_specialize": "M", "seed_configs": [{"block": 1}], "tuned": Path("folder")}
    options = TuneOptions(**given)
    assert (options.devices, options.do_not_specialize) == ((0, 1), ("M",))
    assert (options.seed_configs, options.tuned) == (({"block": 1},), (Path("folder"),))
    assert replace(options, rep=5) == TuneOptions(**given, rep=5)
    empty = TuneOptions(do_not_specialize=None, seed_configs=None, tuned=None)  # type: ignore[arg-type]
    assert empty == TuneOptions()
    assert FunctionOptions(as_is="B").as_is == ("B",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": [True]}, r"devices is \[True\]; it must be a list of GPU numbers"),
        ({"tuned": [3]}, r"tuned is \[3\]; it must be a folder, or a list of folders"),
        ({"on_miss": "wait"}, "on_miss is 'wait'; it must be 'tune', 'first' or 'error'"),
        ({"rows": "M"}, "rows says something of numerics: pass numerics="),
        ({"numerics": "same-bits", "rows": 3}, "rows is 3; it must be the name of an argument or a size"),
        ({"warmup": None}, "warmup is None; it must be a number, at least 0"),
        ({"jobs": True}, "jobs is True; it must be a whole number"),
        ({"early_stop_factor": 0.5}, "early_stop_factor is 0.5; it must be a number, at least 1"),
        ({"manual_check_prog": print}, "there is no ref_prog"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tiledsl.TileError, match=message):
        TuneOptions(**options)
