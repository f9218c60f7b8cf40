"""Kernels of tile programs from every level: the same binary, checked, and never mixed up with the unedited one."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
from tests.levels.conftest import program
from tests.support.example_modules import load_example
from tests.support.fake_driver import FakeDriver
from tiledsl.certificate import Certificate
from tiledsl.certificate.certify import certificate_of
from tiledsl.errors import TileError
from tiledsl.kernels.stored import StoredKernel, describe
from tiledsl.kernels.torch_op import _default_name
from tiledsl.runtime.compile import CompileError
from tiledsl.runtime.launch_stored import CachedBinary
from tiledsl.runtime.target import Target

NAME = "scaled_kernel"
CUDA = ("ttir", "ttgir", "llir", "ptx", "cubin")


def copied(saved: Path, tmp_path: Path, **changes: Any) -> Path:
    """The saved levels in a folder of the test's own, with entries of the JSON file changed (or, if None, removed)."""
    folder = tmp_path / "copied"
    shutil.copytree(saved, folder)
    values = json.loads((folder / f"{NAME}.json").read_text())
    for name, value in changes.items():
        if value is None:
            del values[name]
        else:
            values[name] = value
    (folder / f"{NAME}.json").write_text(json.dumps(values))
    return folder


def edit(folder: Path, level: str, pattern: str, new: str) -> Path:
    path = folder / f"{NAME}.{level}"
    text, count = re.subn(pattern, new, path.read_text())
    assert count, f"{pattern} is not in the {level}"
    path.write_text(text)
    return path


def test_what_is_saved(kernel: tiledsl.Kernel, saved: Path) -> None:
    assert sorted(each.name for each in saved.iterdir()) == sorted(f"{NAME}.{each}" for each in (*CUDA, "json"))
    assert (saved / f"{NAME}.cubin").read_bytes() == kernel.asm["cubin"]
    assert (saved / f"{NAME}.ttgir").read_text() == kernel.asm["ttgir"]
    text = (saved / f"{NAME}.json").read_text()
    assert '\n  {"name": "X", "type": "*fp32", "attributes": {"tt.divisibility": 16}},\n' in text
    values = json.loads(text)
    assert values["target"] == {"backend": "cuda", "arch": 90, "warp_size": 32} and values["num_warps"] == 4
    assert values["parameter_bytes"] == [8, 4, 8, 4, 8, 8] and set(values["files"]) == set(CUDA)


@pytest.mark.parametrize("level", CUDA)
def test_each_level_gives_the_same_binary(kernel: tiledsl.Kernel, saved: Path, level: str) -> None:
    for given in (saved, saved / f"{NAME}.{level}", kernel.asm[level], {NAME: str(saved)}):
        loaded = kernel.from_level(level, given)
        assert loaded.asm["cubin"] == kernel.asm["cubin"]
        assert loaded.asm.get("ptx", kernel.asm["ptx"]) == kernel.asm["ptx"]
        assert set(loaded.asm) == {*CUDA[CUDA.index(level) :], "sass"}
        assert loaded.params == kernel.params and loaded.outputs == kernel.outputs
        assert loaded.source.startswith(kernel.source)
        assert len(loaded.remarks) == 1 and "edited" not in loaded.remarks[0]
    assert loaded.resources == kernel.resources


def test_levels_of_a_level_kernel(kernel: tiledsl.Kernel, saved: Path, tmp_path: Path) -> None:
    made = kernel.from_level("llir", saved)
    made.save_levels(tmp_path)
    assert not (tmp_path / f"{NAME}.ttir").exists()
    again = made.from_level("ptx", tmp_path)
    assert again.asm["cubin"] == kernel.asm["cubin"] and again.remarks == (f"{NAME} runs from {tmp_path}/{NAME}.ptx",)


def test_a_certificate_goes_with_the_levels_of_its_source(kernel: tiledsl.Kernel, tmp_path: Path) -> None:
    made = certificate_of(kernel, [], 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "certificate", made)
        assert tmp_path / f"{kernel.name}.certificate.json" in kernel.save_levels(tmp_path)
        level = kernel.from_level("ptx", tmp_path)
    assert Certificate.load(tmp_path / f"{kernel.name}.certificate.json", kernel) == made
    assert level.certificate is None
    with pytest.raises(TileError, match="does not run from its source"):
        level.verify()


def test_edited_files(kernel: tiledsl.Kernel, saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, tmp_path)
    path = edit(folder, "ttgir", r"arith\.mulf", "arith.addf")
    loaded = kernel.from_level("ttgir", folder)
    assert loaded.remarks == (f"{NAME} runs from {path} (edited)",)
    assert "add.f32" in loaded.asm["ptx"] and "mul.f32" not in loaded.asm["ptx"] and "mul.f32" in kernel.asm["ptx"]
    assert "FADD" in loaded.asm["sass"] and "FADD" not in kernel.asm["sass"]
    unedited = kernel.from_level("ttgir", saved)
    assert unedited.asm["cubin"] == kernel.asm["cubin"]
    text = kernel.from_level("ttgir", path.read_text())
    assert text.remarks == (f"{NAME} runs from the given ttgir (edited)",) and text.asm["cubin"] == loaded.asm["cubin"]
    names = {_default_name(each, 2) for each in (kernel, loaded, unedited)}
    assert len(names) == 3
    path.write_text((saved / path.name).read_text())  # edited again at the same place
    assert kernel.from_level("ttgir", folder).asm["cubin"] == kernel.asm["cubin"]


def test_warps_edited_in_ttgir(kernel: tiledsl.Kernel, saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, tmp_path)
    edit(folder, "ttgir", r'"ttg.num-warps" = 4', '"ttg.num-warps" = 8')
    edit(folder, "ttgir", r"warpsPerCTA = \[4, 1\]", "warpsPerCTA = [8, 1]")
    made = kernel.from_level("ttgir", folder)
    assert made.resources.num_warps == 8 and ".reqntid 256" in made.asm["ptx"]
    assert "has 8 warps, where its metadata says 4" in made.remarks[1]


def test_edited_ptx(kernel: tiledsl.Kernel, saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, tmp_path)
    path = edit(folder, "ptx", r"mul\.f32", "add.f32")
    made = kernel.from_level("ptx", folder)
    assert made.asm["cubin"] != kernel.asm["cubin"] and "FADD" in made.asm["sass"]
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "add.f32" in text)
    edit(folder, "ptx", r"add\.f32", "frobnicate.f32")
    with pytest.raises(CompileError) as caught:
        _ = kernel.from_level("ptx", folder).compiled
    assert caught.value.loc is not None and (caught.value.loc.file, caught.value.loc.line) == (str(path), line)
    assert caught.value.stage == "cubin" and "frobnicate" in str(caught.value)


def test_a_file_that_does_not_parse(kernel: tiledsl.Kernel, saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, tmp_path)
    path = edit(folder, "ttir", r"arith\.mulf", "arith.frobnicate")
    with pytest.raises(CompileError, match="frobnicate") as caught:
        _ = kernel.from_level("ttir", folder).compiled
    assert caught.value.loc is not None and caught.value.loc.file == str(path) and caught.value.stage == "ttir"
    assert "frobnicate" in path.read_text().splitlines()[caught.value.loc.line - 1]


@pytest.mark.parametrize(
    ("level", "pattern", "by", "message"),
    [
        ("llir", r"ret void", "ret i32 0", "value doesn't match function result type 'void'"),  # LLVM aborts
        ("llir", r"fmul float", "fmul floot", "expected type"),
        ("ttgir", r"arith\.mulf", "arith.muli", "'arith.muli' op operand #0 must be signless"),  # does not verify
        ("ttir", r"tt\.make_range \{end = 32", "tt.make_range {end = 16", "'tt.make_range' op"),
    ],
)  # fmt: skip
def test_what_the_compiler_refuses(
    kernel: tiledsl.Kernel, saved: Path, tmp_path: Path, level: str, pattern: str, by: str, message: str
) -> None:
    folder = copied(saved, tmp_path)
    path = edit(folder, level, pattern, by)
    with pytest.raises(CompileError, match=re.escape(message)) as caught:
        _ = kernel.from_level(level, folder).compiled
    assert caught.value.stage == level
    named = by.split()[0]
    is_placed = path.read_text().count(named) == 1 or level == "llir"
    if is_placed:
        assert caught.value.loc is not None and caught.value.loc.file == str(path)
        assert named in path.read_text().splitlines()[caught.value.loc.line - 1]


@pytest.mark.slow
def test_gluon_from_each_level(tmp_path: Path) -> None:
    """Its metadata counts the producer's warps, its ttgir does not."""
    sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "queries": 256, "keys": 256, "dim": 64}
    gluon = tiledsl.compile(load_example("attention").attention.build(sizes), out_idx=[3, 4], target="cuda:90")
    name = gluon.module.kernels[0].name
    gluon.save_levels(tmp_path)
    record = json.loads((tmp_path / f"{name}.json").read_text())
    assert record["language"] == "gluon" and record["num_warps"] > record["options"]["num_warps"]
    for level in ("ttgir", "llir", "ptx", "cubin"):
        again = gluon.from_level(level, tmp_path)
        assert again.remarks[len(gluon.remarks) :] == (f"{name} runs from {tmp_path / f'{name}.{level}'}",)
        assert again.asm["cubin"] == gluon.asm["cubin"]


def test_edited_llir(kernel: tiledsl.Kernel, saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, tmp_path)
    edit(folder, "llir", r"fmul float", "fadd float")
    made = kernel.from_level("llir", folder)
    assert "add.f32" in made.asm["ptx"] and "mul.f32" not in made.asm["ptx"]


def test_a_process_that_does_not_run(
    kernel: tiledsl.Kernel, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(saved, tmp_path)
    edit(folder, "llir", r"fmul float", "fsub float")
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(CompileError, match="the process that is to compile it does not run: it ended with status 1"):
        _ = kernel.from_level("llir", folder).compiled


@pytest.mark.parametrize(
    ("level", "changes", "message"),
    [
        ("cubin", {"name": "other"}, "the kernel scaled_kernel, not other"),
        ("ptx", {"triton_version": "3.1.0"}, "was made by Triton 3.1.0"),
        ("llir", {"shared": None}, "its metadata has no 'shared'"),
        ("ptx", {"num_warps": 8}, "for blocks of 4 warps, and its metadata says 8"),
        ("cubin", {"num_warps": 8}, "for blocks of 4 warps, and its metadata says 8"),
        ("cubin", {"shared": 1 << 20}, "needs 1048576 bytes of shared memory, and cuda:90 has 232448"),
        ("ptx", {"parameter_bytes": [8, 4, 8, 8, 8, 8]}, "takes parameters of 8, 4, 8, 4, 8, 8 bytes"),
        ("cubin", {"parameter_bytes": [8, 4, 8]}, "8, 4, 8, 8 bytes, and a launch gives 8, 4, 8"),
        ("ttir", {"source_sha256": "0" * 64}, "was compiled from another source than scaled's"),
        ("ttir", {"arguments": [{"name": "X", "type": "*fp16"}]}, "takes 4 parameters"),
        ("ptx", {"arguments": None}, "does not say what arguments it was compiled for"),
        ("cubin", {"arguments": [{"name": "X", "type": "*fp32"}]}, "has s: fp32, and it has none"),
        ("cubin", {"schema": "tiledsl levels 99"}, "'tiledsl levels 99'"),
        ("cubin", {"name": None}, "does not describe a kernel: it has no 'name'"),
        ("cubin", {"shared": "0"}, "has no 'shared' that is an integer but '0'"),
        ("cubin", {"num_ctas": "2"}, "has num_ctas='2', which is to be an integer"),
        ("cubin", {"language": "cuda"}, "has the language 'cuda', which is none of triton, gluon"),
        ("cubin", {"target": {"backend": "cuda", "arch": "zz"}}, "json does not describe a kernel: unknown CUDA"),
        ("cubin", {"target": 3}, "an entry has another type than save_levels\\(\\) gives it"),
        ("ttir", {"arguments": []}, r"takes 4 parameters \(.*\), and a launch gives 0 \(\)"),
    ],
)  # fmt: skip
def test_refused(
    kernel: tiledsl.Kernel, saved: Path, tmp_path: Path, level: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TileError, match=message):
        kernel.from_level(level, copied(saved, tmp_path, **changes))


def test_arguments_in_another_order(kernel: tiledsl.Kernel, saved: Path, tmp_path: Path) -> None:
    arguments = json.loads((saved / f"{NAME}.json").read_text())["arguments"]
    folder = copied(saved, tmp_path, arguments=[*arguments[1::-1], *arguments[2:]])
    with pytest.raises(TileError, match=r"takes s, X, .* is launched with X, s, "):
        kernel.from_level("cubin", folder)


@pytest.mark.parametrize("text", ["[]", "null", "[" * 100_000, "", "{"])
def test_json_that_is_no_record(kernel: tiledsl.Kernel, saved: Path, tmp_path: Path, text: str) -> None:
    folder = copied(saved, tmp_path)
    (folder / f"{NAME}.json").write_text(text)
    with pytest.raises(TileError, match="does not describe a kernel") as caught:
        kernel.from_level("ptx", folder)
    assert caught.value.notes == ["save_levels() writes such a file"] and "attribute" not in str(caught.value)


@pytest.mark.parametrize("size", [3, 500, -40, -1000])
def test_torn_cubins(kernel: tiledsl.Kernel, saved: Path, tmp_path: Path, size: int) -> None:
    folder = copied(saved, tmp_path)
    path = folder / f"{NAME}.cubin"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(TileError, match="is no cubin of a kernel: it is"):
        kernel.from_level("cubin", folder)


def test_types_are_compared(kernel: tiledsl.Kernel, saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, tmp_path)
    edit(folder, "ttgir", r"%X: !tt\.ptr<f32>", "%X: !tt.ptr<f16>")
    with pytest.raises(TileError, match=r"takes X as !tt.ptr<f16>, not \*fp32"):
        kernel.from_level("ttgir", folder)


def test_what_may_be_allowed(kernel: tiledsl.Kernel, saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, tmp_path, triton_version="3.1.0", source_sha256="0" * 64)
    made = kernel.from_level("cubin", folder, allow=("source", "triton_version"))
    assert [text.split(".cubin ")[-1] for text in made.remarks[1:]] == [
        "was compiled from another source than scaled's",
        f"was made by Triton 3.1.0, and here is {__import__('triton').__version__}",
    ]
    with pytest.raises(TileError, match="allow names 'arguments'"):
        kernel.from_level("cubin", folder, allow=["arguments"])


def test_other_configurations_are_refused_without_metadata(kernel: tiledsl.Kernel) -> None:
    other = tiledsl.compile(program(tile=16), target="cuda:90", out_idx=-1)
    for level in CUDA:
        with pytest.raises(TileError, match="from another source than scaled's, perhaps with other tiles"):
            kernel.from_level(level, other.asm[level])
        assert other.from_level(level, other.asm[level]).asm["cubin"] == other.asm["cubin"]
    nameless = re.sub(r"\"[^\"]*/[0-9a-f]{16}/\w+\.py\"", '"by_hand.py"', kernel.asm["ttir"])
    assert "does not say what it was compiled from" in kernel.from_level("ttir", nameless).remarks[-1]


def test_other_targets(kernel: tiledsl.Kernel, saved: Path) -> None:
    ampere = tiledsl.compile(program(), target="cuda:80", out_idx=-1)
    for level in CUDA[1:]:
        with pytest.raises(TileError, match="is for cuda:90, and the kernel for cuda:80") as caught:
            ampere.from_level(level, saved, allow=["source"])
        assert "begin with the ttir" in str(caught.value)
    made = ampere.from_level("ttir", saved)
    assert made.remarks[1].endswith("was made for cuda:90, and is compiled for cuda:80")
    code = [each.asm["ptx"].partition("\t.file")[0] for each in (made, ampere)]
    assert code[0] == code[1] and ".target sm_80" in code[0]
    with pytest.raises(TileError, match="which runs the source as it is"):
        tiledsl.compile(program(), target="interpret", out_idx=-1).from_level("ttir", saved)


def test_missing_files(kernel: tiledsl.Kernel, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(TileError, match=r"there is no file .*scaled_kernel.hsaco") as caught:
        kernel.from_level("hsaco", saved)
    assert "scaled_kernel.cubin" in str(caught.value)
    with pytest.raises(TileError, match="there is no level 'sass'"):
        kernel.from_level("sass", saved)
    with pytest.raises(TileError, match="no ptx of a kernel: it has 0 kernels"):
        kernel.from_level("ptx", "nothing\n")
    with pytest.raises(TileError, match="no cubin of a kernel"):
        kernel.from_level("cubin", b"nothing")
    with pytest.raises(TileError, match="is not named as a ptx"):
        kernel.from_level("ptx", saved / f"{NAME}.ttir")
    with pytest.raises(TileError, match="has no kernel 'other'"):
        kernel.from_level("ptx", {"other": saved})
    with pytest.raises(TileError, match="there is no file xxx"):
        kernel.from_level("ptx", "x" * 5000)
    with pytest.raises(TileError, match="a folder is named by a path, not by NoneType"):
        kernel.save_levels(None)  # type: ignore[arg-type]
    with pytest.raises(TileError, match="allow names 3"):
        kernel.from_level("ptx", saved, allow=3)  # type: ignore[arg-type]
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(TileError, match="cannot be written"):
        kernel.save_levels(file / "levels")
    with (
        tiledsl.settings(cache_dir=str(file / "cache")),
        pytest.raises(TileError, match=r"cannot be written.*\n.*the setting cache_dir names"),
    ):
        kernel.from_level("ttir", saved)


def launches(made: tiledsl.Kernel, *arguments: Any) -> Any:
    """What Triton launches for these arguments, on the pretended GPU."""
    return getattr(made.loaded, NAME).run(*arguments, grid=(1,), warmup=True, num_warps=4, enable_fp_fusion=True)


def test_launches_take_the_level(
    kernel: tiledsl.Kernel, saved: Path, device: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Target, "runs_here", True)
    x, y = torch.empty(40, 64), torch.empty(40, 64)
    edited = kernel.from_level("ptx", kernel.asm["ptx"].replace("mul.f32", "add.f32"))
    for rows in (40, 1, 48):  # of any number: the level takes nothing for granted of it
        assert launches(edited, x, 2.0, y, rows).kernel == edited.asm["cubin"] != kernel.asm["cubin"]
        assert launches(kernel, x, 2.0, y, rows).asm["ptx"].count("mul.f32") > 0
    found = launches(edited, x, 2.0, y, 40)
    assert list(found.src.signature.items()) == [("X", "*fp32"), ("s", "fp32"), ("Y", "*fp32"), ("rows", "i32")]
    odd = torch.empty(40 * 64 + 1)[1:].view(40, 64)
    with pytest.raises(
        TileError, match="X being an address that is a multiple of 16 bytes, and in the call it is none"
    ):
        launches(edited, odd, 2.0, y, 40)
    with pytest.raises(TileError, match=r"X of type \*fp32, and the call has \*fp16"):
        launches(edited, x.half(), 2.0, y, 40)
    device.arch = 80
    made = kernel.from_level("cubin", saved)
    with pytest.raises(TileError, match="runs from a cubin for cuda:90, and this GPU is cuda:80"):
        launches(made, x, 2.0, y, 40)


def test_stored_kernels_take_the_level(
    kernel: tiledsl.Kernel, device: FakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the tuner recalls them: from the text of their module."""
    monkeypatch.setattr(Target, "runs_here", True)
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path))
    edited = kernel.from_level("ptx", kernel.asm["ptx"].replace("mul.f32", "add.f32"))
    described = json.loads(json.dumps(describe(edited)))
    x, y = torch.empty(40, 64), torch.empty(40, 64)
    stored = StoredKernel(described)
    stored.kept = (CachedBinary(NAME, tmp_path, "0" * 64),)  # which is of the source
    assert launches(stored, x, 2.0, y, 40).kernel == edited.asm["cubin"] == stored.asm["cubin"] != kernel.asm["cubin"]
    with pytest.raises(TileError, match="does not run from its source"):
        edited.export(tmp_path / "scaled.py")
    path = next(tmp_path.glob(f"levels/*/{NAME}.json"))
    described["source"] += "\n"  # another module, which is not loaded yet
    for file in tmp_path.glob(f"levels/*/{NAME}.ptx"):
        file.write_text(file.read_text().replace("add.f32", "sub.f32"))
    with pytest.raises(TileError, match="has been changed, from which scaled_kernel runs"):
        _ = StoredKernel(described).loaded
    shutil.rmtree(path.parent.parent)
    with pytest.raises(TileError, match="is gone, from which scaled_kernel runs"):
        _ = StoredKernel(described).loaded


def test_alignment_that_only_the_file_assumes(
    kernel: tiledsl.Kernel, saved: Path, tmp_path: Path, device: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Target, "runs_here", True)
    folder = copied(saved, tmp_path)
    edit(folder, "ttir", r"%rows: i32 loc", "%rows: i32 {tt.divisibility = 16 : i32} loc")
    made = kernel.from_level("ttir", folder)
    x, y = torch.empty(48, 64), torch.empty(48, 64)
    assert launches(made, x, 2.0, y, 48).kernel == made.asm["cubin"]
    with pytest.raises(TileError, match="compiled for rows being a number that is a multiple of 16"):
        launches(made, x, 2.0, y, 40)


def test_amd(tmp_path: Path) -> None:
    kernel = tiledsl.compile(program(), target="hip:gfx942", out_idx=-1)
    kernel.save_levels(tmp_path)
    for level in ("ttir", "ttgir", "llir", "amdgcn", "hsaco"):
        assert kernel.from_level(level, tmp_path).asm["hsaco"] == kernel.asm["hsaco"]
    edit(tmp_path, "amdgcn", "amdhsa_kernel scaled_kernel", "amdhsa_kernel other")
    with pytest.raises(TileError, match="has the kernel other, not scaled_kernel"):
        kernel.from_level("amdgcn", tmp_path)
