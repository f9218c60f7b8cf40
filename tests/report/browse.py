"""Pages in a headless Chromium: `python -m tests.report.browse [chromium] [folder]`. Fails where a page logs an error,
draws no plot, or filters nothing; leaves the pages and pictures of them, wide and narrow, in the folder."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.autotune.kernels import gemm
from tests.report.test_page import HOSTILE
from tiledsl.autotuner import AutotuneResult, Trial

WIDTHS = {"wide": 1280, "narrow": 500}  # a headless Chromium has no narrower window
SIZES = {"M": 1024, "N": 1024, "K": 1024, "threads": 256}
# What only a person would click: run in the page itself, its own policy would refuse it.
CHECK = "<script>/* none of the page's own */ document.title = 'ran';</script>"


def many_trials() -> AutotuneResult:
    """A tuning of 72 configurations, a third of which fail, some with hostile texts; times are made up."""
    trials = []
    space = itertools.product((64, 128, 256), (64, 128, 256), (32, 64), (2, 3, 4, 5))
    for index, (m, n, k, stages) in enumerate(space):
        config = {"block_M": m, "block_N": n, "block_K": k, "num_stages": stages}
        trial = Trial(index, config, "ok", build=lambda config=config: gemm.kernel_for(SIZES, config))
        shared = (m + n) * k * 2 * stages
        if shared > 160_000:
            trial.status, trial.message = "pruned", f"needs at least {shared} bytes of shared memory"
        elif index % 7 == 3:
            trial.status, trial.message = "compile_error", HOSTILE[index % len(HOSTILE)]
        else:
            trial.latency = 0.004 + 40 / (m * n) + 0.0005 * abs(stages - 3) + (index * 37 % 11) * 1e-4
            limit = (max(1, 230_000 // shared), "shared memory")
            trial.resources = {
                "shared_bytes": shared,
                "registers": 64 + m * n // 512,
                "occupancy_limit": limit,
            }
        trials.append(trial)
    best = min((each for each in trials if each.ok), key=lambda each: each.milliseconds)
    return AutotuneResult(best.kernel, best.config, best.latency, 0.02, tuple(trials), "measured")


def browsed(browser: str, page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    fixed = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    command = [browser, *fixed, "--virtual-time-budget=5000", *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def logged(text: str) -> list[str]:
    """What a page has written to the console."""
    return re.findall(r"CONSOLE.*?\] (.*)", text)


def problems(browser: str, folder: Path) -> list[str]:
    """What is wrong with the pages."""
    result, found = many_trials(), []
    pages = {"tuning": result.report(folder / "tuning.html"), "kernel": result.kernel.report(folder / "kernel.html")}
    for name, page in pages.items():
        seen = browsed(browser, page, "--dump-dom")
        found += [f"{name}: {line}" for line in logged(seen.stderr)]
        plots = seen.stdout.count('class="main-svg"') > 0
        if plots != (name == "tuning"):
            found.append(f"{name}: {'a' if plots else 'no'} plot")
        if name == "tuning" and f"{len(result.trials)} of {len(result.trials)} configurations" not in seen.stdout:
            found.append(f"{name}: the script did not count the configurations")
        for what, width in WIDTHS.items():
            browsed(browser, page, f"--window-size={width},2400", f"--screenshot={folder / name}-{what}.png")
    foreign = folder / "foreign.html"
    foreign.write_text(pages["kernel"].read_text().replace("</main>", f"{CHECK}</main>"))
    seen = browsed(browser, foreign, "--dump-dom")
    if "<title>ran</title>" in seen.stdout or not logged(seen.stderr):
        found.append("kernel: a script that is not the page's own runs")
    foreign.unlink()
    return found


def main(browser: str = "chromium", folder: str = "build/reports") -> None:
    if shutil.which(browser) is None:
        raise SystemExit(f"there is no {browser}; make report BROWSER=/path/to/chromium")
    to = Path(folder).resolve()
    to.mkdir(parents=True, exist_ok=True)
    found = problems(browser, to)
    print("\n".join(found) or f"nothing is wrong with the pages in {folder}; look at them and at their pictures")
    sys.exit(bool(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
