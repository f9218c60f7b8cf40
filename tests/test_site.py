"""The pages that `make docs` makes HTML of: what they link to is there, and each has its place."""

from __future__ import annotations

import functools
import posixpath
import re

import pytest
import torch

import tiledsl
from docs.site.__main__ import pages
from docs.site.entries import ROOT
from docs.site.markdown import docstring
from docs.site.reference import Language
from tests.test_docs import slug
from tiledsl.language import names

FILES = dict(pages())
MADE = {name: text for name, text in FILES.items() if isinstance(text, str)}


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


@functools.cache
def anchors(page: str) -> list[str]:
    headings = re.findall(
        r"^#+ (.+?)(?: \{#(.+)\})?$", re.sub(r"^```.*?^```$", "", MADE[page], flags=re.M | re.S), re.M
    )
    return [given or slug(heading) for heading, given in headings]


@pytest.mark.parametrize("page", MADE)
def test_links_of_the_site_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(MADE[page])):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), name)) if name else page
        assert target in FILES, link
        assert not anchor or anchor in anchors(target), link


def test_every_page_has_its_place() -> None:
    nav = (ROOT / "docs/site/mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1]
    listed = re.findall(r"(?:- |: )(\S+\.md)$", nav, re.MULTILINE)
    assert sorted(listed) == sorted(name for name in MADE if not name.startswith("source/"))


def test_every_name_of_the_language_has_an_entry() -> None:
    places = Language().places
    assert sorted(places) == names.NAMES
    for name, place in places.items():
        page, _, anchor = place.partition("#")
        assert anchors(page).count(anchor) == 1, name


def test_the_tile_file_of_the_formats_is_one() -> None:
    text = re.search(r"^```\n(block = .*?)^```$", MADE["formats.md"], re.MULTILINE | re.DOTALL)
    assert text is not None
    kernel = tiledsl.compile(tiledsl.parse(text[1], N=300), out_idx=-1, target="interpret")
    assert kernel(torch.arange(300.0)).tolist() == [2.0 * each for each in range(300)]


def test_a_docstring_as_markdown() -> None:
    text = "Fold `a * b` of x_1 * y.\n\nBefore:  %a = add %x    After:  %b = sub %x\n         %c = add %a\n"
    text += "Needs:   a tile,\n         or two."
    assert docstring(text) == (
        "Fold `a * b` of x\\_1 \\* y.\n\nBefore:\n\n```text\n%a = add %x\n%c = add %a\n```\n\n"
        "After:\n\n```text\n%b = sub %x\n```\n\n**Needs:** a tile, or two."
    )
