""" "cuda" on the CPU: devices in every place where torch takes one, torch.cuda's answers, and scripts' own Triton."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tiledsl.compat import cpu_device
from tiledsl.runtime.target import Target

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(2, 3, device="cuda"),
        lambda: torch.zeros((2, 3), device=torch.device("cuda:0")),
        lambda: torch.tensor([1.0], device="cuda"),
        lambda: torch.as_tensor([1.0], device="cuda"),
        lambda: torch.full((2,), 1.0, device=0),
        lambda: torch.empty(2, 3).cuda(),
        lambda: torch.empty(2, 3).cuda(0, non_blocking=True),
        lambda: torch.empty(2, 3).to("cuda"),
        lambda: torch.empty(2, 3).to("cuda", torch.float16),
        lambda: torch.empty(2, 3).to(device="cuda", dtype=torch.float16),
        lambda: torch.empty(2, 3).new_zeros((4,), device="cuda"),
        lambda: torch.empty_like(torch.empty(2), device="cuda"),
        lambda: torch.randperm(4, device="cuda", generator=torch.Generator(device="cuda").manual_seed(0)),
        lambda: torch.nn.Linear(2, 2, device="cuda").weight,
        lambda: torch.nn.Linear(2, 2).cuda().to("cuda").weight,
        lambda: torch.empty(2, 3, pin_memory=True),
    ],
)
def test_devices(make: Callable[[], torch.Tensor]) -> None:
    with cpu_device.emulate():
        made = make()
        assert made.is_cuda
        assert made.device == torch.device("cuda:0")
    assert made.device.type == "cpu"


def test_default_devices() -> None:
    with cpu_device.emulate(), torch.device("cuda"):
        made = torch.ones(3)
        assert torch.empty(2, device=made.device).device == made.device
    assert made.device.type == "cpu"
    assert not torch.ones(3).is_cuda


def test_questions_to_torch_cuda() -> None:
    with cpu_device.emulate():
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        assert torch.cuda.get_device_capability() == (9, 0)
        assert torch.cuda.get_device_properties(0).multi_processor_count == 132
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        end.record()
        assert start.elapsed_time(end) > 0
        with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(0):
            torch.cuda.current_stream().synchronize()


def test_tiledsl_still_knows_the_truth() -> None:
    with cpu_device.emulate():
        assert cpu_device.active()
        assert Target.parse("auto").kind == "interpret"
        assert not Target.parse("cuda:90").runs_here


def test_everything_is_put_back() -> None:
    before = (torch.cuda.is_available, torch.cuda.Event, torch.Generator, torch.nn.Module.cuda, builtins.__import__)
    with pytest.raises(RuntimeError, match="on purpose"), cpu_device.emulate():
        raise RuntimeError("on purpose")
    after = (torch.cuda.is_available, torch.cuda.Event, torch.Generator, torch.nn.Module.cuda, builtins.__import__)
    assert before == after
    assert not cpu_device.active()


def test_compiling_still_uses_the_true_triton() -> None:
    import tiledsl
    from tiledsl.commands.doctor import doubled

    with cpu_device.emulate():
        assert "st.global" in tiledsl.compile(doubled, target="cuda:90").asm["ptx"]


SCRIPT = """
import torch
import triton
import triton.language as tl

@triton.autotune(configs=[triton.Config({"BLOCK": size}) for size in (16, 32)], key=["n"])
@triton.jit
def add_one(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

x = torch.zeros(40, device="cuda")
add_one[lambda meta: (triton.cdiv(40, meta["BLOCK"]),)](x, 40)
assert (x == 1).all()
"""


def test_triton_kernels_of_scripts_are_interpreted(tmp_path: Any) -> None:
    from tiledsl.commands.run import run_script

    file = tmp_path / "adds_one.py"
    file.write_text(SCRIPT)
    assert run_script(file) == 0


def test_inside_of_a_custom_operator() -> None:
    """torch runs operators without the function mode that is in force around them."""

    with cpu_device.emulate():

        @torch.library.custom_op("tiledsl_tests::doubled", mutates_args=())
        def doubled(x: torch.Tensor) -> torch.Tensor:
            assert x.is_cuda and x.device.type == "cuda"
            x.record_stream(torch.cuda.current_stream(x.device))
            return x + torch.ones(3, device="cuda") * x

        assert doubled(torch.ones(3, device="cuda")).tolist() == [2, 2, 2]
