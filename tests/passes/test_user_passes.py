"""Passes of users: their places, what stands for them in keys, other processes, certificates, the command line."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from click.testing import CliRunner

import tiledsl
import tiledsl.language as T
from tests.support.load_file import load_file
from tests.support.pass_of_a_user import Nothing, Raise, Subtract
from tiledsl.certificate.process import certify_apart
from tiledsl.cli import main
from tiledsl.digests import source_digest
from tiledsl.errors import TileError
from tiledsl.ir import pass_manager
from tiledsl.ir.pass_manager import PASSES, Pass, Program
from tiledsl.passes import PIPELINE, default_pipeline, specs
from tiledsl.passes.cse import Cse
from tiledsl.passes.user_passes import _files, _is_users, identity, normalised, types_in

FILE = str(Path(__file__).resolve().parents[1] / "support/pass_of_a_user.py")
PLACE = "after:promote-buffers"
USUAL = [each.name for each in PIPELINE]


@T.prim_func
def total(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
    with T.Kernel(1):
        for i in T.Parallel(64):
            C[i] = A[i] + B[i]


def compiled(passes: Any, **options: Any) -> tiledsl.Kernel:
    return tiledsl.compile(total, target="interpret", passes=passes, **options)


def result(kernel: tiledsl.Kernel) -> float:
    c = torch.zeros(64)
    kernel(torch.full((64,), 3.0), torch.full((64,), 1.0), c)
    return float(c[5])


def names(options: dict[str, Any]) -> list[str]:
    return [each.name for each in default_pipeline(options)]


@pytest.mark.parametrize(
    ("place", "position"),
    [
        ("after:elaborate", 0),
        ("before:canonicalize", 0),
        (PLACE, USUAL.index("promote-buffers") + 1),
        ("after:cse", len(USUAL) - USUAL[::-1].index("cse")),
        ("before:cse", USUAL.index("cse")),
        ("after:schedule-loops", USUAL.index("schedule-loops") + 1),
        ("after:hold-tiles", len(USUAL)),
    ],
)
def test_places(place: str, position: int) -> None:
    expected = USUAL.copy()
    expected[position:position] = ["users-nothing", "users-subtract"]
    assert names({place: [Nothing(), Subtract()]}) == expected


def test_a_place_may_name_a_pass_of_an_earlier_entry() -> None:
    found = names({"after:dce": [Nothing()], "before:users-nothing": [Subtract()], "after:users-nothing": ["cse"]})
    at = found.index("users-nothing")
    assert found[at - 2 : at + 2] == ["dce", "users-subtract", "users-nothing", "cse"]


def test_it_runs_and_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    assert result(compiled(None)) == 4.0
    with tiledsl.settings(print_after="users-subtract"):
        kernel = compiled({PLACE: [Subtract()]})
    shown = capfd.readouterr().err
    assert shown.startswith("// ----- after users-subtract -----\n") and "arith.sub " in shown
    assert result(kernel) == 2.0
    assert "arith.sub " in kernel.ir(after="users-subtract") and "arith.sub" not in kernel.ir(after="promote-buffers")
    assert [stage.spec for stage in kernel.stages if stage.name.startswith("users")] == ["users-subtract"]
    again = tiledsl.resume(
        kernel.ir(after="users-subtract"), "users-subtract", target="interpret", passes={PLACE: Subtract()}
    )
    assert result(again) == 2.0 and source_digest(again.source) == source_digest(kernel.source)


def test_an_option_by_itself() -> None:
    off = compiled({PLACE: [Subtract()]}, pass_configs={"users-subtract.enabled": False})
    assert result(off) == 4.0 and "users-subtract{enabled=false}" in [stage.spec for stage in off.stages]
    with pytest.raises(TileError, match="pass users-subtract is not in the default pipeline"):
        compiled(None, pass_configs={"users-subtract.enabled": False})


def test_the_text_has_options_and_code() -> None:
    given = normalised(
        {"cse.loads": False}, {PLACE: [Nothing("a,b{#x}", 2), "users-subtract{enabled=false},cse", Cse()]}
    )
    subtract, nothing = identity(Subtract), identity(Nothing)
    assert subtract != nothing and len(subtract) == len(nothing) == 16
    assert given == {
        "cse.loads": False,
        PLACE: [
            f'users-nothing{{note="a,b{{#x}}" times=2}}#{nothing}',
            f"users-subtract{{enabled=false}}#{subtract}",
            "cse",
            "cse",
        ],
    }
    assert normalised(given) == given
    assert default_pipeline(given)[USUAL.index("promote-buffers") + 1] == Nothing("a,b{#x}", 2)
    assert types_in(given) == {nothing: Nothing, subtract: Subtract}


def module_of(path: Path, text: str) -> ModuleType:
    path.write_text(text, encoding="utf-8")
    return load_file(path)


PASS = """
from dataclasses import dataclass
from tiledsl.ir.pass_manager import Pass
{imports}
@dataclass(frozen=True)
class Own(Pass):
    name = "{name}"
    def run(self, program):
        {body}
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that makes the class of a pass, in a module of its own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))

    def make(body: str = "pass", imports: str = "", module: str = "pass_module", name: str = "users-own") -> Any:
        monkeypatch.delitem(PASSES, name, raising=False)
        text = PASS.format(imports=imports, body=body, name=name)
        made = module_of(tmp_path / f"{module}.py", text).Own
        monkeypatch.setitem(PASSES, name, made)
        return made

    return make


def test_the_code_counts(own: Any, tmp_path: Path) -> None:
    first = identity(own())
    assert identity(own()) == first == identity(own(module="another_module"))
    assert identity(own("program.root")) != first
    module_of(tmp_path / "table_of_pass.py", "limit = 1")
    with_one = identity(own("table_of_pass.limit", "import table_of_pass"))
    module_of(tmp_path / "table_of_pass.py", "limit = 2")
    assert identity(own("table_of_pass.limit", "import table_of_pass")) != with_one


def test_the_files_are_those_of_the_users_modules(own: Any, tmp_path: Path) -> None:
    """That a module is named in, or has names from, and of those what they name."""
    module_of(tmp_path / "far_table.py", "def double(x): return 2 * x")
    module_of(tmp_path / "near_table.py", "import json, torch\nfrom far_table import double")
    made = own("near_table.double", "import json, near_table, torch\nfrom tiledsl.errors import TileError")
    names = ("pass_module.py", "near_table.py", "far_table.py")
    assert _files(sys.modules[made.__module__]) == {tmp_path / name for name in names}


def test_how_lines_end_does_not_count(own: Any, tmp_path: Path) -> None:
    first = identity(own())
    path = tmp_path / "pass_module.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert identity(load_file(path).Own) == first


def test_a_class_that_another_process_sent_is_what_its_text_means(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiledsl.passes import user_passes

    made = own()
    assert types_in({PLACE: [made(), "cse", Cse()], "cse.loads": False}) == {identity(made): made}
    monkeypatch.setattr(user_passes, "_by_identity", {})
    monkeypatch.setattr(user_passes, "_identities", WeakKeyDictionary())
    monkeypatch.delitem(PASSES, "users-own")
    user_passes.register({"opaque:sent": made})
    assert identity(made) == "opaque:sent"
    assert default_pipeline({PLACE: ["users-own#opaque:sent"]})[USUAL.index("promote-buffers") + 1] == made()


def test_a_file_that_cannot_be_read(
    caplog: pytest.LogCaptureFixture, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    made = own()
    monkeypatch.setattr(Path, "read_bytes", refused)
    with caplog.at_level(logging.WARNING, "tiledsl"):
        assert identity(made).startswith("opaque:") and identity(made) == identity(made)
    assert "users-own is defined in a file that cannot be read (Permission denied): its code" in caplog.text


def test_a_text_of_other_code_is_refused(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = normalised({}, {PLACE: [own()()]})[PLACE]
    from tiledsl.passes import user_passes

    monkeypatch.setattr(user_passes, "_by_identity", {})  # as in another process
    own("program.root")
    with pytest.raises(TileError, match="the pass 'users-own' has changed"):
        default_pipeline({PLACE: [text]})
    monkeypatch.delitem(PASSES, "users-own")
    with pytest.raises(TileError, match=r"no pass is named 'users-own' in this process\n.*--load FILE"):
        default_pipeline({PLACE: [text]})


def test_code_that_cannot_be_told(caplog: pytest.LogCaptureFixture, own: Any) -> None:
    def make() -> Pass:
        @dataclass(frozen=True)
        class Local(Pass):
            name = "users-local"

            def run(self, program: Program) -> None:
                pass

        return Local()

    with caplog.at_level(logging.WARNING, "tiledsl"):
        given = [make(), make()]
        texts = normalised({}, {PLACE: given})[PLACE]
    assert [text.partition(":")[0] for text in texts] == ["users-local#opaque"] * 2 and texts[0] != texts[1]
    assert "the pass users-local is defined inside of a function: its code cannot be told" in caplog.text
    after = USUAL.index("promote-buffers") + 1
    assert list(map(type, default_pipeline({PLACE: texts})[after : after + 2])) == list(map(type, given))
    in_a_cell = own()
    in_a_cell.__module__ = "a_notebook"
    with caplog.at_level(logging.WARNING, "tiledsl"):
        assert "#opaque:" in normalised({}, {PLACE: [in_a_cell()]})[PLACE][0]
    assert "the pass users-own is not defined in a file" in caplog.text
    del PASSES["users-local"]


@dataclass(frozen=True)
class Listed(Nothing):
    name = "users-listed"
    values: Any = ()


@dataclass(frozen=True)
class Shouting(Nothing):
    name = "Users_Pass"


@dataclass(frozen=True)
class Remembering(Nothing):
    name = "users-remembering"

    def __post_init__(self) -> None:
        object.__setattr__(self, "seen", [])


@dataclass(frozen=True)
class Everything(Nothing):
    name = "all"


@dataclass(frozen=True)
class Early(Nothing):
    name = "users-early"


for _each in (Listed, Remembering, Shouting, Everything, Early):
    del PASSES[_each.name]
Early.name = "cse"  # as one that is defined before tiledsl's passes are


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ([Nothing()], '; it must be a dict such as passes={"after:promote-buffers": [MyPass()]}'),
        ({"promote-buffers": [Nothing()]}, "'promote-buffers' is no place in the pipeline"),
        (
            {"before:elaborate": [Nothing()]},
            "'before:elaborate': the pipeline has no pass 'elaborate'; it has canonicalize",
        ),
        (
            {"after:promotion": [Nothing()]},
            "'after:promotion': the pipeline has no pass 'promotion'; it has canonicalize",
        ),
        ({PLACE: Nothing}, "has the class Nothing; write Nothing()"),
        ({PLACE: [Nothing]}, "has the class Nothing; write Nothing()"),
        ({PLACE: 3}, "has 3; it must be a list of passes"),
        ({PLACE: [3]}, "has 3, which is no pass"),
        ({PLACE: [int]}, "has <class 'int'>, which is no pass"),
        ({PLACE: int}, "has <class 'int'>; it must be a list of passes"),
        ({PLACE: ["unheard-of"]}, "no pass is named 'unheard-of'"),
        ({PLACE: ["users-nothing{time=2}"]}, "pass users-nothing has no option 'time'; did you mean 'times'?"),
        ({PLACE: [Listed([{}])]}, "Listed: its options are not fields with numbers, texts or truth values"),
        ({PLACE: [Nothing(times=0.5)]}, "Nothing: its options are not fields with numbers, texts or truth values"),
        ({PLACE: [Remembering()]}, "Remembering: its options are not fields with numbers, texts or truth values"),
        ({PLACE: [Shouting()]}, "Shouting is named 'Users_Pass'"),
        ({PLACE: [Everything()]}, "Everything is named 'all'"),
        ({PLACE: [Early()]}, "Early is named 'cse', as a pass of tiledsl's is; give it another name"),
        ({3: [Nothing()]}, "3 is no place in the pipeline"),
    ],
)
def test_what_is_wrong_is_said(passes: Any, message: str) -> None:
    with pytest.raises(TileError) as caught:
        compiled(passes)
    assert message in str(caught.value)


def test_a_pass_cannot_take_a_name_of_ours() -> None:
    with pytest.raises(TileError, match="Mine: tiledsl has a pass 'cse' of its own"):

        class Mine(Pass):
            name = "cse"

    assert PASSES["cse"] is Cse


def test_a_certificate_names_it() -> None:
    kernel = compiled({PLACE: [Nothing(), Subtract()]})
    for found in (kernel.verify(), certify_apart(kernel, 60)):
        failed = [check.subject for check in found.checks if check.kind == "pass" and check.status == "failed"]
        assert failed == ["users-subtract"] and not found.ok
    assert certify_apart(compiled({PLACE: [Nothing()]}), 60).ok


def test_another_process_gets_what_it_cannot_import() -> None:
    @dataclass(frozen=True)
    class Local(Subtract):
        name = "users-closure"

    found = certify_apart(compiled({PLACE: [Local()]}), 60)
    del PASSES["users-closure"]
    assert [check.subject for check in found.checks if check.status == "failed"][:1] == ["users-closure"]


def test_jit_makes_a_kernel_for_each() -> None:
    @tiledsl.jit(passes={PLACE: [Subtract()]})
    def build(n: int) -> Any:
        return total

    kernel = build(1)
    assert result(kernel) == 2.0 and kernel.pass_configs == normalised({}, {PLACE: [Subtract()]})
    assert build.kernel_for({"n": 1}, {"passes": {PLACE: []}}).pass_configs == {PLACE: []}
    assert result(build.kernel_for({"n": 1}, {"passes": {PLACE: []}})) == 4.0
    assert build(1) is kernel


def said(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, list(arguments))
    return done.exit_code, done.output


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("users-subtract", "users-nothing"):
        monkeypatch.delitem(PASSES, name)
    ir = tmp_path / "total.mlir"
    ir.write_text(compiled(None).ir(after="promote-buffers"), encoding="utf-8")
    status, text = said("opt", str(ir), "-p", "users-subtract")
    assert status == 1 and "no pass is named 'users-subtract'" in text and "--load FILE" in text
    status, text = said("opt", str(ir), "-p", "users-subtract,dce", "--load", FILE)
    assert status == 0 and "arith.sub " in text
    option = f"{PLACE}=users-subtract{{enabled=true}}"
    status, text = said("lower", f"{__file__}:total", "--load", FILE, "--pass-config", option, "--target", "cuda:90")
    assert status == 0 and "A_tile - B_tile" in text
    status, text = said("verify", f"{__file__}:total", "--load", FILE, "--pass-config", option, "--target", "cuda:90")
    assert status == 1 and "\nfailed: users-subtract\n" in text
    status, text = said("passes", "users-nothing", "--load", FILE)
    assert status == 0 and "not in the default pipeline" in text and "Change nothing." in text
    status, text = said("passes", "--load", FILE)
    assert text.splitlines()[-1].split()[0] == "users-nothing"
    status, text = said("passes", "--load", str(Path(__file__).parent / "ir_cases.py"))
    assert status == 1 and "ir_cases.py defines no pass" in text


def test_the_command_line_says_where_a_pass_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(PASSES, "users-raise")
    monkeypatch.setattr(pass_manager.tempfile, "tempdir", str(tmp_path))
    words = ["lower", f"{__file__}:total", "--load", FILE, "--target", "cuda:90"]
    words += ["--pass-config", f"{PLACE}=users-raise"]
    status, text = said(*words)
    number, line = next((n, line) for n, line in enumerate(Path(FILE).read_text().splitlines(), 1) if "(1, 0)" in line)
    head, place, code, *_ = text.splitlines()
    assert status == 1 and head == "pass users-raise failed: ZeroDivisionError: Fraction(1, 0)"
    assert place == f'  File "{FILE}", line {number}, in run' and code.strip() == line.strip()
    assert "The kernel is at test_user_passes.py:" in text and "Traceback" not in text
    envelope = json.loads(said(*words, "--json")[1])
    assert envelope["status"] == 1 and envelope["error"]["kind"] == "pass failure"
    assert Path(envelope["error"]["file"]).parent == tmp_path
    raised, kernel = envelope["error"]["notes"]
    assert (raised["message"], raised["file"], raised["line"]) == ("raised in run", FILE, number)
    source = Path(__file__).read_text().splitlines()
    assert kernel["message"] == "the kernel" and kernel["file"] == __file__
    assert "def total(" in "".join(source[kernel["line"] - 1 : kernel["line"] + 1])
    with tiledsl.settings(full_tracebacks=True):
        status, text = said(*words)
    assert status == 1 and "Traceback" in text and "fractions.py" in text and "pass_manager.py" in text


def test_a_certificate_of_a_pass_that_raises_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.pass_of_a_user.RUNS", [])
    certificate = compiled({PLACE: [Raise(first=1)]}).verify()
    failed = {each.subject: each.detail for each in certificate.checks if each.status == "failed"}
    number = Raise.run.__code__.co_firstlineno + 3
    message = f"users-raise{{first=1}}: ZeroDivisionError: Fraction(1, 0), at {FILE}:{number}, in run"
    assert failed["lowering"] == message and not certificate.ok
    assert failed["the lowering, once more"].startswith("pass users-raise{first=1} failed: ZeroDivisionError")
    assert "tiledsl" not in failed["the lowering, once more"].splitlines()[0]


HEAD = "from dataclasses import dataclass\nfrom tiledsl.ir.pass_manager import Pass\n"
CLASS = "class {}(Pass):\n    name = {!r}\n    factor: int = 2\n    def run(self, program): pass\n"


def test_what_is_wrong_with_loaded_files_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    ir, first, other = tmp_path / "total.mlir", tmp_path / "first_loaded.py", tmp_path / "other_loaded.py"
    ir.write_text(compiled(None).ir(after="promote-buffers"), encoding="utf-8")
    first.write_text(HEAD + CLASS.format("First", "users-same"))
    words = ["opt", str(ir), "-p", "users-same", "--load", str(first)]
    try:
        assert said(*words)[0] == said(*words)[0] == 0  # the same file again is no other pass
        status, text = said("opt", str(ir), "-p", "users-same{factor=3}", "--load", str(first))
        assert status == 1 and text.endswith(
            "\n  note: First is no dataclass: write @dataclass(frozen=True) above it\n"
        )
        for where in (first, other):
            where.write_text(
                HEAD + CLASS.format("First", "users-same") * (where is first) + CLASS.format("Q", "users-same")
            )
            status, text = said(*words, "--load", str(where))
            named = ("First", first, "Q", first) if where is first else ("Q", other, "First", first)
            message = "--load: {} in {} is named 'users-same', as {} in {} is\n".format(*named)
            assert (status, text) == (1, message + "  note: give one of them another name\n")
            first.write_text(HEAD + CLASS.format("First", "users-same"))
            PASSES.pop("users-same")
    finally:
        PASSES.pop("users-same", None)
    other.write_text(HEAD + CLASS.format("First", ""))
    status, text = said(*words[:-1], str(other))
    assert (status, text) == (1, f'--load: First in {other} has no name\n  note: write name = "my-pass" in it\n')


def test_entry_points(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = own("pass", module="installed_pass", name="users-installed")
    monkeypatch.delitem(PASSES, "users-installed")
    monkeypatch.delitem(sys.modules, "installed_pass")
    given = [importlib.metadata.EntryPoint("users-installed", "installed_pass:Own", specs.ENTRY_POINTS)]
    given.append(importlib.metadata.EntryPoint("users-missing", "no_such_module:Own", specs.ENTRY_POINTS))
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group, name: [each for each in given if each.name == name]
    )
    found = default_pipeline({PLACE: "users-installed"})[USUAL.index("promote-buffers") + 1]
    assert type(found).__module__ == "installed_pass" and type(found) is not made
    with pytest.raises(TileError, match=r"pass 'users-missing' of no_such_module:Own cannot be loaded: No module"):
        default_pipeline({PLACE: "users-missing"})


def test_an_entry_point_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raising_package.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    given = [importlib.metadata.EntryPoint("users-raising", "raising_package:Own", specs.ENTRY_POINTS)]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group, name: given)
    with pytest.raises(TileError) as caught:
        specs.find_pass("users-raising")
    assert caught.value.message == "the pass 'users-raising' of raising_package:Own cannot be loaded: 3"
    assert caught.value.notes == [f"raised at {tmp_path / 'raising_package.py'}:2, in <module>"]


@dataclass(frozen=True)
class Picky(Nothing):
    name = "users-picky"
    size: int = 2

    def __post_init__(self) -> None:
        if self.size == 3:
            raise ValueError("no threes")


@dataclass(frozen=True)
class Bare(Pass):
    name = "users-bare"
    size: int

    def run(self, program: Program) -> None:
        pass


def test_passes_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    types = {"users-picky": Picky, "users-bare": Bare}
    assert specs.make_pass("users-picky", {"size": 4}, types) == Picky(size=4)
    with pytest.raises(TileError) as caught:
        specs.make_pass("users-picky", {"size": 3}, types)
    assert caught.value.message == "Picky(size=3) cannot be made: ValueError: no threes"
    line = Picky.__post_init__.__code__.co_firstlineno + 2
    assert caught.value.notes == [f"raised at {__file__}:{line}, in __post_init__"]
    for given in ({}, {"size": 3}):
        message = "^pass users-bare: its option 'size' has no default; write one: size: int = ...$"
        with pytest.raises(TileError, match=message):
            specs.make_pass("users-bare", given, types)
    monkeypatch.setitem(PASSES, "users-bare", Bare)
    assert "    --pass-config users-bare.size=(no default)\n" in said("passes", "users-bare")[1]
    shown = json.loads(said("passes", "users-bare", "--json")[1])["data"]["passes"]
    assert [each["options"] for each in shown] == [{"size": None}]


for _each in (Picky, Bare):
    del PASSES[_each.name]


def test_code_of_modules_that_are_no_files_is_not_the_users() -> None:
    made = ModuleType("made")
    assert not _is_users(made, "made") and not _is_users(made, "other")
    made.__file__ = __file__
    assert _is_users(made, "other")
    assert not any(_is_users(each, "other") for each in (json, tiledsl))  # wherever tiledsl is
    made.__file__ = str(next(Path(sysconfig.get_path("purelib")).rglob("*.py")))
    assert not _is_users(made, "other") and _is_users(made, "made")
    assert not _is_users(json, "json")
