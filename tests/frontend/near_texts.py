"""Near misses of program texts: a token or a line is lost, doubled, moved, or another one stands there."""

from __future__ import annotations

import keyword
import random
import re
from collections.abc import Iterator

TOKEN = re.compile(
    r"[rbfRBF]{0,2}(?:'''.*?'''|\"\"\".*?\"\"\"|'[^'\n]*'|\"[^\"\n]*\")|[^\W\d]\w*|\d[\w.]*|\n[ \t]*|[ \t]+|\\\n"
    r"|\*\*=?|//=?|<<=?|>>=?|->|:=|[-+*/%&|^@<>=!]=|.",
    re.DOTALL,
)
WORDS = tuple(
    "if elif else for while with def return raise assert global nonlocal pass break continue import from lambda not in "
    "is and or as True False None x f y 0 1 2 -1 1.5 0x1f 'a' b'a' f'{x}' () [] {} ... : , . ; = == += ** * / @ -> := "
    "( ) [ ] { } # \\ ! $ ? é ² \u00a0 \u200b \0 \f \t class yield await del async try match 3j 012 _ '''".split(" ")
)


def tokens(text: str) -> list[str]:
    return TOKEN.findall(text)


def near(text: str, seed: int, edits: int = 1, words: tuple[str, ...] = WORDS) -> str:
    """The text after some edits, the same ones for the same seed."""
    rng = random.Random(seed)
    for _ in range(edits):
        if rng.random() < 0.25:
            text = _other_lines(text.split("\n"), rng)
        else:
            text = _other_tokens(tokens(text) or [""], rng, words)
    return text


def _other_tokens(found: list[str], rng: random.Random, words: tuple[str, ...]) -> str:
    at = rng.choice([number for number, token in enumerate(found) if token.strip(" ")] or [0])
    kind = rng.randrange(9)
    if kind == 0:
        del found[at]
    elif kind == 1:
        found.insert(at, found[at])
    elif kind == 2:
        following = next((n for n in range(at + 1, len(found)) if found[n].strip()), at)
        found[at], found[following] = found[following], found[at]
    elif kind == 3:
        found[at] = rng.choice(words)
    elif kind == 4:
        found.insert(at, f" {rng.choice(words)} ")
    elif kind == 5:
        found[at] = rng.choice(found)
    else:  # a token of the same kind
        found[at] = rng.choice([each for each in (*found, *words) if _kind(each) == _kind(found[at])] or [""])
    return "".join(found)


def _kind(token: str) -> str:
    if token.isidentifier():
        return "keyword" if keyword.iskeyword(token) else "name"
    return "bracket" if token in "()[]{}" else "string" if token[-1:] in "'\"" else re.sub(r"\d+", "0", token)[:1]


def _other_lines(lines: list[str], rng: random.Random) -> str:
    at, kind = rng.randrange(len(lines)), rng.randrange(6)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[at])
    elif kind == 2:
        lines[at - 1], lines[at] = lines[at], lines[at - 1]
    elif kind == 3:
        lines[at] = rng.choice([" ", "    ", "\t"]) + lines[at]
    elif kind == 4:
        lines[at] = lines[at].removeprefix(rng.choice([" ", "    "]))
    else:
        lines[at - 1 : at + 1] = [lines[at - 1] + rng.choice(["", " ", "; ", " \\\n"]) + lines[at].lstrip()]
    return "\n".join(lines)


def near_misses(texts: tuple[str, ...], seeds: range, edits: int = 1) -> Iterator[str]:
    """One near miss for each seed, the texts in turn."""
    for seed in seeds:
        yield near(texts[seed % len(texts)].strip("\n"), seed, edits)
