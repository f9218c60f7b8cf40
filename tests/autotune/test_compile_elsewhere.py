"""Compiling through backends of joblib's that are not its own: dask's and Ray's, each with two workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tiledsl
from tests.autotune.programs import scale_builder, twice
from tiledsl.autotuner.compiling import triton_cache

BLOCKS = [{"block": 64}, {"block": 32}, {"block": 16}]


@pytest.mark.slow
def test_artifacts_come_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler and two workers that share no cache folder with each other or the tuner, as on other machines."""
    distributed = pytest.importorskip("distributed")
    import joblib

    home, workers = tmp_path / "home", []
    monkeypatch.setenv("TRITON_CACHE_DIR", str(home))
    options = {"n_workers": 0, "processes": True, "dashboard_address": None, "local_directory": str(tmp_path)}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        try:
            for name in ("a", "b"):
                own = {"TRITON_CACHE_DIR": f"{tmp_path}/{name}/triton", "TILEDSL_CACHE_DIR": f"{tmp_path}/{name}/ours"}
                command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address]
                command += ["--nworkers=1", "--nthreads=1", "--no-dashboard", f"--local-directory={tmp_path / name}"]
                environment = {**os.environ, **own, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
                workers.append(
                    subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.DEVNULL)
                )
            client.wait_for_workers(2, timeout=60)
            with joblib.parallel_config(backend="dask"):
                tuned = tiledsl.autotune(configs=BLOCKS, ref_prog=twice, target="cuda:90")
                result = tuned(tiledsl.jit(out_idx=-1)(scale_builder))()
            done_by = client.run(lambda: sorted(os.environ[name] for name in ("TRITON_CACHE_DIR", "TILEDSL_CACHE_DIR")))
        finally:
            for worker in workers:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()
    assert len({tuple(folders) for folders in done_by.values()}) == 2
    assert [trial.status for trial in result.trials] == ["ok"] * 3
    assert all(trial.resources["registers"] > 0 for trial in result.trials)
    assert not list(tmp_path.glob("[ab]/**/*.cubin"))  # nothing stays there
    compiled = {path: path.stat().st_mtime_ns for path in home.rglob("*.cubin")}
    assert len(compiled) == 3
    assert result.resources.registers == result.best.resources["registers"]  # found, not compiled again
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*.cubin")} == compiled


def start_ray(environment: dict[str, str], tries: int = 6) -> None:
    """Two workers of Ray's, whose processes wait for each other for 30 s at most: on a busy machine that may pass."""
    import ray

    for left in reversed(range(tries)):
        try:
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environment})
        except Exception as error:
            ray.shutdown()
            if not left or "timed out during startup" not in str(error):
                raise
        else:
            return


def test_artifacts_come_home_from_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's backend gives all outcomes at the end. Its workers have cache folders that this process does not know."""
    ray = pytest.importorskip("ray", reason="needs Ray (pip install ray)")
    import joblib
    from ray.util.joblib import register_ray

    home, away = tmp_path / "home", tmp_path / "away"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(home))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    own = {"TRITON_CACHE_DIR": str(away / "triton"), "TILEDSL_CACHE_DIR": str(away / "ours")}
    own["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        start_ray(own)
        register_ray()
        with joblib.parallel_config(backend="ray"):
            assert joblib.effective_n_jobs(-1) == 2  # Ray's: nothing is compiled in this process
            tuned = tiledsl.autotune(configs=BLOCKS, ref_prog=twice, target="cuda:90")
            result = tuned(tiledsl.jit(out_idx=-1)(scale_builder))()
    finally:
        ray.shutdown()
    assert [trial.status for trial in result.trials] == ["ok"] * 3
    assert all(trial.resources["registers"] > 0 for trial in result.trials)
    assert not list(away.rglob("*.cubin"))  # nothing stays there
    assert len(list(home.rglob("*.cubin"))) == 3


def test_packed_files(tmp_path: Path) -> None:
    entry = tmp_path / "there" / "ABC"
    entry.mkdir(parents=True)
    (entry / "kernel.cubin").write_bytes(bytes(range(256)))
    children = {"kernel.cubin": str(entry / "kernel.cubin")}
    (entry / "__grp__kernel.json").write_text(json.dumps({"child_paths": children}))
    triton_cache.unpack(json.loads(json.dumps(triton_cache.pack(entry.parent))), tmp_path / "here")
    here = tmp_path / "here" / "ABC"
    assert (here / "kernel.cubin").read_bytes() == bytes(range(256))
    group = json.loads((here / "__grp__kernel.json").read_text())
    assert group == {"child_paths": {"kernel.cubin": str(here / "kernel.cubin")}}
    assert sorted(os.listdir(here)) == ["__grp__kernel.json", "kernel.cubin"]


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "x", "a/b/c", "a/..", "a\0/b"])
def test_names_that_lead_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a file of a Triton cache"):
        triton_cache.unpack({name: ""}, tmp_path / "cache")
    assert not any(tmp_path.iterdir())
