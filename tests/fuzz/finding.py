"""A finding as a file that stands alone: the program, its inputs, what is expected, and a few lines that run it."""

from __future__ import annotations

import ast
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.fuzz.case import Case, TensorArgument
from tests.fuzz.dtypes import Discard

_RUN = r'''
"""{title}

python {name} [--cuda]: PASS, FAIL or the exception. Needs tiledsl, torch, numpy and ml_dtypes.
"""

import json
import linecache
import sys

import ml_dtypes
import numpy as np
import torch

import tiledsl
import tiledsl.language as T

PROGRAM = {text}
CASE = json.loads({case})
# Of each memory: elements, and by how much they may be off.
EXPECTED = json.loads({expected})


def main():
    linecache.cache["<case>"] = (len(PROGRAM), None, PROGRAM.splitlines(True), "<case>")
    space = {{"T": T}}
    exec(compile(PROGRAM, "<case>", "exec"), space)
    device = "cuda" if "--cuda" in sys.argv else "cpu"
    target = "cuda" if device == "cuda" else "interpret"
    kernel = tiledsl.compile(space["main"], target=target, pass_configs=CASE["options"])
    memories, arguments, starts = {{}}, [], {{}}
    for each in CASE["tensors"]:
        dtype = np.dtype(getattr(ml_dtypes, each["dtype"], None) or each["dtype"])
        if not each["same_as"]:
            wide = np.float64 if "float" in each["dtype"] else dtype
            data = np.array(CASE["inputs"][each["name"]], wide).astype(dtype).view(np.uint8)
            starts[each["name"]] = 512 + -(-each["offset"] // dtype.itemsize) * dtype.itemsize
            whole = np.full(starts[each["name"]] + len(data) + 512, 0x5A, np.uint8)
            whole[starts[each["name"]] :][: len(data)] = data
            memories[each["name"]] = torch.from_numpy(whole).to(device)
        owner = each["same_as"] or each["name"]
        span = 1 + sum((size - 1) * step for size, step in zip(each["shape"], each["strides"]))
        flat = memories[owner][starts[owner] :][: span * dtype.itemsize].view(getattr(torch, each["dtype"]))
        arguments.append(flat.as_strided(each["shape"], each["strides"]))
    kernel(*arguments, *[value for _, value in CASE["scalars"].values()])
    wrong = []
    for each in CASE["tensors"]:
        if each["same_as"]:
            continue
        dtype = np.dtype(getattr(ml_dtypes, each["dtype"], None) or each["dtype"])
        values, errors = EXPECTED[each["name"]]
        held = memories[each["name"]].cpu().numpy()[starts[each["name"]] :][: len(values) * dtype.itemsize].view(dtype)
        found = (held.astype(np.float64) if "float" in each["dtype"] else held).tolist()
        for place, (got, want, error) in enumerate(zip(found, values, errors)):
            if want is not None and not (got == want or (got != got and want != want) or abs(got - want) <= error):
                wrong.append(f"{{each['name']}}[{{place}}] is {{got!r}} instead of {{want!r}}")
    print("PASS" if not wrong else f"FAIL: {{len(wrong)}} differ: {{'; '.join(wrong[:3])}}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
'''


def to_json(case: Case) -> dict[str, Any]:
    return asdict(case)


def from_json(data: dict[str, Any]) -> Case:
    tensors = [
        TensorArgument(**{**each, "shape": tuple(each["shape"]), "strides": tuple(each["strides"])})
        for each in data["tensors"]
    ]
    scalars = {name: (dtype, value) for name, (dtype, value) in data["scalars"].items()}
    return Case(data["seed"], data["text"], tensors, scalars, data["options"], data["inputs"])


def write(case: Case, title: str, path: Path) -> Path:
    """Write a finding; `title` says what is wrong with it."""
    try:
        wanted = {
            name: [[number.value for number in numbers], [number.error for number in numbers]]
            for name, numbers in case.expected().items()
        }
    except Discard:
        wanted = {name: [[None] * len(values), [0.0] * len(values)] for name, values in case.inputs.items()}
    told = title.replace("\\", "/").replace('"""', "'''")
    text = _RUN.lstrip("\n").format(
        title=told, name=path.name, text=_block(case.text), case=repr(json.dumps(to_json(case))),
        expected=repr(json.dumps(wanted)),
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _block(text: str) -> str:
    return "r'''\n" + text + "'''" if "'''" not in text and "\\" not in text else repr(text)


def read(path: Path) -> Case:
    """The case of a file that `write` wrote."""
    line = next(line for line in path.read_text().splitlines() if line.startswith("CASE = json.loads("))
    return from_json(json.loads(ast.literal_eval(line[len("CASE = json.loads(") : -1])))
