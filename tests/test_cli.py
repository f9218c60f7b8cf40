"""The command line: what each command prints, its exit status, and that mistakes are one readable message."""

from __future__ import annotations

import io
import textwrap
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

from tests.support import forked
from tiledsl.cli import main
from tiledsl.commands.lower import Request, default_target, kernel_of
from tiledsl.graphs import to_dot
from tiledsl.passes import PIPELINE

PROGRAMS = """
import tiledsl
import tiledsl.language as T

BLOCK = 16


@tiledsl.jit(out_idx=[-1])
def scaled(M, N, factor=2.0, dtype="float32"):
    @T.prim_func
    def scale(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, BLOCK), threads=32) as bx:
            tile = T.alloc_fragment((BLOCK, N), dtype)
            T.copy(X[bx * BLOCK, 0], tile)
            for i, j in T.Parallel(BLOCK, N):
                tile[i, j] = tile[i, j] * factor
            T.copy(tile, Y[bx * BLOCK, 0])

    return scale


@tiledsl.jit
def negated(X, block=16):
    N = T.const("N")
    X: T.Tensor((N,), "float32")
    Y = T.empty((N,), "float32")
    with T.Kernel(T.ceildiv(N, block), threads=32) as bx:
        for i in T.Parallel(block):
            Y[bx * block + i] = -X[bx * block + i]
    return Y


@T.prim_func
def cleared(X: T.Tensor((32,), "float16")):
    with T.Kernel(1, threads=32) as _:
        for i in T.Parallel(32):
            X[i] = 0.0


if __name__ == "__main__":
    raise SystemExit("the main part must not run")
"""
TEXT_PROGRAM = """
@T.prim_func
def ones(X: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 16), threads=32) as bx:
        for i in T.Parallel(16):
            X[bx * 16 + i] = 1.0
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("programs") / "programs_for_the_cli.py"
    file.write_text(PROGRAMS)
    return file


class Ended(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def tiledsl(*arguments: object, text: str = "") -> Ended:
    """What a command prints. Click's own runner differs from version to version."""
    out, err = io.StringIO(), io.StringIO()
    with mock.patch("sys.stdin", io.StringIO(text)), redirect_stdout(out), redirect_stderr(err):
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in arguments], prog_name="tiledsl")
    return Ended(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def printed(*arguments: object, text: str = "") -> str:
    result = tiledsl(*arguments, text=text)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: object, text: str = "") -> str:
    result = tiledsl(*arguments, text=text)
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    return str(result.output)


# lower


def test_source_is_the_default(programs: Path) -> None:
    source = printed("lower", f"{programs}:scaled", "-D", "M=32", "-D", "N=16")
    assert "@triton.jit" in source
    assert "* 2.0" in source


def test_values_are_literals_or_names(programs: Path) -> None:
    text = printed(
        "lower", f"{programs}:scaled", "-D", "M=32", "-D", "N=16", "-D", "dtype=float16", "-D", "factor=-3.0"
    )
    assert "tl.float16" in text or "float16" in text
    assert "-3.0" in text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--emit", "tile"], "tile.copy"),
        (["--emit", "triton"], "triton.launch"),
        (["--after", "promote-buffers"], "tile.kernel"),
        (["--after", "elaborate"], "tile.copy"),
        (["--emit", "ttgir", "--target", "cuda:90"], '"ttg.num-warps" = 1'),
        (["--emit", "ptx", "--target", "cuda:80"], ".target sm_80"),
    ],
)
def test_stages(programs: Path, options: list[str], expected: str) -> None:
    assert expected in printed("lower", f"{programs}:scaled", "-D", "M=32", "-D", "N=16", *options)


def test_an_eager_function_takes_its_symbols(programs: Path) -> None:
    text = printed("lower", f"{programs}:negated", "-D", "N=40", "-D", "block=32", "--emit", "tile")
    assert "buffer<40*float32, global>" in text
    assert "extents = (32)" in text or "extents = (32,)" in text
    unknown = refused("lower", f"{programs}:negated", "-D", "N=40", "-D", "M=3").splitlines()
    assert unknown[0] == "negated has no parameter and no T.const 'M'" and unknown[2] == "  note: its T.const symbols N"
    for wrong in ("x", "1.5", "float('nan')", "None"):
        assert "a T.const is an integer" in refused("lower", f"{programs}:negated", "-D", f"N={wrong}")
    assert "buffer<40*float32" in printed("lower", f"{programs}:negated", "-D", "N=40.0", "--emit", "tile")


def test_a_program_without_values(programs: Path) -> None:
    assert "buffer<32*float16, global>" in printed("lower", f"{programs}:cleared", "--emit", "tile")
    assert "takes no values, but -D gives M" in refused("lower", f"{programs}:cleared", "-D", "M=3")


def test_text_programs(tmp_path: Path) -> None:
    file = tmp_path / "ones.tile"
    file.write_text(TEXT_PROGRAM)
    assert "buffer<48*float32, global>" in printed("lower", file, "-D", "N=48", "--emit", "tile")
    assert "FILE:FUNCTION is for Python files" in refused("lower", f"{file}:ones", "-D", "N=48")
    assert "ones.tile:3:" in refused("lower", file)
    ir = tmp_path / "ones.mlir"
    printed("lower", file, "-D", "N=48", "--emit", "tile", "-o", ir)
    assert "ones.mlir is IR, not a program" in refused("lower", ir) and "tiledsl opt" in refused("lower", ir)
    ir.write_bytes(b"\xff")
    assert "ones.mlir cannot be read" in refused("lower", ir)


def test_a_file_that_cannot_be_imported(tmp_path: Path) -> None:
    file = tmp_path / "raising.py"
    file.write_text("def mine():\n    raise ValueError('mine')\n\nmine()\n")
    for command in (["lower", file], ["cache", "explain", f"{file}:f"]):
        result = tiledsl(*command)
        lines = result.output.splitlines()
        assert result.exit_code == 1 and lines[0] == f"{file} cannot be imported" and lines[-1] == "ValueError: mine"
        assert [line for line in lines if line.startswith("  File")] == [
            f'  File "{file}", line 4, in <module>',
            f'  File "{file}", line 2, in mine',
        ]
    file.write_text("def f(:\n")
    assert "SyntaxError" in refused("lower", file) and "line 1" in refused("lower", file)
    file.write_text("raise SystemExit(3)\n")
    assert tiledsl("lower", file).exit_code == 1


def test_files_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "binary.py"
    file.write_bytes(b"\xff\xfe\x00")
    assert "cannot be imported" in refused("lower", file)
    assert "binary.py cannot be read" in refused("opt", file, "-p", "dce")
    assert "binary.py cannot be read" in refused("run", file)


def test_output_goes_through_links(programs: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    assert printed("lower", f"{programs}:cleared", "-o", link) == "" and link.is_symlink()
    assert Path("/dev/null").is_char_device()


def test_ir_goes_on_from_a_pass(programs: Path, tmp_path: Path) -> None:
    ir = tmp_path / "scaled.mlir"
    whole = printed("lower", f"{programs}:scaled", "-D", "M=32", "-D", "N=16", "--target", "cuda:80")
    printed("lower", f"{programs}:scaled", "-D", "M=32", "-D", "N=16", "--after", "guard-accesses", "-o", ir)
    arguments = ["lower", ir, "--resume-after", "guard-accesses", "--target", "cuda:80"]
    ir.write_text(ir.read_text().replace("value = 2.0", "value = 7.0"))
    assert whole.count("* 2.0") == printed(*arguments).count("* 7.0") == 1
    assert ".target sm_80" in printed(*arguments, "--emit", "ptx")
    assert "triton.launch" in printed(*arguments, "--emit", "triton")
    assert printed(*arguments, "--emit", "tile").split() == ir.read_text().split()
    result = tiledsl(*arguments, "--print-changed")
    assert "// ----- after lower-to-triton" in result.stderr and "after vectorize-parallel" not in result.stderr
    assert "--resume-after PASS" in refused("lower", ir)
    assert "has neither functions nor values" in refused(*arguments, "-D", "M=3")
    assert "there is no file" in refused("lower", tmp_path / "none.mlir", "--resume-after", "dce")


def test_print_changed_goes_to_stderr(programs: Path) -> None:
    result = tiledsl("lower", f"{programs}:cleared", "--print-changed", "--emit", "triton")
    assert result.exit_code == 0
    assert "// ----- after vectorize-parallel" in result.stderr
    assert "// ----- after" not in result.stdout


def test_pass_options_reach_the_pipeline(programs: Path) -> None:
    arguments = ["lower", f"{programs}:scaled", "-D", "M=40", "-D", "N=16"]
    assert "mask" in printed(*arguments)
    assert "mask" not in printed(*arguments, "--pass-config", "tl.disable_safe_memory_legalize=true")
    assert "'no-such.option'" in refused(*arguments, "--pass-config", "no-such.option=1")


def test_options_of_the_decorator_hold(programs: Path, tmp_path: Path) -> None:
    file = tmp_path / "decorated.py"
    own = '@tiledsl.jit(out_idx=[-1], pass_configs={"tl.disable_safe_memory_legalize": True})'
    file.write_text(PROGRAMS.replace("@tiledsl.jit(out_idx=[-1])", own))
    arguments = ["lower", f"{file}:scaled", "-D", "M=40", "-D", "N=16"]
    assert "mask" not in printed(*arguments)
    assert "mask" not in printed(*arguments, "--emit", "triton")
    assert "mask" in printed(*arguments, "--pass-config", "tl.disable_safe_memory_legalize=false")


def test_the_setting_print_after_names_a_pass(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_PRINT_AFTER", "cze")
    for options in ([], ["--emit", "tile"]):
        message = refused("lower", f"{programs}:cleared", *options)
        assert "the setting print_after is 'cze'; did you mean 'dce'?" in message
    monkeypatch.setenv("TILEDSL_PRINT_AFTER", "dce")
    assert "// ----- after dce" in tiledsl("lower", f"{programs}:cleared").stderr


def test_output_goes_to_a_file(programs: Path, tmp_path: Path) -> None:
    to = tmp_path / "out.py"
    assert printed("lower", f"{programs}:cleared", "-o", to) == ""
    compile(to.read_text(), str(to), "exec")
    assert [each.name for each in tmp_path.iterdir()] == ["out.py"]
    assert "cannot be written" in refused("lower", f"{programs}:cleared", "-o", tmp_path / "none" / "out.py")


TUNED = """
import tiledsl
import tiledsl.language as T


@tiledsl.autotune(configs=[{"block": 32, "threads": 64, "num_warps": 1}, {"block": 128, "threads": 128}])
@tiledsl.jit(out_idx=[-1])
def doubled(N, block=None, threads=None):
    @T.prim_func
    def doubled(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block), threads=threads) as bx:
            for i in T.Parallel(block):
                Y[bx * block + i] = X[bx * block + i] * 2

    return doubled
"""


def test_a_graph_and_a_page_of_what_is_lowered(programs: Path, tmp_path: Path) -> None:
    text = printed("lower", f"{programs}:cleared", "--emit", "dot", "--after", "promote-buffers")
    kernel = kernel_of(Request(programs, "cleared", {}, default_target()))
    assert text == to_dot(kernel.graph("promote-buffers")) and 'label="tile.kernel"' in text
    assert text != printed("lower", f"{programs}:cleared", "--emit", "dot") == to_dot(kernel.graph())
    page = tmp_path / "kernel.html"
    assert printed("lower", f"{programs}:cleared", "--target", "cuda:90", "--report", page) == f"{page}\n"
    assert page.read_text().startswith("<!doctype html>") and "<h1>cleared</h1>" in page.read_text()
    assert "give it alone" in refused("lower", f"{programs}:cleared", "--report", page, "--emit", "ptx")
    said = refused("lower", f"{programs}:cleared", "--target", "cuda:90", "--report", tmp_path / "none" / "a.html")
    assert "a.html cannot be written: No such file or directory" in said


def test_lower_takes_the_first_configuration_of_an_autotuned_function(tmp_path: Path) -> None:
    file = tmp_path / "tuned.py"
    file.write_text(TUNED)
    done = tiledsl("lower", file, "-D", "N=1000", "--target", "cuda:90")
    assert done.exit_code == 0 and "tl.arange(0, 32)" in done.stdout and "num_warps=1" in done.stdout
    assert "doubled: block=32, threads=64, num_warps=1, as in its first configuration; -D" in done.stderr
    done = tiledsl("lower", file, "-D", "N=1000", "-D", "block=16", "--target", "cuda:90")
    assert "tl.arange(0, 16)" in done.stdout and "block=16" in done.stderr
    done = tiledsl("lower", file, "-D", "N=1000", "-D", "block=64", "-D", "threads=128", "--target", "cuda:90")
    assert "tl.arange(0, 64)" in done.stdout and "num_warps=4" in done.stdout and done.stderr == ""
    done = tiledsl("lower", file, "--target", "cuda:90")
    assert done.exit_code == 1 and "doubled is called without 'N', which is not a tunable" in done.stderr


def test_mistakes_in_what_to_lower(programs: Path, tmp_path: Path) -> None:
    several = refused("lower", programs)
    assert "has 3 programs; name one: FILE:FUNCTION" in several
    assert "note: there are scaled, negated, cleared" in several
    assert "has no scales" in refused("lower", f"{programs}:scales")
    assert "BLOCK is int, not a program" in refused("lower", f"{programs}:BLOCK")
    assert "scaled needs M, N" in refused("lower", f"{programs}:scaled")
    assert "there is no file" in refused("lower", tmp_path / "absent.py")
    assert "there is no file" in refused("lower", tmp_path / "absent.tile")
    file = tmp_path / "text_in_python.py"
    file.write_text(f"import tiledsl\nones = tiledsl.parse({TEXT_PROGRAM!r}, N=48)\n")
    assert "ones takes no values, but -D gives N" in refused("lower", f"{file}:ones", "-D", "N=3")
    assert "'M' is not name=value" in refused("lower", f"{programs}:scaled", "-D", "M")
    assert "--emit c++: it must be one of source, tile" in refused("lower", f"{programs}:cleared", "--emit", "c++")
    assert "the pipeline has no pass 'cze'" in refused("lower", f"{programs}:cleared", "--after", "cze")
    assert "unknown target" in refused("lower", f"{programs}:cleared", "--target", "tpu")
    both = refused("lower", f"{programs}:cleared", "--after", "cse", "--emit", "ptx")
    assert "--after cse prints IR, --emit ptx another stage" in both
    unknown = refused("lower", f"{programs}:scaled", "-D", "M=32", "-D", "N=16", "-D", "K=3")
    assert unknown.splitlines() == ["scaled has no parameter 'K'", "  note: its parameters are M, N, factor, dtype"]
    assert "cuda:80 has no amdgcn" in refused("lower", f"{programs}:cleared", "--target", "cuda:80", "--emit", "amdgcn")


def test_an_error_in_the_program_shows_its_line(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(PROGRAMS.replace("T.copy(tile, Y[bx * BLOCK, 0])", "T.cpy(tile, Y[bx * BLOCK, 0])"))
    error = refused("lower", f"{file}:scaled", "-D", "M=32", "-D", "N=16")
    assert "wrong.py:17:13: error: T.cpy is not part of the tile language; did you mean T.copy?" in error
    assert "^^^^^" in error


def test_notes_say_what_to_type(programs: Path, tmp_path: Path) -> None:
    """Where the same mistake in Python has a note with Python."""
    text = tmp_path / "ones.tile"
    text.write_text(TEXT_PROGRAM)
    assert "note: give it: -D N=..." in refused("lower", text)
    assert "by itself as a dimension of a T.Tensor, or give it: -D N=..." in refused("lower", f"{programs}:negated")
    assert "note: give them: -D M=... -D N=..." in refused("lower", f"{programs}:scaled")
    arguments = ["lower", f"{programs}:scaled", "-D", "M=32", "-D", "N=16"]
    assert "none: --target cuda:90" in refused(*arguments, "--target", "interpret", "--emit", "ptx")
    assert "--pass-config lower-to-triton.num_warps=4" in refused(*arguments, "-D", "num_warps=4")
    file = tmp_path / "tunable.py"
    file.write_text(PROGRAMS.replace('dtype="float32"', "dtype=None").replace("block=16", "block=None"))
    assert "given by -D dtype=..." in refused("lower", f"{file}:scaled", "-D", "M=32", "-D", "N=16")
    assert "given by -D block=..." in refused("lower", f"{file}:negated", "-D", "N=16")
    from tiledsl import TileError, parse

    with pytest.raises(TileError) as caught:
        parse(TEXT_PROGRAM).build(())
    assert caught.value.notes == ["pass it: tiledsl.parse(text, N=...)"]


# opt


def test_opt_runs_a_pipeline(programs: Path, tmp_path: Path) -> None:
    file = tmp_path / "cleared.mlir"
    printed("lower", f"{programs}:cleared", "--emit", "tile", "-o", file)
    before, after = file.read_text(), printed("opt", file, "-p", "vectorize-parallel,canonicalize,dce")
    assert "tile.parallel" in before
    assert "tile.parallel" not in after
    assert after == printed("opt", "-", "-p", "vectorize-parallel,canonicalize,dce", text=before)
    generic = printed("opt", file, "-p", "dce", "--generic")
    assert '"tile.kernel"' in generic
    assert printed("lower", f"{programs}:cleared", "--emit", "tile", "--generic").startswith('"tile.func"() ({')
    assert '"triton.launch"' in printed("lower", f"{programs}:cleared", "--after", "dce", "--generic")
    assert printed("opt", "-", "-p", "dce", text=generic) == printed("opt", file, "-p", "dce")
    refused = tiledsl("lower", f"{programs}:cleared", "--generic")
    assert refused.exit_code == 1 and "give --emit tile, --emit triton or --after" in refused.stderr
    timed = tiledsl("opt", file, "-p", "canonicalize,dce", "--timing", "--no-verify")
    assert [line.split()[2] for line in timed.stderr.splitlines()] == ["canonicalize", "dce", "in"]


def test_mistakes_in_opt(programs: Path, tmp_path: Path) -> None:
    file = tmp_path / "cleared.mlir"
    printed("lower", f"{programs}:cleared", "--emit", "tile", "-o", file)
    assert "no pass is named 'magic'" in refused("opt", file, "-p", "magic")
    assert "there is no file" in refused("opt", tmp_path / "absent.mlir", "-p", "dce")
    assert "<stdin>:1:" in refused("opt", "-", "-p", "dce", text="not ir")


# passes


def test_passes_are_listed_with_their_options() -> None:
    lines = printed("passes").splitlines()
    names = [line.split()[0] for line in lines[1:]]
    others = [name for name in names if not name.startswith("users-")]  # which other tests have defined
    assert others == list(dict.fromkeys(each.name for each in PIPELINE))
    (access,) = (line for line in lines if line.startswith("select-access "))
    assert "mode=auto operands=''" in access and "Turn loads and stores of rectangular blocks" in access


def test_a_pass_is_shown_with_an_example() -> None:
    text = printed("passes", "cse")
    places = [number for number, each in enumerate(PIPELINE, 1) if each.name == "cse"]
    assert text.startswith(f"cse: pass {' and '.join(map(str, places))} of {len(PIPELINE)}\n\nCompute equal pure")
    assert "Before:  " in text and "\n    --pass-config cse.loads=true\n" in text
    assert text.endswith('In Python: pass_configs={"cse.loads": True}\n')
    assert "Options" not in printed("passes", "dce")
    assert "did you mean 'map-grid'?" in refused("passes", "map-grids")
    assert "there are canonicalize, merge-roles, cse" in refused("passes", "zzz")


# run, doctor


def test_run_as_a_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            import tilelang
            import tilelang.language as T
            import neighbour

            @tilelang.jit(target="cuda")
            def plus_one(X):
                N = T.const("N")
                X: T.Tensor((N,), "float32")
                Y = T.empty((N,), "float32")
                with T.Kernel(1, threads=32) as _:
                    for i in T.Parallel(N):
                        Y[i] = X[i] + 1.0
                return Y

            if __name__ == "__main__":
                import torch

                assert torch.cuda.is_available()
                x = torch.arange(16, dtype=torch.float32, device="cuda").cuda()
                print(sys.argv[1:], neighbour.NAME, (plus_one(x) == x + 1).all().item())
            """
        )
    )
    (tmp_path / "neighbour.py").write_text('NAME = "neighbour"\n')
    done = forked.run(["-m", "tiledsl", "run", script, "--flag", "3"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['--flag', '3'] neighbour True"


def test_doctor() -> None:
    result = tiledsl("doctor")
    assert result.exit_code == 0, result.output
    lines = {line[:22].strip(): line[22:].split() for line in result.stdout.splitlines()}
    assert lines["python"][0] == lines["triton"][0] == lines["interpret a kernel"][0] == "ok"
    assert lines["compile for cuda:90"][0] == "ok"


def test_doctor_says_what_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path / "file" / "cache"))
    result = tiledsl("doctor")
    assert result.exit_code == 1
    assert "cannot be written" in result.stdout
    assert "set TILEDSL_CACHE_DIR" in result.stdout


def test_doctor_goes_on_after_wrong_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "settings              ok      TILEDSL_CACHE_DIR=" in tiledsl("doctor").stdout
    monkeypatch.setenv("TILEDSL_JOBS", "many")
    monkeypatch.setenv("TILEDSL_TARGET", "cuda:12")
    monkeypatch.setenv("TILEDSL_PRINT_AFTER", "cze")
    result = tiledsl("doctor")
    assert result.exit_code == 1
    wrong = [line[22:] for line in result.stdout.splitlines() if line.startswith("setting ")]
    assert wrong[0] == "FAILED  TILEDSL_JOBS=many is not allowed; jobs is a whole number, 0 for all cores"
    assert wrong[1].startswith("FAILED  TILEDSL_TARGET=cuda:12: ")
    assert wrong[2] == "FAILED  TILEDSL_PRINT_AFTER=cze: the setting print_after is 'cze'; did you mean 'dce'?"
    assert len(wrong) == result.stdout.count("FAILED") == 3
    assert "interpret a kernel    ok" in result.stdout and "compile for cuda:90   ok" in result.stdout


def test_help_names_the_commands() -> None:
    text = printed("--help")
    assert all(name in text for name in ("lower", "opt", "passes", "run", "doctor"))
    assert printed("--version").startswith("tiledsl, version ")
