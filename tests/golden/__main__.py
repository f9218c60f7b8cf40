"""make golden: record what programs lower to now, and say where that differs from what was recorded."""

from __future__ import annotations

from tests.golden import texts
from tests.golden.programs import FILE, everything, recorded

HEAD = "# Digests of programs after each pass that changes them. `make golden` writes this file; see test_golden.py.\n"


def main() -> None:
    before = recorded() if FILE.exists() else {}
    lines = [golden.line for golden in everything()]
    changed = [line.partition(": ")[0] for line in lines if before.get(line.partition(": ")[0]) != line]
    FILE.write_text(HEAD + "\n".join(lines) + "\n")
    said = texts.recorded()
    kept = {key: texts.line(*key) for key in said if key[0] in texts.TEXTS}
    texts.FILE.write_text(texts.HEAD + "\n".join(kept.values()) + "\n")
    print(f"{len(kept)} texts, {sum(said[key] != kept[key] for key in kept)} changed")
    print(f"{len(lines)} programs, {len(changed)} changed" + "".join(f"\n  {name}" for name in changed))


if __name__ == "__main__":
    main()
