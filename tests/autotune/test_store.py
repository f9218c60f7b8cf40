"""What one key's folder remembers: results, trials, their history; what it refuses; what happens without a disk."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tests.autotune.programs import scale_builder
from tiledsl.autotuner.space import config_key
from tiledsl.autotuner.storage import artifacts, cache, journal
from tiledsl.autotuner.storage.artifacts import save
from tiledsl.autotuner.storage.cache import CachedResult
from tiledsl.autotuner.storage.key import Key, differences
from tiledsl.autotuner.storage.store import Store
from tiledsl.autotuner.trial import Trial
from tiledsl.kernels.stored import describe_call
from tiledsl.runtime.target import Target

FIELDS = {
    "program": "f00", "arguments": {"M": "int:64", "N": "int:32"}, "gpu": "a stopwatch", "sm_count": 4,
    "driver": "550.1", "tiledsl": "0.1.0", "compiler": "abc", "triton": "3.6.0", "ptxas": "", "policy": {"rep": 100},
}  # fmt: skip
KEY = Key("matmul", FIELDS, False)
CONFIGS: list[dict[str, Any]] = [{"block": 64}, {"block": 32}, {"block": 16, "kind": None}]


def changed(**fields: Any) -> Key:
    return Key("matmul", {**FIELDS, **fields}, False)


def some_trials(configs: Any = CONFIGS) -> list[Trial]:
    made = [Trial(i, config, "ok", latency=3.0 - i, source_hash=f"{i}") for i, config in enumerate(configs)]
    made[0].resources = {"registers": 40, "occupancy_limit": [2, "warps"]}
    return made


def kept(root: Path, key: Key = KEY, trials: Any = None, best: int | None = None) -> Store:
    store = Store(root, key)
    with store.lock(1) as held:
        assert held
        store.finish(CachedResult(trials or some_trials(), "measured", 7.0, best))
    return store


def reopened(store: Store) -> Store:
    return Store(store.root, store.key)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_result_survives(tmp_path: Path) -> None:
    store = kept(tmp_path)
    found = reopened(store).load(CONFIGS)
    assert found == CachedResult(some_trials(), "measured", 7.0, best=2)
    assert sorted(os.listdir(store.folder)) in (["best.json", "key.json", "lock"], ["best.json", "key.json"])
    key = json.loads((store.folder / "key.json").read_text(), parse_constant=pytest.fail)
    assert key["kernel"] == "matmul" and key["fields"] == FIELDS
    assert Store(tmp_path, changed(gpu="another")).load(CONFIGS) is None


def test_a_result_answers_for_fewer_configurations_but_not_for_more(tmp_path: Path) -> None:
    store = reopened(kept(tmp_path))
    fewer = store.load([CONFIGS[2], CONFIGS[0]])
    assert fewer is not None and fewer.best == 0 and [t.config for t in fewer.trials] == [CONFIGS[2], CONFIGS[0]]
    without = store.load(CONFIGS[:2])
    assert without is not None and without.best is None
    assert store.load([*CONFIGS, {"block": 8}]) is None
    assert set(store.finished()) == {cache.config_key(config) for config in CONFIGS}
    assert store.load([{"kind": None, "block": 16}]) is not None  # in any order of names
    assert store.load([{"block": 64.0}]) is None


def test_the_engine_may_choose_another_than_the_fastest(tmp_path: Path) -> None:
    found = kept(tmp_path, best=1).load(CONFIGS)
    assert found is not None and found.best == 1


def test_results_of_several_lists_add_up(tmp_path: Path) -> None:
    kept(tmp_path, trials=some_trials(CONFIGS[:2]))
    store = kept(tmp_path, trials=some_trials(CONFIGS[2:]))
    found = reopened(store).load(CONFIGS)
    assert found is not None and found.best is None and len(found.trials) == 3
    assert reopened(store).load(CONFIGS[2:]).best == 0  # type: ignore[union-attr]


def test_trials_are_remembered_one_by_one(tmp_path: Path) -> None:
    store = Store(tmp_path, KEY)
    assert store.finished() == {} and not store.folder.exists()
    first, second, third = some_trials()
    for trial in (first, second, Trial(1, CONFIGS[1], "crash", "boom"), Trial(2, CONFIGS[2])):
        store.append(trial)  # the last one has not ended
    store = reopened(store)
    done = store.finished()
    assert len(done) == 2 and store.load(CONFIGS) is None
    assert store.restore(5, CONFIGS[0], done) == Trial(**{**vars(first), "index": 5})
    assert store.restore(1, CONFIGS[1], done).status == "crash"  # type: ignore[union-attr]
    assert store.restore(2, CONFIGS[2], done) is None
    store.finish(CachedResult([first, second, third], "measured", None))
    time.sleep(0.002)
    store.append(Trial(0, CONFIGS[0], "ok", latency=9.0))  # later than the result
    assert store.restore(0, CONFIGS[0], reopened(store).finished()).latency == 9.0  # type: ignore[union-attr]
    assert store.restore(1, CONFIGS[1], store.finished()).latency == 2.0  # type: ignore[union-attr]


def test_lines_go_to_the_disk_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, synced = Store(tmp_path, KEY), []
    monkeypatch.setattr(journal, "append", lambda path, line, sync: synced.append(sync))
    for seconds in (10.0, 10.9, 11.0, 11.1, 12.0, 12.2):
        monkeypatch.setattr(time, "monotonic", lambda seconds=seconds: seconds)
        store.append(some_trials()[0])
    assert synced == [True, False, False, True, False, True]


def test_what_other_limits_left_out_is_not_known_and_what_was_tried_is(tmp_path: Path) -> None:
    store = Store(tmp_path, KEY, limits="one trial")
    tried, screened, pruned = some_trials()
    screened.status, pruned.status = "screened", "pruned"
    store.finish(CachedResult([tried, screened, pruned], "measured", None))
    keys = [cache.config_key(config) for config in CONFIGS]
    assert list(Store(tmp_path, KEY, limits="one trial").finished()) == keys
    other = Store(tmp_path, KEY, limits="two trials")
    assert list(other.finished()) == keys[:1]
    other.append(screened)
    assert list(other.finished()) == keys[:1]


def test_what_was_left_of_a_write_goes_with_the_next_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where something else removes it first; other files stay."""
    store = kept(tmp_path)
    left, others = store.folder / ".key.json-ab.tmp", [store.folder / name for name in (".key.json-ab", "x.tmp")]
    for path in (left, *others):
        path.write_text("{")
    kept(tmp_path)
    assert not left.exists() and all(path.exists() for path in others)
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: [folder / ".key.json-gone.tmp"])
    kept(tmp_path)


def test_trials_where_none_works_run_again(tmp_path: Path) -> None:
    store = Store(tmp_path, KEY)
    for trial in (good := some_trials()[0], bad := Trial(1, CONFIGS[1], "crash")):
        store.append(trial)
    store.finish(CachedResult([bad], "measured", None))
    assert not store.best_path.exists() and list(store.finished()) == [cache.config_key(good.config)]


def test_configurations_that_no_text_tells_apart_are_not_remembered(tmp_path: Path) -> None:
    store = Store(tmp_path, KEY)
    trial = Trial(0, {"thing": object()}, "ok", latency=1.0)
    store.append(trial)
    store.finish(CachedResult([trial], "measured", None))
    assert not store.folder.exists() and store.load([trial.config]) is None


def test_results_before_the_last_are_kept(tmp_path: Path) -> None:
    for number in range(6):
        store = kept(tmp_path, trials=[Trial(0, CONFIGS[0], "ok", latency=float(number))])
        os.utime(store.best_path, (1e9 + number, 1e9 + number))
    history = sorted(store.folder.glob("best.2*.json"))
    assert [path.name[:20] for path in history] == [f"best.20010909T01464{i}" for i in (2, 3, 4)]
    assert [json.loads(path.read_text())["trials"][0]["latency"] for path in history] == [2.0, 3.0, 4.0]


def test_identical_trials_are_marked(tmp_path: Path) -> None:
    made = some_trials()
    made[1].source_hash = made[0].source_hash
    made[0].binary_hash = made[2].binary_hash = "b"
    found = kept(tmp_path, trials=made).load(CONFIGS)
    assert found is not None and [trial.same_as for trial in found.trials] == [None, 0, 0]


def test_artifacts_of_others_than_the_winner_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[Path, int]] = []
    monkeypatch.setattr(artifacts, "save", lambda folder, trial: kept.append((folder, trial.index)))
    trials, store = some_trials(), Store(tmp_path, KEY)
    trials[1].build = trials[2].build = lambda: None
    store.finish(CachedResult(trials, "measured", None))
    folder = store.folder / "artifacts"
    assert kept == [(folder, 2)]
    store.finish(CachedResult(trials, "measured", None), keep_all=True)
    assert kept[1:] == [(folder, 2), (kept[2][0], 1)] and kept[2][0].parent == folder


def test_the_winner_s_artifacts_lie_beside_it(tmp_path: Path) -> None:
    function = tiledsl.jit(out_idx=-1)(scale_builder)
    trials = some_trials([{"block": 64}, {"block": 32}])
    targets = [Target("interpret"), Target("cuda", 80)]
    for trial, target in zip(trials, targets):
        trial.build = lambda config=trial.config, target=target: function.kernel_for({}, config, target)
    store = Store(tmp_path, KEY)
    artifacts = store.folder / "artifacts"
    store.finish(CachedResult(trials, "measured", None))
    assert not [path for path in artifacts.iterdir() if path.is_dir()]
    store.finish(CachedResult(trials, "measured", None), keep_all=True)
    (other,) = [path for path in artifacts.iterdir() if path.is_dir()]
    for folder, trial, target in ((other, trials[0], targets[0]), (artifacts, trials[1], targets[1])):
        assert (folder / "scale.py").read_text() == trial.source
        metadata = json.loads((folder / "metadata.json").read_text())
        assert metadata["target"] == str(target) and metadata["config"] == trial.config
    (name,) = metadata["kernels"]
    assert metadata["kernels"][name]["resources"]["registers"] > 0
    stages = {path.name for path in artifacts.iterdir()}
    assert stages >= {f"{name}.{stage}" for stage in ("ttir", "ttgir", "ptx", "cubin")}
    assert {path.name for path in other.iterdir()} == {"scale.py", "metadata.json"}
    paths = save(tmp_path / "once more", trials[1])
    assert {path.name for path in paths} == {path.name for path in artifacts.iterdir() if path.is_file()}
    assert all(path.is_file() for path in paths) and [path.name for path in paths][-2:] == [
        "launch.json",
        "metadata.json",
    ]


BEST_GARBAGE: dict[str, Any] = {
    "empty": "",
    "cut": lambda text: text[: len(text) // 2],
    "list": "[]",
    "nothing": "null",
    "schema": lambda text: text.replace('"schema": 2', '"schema": 99', 1),
    "old schema": lambda text: text.replace('"schema": 2', '"schema": 1', 1),
    "another key": lambda text: text.replace(KEY.digest, "0" * 24),
    "nan": lambda text: text.replace('"latency": ', '"latency": NaN, "x": ', 1),
    "infinite": lambda text: text.replace('"latency": ', '"latency": 1e999, "x": ', 1),
    "huge": lambda text: text.replace('"latency": ', '"latency": 1' + "0" * 400 + ', "x": ', 1),
    "very huge": lambda text: text.replace('"latency": ', '"latency": 1' + "0" * 9000 + ', "x": ', 1),
    "negative": lambda text: text.replace('"latency": ', '"latency": -', 1),
    "type": lambda text: text.replace('"latency": ', '"latency": {}, "x": ', 1),
    "status": lambda text: text.replace('"status": "ok"', '"status": "__import__"'),
    "winner": lambda text: text.replace('"status": "ok"', '"status": "crash"'),
    "kind": lambda text: text.replace('"measured"', '"guessed"'),
    "tried": lambda text: text.replace('"tried": 3', '"tried": "3"'),
    "trials": lambda text: text.replace('"trials": [', '"trials": [[], '),
    "deep": "[" * 100_000,
    "bytes": b"\xff\xfe\x00",
    "large": 10 << 30,
    "folder": None,
}


@pytest.mark.parametrize("kind", BEST_GARBAGE)
def test_a_result_that_makes_no_sense_is_a_miss(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = kept(tmp_path)
    for trial in some_trials():
        store.append(trial)
    damage, text = BEST_GARBAGE[kind], store.best_path.read_text()
    if damage is None:
        store.best_path.unlink()
        store.best_path.mkdir()
    elif isinstance(damage, int):
        with store.best_path.open("wb") as file:
            file.truncate(damage)
    else:
        new = damage(text) if callable(damage) else damage
        assert new != text
        store.best_path.write_bytes(new if isinstance(new, bytes) else new.encode())
    store = reopened(store)
    with caplog.at_level(logging.INFO, "tiledsl"):
        assert store.load(CONFIGS) is None
        assert len(store.finished()) == 3  # the journal has them
    assert len(warnings(caplog)) == 1 and "tuning again" in caplog.text
    if kind == "another key":
        why = "makes no sense (ValueError: the result of another key); tuning again"
        assert warnings(caplog) == [f"autotune: {store.best_path} {why}"]
    with store.lock(1):
        store.finish(CachedResult(some_trials(), "measured", 7.0))
    if damage is not None:
        assert reopened(store).load(CONFIGS) is not None
        assert len(list(store.folder.glob("best.*.json"))) == (kind != "large")


def test_a_journal_that_cannot_be_read_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = kept(tmp_path)
    store.best_path.unlink()
    with store.trials_path.open("wb") as file:
        file.truncate(10 << 30)
    assert reopened(store).finished() == {} and "run again" in caplog.text
    assert list(store.folder.glob("trials.refused.*"))
    store.append(some_trials()[0])
    assert len(reopened(store).finished()) == 1


def test_lines_that_make_no_sense_cost_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path, KEY)
    store.append(some_trials()[0])
    with store.trials_path.open("a") as file:
        file.write('{"schema": 1}\n' * 3 + "nonsense\n[]\n{")
    assert len(store.finished()) == 1 and len(store.finished()) == 1
    assert len(warnings(caplog)) == 1 and "5 lines" in caplog.text
    with store.lock(1):
        store.finish(CachedResult(some_trials(), "measured", None))  # which mends it
    assert len(reopened(store).finished()) == 3 and len(warnings(caplog)) == 1


def test_a_journal_is_mended_under_the_lock_only(tmp_path: Path) -> None:
    """Without it another process may add lines meanwhile, which writing all anew would lose."""
    store = Store(tmp_path, KEY)
    store.append(some_trials()[0])
    with store.trials_path.open("a") as file:
        file.write("nonsense\n")
    before = store.trials_path.read_bytes()
    store.finish(CachedResult(some_trials(), "measured", None))
    assert store.trials_path.read_bytes() == before
    with store.lock(1):
        store.finish(CachedResult(some_trials(), "measured", None))
    assert b"nonsense" not in store.trials_path.read_bytes()


def test_a_hostile_key_is_no_path(tmp_path: Path) -> None:
    key = Key("../../etc/\x00pass wd\u00e9" * 9, {}, False)
    assert key.folder(tmp_path).parent.parent == tmp_path / "autotune" and len(key.folder(tmp_path).parent.name) <= 80
    kept(tmp_path, key)
    (tmp_path / "autotune" / "..evil").mkdir()
    (tmp_path / "autotune" / "matmul").mkdir()
    (tmp_path / "autotune" / "matmul" / "not-a-key").mkdir()
    (tmp_path / "autotune" / "matmul" / ("a" * 24)).symlink_to("/")
    assert [entry.digest for entry in cache.entries(tmp_path)] == [key.digest]


# Locks, and disks that fail


def test_a_lock_that_is_not_free_in_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    holder, other = kept(tmp_path), Store(tmp_path, KEY)
    trial = some_trials()[0]
    trial.latency = 99.0
    with holder.lock(1) as held, other.lock(0.05) as also:
        assert held and not also
        other.append(trial)
        other.finish(CachedResult([trial], "measured", None))
    assert len(warnings(caplog)) == 1 and "without remembering" in caplog.text
    assert reopened(holder).load(CONFIGS).trials[0].latency == 3.0  # type: ignore[union-attr]
    with reopened(holder).lock(0) as held:
        assert held


@pytest.mark.parametrize("blocked", ["root", "kernel"])
def test_a_folder_that_cannot_be_made(blocked: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "cache"
    path = root if blocked == "root" else KEY.folder(root).parent
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    store = Store(root, KEY)
    assert store.load(CONFIGS) is None and store.finished() == {}
    with store.lock(1) as held:
        assert not held
        for trial in some_trials():
            store.append(trial)
        store.finish(CachedResult(some_trials(), "measured", None))
    assert len([text for text in warnings(caplog) if "cannot be kept" in text]) == 1


def read_only(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """The system's calls that write fail, as on a disk that is read-only or full (tests may run as root)."""
    original = os.open

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    def guarded(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        return refuse() if flags & (os.O_WRONLY | os.O_RDWR) else original(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", guarded)
    for name in ("write", "mkdir", "replace"):
        monkeypatch.setattr(os, name, refuse)


def test_a_read_only_folder_still_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept(tmp_path)
    with monkeypatch.context() as patch:
        read_only(patch, errno.EROFS)
        store = Store(tmp_path, KEY)
        assert store.load(CONFIGS) is not None
        with store.lock(1) as held:
            assert not held
            store.append(some_trials()[0])
            store.finish(CachedResult(some_trials(), "measured", None))
    assert len(warnings(caplog)) == 1


def test_a_full_disk_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path, KEY)
    original = os.write
    with store.lock(1), monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: original(file, data[: len(data) // 2]))  # part of each line
        for trial in some_trials():
            store.append(trial)
        assert len(warnings(caplog)) == 1
        patch.setattr(os, "write", original)  # there is space again
        store.append(some_trials()[2])
    assert len(reopened(store).finished()) == 1
    with store.lock(1), monkeypatch.context() as patch:
        read_only(patch, errno.ENOSPC)
        store.finish(CachedResult(some_trials(), "measured", None))
    assert "No space left" in caplog.text and not store.best_path.exists()
    assert len(warnings(caplog)) == 4  # an append, the torn lines twice, the result
    assert not list(store.folder.glob(".*.tmp"))


def test_a_cache_that_is_cleared_meanwhile(tmp_path: Path) -> None:
    store = Store(tmp_path, KEY)
    with store.lock(1):
        store.append(some_trials()[0])
        shutil.rmtree(tmp_path / "autotune")
        store.append(some_trials()[1])
        store.finish(CachedResult(some_trials(), "measured", None))
    assert reopened(store).load(CONFIGS) is not None


# Versions, and why there is no result


@pytest.mark.parametrize("field", ["tiledsl", "compiler", "triton", "ptxas", "driver"])
def test_a_result_from_other_versions(field: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept(tmp_path)
    store = Store(tmp_path, changed(**{field: "another"}))
    assert store.load(CONFIGS) is None
    with tiledsl.settings(strict_versions=False):
        found = store.load(CONFIGS)
    assert found is not None and found.other_versions and found.best == 2
    assert len(warnings(caplog)) == 1 and f"{field}: " in caplog.text and "now another" in caplog.text


@pytest.mark.parametrize("change", [{"gpu": "b"}, {"sm_count": 5}, {"program": "1"}, {"arguments": {}}, {"policy": {}}])
def test_versions_are_all_that_may_differ(change: dict[str, Any], tmp_path: Path) -> None:
    kept(tmp_path)
    with tiledsl.settings(strict_versions=False):
        assert Store(tmp_path, changed(**change, triton="4")).load(CONFIGS) is None


def test_a_miss_says_what_differs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept(tmp_path)
    kept(tmp_path, changed(gpu="x", arguments={"M": "int:1", "N": "int:1"}))
    wanted = changed(triton="3.7.0", arguments={"M": "int:64", "N": "int:33"})
    with caplog.at_level(logging.INFO, "tiledsl"):
        assert Store(tmp_path, wanted).load(CONFIGS) is None
        assert Store(tmp_path, KEY).load([*CONFIGS, {"block": 8}]) is None
        assert Store(tmp_path, Key("softmax", {}, False)).load(CONFIGS) is None
    first, second, third = [record.getMessage() for record in caplog.records]
    assert KEY.digest in first and "arguments.N: int:32, now int:33; triton: 3.6.0, now 3.7.0" in first
    assert "3 of 4 configurations are known" in second and "nothing is remembered" in third
    lines = cache.explain(tmp_path, wanted).splitlines()
    assert lines[:3] == [
        f"matmul/{wanted.digest}",
        "  not stored",
        f"  {KEY.digest} differs in arguments.N, triton",
    ]
    assert "gpu: x, now a stopwatch" in cache.explain(tmp_path, wanted)
    assert "stored: 3 trials, with a result" in cache.explain(tmp_path, KEY)
    (KEY.folder(tmp_path) / "key.json").write_text('{"schema": 2, "kernel": "matmul", "fields": 1e999}')
    assert KEY.digest not in cache.explain(tmp_path, wanted)


def test_what_calls_need_is_saved_where_json_has_it(tmp_path: Path) -> None:
    """A kernel that runs from a file of its own is loaded from there, and needs no launch."""

    @T.prim_func
    def copied(A: T.Tensor((16,), "float32"), B: T.Tensor((16,), "float32")):
        with T.Kernel(1):
            T.copy(A, B)

    kernel = tiledsl.compile(copied, target="cuda:90")
    trial = Trial(0, {"block": 16}, build=lambda: kernel)
    of_a_file = {"copied_kernel": SimpleNamespace(level="cubin")}
    assert artifacts._save_launch(tmp_path, trial, of_a_file) == [tmp_path / "launch.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["launch.json"]
    saved = json.loads((tmp_path / "launch.json").read_text())
    assert saved == {"schema": 1, "config": config_key({"block": 16}), "kernel": describe_call(kernel)}
    (tmp_path / "launch.json").unlink()
    kernel.pass_configs = {"a pair": (1, 2)}  # which JSON would make a list
    assert artifacts._save_launch(tmp_path, trial, of_a_file) == [] and not list(tmp_path.iterdir())


def test_keys_are_equal_by_what_a_result_depends_on() -> None:
    assert re.fullmatch("[0-9a-f]{24}", KEY.digest)
    assert Key("matmul", FIELDS, exact=True) == KEY == Key("matmul", dict(FIELDS), exact=False)
    assert changed(gpu="another") != KEY and Key("softmax", FIELDS, False) != KEY


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ({"a": {"M": 1, "N": 2}}, {"a": {"M": 1, "N": 3}}, {"a.N": (2, 3)}),
        ({"a": {"M": 1}}, {"a": 4}, {"a": ({"M": 1}, 4)}),
        ({"a": {"M": 1}}, {}, {"a": ({"M": 1}, None)}),
        ({"a": 4}, {"a": {"M": 1}}, {"a": (4, {"M": 1})}),
        ({}, {"a": {"M": 1}}, {"a": (None, {"M": 1})}),
        ({"a": {"M": 1}, "b": (1, 2)}, {"b": [1, 2], "a": {"M": 1}}, {}),
        ({"a": {}}, {"a": {"M": None, "N": 0}}, {"a.N": (None, 0)}),
    ],
)
def test_which_fields_differ(old: dict[str, Any], new: dict[str, Any], found: dict[str, Any]) -> None:
    assert differences(old, new) == found
