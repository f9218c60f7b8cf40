"""Pages: what stands on them stays text, whatever it is; they need nothing else; they are written whole."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import sys
from pathlib import Path

import pytest

from tests.report.pages import Read, full_page
from tiledsl.errors import TileError
from tiledsl.report import page

HOSTILE = (
    "<script>alert(1)</script>", "</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onclick='x",
    "<!--", "]]>", "</style></title></pre></table>", "{{ 7 * 7 }}{% raw %}", "a & b &lt; %41",
    "\u2028\u0000<svg/onload=x>",
)  # fmt: skip


@pytest.fixture(autouse=True)
def short_plotting(monkeypatch: pytest.MonkeyPatch) -> None:
    """plotly.js takes most of the time to read; it is the same on each page."""
    monkeypatch.setattr(page, "_plotting", lambda: "const Plotly = {};")


@pytest.mark.parametrize("tuned", [True, False])
@pytest.mark.parametrize("number", range(len(HOSTILE) + 10))
def test_texts_stay_texts(number: int, tuned: bool) -> None:
    pieces = random.Random(number).sample([*HOSTILE, "<b>", "=", "`", "\\"], 4)
    text = HOSTILE[number] if number < len(HOSTILE) else "".join(pieces)
    plain, hostile = (Read(page.render(full_page(each, tuned))) for each in ("plain", text))
    known = {("div", ("class",)): ("div", ())}  # a long value has more room
    assert [known.get(each, each) for each in hostile.tags] == [known.get(each, each) for each in plain.tags]
    assert hostile.scripts[-1] == plain.scripts[-1] and len(hostile.scripts) == 1 + 2 * tuned
    shown = text.replace("\u0000", "\ufffd")
    for kind, name in (("texts", "plain"), ("values", "plain")):
        expected = sum(each == name for each in getattr(plain, kind))
        found = sum(each.replace("\u0000", "\ufffd") == shown for each in getattr(hostile, kind))
        assert found == expected, kind
    if tuned:
        data = json.loads(hostile.scripts[0])
        assert data["points"][0]["config"] == text and data["plots"]["axes"] == ["rank", text]


def test_a_page_runs_its_own_scripts_alone_and_loads_nothing() -> None:
    html = page.render(full_page("plain"))
    seen = Read(html)
    policy = next(value for value in seen.values if value.startswith("default-src"))
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in seen.scripts[1:]]
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    style = "style-src 'unsafe-inline'; img-src data: blob:"
    assert policy == f"default-src 'none'; {style}; script-src {allowed}"
    assert not any(name in ("src", "onclick", "onload") for _, names in seen.tags for name in names)
    assert not any(tag in ("link", "iframe", "img", "object") for tag, _ in seen.tags)


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    assert page.write(full_page("\ud800 one"), path) == path
    before = path.read_bytes()
    assert b"\\ud800 one" in before and before.endswith(b"</html>")
    with pytest.raises(TileError, match=r"^.*/none/page.html cannot be written: No such file or directory$"):
        page.write(full_page("two"), tmp_path / "none" / "page.html")
    monkeypatch.setattr(page, "_text", lambda name: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        page.write(full_page("two"), path)
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("missing, tuned", [("jinja2", False), ("plotly", True)])
def test_a_missing_library_is_named_with_what_installs_it(
    missing: str, tuned: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "plotly.offline" if tuned else missing, None)
    for cached in (page._template, page._plotting):
        cached.cache_clear()
    with pytest.raises(TileError) as caught:
        page.write(full_page("x", tuned), tmp_path / "page.html")
    page._template.cache_clear()
    said = f"reports need {missing}, which is not installed\n  note: pip install 'tiledsl[report]'"
    assert str(caught.value) == said and not [*tmp_path.iterdir()]
