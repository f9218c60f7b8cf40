"""A tuning's problem as a task: its key, what is recalled and restored, and its result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.autotune.programs import scale_builder
from tiledsl.autotuner import engine
from tiledsl.autotuner.engine import TuningProblem, result_of
from tiledsl.autotuner.measuring import measure
from tiledsl.autotuner.options import TuneOptions
from tiledsl.autotuner.storage.cache import CachedResult
from tiledsl.autotuner.storage.fingerprint import canonical
from tiledsl.autotuner.trial import Trial
from tiledsl.digests import source_digest
from tiledsl.errors import TileError
from tiledsl.runtime.target import Target

CONFIGS = [{"block": 16}, {"block": 32}, {"block": 64}]


def kernel(block: int) -> Any:
    return SimpleNamespace(source=f"source {block}", target=None)


def problem(**changed: Any) -> TuningProblem:
    options = {name: changed.pop(name) for name in list(changed) if name not in TuningProblem.__dataclass_fields__}
    build = changed.pop("build", lambda config, target: kernel(config["block"]))
    given: dict[str, Any] = {"program": object(), "values": {"size": 64, "block": None}, "configs": CONFIGS}
    made = {
        "name": "scale",
        "function": scale_builder,
        "build": build,
        "target": Target("interpret"),
        **given,
        **changed,
    }
    return TuningProblem(**made, options=TuneOptions(**options))


def policy(**options: Any) -> Any:
    key = problem(**options).key()
    assert key is not None
    return key.fields["policy"]


PLAIN = {
    "supply_type": "TensorSupplyType.Auto", "check": [None, None, 0.01, False], "verify_at": "NoneType:None",
    "timing": [25.0, 100.0, None, None],
}  # fmt: skip


def last_but_first(given: Any) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({}, {}),
        ({"rtol": 0.5, "atol": 0.25, "max_mismatched_ratio": 0.1, "skip_check": True},
         {"check": [0.5, 0.25, 0.1, True]}),
        ({"verify_at": {"size": 8}}, {"verify_at": canonical({"size": 8})}),
        ({"warmup": 1.0, "rep": 2.0, "timer": "a:b", "backend": "event"}, {"timing": [1.0, 2.0, "a:b", "event"]}),
        ({"verify": True}, {"verify": True}),
        ({"named_by_config": True}, {"named_by_config": True}),
        ({"key": lambda **values: sorted(values)}, {"key": canonical(["block", "size"])}),
        ({"metrics": {"m": last_but_first}}, {"objective": canonical([{"m": last_but_first}, None])}),
        ({"numerics": "same-bits", "bucket": "M"}, {"numerics": ["same-bits", canonical({"block": 16}), "M"]}),
        (
            {"numerics": "batch-invariant", "rows": "size", "bucket": "M", "reference_config": {"block": 64}},
            {"numerics": ["batch-invariant", canonical({"block": 64}), "size"]},
        ),
    ],
)  # fmt: skip
def test_what_a_key_has_of_the_options(options: dict[str, Any], changed: dict[str, Any]) -> None:
    assert policy(**options) == {**PLAIN, **changed}


def test_what_else_a_key_has(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(engine, "tuning_key", lambda *given, **named: asked.append((given, named)))
    monkeypatch.setattr(engine, "given_inputs", lambda: "inputs")
    made = problem(do_not_specialize=["size"], compile_options={"out_idx": -1}, ref_prog=last_but_first, devices=[3, 4])
    assert made.key() is None and problem(cache=False).key() is None and len(asked) == 1
    assert asked[0][0] == ("scale", scale_builder, made.values, CONFIGS, made.target, False)
    named = {name: value for name, value in asked[0][1].items() if name != "policy"}
    assert named == {
        "shared": made.options.do_not_specialize, "inputs": "inputs", "compile_options": {"out_idx": -1},
        "references": [last_but_first, None, None], "device": 3,
    }  # fmt: skip
    here = SimpleNamespace(kind="cuda", runs_here=True)
    for target in (here, SimpleNamespace(kind="cuda", runs_here=False)):
        assert problem(target=target).key() is None
        assert (asked[-1][0][5], asked[-1][1]["device"]) == (target is here, None)


def test_limits_are_what_decides_about_what_is_left_out() -> None:
    options = {"search": "model", "max_trials": 3, "budget": 5.0, "prune": False, "early_stop": True}
    assert problem(**options).limits == canonical(["model", 3, 5.0, False, True])
    assert problem(prune_fn=last_but_first).limits == canonical(
        ["auto", None, None, True, TuneOptions().early_stop, last_but_first]
    )
    assert problem(search=last_but_first).limits != problem().limits
    assert problem(keep_all=True).keeps_all and not problem().keeps_all


# What is remembered


def trials(*latencies: float | None) -> list[Trial]:
    return [
        Trial(
            index,
            config,
            "crash" if each is None else "ok",
            latency=each,
            source_hash=source_digest(f"source {config['block']}"),
        )
        for index, (config, each) in enumerate(zip(CONFIGS, latencies))
    ]


def store(known: CachedResult | None, exact: bool = False) -> Any:
    return SimpleNamespace(load=lambda configs: known, key=SimpleNamespace(exact=exact), folder=Path("/nowhere"))


def test_a_result_is_recalled_with_its_kernel(caplog: pytest.LogCaptureFixture) -> None:
    made = problem()
    known = CachedResult(trials(3.0, 1.0, 2.0), "measured", 7.0, 2)
    found = made.recall(store(known))
    assert found is not None and found.kernel.source == "source 64" and found.from_cache == "disk"
    assert (found.config, found.latency, found.ref_latency, found.latency_kind) == ({"block": 64}, 2.0, 7.0, "measured")
    assert [trial.kernel.source for trial in found.trials] == ["source 16", "source 32", "source 64"]
    assert (
        made.recall(store(None)) is None
        and made.recall(store(CachedResult(trials(None, None, None), "measured", 7.0))) is None
    )
    caplog.set_level("INFO", "tiledsl")
    for changed, expected in ((made, "source 64"), (problem(do_not_specialize=["size"]), "other")):
        known.trials[2].source_hash = source_digest("source 64")
        changed.build = lambda config, target: SimpleNamespace(source="other")  # type: ignore[assignment]
        found = changed.recall(store(known))
        assert (found is None) == (expected == "source 64") and (found is None or found.kernel.source == "other")
    assert [record.getMessage() for record in caplog.records] == [
        "autotune: the source of scale has changed since it was tuned; tuning again"
    ]
    made.build = lambda config, target: 1 // 0  # type: ignore[assignment]
    assert made.recall(store(known)) is None
    assert caplog.records[1].getMessage() == (
        "autotune: what scale was tuned to no longer builds (integer division or modulo by zero); tuning again"
    )


@pytest.mark.parametrize(("exact", "other_versions"), [(True, False), (False, True)])
def test_where_the_key_says_all_nothing_is_built(
    exact: bool, other_versions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(engine, "read_artifacts", lambda folder, trial: asked.append((folder, trial.index)))
    monkeypatch.setattr(
        engine,
        "UnbuiltKernel",
        lambda build, source_hash, recall: SimpleNamespace(build=build, source_hash=source_hash, recall=recall),
    )
    made = problem(build=lambda config, target: 1 // 0)
    known = CachedResult(trials(3.0, 1.0, 2.0), "measured", 7.0, 1, other_versions)
    found: Any = made.recall(store(known, exact))
    assert found.kernel.target is made.target and found.kernel.source_hash == source_digest("source 32")
    assert (found.kernel.config, found.kernel.latency, found.kernel.ref_latency) == ({"block": 32}, 1.0, 7.0)
    with pytest.raises(ZeroDivisionError):
        found.kernel.build()
    if other_versions:
        assert found.kernel.recall is None
    else:
        found.kernel.recall()
        assert asked == [(Path("/nowhere/artifacts"), 1)]


def test_the_winner_of_the_first_rank_is_taken() -> None:
    made = problem()
    known = made.recall(store(CachedResult(trials(3.0, 1.0, 2.0), "estimated", 7.0, 2)))
    assert known is not None
    other = made.with_best(known, known.trials[0])
    assert (other.config, other.from_cache, other.latency_kind, other.ref_latency) == (
        {"block": 16},
        "disk",
        "estimated",
        7.0,
    )


def test_a_rank_has_its_share_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(measure, "can_measure", lambda target: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
    for jobs, neighbours, expected in ((8, 2, 4), (8, 3, 2), (2, 4, 1)):
        shared = problem(jobs=jobs).for_share(neighbours)
        assert (shared.options.jobs, shared.options.devices) == (expected, (5,))
    assert tuple(problem(jobs=8, devices=[1]).for_share(2).options.devices) == (1,)  # type: ignore[arg-type]
    monkeypatch.setattr(measure, "can_measure", lambda target: False)
    assert problem(jobs=8).for_share(2).options.devices is None


def test_trials_of_sources_that_have_changed_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = dict(enumerate(trials(3.0, 1.0, None)))
    kept[1].source_hash = "another"
    memory: Any = SimpleNamespace(restore=lambda index, config, done: replace(kept[index]) if index in done else None)
    made = problem()
    found = made.restore(memory, {0: 0, 1: 1})
    assert [each.status for each in found] == ["ok", "new", "new"] and found[1].source_hash == ""
    assert [each.kernel.source for each in found] == ["source 16", "source 32", "source 64"]
    assert [each.status for each in problem(do_not_specialize=["size"]).restore(memory, {0: 0, 1: 1})] == [
        "ok",
        "ok",
        "new",
    ]
    made.build = lambda config, target: 1 // 0  # type: ignore[assignment]
    assert [each.status for each in made.restore(memory, {0: 0, 1: 1, 2: 2})] == ["ok", "ok", "crash"]
    kept[0].source_hash = ""
    made.build = lambda config, target: pytest.fail("built")  # type: ignore[assignment]
    assert made.restore(memory, {0: 0})[0].status == "ok"
    assert [each.status for each in made.restore(None, {})] == ["new"] * 3


def nothing(size: int) -> None:
    pass


def test_mistakes_in_the_text_are_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TileError, match="scale returns nothing, not a program"):
        problem(function=nothing).restore(None, {})
    assert len(problem(function=nothing, program=None).restore(None, {})) == 3
    parsed: list[Any] = []
    monkeypatch.setattr("tiledsl.frontend.parser.parse_function", parsed.append)
    problem(function=nothing, call_inputs={}).restore(None, {})
    assert parsed == [nothing]


def test_a_result_is_of_the_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    made = problem(metrics={"joules": last_but_first}, objective="joules", isolate=False)
    working = trials(3.0, 1.0, 2.0)
    for trial in working:
        trial.build = lambda trial=trial: kernel(trial.config["block"])  # type: ignore[misc]
    attached: list[Any] = []
    monkeypatch.setattr("tiledsl.autotuner.verifying.certified.attach", lambda *given: attached.append(given))
    found = result_of(made, CachedResult(working, "estimated", None))
    assert (
        found.config == {"block": 32}
        and attached == []
        and found.trials == tuple(working)
        and found.minimised == "joules"
    )
    working[0].certificate = {"some": "thing"}
    found = result_of(made, CachedResult(working, "estimated", None, 0))
    assert found.config == {"block": 16} and attached == [(found.kernel, {"some": "thing"}, working[0].source_hash)]
    assert found.config is not working[0].config and found.kernel.config is not working[0].config
    assert made.result(CachedResult(working, "measured", None, 0), True).complete
    with pytest.raises(TileError, match="none of 3 configurations of scale works on interpret"):
        result_of(made, CachedResult(trials(None, None, None), "measured", None))
