"""Keys and what is stored for them: which fields there are, what makes sense, what differs, in which order."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.autotune.test_store import CONFIGS, FIELDS, KEY, changed, kept, some_trials
from tiledsl.autotuner.space import config_key
from tiledsl.autotuner.storage import cache, journal, key
from tiledsl.autotuner.storage.key import Key, asked_key, differences, folder_name, tuning_key
from tiledsl.autotuner.storage.store import Store
from tiledsl.autotuner.trial import Trial
from tiledsl.errors import TileError
from tiledsl.runtime.target import Target

HERE = {
    "target": "interpret", "gpu": "", "sm_count": None, "driver": "", "tiledsl": "1", "compiler": "c", "triton": "t",
    "ptxas": "p",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _versions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("compiler_hash", "c"), ("triton_version", "t"), ("ptxas", "p"), ("driver_version", "d")):
        monkeypatch.setattr(key, name, lambda text=text: text)
    monkeypatch.setattr(key, "__version__", "1")


def builder(size: int, block: int = 1, stages: int = 2) -> Any:
    return size


def made(values: Any = None, configs: Any = CONFIGS[:2], **options: Any) -> Key | None:
    given = {"size": 64, "block": 1} if values is None else values
    return tuning_key("k", builder, given, configs, Target("interpret"), False, **options)


def test_the_fields_of_a_key() -> None:
    found = made(inputs=[3], compile_options={"b": 1, "a": 2}, references=[None, 4], policy={"rep": (1, 2)})
    assert found is not None and found.kernel == "k" and found.exact
    fields = dict(found.fields)
    assert len(fields.pop("program")) == 64
    assert fields == {
        "arguments": {"size": "int:64"}, "inputs": "list[int:3]", "compile_options": "{str:'a'=int:2,str:'b'=int:1}",
        **HERE,
        "reference": hashlib.sha256(b"list[NoneType:None,int:4]").hexdigest(), "policy": {"rep": [1, 2]},
    }  # fmt: skip
    text = json.dumps(["k", found.fields], sort_keys=True)
    assert found.digest == hashlib.sha256(text.encode()).hexdigest()[:24]
    assert found.folder(Path("/c")) == Path("/c/autotune/k") / found.digest
    plain = made()
    assert plain is not None and plain.fields["policy"] == {} and plain.fields["compile_options"] == "{}"


def test_of_tunables_only_names_that_all_configurations_set_count() -> None:
    arguments = lambda configs, **options: made({"size": 1, "block": 2, "stages": 3}, configs, **options).fields[
        "arguments"
    ]  # type: ignore[union-attr]
    assert set(arguments([{"block": 1}, {"block": 2, "stages": 3}])) == {"size", "stages"}
    assert set(arguments([])) == {"size", "block", "stages"}
    assert set(arguments([{"block": 1}], shared=["size"])) == {"stages"}
    assert list(arguments([], shared=["block"])) == ["size", "stages"]
    programs = [
        made(configs=configs).fields["program"] for configs in ([{"block": 1}], [{"block": 9}], [{"stages": 1}])
    ]  # type: ignore[union-attr]
    assert programs[0] == programs[1] != programs[2]


class Vague:
    def __repr__(self) -> str:
        return "vague"


def test_which_keys_are_exact_and_which_there_are_not() -> None:
    assert made({"size": object()}) is None and made(compile_options={"a": object()}) is None
    assert made({"size": object()}, shared=["size"]) is not None
    for options in ({"values": {"size": Vague()}}, {"compile_options": {"a": Vague()}}, {"shared": ["size"]}):
        found = made(**options)  # type: ignore[arg-type]
        assert found is not None and not found.exact
    assert Key("k", FIELDS, True) == Key("k", FIELDS, False) != Key("k", {**FIELDS, "gpu": ""}, True)


def test_what_is_measured_is_of_this_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    gpu = lambda number: type("P", (), {"name": f"gpu {number}", "multi_processor_count": 10 + number})
    monkeypatch.setattr(torch.cuda, "get_device_properties", gpu)
    for device, number in ((None, 1), (0, 0), (3, 3)):
        found = key.environment(Target("interpret"), True, device)
        assert found == {**HERE, "gpu": f"gpu {number}", "sm_count": 10 + number, "driver": "d"}
    assert key.environment(Target("interpret"), False, 3) == HERE
    for device in (None, 2):
        found_key = tuning_key("k", builder, {"size": 1}, [], Target("interpret"), True, device=device)
        assert found_key is not None and found_key.fields["gpu"] == f"gpu {1 if device is None else 2}"


def test_the_users_key_is_asked_with_the_arguments() -> None:
    assert asked_key(lambda size, block: (size, block), {"size": 1, "block": 2}) == (1, 2)
    with pytest.raises(
        TileError, match=r"autotune: key raises ZeroDivisionError(.|\n)*given the arguments by name: size, block"
    ):
        asked_key(lambda **_: 1 // 0, {"size": 1, "block": 2})


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("matmul", "matmul"),
        ("a.b-c/d", "a_b_c_d"),
        ("", "kernel"),
        ("x" * 99, "x" * 80),
        ("\u00e4b", "_b"),
        ("..", "__"),
    ],
)
def test_names_of_folders(name: str, folder: str) -> None:
    assert folder_name(name) == folder


def test_fields_that_differ() -> None:
    old = {"a": 1, "b": {"x": 1, "y": 2}, "c": {"x": 1}, "d": [1], "gone": 3}
    new = {"b": {"x": 1, "y": 3, "z": None}, "a": 1, "c": 5, "d": (1,), "new": None}
    assert differences(old, new) == {"b.y": (2, 3), "c": ({"x": 1}, 5), "gone": (3, None)}
    assert list(differences({}, {"b": 1, "a": {"x": 1}})) == ["b", "a"]


# What is stored

BEST: dict[str, Any] = {
    "schema": 2, "latency_kind": "measured", "trials": [], "tried": 0, "key": "abc", "best": "x", "limits": "",
    "ref_latency": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None), ({"latency_kind": "estimated", "ref_latency": 0.5, "limits": "some"}, None),
        ({"limits": ...}, None),
        ({"schema": 1}, "not schema 2"), ({"schema": ...}, "not schema 2"),
        ({"latency_kind": "guessed"}, "latency_kind"),
        ({"trials": {}}, "no list of trials"), ({"tried": True}, "wrong types"), ({"tried": 1.0}, "wrong types"),
        ({"key": 3}, "wrong types"), ({"best": None}, "wrong types"), ({"limits": 3}, "limits is no text"),
        ({"ref_latency": -1.0}, "is not a time"), ({"ref_latency": "1"}, "is not a time"), ({"best": ...}, "best"),
        ({"ref_latency": ...}, "ref_latency"),
    ],
)  # fmt: skip
def test_results_that_make_sense(change: dict[str, Any], message: str | None) -> None:
    data = {name: value for name, value in {**BEST, **change}.items() if value is not ...}
    content = json.dumps(data).encode()
    if message is None:
        assert cache.parse_best(content) == data
    else:
        with pytest.raises((ValueError, KeyError), match=message):
            cache.parse_best(content)
    with pytest.raises(ValueError, match="not schema 2"):
        cache.parse_best(b"[]")


def best(trials: list[Trial], wins: int = 0, tried: int | None = None, **changed: Any) -> dict[str, Any]:
    records = [journal.encode(trial) for trial in trials]
    winner = config_key(trials[wins].config)
    count = len(records) if tried is None else tried
    return {**BEST, "trials": records, "best": winner, "tried": count, "ref_latency": 7.0, **changed}


def test_what_a_result_says_of_configurations() -> None:
    made = some_trials()
    found = cache.read_result(best(made, 1), CONFIGS)
    assert found is not None and [(each.config, each.latency, each.index) for each in found.trials] == [
        (config, 3.0 - index, index) for index, config in enumerate(CONFIGS)
    ]
    assert (found.best, found.ref_latency, found.latency_kind, found.other_versions) == (1, 7.0, "measured", False)
    read = lambda data, configs=CONFIGS, limits="": cache.read_result(data, configs, limits)
    assert read(best(made, 1), CONFIGS[::-1]).best == 1 and read(best(made, 0), CONFIGS[::-1]).best == 2
    assert read(best(made, 1), CONFIGS[:1]).best is None  # another one won
    assert read(best(made, 0, tried=2), CONFIGS).best is None  # chosen from fewer
    assert read(best(made, 0, tried=2), CONFIGS[:2]).best == 0
    assert read(best(made[:2]), CONFIGS) is None
    assert read(best(made, limits="a")) is None and read(best(made, limits="a"), limits="a") is not None
    without = best(made)
    del without["limits"]
    assert read(without) is not None and read(without, limits="a") is None
    made[0].fail("crash", "x")
    with pytest.raises(ValueError, match="the best trial is not ok"):
        read(best(made, 0))
    opaque = [{"thing": object()}]
    assert read(best([Trial(0, opaque[0], "ok", latency=1.0)]), opaque) is None


def test_of_trials_with_one_source_or_binary_the_first_was_run() -> None:
    made = [
        Trial(n, {"block": n}, "ok", latency=1.0, source_hash=source, binary_hash=binary)
        for n, (source, binary) in enumerate(
            [("a", "x"), ("b", "x"), ("b", "y"), ("c", ""), ("", ""), ("", ""), ("d", "y")]
        )
    ]
    found = cache.read_result(best(made), [trial.config for trial in made])
    assert found is not None and [trial.same_as for trial in found.trials] == [None, 0, 1, None, None, None, 2]


def test_the_later_of_two_records_counts() -> None:
    def record(block: int, time: float, latency: float) -> Any:
        return {**journal.encode(Trial(0, {"block": block}, "ok", latency=latency)), "time": time}

    stored = {"trials": [record(1, 5.0, 1.0), record(2, 5.0, 1.0), {"schema": 3}, record(3, 5.0, 1.0)]}
    written = {each["key"]: each for each in (record(1, 4.0, 2.0), record(2, 5.0, 2.0), record(4, 1.0, 2.0))}
    found = cache.merge(stored, written)
    assert {each["config"]["block"]: each["latency"] for each in found.values()} == {1: 1.0, 2: 2.0, 3: 1.0, 4: 2.0}
    assert cache.merge(None, written) == written and cache.merge(stored, {}).keys() == {
        config_key({"block": n}) for n in (1, 2, 3)
    }


def stored(root: Path, *keys: Key) -> None:
    for number, each in enumerate(keys):
        folder = kept(root, each).folder
        for name in ("best.json", "key.json"):
            os.utime(folder / name, (1000.0 + number, 1000.0 + number))


def test_entries_the_newest_first(tmp_path: Path) -> None:
    other = Key("other", FIELDS, False)
    stored(tmp_path, KEY, other, changed(gpu="b"))
    assert [entry.digest for entry in cache.entries(tmp_path)] == [changed(gpu="b").digest, other.digest, KEY.digest]
    assert [entry.digest for entry in cache.entries(tmp_path, "other")] == [other.digest]
    (first, *_) = cache.entries(tmp_path, "matmul")
    assert (first.kernel, first.fields, first.modified) == ("matmul", {**FIELDS, "gpu": "b"}, 1002.0)
    assert first.size() == sum(each.stat().st_size for each in first.folder.rglob("*") if each.is_file())
    os.utime(first.folder / "key.json", (900.0, 900.0))
    assert cache.entries(tmp_path, "matmul")[0].modified == 1002.0  # the latest of its files
    for name in ("x" * 24, "0" * 23, "0" * 25, "A" * 24):
        (tmp_path / "autotune" / "matmul" / name).mkdir()
    (tmp_path / "autotune" / "matmul" / ("0" * 24)).write_text("no folder")
    (tmp_path / "autotune" / "not a name").mkdir()
    (tmp_path / "autotune" / "link").symlink_to(tmp_path / "autotune" / "other")
    assert len(cache.entries(tmp_path)) == 3
    (first.folder / "best.json").write_text("{")
    (first.folder / "trials.jsonl").write_bytes(journal.line_of(journal.encode(some_trials()[0])))
    (found,) = [entry for entry in cache.entries(tmp_path, "matmul") if entry.digest == first.digest]
    assert found.best() is None and list(found.trials()) == [config_key(CONFIGS[0])]
    (tmp_path / "autotune" / "matmul" / ("1" * 24)).mkdir()  # in which nothing is, as old as can be
    empty = cache.entries(tmp_path)[-1]
    assert (empty.modified, empty.fields, empty.size(), cache.clear([empty])) == (0.0, {}, 0, 1)
    assert cache.clear([first, *cache.entries(tmp_path, "other")]) == 2 and len(cache.entries(tmp_path)) == 1
    assert not (tmp_path / "autotune" / "other").exists() and cache.clear([first]) == 0


def test_so_many_keys_are_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fields = {**KEY.fields, "triton": "4"}
    many = [cache.CacheEntry(tmp_path, KEY.kernel, f"{number}", fields, 0.0) for number in range(501)]
    monkeypatch.setattr(cache, "entries", lambda root, kernel: many)
    assert [entry.digest for entry, _ in cache.nearest(tmp_path, KEY)] == [f"{number}" for number in range(500)]
    assert len(cache.other_versions(tmp_path, KEY)) == 500


def test_keys_are_explained_the_nearest_first(tmp_path: Path) -> None:
    text = cache.explain(tmp_path, KEY)
    assert text == f"matmul/{KEY.digest}\n  not stored; nothing is stored for this kernel"
    assert cache.why_missing(tmp_path, KEY, CONFIGS) == "matmul: nothing is remembered"
    near, far = changed(gpu="b"), changed(gpu="b", triton="4", policy={"rep": 1})
    stored(tmp_path, near, far)
    lines = [
        f"  {near.digest} differs in gpu", "    gpu: b, now a stopwatch",
        f"  {far.digest} differs in gpu, triton, policy.rep", "    gpu: b, now a stopwatch", "    triton: 4, now 3.6.0",
        "    policy.rep: 1, now 100",
    ]  # fmt: skip
    assert cache.explain(tmp_path, KEY).splitlines()[1:] == ["  not stored", *lines]
    assert cache.why_missing(tmp_path, KEY, CONFIGS) == (
        f"matmul: not tuned for this; the nearest result, {near.digest}, differs in gpu: b, now a stopwatch"
    )
    stored(tmp_path, KEY)
    assert cache.explain(tmp_path, KEY).splitlines()[1:] == ["  stored: 3 trials, with a result", *lines]
    assert cache.explain(tmp_path, KEY, 1).splitlines()[2:] == [*lines[:2], "  and 1 more keys"]
    assert "more keys" not in cache.explain(tmp_path, KEY, 2)
    (KEY.folder(tmp_path) / "best.json").unlink()
    assert cache.explain(tmp_path, KEY).splitlines()[1] == "  stored: 0 trials, without a result: it is not finished"
    (KEY.folder(tmp_path) / "trials.jsonl").write_bytes(journal.line_of(journal.encode(some_trials()[0])))
    assert cache.why_missing(tmp_path, KEY, CONFIGS) == "matmul: 1 of 3 configurations are known"
    (near.folder(tmp_path) / "key.json").unlink()
    assert [entry.digest for entry, _ in cache.nearest(tmp_path, KEY)] == [far.digest]
    stored(tmp_path, *(changed(gpu=f"{number}") for number in range(6)))
    text = cache.explain(tmp_path, KEY)
    assert text.count(" differs in ") == 5 and text.endswith("\n  and 2 more keys")


def test_results_of_other_versions_the_newest_first(tmp_path: Path) -> None:
    keys = [changed(triton="1"), changed(triton="2", driver="x"), changed(gpu="b"), KEY, changed(ptxas="z")]
    stored(tmp_path, *keys)
    found = cache.other_versions(tmp_path, KEY)
    assert [digest for digest, _ in found] == [keys[4].digest, keys[1].digest, keys[0].digest]
    assert found[1][1] == ["driver: x, now 550.1", "triton: 2, now 3.6.0"]
    (keys[1].folder(tmp_path) / "key.json").unlink()
    assert len(cache.other_versions(tmp_path, KEY)) == 2


def test_the_500_newest_keys_of_a_kernel_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [cache.CacheEntry(tmp_path, "matmul", f"{n}", {**FIELDS, "triton": "4"}, 0.0) for n in range(501)]
    monkeypatch.setattr(cache, "entries", lambda root, kernel: entries)
    assert [digest for digest, _ in cache.other_versions(tmp_path, KEY)] == [entry.digest for entry in entries[:500]]
    assert [entry for entry, _ in cache.nearest(tmp_path, KEY)] == entries[:500]


# Records


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None), ({"latency": 0}, None), ({"objective": -1.5}, None), ({"by_rank": [1.0]}, None),
        ({"extra": 1}, None),
        ({"rounds": 2**63 - 1}, None), ({"rounds": ...}, None), ({"verified": True}, None), ({"resources": None}, None),
        ({"schema": 3}, "not a trial of schema 2"), ({"key": None}, "not a trial"), ({"time": -1}, "is not a time"),
        ({"time": ...}, "time"), ({"latency": True}, "is not a time"), ({"latency": float("inf")}, "is not a time"),
        ({"status": "new"}, "has not ended"), ({"status": ...}, "has not ended"), ({"status": 3}, "status is '3'"),
        ({"status": "great"}, "status is 'great'"), ({"latency": None}, "ok without a latency"),
        ({"rounds": 2**63}, "rounds is"), ({"rounds": -(2**64)}, "rounds is"), ({"rounds": 1.0}, "rounds is '1.0'"),
        ({"rounds": True}, "rounds is 'True'"), ({"verified": 1}, "verified is '1'"),
        ({"message": None}, "message is 'None'"),
        ({"objective": "x"}, "objective is 'x'"), ({"resources": []}, r"resources is '\[\]'"),
        ({"by_rank": {}}, "by_rank is"),
    ],
)  # fmt: skip
def test_records_that_make_sense(change: dict[str, Any], message: str | None) -> None:
    trial = Trial(3, {"block": 1}, "ok", latency=0.5, rounds=2)
    record = {name: value for name, value in {**journal.encode(trial), **change}.items() if value is not ...}
    if message is None:
        found = journal.decode(7, {"block": "given"}, record)
        assert (found.index, found.config) == (7, {"block": "given"})
        for name, value in change.items():
            assert name == "extra" or getattr(found, name) == (0 if value is ... else value)
    else:
        with pytest.raises((ValueError, KeyError), match=message):
            journal.decode(7, {}, record)
    if change == {"latency": None}:
        assert journal.decode(7, {}, record, timed=False).ok
    with pytest.raises(ValueError, match="not a trial"):
        journal.decode(0, {}, [])  # type: ignore[arg-type]


def test_a_record_has_the_time_and_what_json_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 12.34567891)
    trial = Trial(3, {"block": 1, "kind": int}, "ok", "x" * 30_000, latency=0.5)
    record = journal.encode(trial)
    assert (record["schema"], record["time"], record["key"]) == (2, 12.345679, config_key(trial.config))
    assert record["config"] == {"block": 1, "kind": "<class 'int'>"} and len(record["message"]) == 20_000
    assert not {"index", "same_as", "build"} & record.keys()
    assert journal.line_of({"a": [1, 2], "b": "\u00e4"}) == b'{"a":[1,2],"b":"\\u00e4"}\n'
    with pytest.raises(ValueError):
        journal.line_of({"a": float("nan")})
    assert [journal.number(each) for each in (None, 0, 2, 0.5)] == [None, 0.0, 2.0, 0.5]


def test_lines_of_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 12.5)  # so that lines are of one length
    path = tmp_path / "trials.jsonl"
    line = lambda block, latency: journal.line_of(journal.encode(Trial(0, {"block": block}, "ok", latency=latency)))
    journal.write_journal(path, [json.loads(line(1, 1.0)), json.loads(line(2, 1.0))])
    journal.append(path, line(1, 5.0), sync=True)
    journal.append(path, b"\n" + b"nonsense\n" + b" " * ((1 << 20) - len(line(3, 1.0)) + 1) + line(3, 1.0))
    journal.append(path, b" " * ((1 << 20) - len(line(4, 1.0)) + 2) + line(4, 1.0))
    path.write_bytes(path.read_bytes() + line(5, 1.0)[:-9])
    records, wrong = journal.read_journal(path)
    assert [(each["config"]["block"], each["latency"]) for each in records.values()] == [(2, 1.0), (1, 5.0), (3, 1.0)]
    assert wrong == 2  # nonsense, and one too long; what was cut was not written
    journal.write_json(tmp_path / "x.json", {"a": 1})
    assert (tmp_path / "x.json").read_text() == '{\n "a": 1\n}\n'


def test_why_nothing_is_found_is_looked_for_where_it_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(cache, "why_missing", lambda *given: asked.append(given) or "so it is")
    for level, count in (("WARNING", 0), ("INFO", 1)):
        caplog.set_level(level, "tiledsl")
        assert Store(tmp_path, KEY).load(CONFIGS) is None and len(asked) == count
    assert asked == [(tmp_path, KEY, CONFIGS)] and caplog.records[-1].getMessage() == "autotune: so it is"
    assert kept(tmp_path).load(CONFIGS) is not None and len(asked) == 1
