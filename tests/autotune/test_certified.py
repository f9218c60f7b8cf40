"""verify=True: a configuration that a certificate disproves does not win, and certificates are kept with results."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tiledsl
from tests.support.racing_copy import copied_builder
from tiledsl.autotuner.group.ranks import Alone
from tiledsl.autotuner.results.result import AutotuneResult
from tiledsl.autotuner.trial import Trial
from tiledsl.autotuner.verifying import certified
from tiledsl.errors import TileError

pytest.importorskip("z3")


def tuner(rows: list[int], **options: Any) -> Any:
    configs = [{"rows": count} for count in rows]
    kernel = tiledsl.jit(out_idx=[-1], target="interpret")(copied_builder)
    return tiledsl.autotune(configs=configs, search="exhaustive", progress=False, **options)(kernel)


def test_a_racing_configuration_is_out_and_the_certificate_is_kept(
    timer: Callable[..., Any], cache_dir: Path, tmp_path: Path
) -> None:
    timer(lambda config: 1.0 if config["rows"] == 33 else 2.0)
    assert tuner([33, 32])(100).config == {"rows": 33}
    result = tuner([33, 32], verify=True)(100)
    assert result.config == {"rows": 32} and result.certificate.ok and not result.certificate.stale(result.kernel)
    lost = result.trials[0]
    assert lost.status == "disproved" and "blocks that write B" in lost.message
    assert "racing_copy.py" in lost.message and lost.certificate is not None

    again = tuner([33, 32], verify=True)(100)  # from disk
    assert again.from_cache == "disk" and again.certificate == result.certificate
    assert again.trials[0].status == "disproved"

    result.save(tmp_path / "result.json")
    assert AutotuneResult.load(tmp_path / "result.json").certificate == result.certificate

    report = tuner([33, 32], verify=True).tune_into(tmp_path, [(100,)])
    assert not report.failed
    served = tuner([33, 32], tuned=tmp_path)(100)
    assert served.from_cache == "tuned" and served.certificate == result.certificate

    (best,) = (path for path in cache_dir.rglob("best.json") if "disproved" in path.read_text())
    data = json.loads(best.read_text())
    for each in data["trials"]:
        if each["status"] == "ok":
            each["certificate"]["source"] = "0" * 64
    best.write_text(json.dumps(data))
    assert tuner([33, 32], verify=True)(100).certificate is None


def test_where_every_configuration_is_disproved_the_reasons_are_named(timer: Callable[..., Any]) -> None:
    timer(lambda config: float(config["rows"]))
    with pytest.raises(TileError) as caught:
        tuner([33, 34], verify=True)(100)
    assert "none of 2 configurations" in caught.value.message
    assert "disproved: 2" in str(caught.value) and "blocks that write B" in str(caught.value)


def test_a_stored_certificate_of_another_source_is_ignored_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    good = tuner([32]).jit(100).verify()
    trial = Trial(0, {}, "ok", latency=1.0, source_hash=good.source, certificate=good.data())
    assert certified.certificate_of(trial) == good
    with caplog.at_level(logging.WARNING, "tiledsl"):
        trial.source_hash = "another"
        assert certified.certificate_of(trial) is None
        trial.certificate = {"schema": 7}
        assert certified.certificate_of(trial) is None
    assert "its source is another one" in caplog.text and "no certificate of schema" in caplog.text


@pytest.mark.parametrize(("source", "winner"), [("", 1), ("abc", None)])
def test_only_trials_of_one_known_source_share_a_disproof(
    source: str, winner: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = [Trial(index, {}, "ok", latency=1.0 + index, source_hash=source) for index in range(2)]
    found = {0: SimpleNamespace(ok=False, reason="it races"), 1: SimpleNamespace(ok=True)}
    monkeypatch.setattr(certified, "certificate_of", lambda trial: found[trial.index])
    best = certified.certified(trials, lambda: next((each for each in trials if each.ok), None), 1.0, Alone())
    assert best is (None if winner is None else trials[winner])
    assert trials[0].status == "disproved" and trials[0].message == "it races"
    assert trials[1].status == ("disproved" if winner is None else "ok")


def test_a_winner_that_cannot_be_verified_stays() -> None:
    trial = Trial(0, {}, "ok", latency=1.0)  # which no builder is known of
    assert certified.certified([trial], lambda: trial, 1.0, Alone()) is trial
    assert trial.ok and trial.certificate is None


def test_verify_must_be_a_bool() -> None:
    with pytest.raises(TileError, match="verify is 'yes'; it must be True or False"):
        tuner([32], verify="yes")


def test_a_certificate_is_made_once_and_is_that_of_the_first_rank(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[Any] = []
    answers: dict[str, Any] = {"a": {"of": "a"}, "b": {"of": "b"}}

    def certify(kernel: str, timeout: float) -> Any:
        asked.append((kernel, timeout))
        if kernel not in answers:
            raise ValueError("no such kernel")
        return SimpleNamespace(data=lambda: answers[kernel])

    monkeypatch.setattr("tiledsl.certificate.process.certify_apart", certify)
    read = lambda trial: (
        None if trial.certificate is None else SimpleNamespace(ok=trial.certificate["of"] != "b", reason="it races")
    )
    monkeypatch.setattr(certified, "certificate_of", read)
    trials = [Trial(n, {}, "ok", latency=1.0, source_hash=name) for n, name in enumerate("bab")]
    for trial in trials:
        trial.build = lambda trial=trial: trial.source_hash  # type: ignore[misc, assignment]
    working = lambda: next((each for each in trials if each.ok), None)
    assert certified.certified(trials, working, 7.5, Alone()) is trials[1]
    assert asked == [("b", 7.5), ("a", 7.5)] and [each.status for each in trials] == ["disproved", "ok", "disproved"]
    assert trials[2].certificate == trials[0].certificate == {"of": "b"} and trials[2].message == "it races"
    assert certified.certified(trials, working, 7.5, Alone()) is trials[1] and len(asked) == 2  # it has one
    ranks = Alone()
    ranks.exchange = lambda what, value: [{"of": "b"}, value]  # type: ignore[method-assign]
    assert certified.certified(trials, working, 7.5, ranks) is None and trials[1].status == "disproved"
    trials[0].update({"status": "ok", "certificate": None, "source_hash": "c"})
    assert certified.certified(trials, working, 7.5, Alone()) is trials[0]
    assert caplog.messages == ["autotune: the winner cannot be verified (ValueError: no such kernel)"]


def test_a_kernel_gets_the_certificate_of_its_source() -> None:
    good = tuner([32]).jit(100).verify()
    kernel: Any = SimpleNamespace(certificate="none yet")
    for data, source in ((None, good.source), (good.data(), "another"), ({"schema": 7}, good.source)):
        certified.attach(kernel, data, source)
        assert kernel.certificate == "none yet"
    certified.attach(kernel, good.data(), good.source)
    assert kernel.certificate == good
