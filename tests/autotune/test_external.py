"""Configurations in the files of other projects: read without loss, looked up as there, converted both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tiledsl.autotuner import ExternalConfigs, read_external
from tiledsl.autotuner.external.folder import FORMATS
from tiledsl.autotuner.tuned.entry import decode, encode
from tiledsl.autotuner.tuned.file import read
from tiledsl.cli import main
from tiledsl.errors import TileError

SMALL, MIDDLE, LARGE, ANY = (
    {"BLOCK_SIZE_M": each, "num_warps": 4, "cache_modifier": None} for each in (16, 64, 128, 32)
)
AITER = {"M_LEQ_16": SMALL, "M_LEQ_64": MIDDLE, "M_GEQ_4096": LARGE, "any": ANY}
MOE = {"triton_version": "3.4.0", "1": SMALL, "16": MIDDLE, "1024": LARGE}
CSV = """gfx,cu_num,M,N,K,libtype,kernelId,splitK,us,kernelName,tflops,bw,errRatio
gfx942,80,128,1536,7168,ck,23,0,32.99,a_kernel,85.3,400.1,0.0
gfx942,80,64,1536,7168,ck,7,1,-1,,0,0,1.0
gfx942,80,64,1536,7168,asm,9,2,20.5,"b,kernel",68.5,500.0,0.0
"""
T4 = {
    "schema_version": "1.0.0",
    "metadata": {"hardware": "a GPU"},
    "results": [
        {
            "configuration": {"block": 32},
            "objectives": ["time"],
            "measurements": [{"name": "power", "value": 3}, {"name": "time", "value": 0.002, "unit": "s"}],
        },
        {"configuration": {"block": 64}, "measurements": [{"name": "time", "value": 1.5, "unit": "ms"}]},
        {"configuration": {"block": 128}, "invalidity": "compile", "measurements": []},
    ],
}  # fmt: skip
MOE_NAME = "E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128,128]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gfx942-GEMM-A8W8-N=1024-K=512.json").write_text(json.dumps(AITER))
    (tmp_path / "gfx942-GEMM-A8W8.json").write_text(json.dumps({"small": SMALL, "medium_M64": MIDDLE, "any": LARGE}))
    (tmp_path / f"{MOE_NAME}.json").write_text(json.dumps(MOE))
    (tmp_path / "a8w8_tuned_gemm.csv").write_text(CSV)
    (tmp_path / "gemm.t4.json").write_text(json.dumps(T4))
    (tmp_path / "README.md").write_text("nothing of these")
    return tmp_path


def test_what_is_read_is_written_again_as_it_was(folder: Path) -> None:
    formats = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".md":
            continue
        file = read_external(path)
        kind, formats[path.name] = FORMATS[file.format], file.format
        assert kind.name_of(file) == path.name
        written = kind.write(file)
        if path.suffix == ".csv":
            assert written.decode() == path.read_text()
        else:
            again = json.loads(written)
            assert again == json.loads(path.read_text()) and list(again) == list(json.loads(path.read_text()))
    assert sorted(formats.values()) == ["aiter", "aiter", "aiter-csv", "moe", "t4"]
    with pytest.raises(TileError, match=r"README.md has the name of no known format"):
        read_external(folder / "README.md")
    with pytest.raises(TileError, match="there is no format 'vllm'"):
        read_external(folder / "README.md", "vllm")


def test_each_lookup_is_its_own_projects(folder: Path) -> None:
    configs = ExternalConfigs(folder)
    sizes = {"N": 1024, "K": 512}
    for m, config, tuned in ((1, SMALL, True), (16, SMALL, True), (17, MIDDLE, True), (65, ANY, False),
                             (4095, ANY, False), (4096, LARGE, True), (9000, LARGE, True)):  # fmt: skip
        match = configs.lookup("GEMM-A8W8", M=m, **sizes)
        assert match is not None and (match.config, match.is_tuned) == (config, tuned), m
        assert match.path.name == "gfx942-GEMM-A8W8-N=1024-K=512.json"
    for m, config in ((31, SMALL), (32, MIDDLE), (64, MIDDLE), (65, LARGE)):
        match = configs.lookup("GEMM-A8W8", target="gfx942", M=m, N=7, K=7)
        assert match is not None and match.config == config, m
    for m, config in ((1, SMALL), (8, SMALL), (9, MIDDLE), (520, MIDDLE), (521, LARGE), (10**6, LARGE)):
        match = configs.lookup("fused_moe", "NVIDIA H100 80GB HBM3", E=8, N=7168, M=m, dtype="fp8_w8a8")
        assert match is not None and match.config == config, m
    assert configs.lookup("fused_moe", E=9, N=7168, M=1) is None
    match = configs.lookup("a8w8_tuned_gemm", gfx="gfx942", cu_num=80, M=64, N=1536, K=7168)
    assert match is not None and match.latency_ms == pytest.approx(0.0205)
    assert match.config == {"libtype": "asm", "kernelId": 9, "splitK": 2, "kernelName": "b,kernel"}
    assert configs.lookup("a8w8_tuned_gemm", M=65, N=1536, K=7168) is None
    match = ExternalConfigs(folder, "t4").lookup()
    assert match is not None and (match.config, match.latency_ms, match.is_tuned) == ({"block": 64}, 1.5, False)
    match.config["block"] = 99
    assert ExternalConfigs(folder, "t4").lookup().config == {"block": 64}  # type: ignore[union-attr]
    again = configs.lookup("GEMM-A8W8", M=1, **sizes)
    assert again is not None
    again.config["num_warps"] = 99
    assert configs.lookup("GEMM-A8W8", M=1, **sizes).config == SMALL  # type: ignore[union-attr]
    assert configs.lookup("no such kernel", M=1) is None


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gfx942-G.json", "{", "gfx942-G.json: not strict JSON"),
        ("gfx942-G.json", "[]", "it holds a list, not an object"),
        ("gfx942-G.json", '{"any": {"a": 1}, "any": {"a": 2}}', "any: it comes twice in one object"),
        ("gfx942-G.json", '{"M_LEQ_x": {"a": 1}}', "M_LEQ_x: it is no bucket: M_LEQ_<number>"),
        ("gfx942-G.json", '{"M_LEQ_0": {"a": 1}}', "M_LEQ_0: '0' is no whole number from 1 on"),
        ("gfx942-G.json", '{"any": {}}', "any: it is '{}', not an object of tunables"),
        ("gfx942-G.json", '{"any": {"a": [1]}}', r"any.a: it is '\[1\]', no plain value"),
        ("gfx942-G.json", '{"any": {"a": NaN}}', "not strict JSON"),
        ("E=8,N=7.json", '{"1.5": {"a": 1}}', "1.5: '1.5' is no whole number"),
        ("E=8,N=x.json", '{"1": {"a": 1}}', "N: the file's name says 'x', no whole number"),
        ("E=8,N=7,oops.json", '{"1": {"a": 1}}', "oops: the file's name is not E=...,N=...,device_name=..."),
        ("t.csv", "M,N,K,us\n1,2,3", "line 2: it has 3 values for 4 columns"),
        ("t.csv", "M,N,K,us\n1,2,x,1.0\n", "line 2, K: 'x' is no whole number from 1 on"),
        ("t.csv", "M,N,K,us\n1,2,3,fast\n", "line 2, us: 'fast' is no number"),
        ("t.csv", "a,b\n1,2\n", "line 1: it does not name the columns"),
        ("g.t4.json", "{}", "results: it is missing, or no list"),
        ("g.t4.json", '{"results": [{"configuration": 3}]}', r"results\[0\].configuration: it is '3'"),
        ("g.t4.json", '{"results": [{"configuration": {"a": 1}, "measurements": [{"name": "time", "value": -1}]}]}',
         r"results\[0\].measurements\[0\].value: -1  is no time"),
    ],
)  # fmt: skip
def test_damaged_files_are_refused_with_file_and_key(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TileError, match=message):
        read_external(tmp_path / name)
    with pytest.raises(TileError, match=message):
        ExternalConfigs(tmp_path).lookup(M=1)


def run(*arguments: Any) -> str:
    done = CliRunner().invoke(main, ["tuned", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_import_and_export(tmp_path: Path) -> None:
    program = f"{Path(__file__).with_name('triton_programs.py')}:tuned"
    buckets = {"M_LEQ_128": {"BLOCK_X": 64}, "M_LEQ_1024": {"BLOCK_X": 128}, "any": {"BLOCK_X": 32}}
    given = tmp_path / "gfx942-SCALE.json"
    given.write_text(json.dumps(buckets))
    into = tmp_path / "tuned"
    renames = ["--rename", "M=n", "--rename", "BLOCK_X=BLOCK"]
    sets = ["--set", "x=float32", "--set", "out=float32"]
    run("import", given, "--program", program, "--into", into, "--target", "cuda:90", *renames, *sets)
    file = read(into / "scale-sm_90.json")
    assert [(each.arguments, each.config, each.latency_kind) for each in file.entries] == [
        ({"n": 128, "x": "float32", "out": "float32"}, {"BLOCK": 64}, "unknown"),
        ({"n": 1024, "x": "float32", "out": "float32"}, {"BLOCK": 128}, "unknown"),
    ]
    assert file.default is not None and file.default.config == {"BLOCK": 32}
    assert "latency_ms" not in encode(file.entries[0]) and decode(encode(file.entries[0])) == file.entries[0]
    assert [line.split()[-3:] for line in run("list", into).splitlines()[1:]] != []

    from tests.autotune.triton_programs import tuned, vectors

    found = tuned.with_options(tuned=str(into), on_miss="error", target="cuda:90")
    assert found.tuned_for(**vectors(100), n=100).config == {"BLOCK": 64}
    assert found.tuned_for(**vectors(500), n=500).config == {"BLOCK": 128}
    result = found.compile(**vectors(500), n=500)
    assert (result.config, result.latency, result.from_cache) == ({"BLOCK": 128}, None, "tuned")

    back = ["--rename", "n=M", "--rename", "BLOCK=BLOCK_X"]
    with pytest.raises(AssertionError, match="aiter's files say B, N and K; scale has the argument 'x'"):
        run("export", into, "--format", "aiter", "--into", tmp_path / "out", *back)
    run("export", into, "--format", "aiter-csv", "--into", tmp_path / "out", *back)
    assert (tmp_path / "out" / "scale.csv").read_text() == (
        "M,x,out,BLOCK_X,us\n128,float32,float32,64,\n1024,float32,float32,128,\n"
    )
    run("export", into, "--format", "t4", "--into", tmp_path / "out")
    results = json.loads((tmp_path / "out" / "scale.t4.json").read_text())["results"]
    assert [(each["configuration"], each["arguments"]["n"]) for each in results] == [
        ({"BLOCK": 64}, 128),
        ({"BLOCK": 128}, 1024),
    ]

    for entry in (data := json.loads((into / "scale-sm_90.json").read_text()))["entries"]:
        entry["arguments"] = {"M": entry["arguments"]["n"], "N": 64, "E": 8}
        entry |= {"latency_ms": 0.5, "latency_kind": "measured", "gpu": "NVIDIA H100"}
    (into / "scale-sm_90.json").write_text(json.dumps(data))
    run("export", into, "--format", "moe", "--into", tmp_path / "out")
    path = tmp_path / "out" / "E=8,N=64,device_name=NVIDIA_H100.json"
    assert json.loads(path.read_text()) == {"128": {"BLOCK": 64}, "1024": {"BLOCK": 128}}
    with pytest.raises(AssertionError, match="'E'"):
        run("export", into, "--format", "aiter", "--into", tmp_path / "out")
    for entry in data["entries"]:
        del entry["arguments"]["E"]
    (into / "scale-sm_90.json").write_text(json.dumps(data))
    run("export", into, "--format", "aiter", "--into", tmp_path / "out", "--rename", "BLOCK=BLOCK_X")
    assert json.loads((tmp_path / "out" / "sm_90-scale-N=64.json").read_text()) == buckets


def test_what_a_function_does_not_take_is_not_imported(tmp_path: Path) -> None:
    program = f"{Path(__file__).with_name('triton_programs.py')}:tuned"
    (tmp_path / "gfx942-SCALE.json").write_text(json.dumps({"any": {"BLOCK_X": 32}}))
    done = CliRunner().invoke(
        main, ["tuned", "import", str(tmp_path / "gfx942-SCALE.json"), "--program", program, "--into", str(tmp_path)]
    )
    assert done.exit_code != 0 and 'scale does not take {"BLOCK_X": 32}' in done.output
