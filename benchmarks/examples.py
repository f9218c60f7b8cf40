"""Every example at its real shape on a GPU: checked against torch, timed beside eager torch.

    python benchmarks/examples.py [--json FILE] [--markdown FILE]

Each example runs in a process of its own and times itself (median of do_bench, L2 flushed); this script collects the
lines that they print and makes a table of them. A ratio above 1: faster than eager torch.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LINE = re.compile(r"(?P<case>.*): matches torch; (?P<ms>[\d.]+) ms, (?P<rate>\d+ \S+), (?P<ratio>[\d.]+)x the speed")


def run(script: Path) -> list[dict[str, Any]]:
    """The rows that one example prints. A failing example gives one row that says so."""
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600)
    rows = [
        {"example": script.stem, "case": found["case"], "ms": float(found["ms"]), "rate": found["rate"],
         "ratio": float(found["ratio"])}
        for found in map(LINE.match, done.stdout.splitlines())
        if found
    ]  # fmt: skip
    if done.returncode or not rows:
        last = (done.stderr.strip().splitlines() or ["printed no speed"])[-1]
        rows.append({"example": script.stem, "case": f"failed: {last}", "ms": 0.0, "rate": "", "ratio": 0.0})
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """The rows as a table."""
    lines = ["| example | case | ms | rate | of eager torch's speed |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {r['example']} | {r['case']} | {r['ms']:.4f} | {r['rate']} | {r['ratio']:.2f} |" for r in rows]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--markdown")
    arguments = parser.parse_args()
    scripts = [path for path in sorted(EXAMPLES.glob("[a-z]*.py")) if path.stem != "quickstart"]
    rows = [row for script in scripts for row in run(script)]
    print(markdown(rows))
    for path, text in ((arguments.json, json.dumps(rows, indent=1) + "\n"), (arguments.markdown, markdown(rows))):
        if path:
            Path(path).write_text(text, encoding="utf-8")
    slow = [row["case"] for row in rows if row["ratio"] < 1]
    print("slower than eager torch: " + ", ".join(slow) if slow else "none is slower than eager torch")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
