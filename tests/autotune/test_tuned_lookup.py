"""Which entry serves a call, and what a call gets of it."""

from __future__ import annotations

import logging
import math
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiledsl
from tests.autotune.programs import eager_scale, scale_program, twice
from tests.autotune.tuned_entries import entry, file_of
from tiledsl import logs
from tiledsl.autotuner.tuned import recall
from tiledsl.autotuner.tuned.entry import TunedEntry
from tiledsl.autotuner.tuned.file import dump
from tiledsl.autotuner.tuned.lookup import Gpu, LookupRow, candidates
from tiledsl.errors import TileError

BLOCKS = [{"block": 64}, {"block": 32}, {"block": 16}]


@pytest.fixture(autouse=True)
def _nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_noted", set())
    monkeypatch.setattr(recall, "_read", {})


def rows(entries: list[TunedEntry], **wanted: Any) -> list[LookupRow]:
    return [LookupRow(each, Path("f.json"), each.arguments, wanted) for each in entries]


numbers = st.integers(1, 10_000)


@given(st.sets(numbers, min_size=1, max_size=12), numbers, numbers)
def test_every_m_resolves_to_the_intended_entry(tuned: set[int], m: int, n: int) -> None:
    """Exactly m, else the nearest at or above, else the largest; another N is served by the nearest in log space."""
    entries = [entry(each, M=each, N=64) for each in tuned] + [entry(3, M=m, N=65)]
    match = next(candidates(rows(entries, M=m, N=64), bucket="M", nearest=False))
    wanted = min((each for each in tuned if each >= m), default=max(tuned))
    assert match.config == {"block": wanted} and match.kind == ("exact" if m in tuned else "bucket")
    assert match.entry is not None and f"M={wanted}" in match.why or m in tuned
    if n not in (64, 65):
        assert next(candidates(rows(entries, M=m, N=n), bucket="M", nearest=False), None) is None
        match = next(candidates(rows(entries, M=m, N=n), bucket="M"))

        def distance(each: TunedEntry) -> float:
            logs = [abs(math.log2(1 + each.arguments[k]) - math.log2(1 + v)) for k, v in (("M", m), ("N", n))]
            return sum(logs)

        assert match.kind == "default" and match.entry is not None
        assert distance(match.entry) == pytest.approx(min(map(distance, entries)), abs=1e-9)


def test_what_is_no_number_must_be_equal() -> None:
    entries = [entry(1, M=16, dtype="float16"), entry(2, M=999, dtype="float32"), entry(3, M=16, dtype="float32", x=1)]
    found = list(candidates(rows(entries, M=16, dtype="float32"), bucket="M"))
    assert [(each.kind, each.config) for each in found] == [("bucket", {"block": 2})]
    assert list(candidates(rows(entries, M=16, dtype="int8"))) == []
    assert list(candidates(rows([entry(1, M=True)], M=1), bucket="M")) == []
    assert list(candidates(rows([entry(1, M=1.0)], M=1), nearest=False)) == []


def test_this_gpus_entries_come_first_then_measured_then_fast_ones() -> None:
    here, like, other = (
        replace(entry(block, latency, M=16), gpu=name, sm_count=count)
        for block, latency, name, count in ((1, 3.0, "H200", 132), (2, 2.0, "H100", 132), (3, 1.0, "H100 PCIe", 114))
    )
    estimated, slow = entry(4, 0.5, "estimated", M=16), entry(5, 9.0, M=16)
    known = rows([estimated, slow, other, like, here], M=16)
    order = [match.config["block"] for match in candidates(known, gpu=Gpu("H200", 132)) if match.config]
    assert order == [1, 2, 3, 5, 4]
    assert [match.config["block"] for match in candidates(known) if match.config] == [3, 2, 1, 5, 4]


def scale_builder(size: int, block: int | None = None, dtype: str = "float32", factor: float = 2.0) -> Any:
    if block is not None and block > 4096:
        raise ValueError("a block too large")
    return scale_program(size, block, dtype, factor)


def tuned(folder: Path | tuple[Path, ...] = (), builder: Any = scale_builder, **options: Any) -> Any:
    function = tiledsl.jit(out_idx=-1)(builder)
    return tiledsl.autotune(**{"configs": BLOCKS, "ref_prog": twice, "tuned": folder, **options})(function)


def keep(folder: Path, function: Any, *entries: TunedEntry, target: str = "interpret") -> Path:
    """Write entries of the function as it is."""
    folder.mkdir(exist_ok=True)
    own = [replace(each, source=function.tuned_configs.source(frozenset(each.config))) for each in entries]
    path = folder / f"{function.name}-{target}.json"
    path.write_bytes(dump(file_of(*own, name=function.name, target=target)))
    return path


def test_a_call_gets_the_entrys_configuration_and_tunes_nothing(tmp_path: Path, stages: Any) -> None:
    function = tuned(tmp_path, bucket="size")
    path = keep(tmp_path, function, entry(32, 0.25, size=64), entry(16, 0.5, size=256))
    result = function(64)
    assert (result.config, result.latency, result.latency_kind) == ({"block": 32}, 0.25, "measured")
    assert result.from_cache == "tuned" and "tuned for these arguments" in result.table()
    assert result.best.config == {"block": 32} and result.kernel.config == {"block": 32}
    A = torch.randn(64)
    torch.testing.assert_close(result(A), A * 2)
    above, below = function(100), function(size=1000)
    assert above.config == below.config == {"block": 16} and above.latency is None
    assert str(function.tuned_for(64)) == f"exact: block=32 (tuned for these arguments, {path})"
    assert function.tuned_for(size=100).why == "tuned for size=256, the nearest at or above 100"
    assert function.tuned_for(1000).why == "tuned for size=256, the largest, below 1000"
    near = function.tuned_for(60, factor=3.0)
    assert near.kind == "default" and near.config == {"block": 32} and "the nearest entry is size=64" in near.why
    other = function.tuned_for(64, dtype="float16")
    assert (other.kind, other.entry, other.why.split(",")[0]) == ("default", None, "the file's default")
    assert stages["run"] == 0
    assert function(64).from_cache == "memory" and function.compile(64).from_cache == "memory"


def test_calls_are_found_again_without_a_look_at_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function = tuned(tmp_path)
    keep(tmp_path, function, entry(32, size=64))
    first = function(64)
    monkeypatch.setattr(recall, "load", lambda path: pytest.fail("read again"))
    assert function(64).kernel is first.kernel


def test_a_file_that_changes_is_read_again_for_new_calls(tmp_path: Path) -> None:
    function = tuned(tmp_path)
    path = keep(tmp_path, function, entry(32, size=64))
    assert function(64).config == function.tuned_for(65).config == {"block": 32}
    keep(tmp_path, function, entry(16, size=64))
    os.utime(path, ns=(1, 1))
    assert function.tuned_for(64).config == {"block": 16}


def test_threads_get_one_kernel(tmp_path: Path) -> None:
    function = tuned(tmp_path)
    keep(tmp_path, function, entry(32, size=64))
    kernels: list[Any] = []
    barrier = threading.Barrier(8)

    def call() -> None:
        barrier.wait()
        kernels.append(function(64))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kernels) == 8 and len({id(each.kernel) for each in kernels}) == 1


def test_several_folders_and_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best time wins, wherever it is."""
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    function = tuned((one, two))
    keep(one, function, entry(64, 3.0, size=64))
    keep(two, function, entry(32, 2.0, size=64), entry(32, 2.0, size=128))
    keep(three, function, entry(16, 1.0, size=64))
    assert function(64).config == {"block": 32}
    with tiledsl.settings(tuned_configs=[three]):
        assert function(64).config == {"block": 16} and function(128).config == {"block": 32}
    assert function(64).config == {"block": 32}
    plain = tuned()
    monkeypatch.setenv("TILEDSL_TUNED_CONFIGS", f"{one}{os.pathsep}{three}")
    assert plain(64).config == {"block": 16} and plain.tuned_for(64).path == three / "scale_builder-interpret.json"
    monkeypatch.delenv("TILEDSL_TUNED_CONFIGS")
    assert plain.tuned_for(64).why == "no folder of tuned configurations is named"


def test_a_relative_folder_lies_beside_the_functions_file() -> None:
    function = tuned("configs")  # type: ignore[arg-type]
    assert function.tuned_configs.folders() == (Path(__file__).parent / "configs",)


def test_a_miss(tmp_path: Path, stages: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert tuned(tmp_path, on_miss="tune")(32).from_cache == "" and stages["run"] == 1
    first = tuned(tmp_path, on_miss="first")(64)
    assert (first.config, first.latency, first.from_cache) == ({"block": 64}, None, "")
    assert tuned(tmp_path, on_miss="first")(64, block=16).config == {"block": 16}
    assert [r.message for r in caplog.records if "runs its first configuration" in r.message] == [
        f"autotune: scale_builder is not tuned for some calls and runs its first configuration: "
        f"there is no {tmp_path}/scale_builder-interpret.json"
    ]
    with pytest.raises(TileError, match=r"scale_builder is not tuned for size=64: there is no .*interpret\.json"):
        tuned(tmp_path, on_miss="error")(64)
    exact = tuned(tmp_path, on_miss="error", nearest=False)
    keep(tmp_path, exact, entry(32, size=64))
    assert exact(64).config == {"block": 32}
    with pytest.raises(TileError, match=r"not tuned for size=65: no entry of .*interpret\.json serves it"):
        exact(65)
    assert stages["run"] == 1


def test_a_call_that_fixes_a_tunable_gets_entries_that_agree(tmp_path: Path, stages: Any) -> None:
    function = tuned(tmp_path, nearest=False)
    keep(tmp_path, function, entry(32, size=64))
    assert function(64, block=32).from_cache == "tuned"
    assert function.tuned_for(64, block=16).kind == "none"
    assert function(64, block=16).from_cache == "" and stages["run"] == 1


def test_always_tune_looks_nothing_up(tmp_path: Path) -> None:
    function = tuned(tmp_path)
    keep(tmp_path, function, entry(32, size=64))
    with tiledsl.settings(always_tune=True):
        assert function(64).from_cache == ""


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_what_no_longer_fits_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    function = tuned(tmp_path, on_miss="first")
    renamed, lacking = entry({"blocks": 32}, size=64), entry({"factor": 2.0}, size=64)
    path = keep(tmp_path, function, renamed, replace(renamed, arguments={"size": 65}), lacking)
    for size in (64, 65, 66):
        assert function(size).config == {"block": 64}
    said = sorted(warnings(caplog), reverse=True)
    assert said[1] == (
        f"autotune: 2 of 3 entries of {path} are not used: scale_builder does not take the configuration: "
        "it sets 'blocks', which is not a parameter; did you mean 'block'?"
    )
    assert "sets no 'block', which the function's configurations set" in said[2] and len(said) == 3


def test_another_source_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = tuned(tmp_path)
    keep(tmp_path, before, entry(32, size=64))

    def scale_builder(size: int, block: int | None = None) -> Any:
        return globals()["scale_builder"](size, block)

    after = tuned(tmp_path, scale_builder, on_miss="first")
    assert after.name == before.name and after(64).config == after(128).config == {"block": 64}
    (said, _) = warnings(caplog)
    assert "1 of 1 entries" in said and "scale_builder has changed since (source" in said
    assert before(64).config == {"block": 32}
    why = after.tuned_for(64).why
    assert "serves it; 1 are not used: scale_builder has changed since" in why


def test_a_configuration_that_cannot_be_built_is_told_and_the_next_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    function = tuned(tmp_path)
    keep(tmp_path, function, entry(8192, size=64), entry(16, size=1024))
    result = function(64)
    assert result.config == {"block": 16} and result.latency is None
    assert function(64).config == {"block": 16}
    (said,) = warnings(caplog)
    assert "cannot be built as tuned, exact: block=8192" in said and said.endswith("a block too large")


@pytest.mark.parametrize("content", [b"", b"{}", b'{"schema": 1, "entries": [{"config": 3}]}', b"\x00" * 100])
def test_a_broken_file_is_told_and_the_call_goes_on(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "scale_builder-interpret.json").write_bytes(content)
    function = tuned(tmp_path, on_miss="first")
    assert function(64).config == function(65).config == {"block": 64}
    assert sum("is not used" in each for each in warnings(caplog)) == 1


def test_an_eager_call_is_found_by_its_sizes(tmp_path: Path, stages: Any) -> None:
    function = tiledsl.autotune(configs=BLOCKS, tuned=tmp_path, bucket="N")(eager_scale)
    keep(tmp_path, function, entry(32, N=64, factor=2.0), entry(16, N=96, factor=2.0))
    A = torch.randn(80)
    torch.testing.assert_close(function(A, 2.0), A * 2)
    assert function.tuned_for(A, 2.0).why == "tuned for N=96, the nearest at or above 80"
    assert function.tuned_for(N=64, factor=2.0).kind == function.tuned_for(torch.randn(64), 2.0).kind == "exact"
    assert function.compile(torch.randn(64), 2.0).config == {"block": 32}
    assert stages["run"] == 0


def test_a_bucket_that_is_no_argument_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of an eager function, only a call says what its sizes are."""
    function = tiledsl.autotune(configs=BLOCKS, tuned=tmp_path, bucket="M")(eager_scale)
    keep(tmp_path, function, entry(32, N=64, factor=2.0))
    for size in (64, 65):
        assert function.tuned_for(torch.randn(size), 2.0).config == {"block": 32}
    assert warnings(caplog) == ["autotune: the bucket of eager_scale is M, which is no argument; there are factor, N"]


def test_options_are_checked(tmp_path: Path) -> None:
    for options, message in (
        ({"on_miss": "guess"}, "on_miss is 'guess'"),
        ({"bucket": "Size"}, "bucket names 'Size', which is not a parameter"),
        ({"bucket": 3}, "bucket is 3"),
        ({"bucket": "block"}, "bucket names 'block', which is a tunable"),
        ({"nearest": "no"}, "nearest is 'no'; it must be True or False"),
        ({"tuned": [3]}, "tuned is"),
    ):
        with pytest.raises(TileError, match=message):
            tuned(**options)  # type: ignore[arg-type]


def test_why_nothing_is_found_is_told(tmp_path: Path) -> None:
    path = keep(tmp_path, tuned(tmp_path), entry(32, size=64))
    assert f"{path} is a file, where the folder of files is to be named" in tuned(path).tuned_for(64).why
    path.write_text("{")
    assert tuned(tmp_path).tuned_for(64).why == f"{path} makes no sense"
    with pytest.raises(TileError, match="is called without 'size'"):
        tuned(tmp_path).tuned_for()
    with pytest.raises(TileError, match="has no parameter 'sizes'"):
        tuned(tmp_path).tuned_for(64, sizes=3)


def test_a_result_from_a_bucket_is_saved_and_loaded(tmp_path: Path) -> None:
    keep(tmp_path, tuned(tmp_path), entry(32, size=64))
    result = tuned(tmp_path, bucket="size", on_miss="error")(50)
    loaded = tiledsl.AutotuneResult.load(result.save(tmp_path / "saved.json"))
    assert (loaded.config, loaded.latency) == ({"block": 32}, None)
    assert torch.equal(loaded(torch.ones(50)), result(torch.ones(50)))
