"""Files of a level among the configurations: tried as others are, left out with a reason, another one when edited."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tiledsl
from tests.autotune.programs import doubled
from tiledsl.cli import main
from tiledsl.errors import TileError


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("levels")
    tiledsl.compile(doubled(128), target="cuda:90", out_idx=-1).save_levels(folder)
    return folder


def tuned(space: Any) -> Any:
    options = {"target": "cuda:90", "ref_prog": lambda x: x * 2, "jobs": 2}
    return tiledsl.autotune(configs=space, **options)(tiledsl.jit(out_idx=-1)(doubled))(128)


def test_a_mixed_space(saved: Path, tmp_path: Path, cache_dir: Path) -> None:
    space = tiledsl.space(tile=[16, 32]) | tiledsl.space(
        tile=16, from_level=[(level, saved) for level in ("ttgir", "ptx", "cubin", "hsaco")]
    )
    space |= [{"tile": 32, "from_level": ("cubin", saved)}, {"tile": 16, "from_level": ("cubin", tmp_path / "nothing")}]
    result = tuned(space)
    trials = result.trials
    assert [each.status for each in trials] == ["ok"] * 5 + ["pruned", "compile_error", "pruned"]
    # Of one machine code, the first that is compiled has no other to be the same as.
    first = next(index for index in (0, 2, 3) if trials[index].same_as is None)
    assert [each.same_as for each in trials[:5]] == [None if index in (first, 1, 4) else first for index in range(5)]
    assert [each.verified for each in trials[:5]] == [True, True, True, True, False]
    assert trials[4].message == "not verified: the interpreter runs sources, no levels"
    assert trials[4].resources == trials[0].resources
    assert f"there is no hsaco in {saved}" in trials[5].message
    assert "was compiled from another source than doubled's" in trials[6].message
    assert f"there is no {tmp_path / 'nothing'}" in trials[7].message
    kernel = trials[4].kernel
    assert kernel.artifacts and kernel.asm["cubin"] == (saved / "doubled_kernel.cubin").read_bytes()
    assert kernel.config is not None and kernel.config["from_level"][:2] == ["cubin", str(saved)]


def test_an_edited_file_is_another_configuration(saved: Path, cache_dir: Path) -> None:
    space = [{"from_level": ("cubin", saved)}, {"from_level": ("ptx", saved)}]
    assert tuned(space).from_cache == "" and tuned(space).from_cache == "disk"
    path = saved / "doubled_kernel.ptx"
    path.write_text(path.read_text().replace("add.f32", "mul.f32"))
    result = tuned(space)
    assert result.from_cache == "" and "(edited)" in result.trials[1].kernel.remarks[0]
    assert "mul.f32" in result.trials[1].asm["ptx"]


def test_lowering_shows_the_source(saved: Path, tmp_path: Path) -> None:
    file = tmp_path / "doubling.py"
    body = inspect.getsource(doubled).replace("tile: int = 16", "tile=None")
    file.write_text(
        "from typing import Any\nimport tiledsl\nimport tiledsl.language as T\n"
        f"@tiledsl.autotune(configs=[{{'tile': 32, 'from_level': ('cubin', {str(saved)!r})}}])\n@tiledsl.jit\n{body}"
    )
    shown = CliRunner().invoke(main, ["lower", str(file), "-D", "rows=128", "--target", "cuda:90"])
    assert shown.exit_code == 0 and "tl.arange(0, 32)" in shown.output and "attach_file" not in shown.output, (
        shown.output
    )


def test_mistakes(saved: Path) -> None:
    for given in ("cubin", ("cubin",), ("cubin", 3), 5):
        with pytest.raises(TileError, match="it is a level and the path"):
            tuned([{"from_level": given}])
    with pytest.raises(TileError, match="there is no level 'sass'"):
        tuned([{"from_level": ("sass", saved)}])
    with pytest.raises(TileError, match="none of 1 configurations of doubled works"):
        tuned([{"from_level": ("hsaco", saved)}])
