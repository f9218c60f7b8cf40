from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import fields
from pathlib import Path

import pytest

from tiledsl.errors import TileError
from tiledsl.settings import Settings, current, override, settings, table

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("TILEDSL_"):
            monkeypatch.delenv(name)


def test_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert current() == Settings("auto", tmp_path / "tiledsl", True, "", None, False, True, 0, "warning")
    assert current().workers == len(os.sched_getaffinity(0))


def test_the_log_level_holds() -> None:
    """In a process of its own: where something else handles messages, as pytest does, it gets them."""
    code = """
import logging
import tiledsl
from tiledsl.settings import current

log = logging.getLogger("tiledsl")
current()
log.info("1")
with tiledsl.settings(log_level="debug"):
    log.debug("2")
log.debug("3")
current(log_level="error")
log.warning("4")
current()
log.info("5")
logging.basicConfig(format="-%(message)s")
log.info("6")
"""
    for level, wanted in (("info", ["1", "2", "5", "-6"]), ("warning", ["2"]), ("", ["2"])):
        environment = {**os.environ, "TILEDSL_LOG_LEVEL": level, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.returncode == 0 and done.stderr.split() == wanted, (level, done.stderr)


def test_the_environment_is_read_at_each_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEDSL_JOBS", "3")
    monkeypatch.setenv("TILEDSL_VERIFY_EACH", "off")
    monkeypatch.setenv("TILEDSL_DUMP_DIR", str(tmp_path))
    monkeypatch.setenv("TILEDSL_CACHE_DIR", "~/kernels")
    found = current()
    assert (found.jobs, found.workers, found.verify_each, found.dump_dir) == (3, 3, False, tmp_path)
    assert found.cache_dir == Path.home() / "kernels"
    monkeypatch.setenv("TILEDSL_JOBS", "")
    assert current().jobs == 0


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("TILEDSL_TARGET", "rocm", "auto, interpret, cuda, cuda:NN or hip:gfxNNN"),
        ("TILEDSL_VERIFY_EACH", "maybe", "1 or 0"),
        ("TILEDSL_PRINT_AFTER", "Not A Pass", "all, changed, the name of a pass"),
        ("TILEDSL_ALWAYS_TUNE", "2", "1 or 0"),
        ("TILEDSL_JOBS", "-1", "a whole number"),
        ("TILEDSL_LOG_LEVEL", "loud", "debug, info, warning or error"),
    ],
)
def test_a_bad_variable_is_named_with_its_value_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, allowed: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(TileError) as error:
        current()
    assert f"{variable}={value} is not allowed" in str(error.value)
    assert allowed in str(error.value)


def test_a_variable_that_is_no_setting_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TILEDSL_CACHEDIR", "/elsewhere")
    for jobs in ("3", "4"):
        monkeypatch.setenv("TILEDSL_JOBS", jobs)
        assert current().jobs == int(jobs)
    assert caplog.messages == ["TILEDSL_CACHEDIR is not a setting; did you mean 'TILEDSL_CACHE_DIR'?"]


@pytest.mark.parametrize("target", ["auto", "interpret", "cuda", "cuda:90", "hip:gfx942", "hip:gfx90a"])
def test_targets(target: str) -> None:
    assert current(target=target).target == target


def test_call_over_block_over_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_JOBS", "1")
    with settings(jobs=2, dump_dir="") as outer:
        assert outer.jobs == 2
        assert outer.dump_dir is None
        with override(log_level="debug"):
            assert (current().jobs, current().log_level) == (2, "debug")
            assert current(jobs=3, log_level=None) == current(jobs=3)
            assert current(jobs=3).log_level == "debug"
        assert current().log_level == "warning"
    assert current().jobs == 1


def test_a_block_ends_with_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), settings(jobs=2):
        _ = 1 // 0
    assert current().jobs == 0


def test_an_override_hides_a_bad_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_JOBS", "many")
    assert current(jobs=2).jobs == 2


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"job": 2}, ["no setting 'job'", "did you mean 'jobs'?"]),
        ({"zzz": 2}, ["no setting 'zzz'", "there are target, cache_dir"]),
        ({"jobs": True}, ["settings(jobs=True) is not allowed", "a whole number"]),
        ({"verify_each": 3}, ["settings(verify_each=3)", "1 or 0"]),
        ({"cache_dir": ""}, ["settings(cache_dir='')", "a folder"]),
    ],
)
def test_bad_overrides(overrides: dict[str, object], words: list[str]) -> None:
    def in_a_block() -> None:
        with override(**overrides):
            pass

    for use in (in_a_block, lambda: current(**overrides)):
        with pytest.raises(TileError) as error:
            use()
        for word in words:
            assert word in str(error.value)
    assert current().jobs == 0


def test_threads_do_not_see_each_others_blocks() -> None:
    inside, seen = threading.Barrier(2, timeout=10), {}

    def work(jobs: int) -> None:
        with settings(jobs=jobs):
            inside.wait()
            seen[jobs] = current().jobs
            inside.wait()

    threads = [threading.Thread(target=work, args=(jobs,)) for jobs in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {1: 1, 2: 2}
    assert current().jobs == 0


def test_there_are_few_of_them() -> None:
    assert len(fields(Settings)) <= 12


def test_the_table_in_the_manual_is_the_one_from_the_source() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    between = text.split("<!-- settings -->\n")[1].split("\n<!-- /settings -->")[0]
    assert between == table(), "put what table() of tiledsl/settings.py returns there"
