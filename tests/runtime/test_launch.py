"""Warm calls: what a signature proves, what the driver is given, and when a call goes the long way."""

from __future__ import annotations

import copy
import threading
import types
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.runtime.fake_gpu import Driver, OnDevice0, misaligned, pretend, tensor
from tiledsl.errors import TileError
from tiledsl.kernels import calls as jit_calls
from tiledsl.kernels import jit
from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime import launch, launch_source, launch_triton
from tiledsl.runtime.launch_trace import Allocation


def scaled_rows(M: Any = 64, N: int = 32, dtype: str = "float32") -> Any:
    @T.prim_func
    def scaled(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype), s: T.float32):
        with T.Kernel(T.ceildiv(M, 16), threads=128) as by:
            for i, j in T.Parallel(16, N):
                Y[by * 16 + i, j] = X[by * 16 + i, j] * s

    return scaled


def copied(shape: Any = (64, 32), strides: Any = None) -> Any:
    source = T.Tensor(shape, "float32") if strides is None else T.StridedTensor(shape, strides, "float32")

    @T.prim_func
    def copied(X: source, Y: T.Tensor(shape, "float32")):
        with T.Kernel(T.ceildiv(shape[0], 16), threads=128) as by:
            for i, j in T.Parallel(16, 32):
                Y[by * 16 + i, j] = X[by * 16 + i, j]

    return copied


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.mark.parametrize("convention", ["3.6", "3.9"])
def test_warm_calls_go_to_the_driver(driver: Driver, monkeypatch: pytest.MonkeyPatch, convention: str) -> None:
    kernel = pretend(tiledsl.compile(copied(), target="cuda:90"), driver, monkeypatch, convention)
    x, y = tensor(64, 32), tensor(64, 32)
    kernel(x, y)
    found: list[Any] = []
    monkeypatch.setattr(kernel.caller(2), "run", lambda *arguments: found.append(arguments))
    kernel(x, y)
    other = tensor(64, 32)
    kernel(other, y)
    assert not found and len(driver.compiled) == 1
    pointers = [(x.data_ptr(), y.data_ptr())] * 2 + [(other.data_ptr(), y.data_ptr())]
    assert driver.launches == [("copied_kernel", (4, 1, 1), 7, each) for each in pointers]
    assert not driver.ordinary


def test_another_alignment_is_another_specialisation(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(copied(), target="cuda:90"), driver, monkeypatch)
    x, y = tensor(64, 32), tensor(64, 32)
    for given in (x, misaligned(x), misaligned(x), x):
        kernel(given, y)
    aligned, not_aligned = ("pointer", True), ("pointer", False)
    assert driver.compiled == [
        ("copied_kernel", (aligned, aligned)),
        ("copied_kernel", (not_aligned, aligned)),
    ]
    assert len(driver.launches) == 4


def test_what_ran_for_unaligned_tensors_is_not_taken_for_aligned_ones(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = pretend(tiledsl.compile(copied(), target="cuda:90"), driver, monkeypatch)
    x, y = tensor(64, 32), tensor(64, 32)
    for given in (misaligned(x), x, x):
        kernel(given, y)
    assert [kinds[0] for kinds in driver.promised] == [("pointer", False), ("pointer", True), ("pointer", True)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_sixteen_bytes_decide_the_alignment(driver: Driver, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """At every offset in bytes the kernel runs that was compiled for its alignment."""
    kernel = pretend(tiledsl.compile(scaled_rows(dtype=dtype), target="cuda:90"), driver, monkeypatch)
    size = getattr(torch, dtype).itemsize
    storage, y = tensor(64 * 32 + 32 // size, dtype=getattr(torch, dtype)), tensor(64, 32, dtype=getattr(torch, dtype))
    assert storage.data_ptr() % 16 == 0
    offsets = [*range(0, 33, size), *range(0, 33, size)]
    for offset in offsets:
        kernel(storage[offset // size :][: 64 * 32].view(64, 32), y, 2.0)
    assert [kinds[0] for kinds in driver.promised] == [("pointer", offset % 16 == 0) for offset in offsets]
    assert [launch[3][0] - storage.data_ptr() for launch in driver.launches] == offsets


def test_a_stride_of_a_dimension_of_one_does_not_matter(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    program = copied((16, 32), (32, 1))
    kernel = pretend(tiledsl.compile(program, target="cuda:90"), driver, monkeypatch)
    kernel(tensor(16, 32), tensor(16, 32))
    with pytest.raises(TileError, match="X has stride 64 in dimension 0, not 32"):
        kernel(tensor(16, 64)[:, :32], tensor(16, 32))
    row = pretend(tiledsl.compile(copied((1, 32), (32, 1)), target="cuda:90"), driver, monkeypatch)
    row(tensor(2, 64)[:1, :32], tensor(1, 32))
    assert len(driver.launches) == 2


def test_warm_calls_still_check(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(copied(), target="cuda:90"), driver, monkeypatch)
    x, y = tensor(64, 32), tensor(64, 32)
    kernel(x, y)
    wrong = {
        "Y has shape (64, 16), but it was compiled for (64, 32)": (x, tensor(64, 16)),
        "Y has shape (64,), but 2 dimensions (64, 32) are declared": (x, tensor(64)),
        "X must be float32, but the tensor is float16": (tensor(64, 32, dtype=torch.float16), y),
        "X has strides (1, 64), but must be contiguous": (tensor(32, 64).t(), y),
        "Y is on cuda:1, but X is on cuda:0": (x, tensor(64, 32, index=1)),
        "X is on the CPU, but the program is compiled for cuda:90": (torch.zeros(64, 32), torch.zeros(64, 32)),
        "Y is a tensor, not list": (x, [1.0]),
        "copied takes 2 inputs": (x,),
    }
    for message, arguments in wrong.items():
        with pytest.raises(TileError) as raised:
            kernel(*arguments)
        assert message in raised.value.message
        assert raised.value.loc is not None and raised.value.loc.file == __file__
    assert len(driver.launches) == 1


def test_the_tensors_device_becomes_current(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(copied(), target="cuda:90"), driver, monkeypatch)
    first, second = [tensor(64, 32), tensor(64, 32)], [tensor(64, 32, index=1), tensor(64, 32, index=1)]
    kernel(*first)
    kernel(*second)
    kernel(*second)
    kernel(*first)
    assert [launch[2] for launch in driver.launches] == [7, 8, 8, 7]  # streams
    assert driver.device == 0 and len(driver.compiled) == 2  # a binary is loaded on each device


def test_dynamic_sizes_and_scalars(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(scaled_rows(T.dynamic("M")), target="cuda:90"), driver, monkeypatch)
    for rows, scale in ((16, 0.5), (64, 0.5), (64, 2.5), (16, 3)):
        kernel(tensor(rows, 32), tensor(rows, 32), scale)
    assert [launch[1] for launch in driver.launches] == [(1, 1, 1), (4, 1, 1), (4, 1, 1), (1, 1, 1)]
    assert [launch[3][-1] for launch in driver.launches] == [0.5, 0.5, 2.5, 3.0] or all(
        scale in launch[3] for launch, scale in zip(driver.launches, [0.5, 0.5, 2.5, 3.0])
    )
    assert len(driver.compiled) == 2
    with pytest.raises(TileError, match=r"Y.shape\[0\] is 8, but M is 16 by X.shape\[0\]"):
        kernel(tensor(16, 32), tensor(8, 32), 1.0)
    for _ in range(2):
        kernel(tensor(0, 32), tensor(0, 32), 1.0)
    assert len(driver.launches) == 4 and len(driver.compiled) == 2


def test_outputs_are_allocated(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(copied(), out_idx=-1, target="cuda:90"), driver, monkeypatch)
    x = tensor(64, 32)
    made = [kernel(x) for _ in range(3)]
    assert [launch[3] for launch in driver.launches] == [(x.data_ptr(), each.data_ptr()) for each in made]
    assert len({each.data_ptr() for each in made}) == 3 and made[2].shape == (64, 32)
    given = tensor(64, 32)
    assert kernel(x, given) is given and driver.launches[-1][3] == (x.data_ptr(), given.data_ptr())


def test_bound(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(copied(), out_idx=-1, target="cuda:90"), driver, monkeypatch)
    x, y = tensor(64, 32), tensor(64, 32)
    run, allocating = kernel.bind(x, y), kernel.bind(x)
    assert not driver.launches
    assert run() is y and run() is y
    assert allocating() is allocating() and allocating() is not y
    assert [launch[3][0] for launch in driver.launches] == [x.data_ptr()] * 5
    assert {launch[3][1] for launch in driver.launches} == {y.data_ptr(), allocating().data_ptr()}
    driver.device = 1
    count = len(driver.launches)
    assert run() is y and len(driver.launches) == count + 1
    assert driver.entered[-1] == 0 and driver.device == 1
    with pytest.raises(TileError, match="X has shape"):
        kernel.bind(tensor(4, 4))


def test_hooks_see_every_launch(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(copied(), target="cuda:90"), driver, monkeypatch)
    x, y = tensor(64, 32), tensor(64, 32)
    kernel(x, y)
    run = kernel.bind(x, y)
    knobs = launch_triton.knobs()
    assert knobs is not None
    hook = lambda metadata: None
    knobs[0].launch_enter_hook.add(hook)
    try:
        kernel(x, y)
        run()
    finally:
        knobs[0].launch_enter_hook.remove(hook)
    assert driver.ordinary == ["copied_kernel"] * 2 and len(driver.launches) == 1
    monkeypatch.setattr(knobs[0], "launch_exit_hook", hook)
    kernel(x, y)
    run()
    assert driver.ordinary == ["copied_kernel"] * 4
    monkeypatch.setattr(knobs[1], "instrumentation_mode", "cycles")
    monkeypatch.setattr(knobs[0], "launch_exit_hook", None)
    kernel(x, y)
    assert driver.ordinary == ["copied_kernel"] * 5
    monkeypatch.setattr(knobs[1], "instrumentation_mode", "")
    kernel(x, y)
    assert len(driver.launches) == 2


def test_scratch_memory_goes_through_tritons_launcher(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.scratch = 128
    kernel = pretend(tiledsl.compile(copied(), target="cuda:90"), driver, monkeypatch)
    x, y = tensor(64, 32), tensor(64, 32)
    kernel(x, y)
    kernel.bind(x, y)()
    assert driver.launches == [("copied_kernel by run", (4, 1, 1), 7, (x.data_ptr(), y.data_ptr()))] * 2


def test_unknown_triton_launches_as_usual(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(copied(), target="cuda:90"), driver, monkeypatch, convention="9.9")
    x, y = tensor(64, 32), tensor(64, 32)
    kernel(x, y)
    kernel(x, y)
    kernel.bind(x, y)()
    assert driver.ordinary == ["copied_kernel"] * 3 and not driver.launches


def test_torch_without_guards(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_triton, "tensor_guard", lambda tensors: None)
    kernel = pretend(tiledsl.compile(copied(), target="cuda:90"), driver, monkeypatch)
    x, y = tensor(64, 32), tensor(64, 32)
    kernel(x, y)
    kernel(x, y)
    assert len(driver.launches) == 2 and len(driver.compiled) == 1
    with pytest.raises(TileError, match="Y has shape"):
        kernel(x, tensor(4, 4))


def test_many_signatures(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "MOST_SIGNATURES", 8)
    kernel = pretend(tiledsl.compile(copied((T.dynamic("M"), 32)), target="cuda:90"), driver, monkeypatch)
    for _ in range(2):
        for rows in range(1, 21):
            kernel(tensor(rows, 32), tensor(rows, 32))
    assert [launch[1][0] for launch in driver.launches] == [-(-rows // 16) for rows in range(1, 21)] * 2
    assert len(kernel.caller(2).signatures) <= 8


def test_how_many_signatures_are_known(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(copied((T.dynamic("M"), 32)), target="cuda:90"), driver, monkeypatch)
    caller = kernel.caller(2)
    for known, left in ((1023, 1024), (1024, 1)):
        caller.signatures = dict.fromkeys(range(known))
        kernel(tensor(known, 32), tensor(known, 32))
        assert len(caller.signatures) == left


def test_a_kernel_without_tensors_has_no_plan(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    @T.prim_func
    def shown(n: T.int32):
        with T.Kernel(1, threads=32):
            T.print(n)

    kernel = pretend(tiledsl.compile(shown, target="cuda:90"), driver, monkeypatch)
    assert not kernel.caller(1).can_plan


def test_strides(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    program = copied((64, 32), (T.dynamic("row"), 1))
    kernel = pretend(tiledsl.compile(program, target="cuda:90"), driver, monkeypatch)
    y = tensor(64, 32)
    for width in (32, 48, 48, 32):
        kernel(tensor(64, width)[:, :32], y)
    strides = [next(value for value in launch[3] if value in (32, 48)) for launch in driver.launches]
    assert strides == [32, 48, 48, 32]
    with pytest.raises(TileError, match="X has stride 64 in dimension 1, not 1"):
        kernel(tensor(32, 64).t(), y)


def scaled_beside() -> Any:
    @T.prim_func
    def scaled_beside(X: T.Tensor((64, 32), "float32"), X_ptr: T.Tensor((64, 32), "float32"), s: T.float32, n: T.int32):
        with T.Kernel(4, threads=128) as by:
            for i, j in T.Parallel(16, 32):
                X_ptr[by * 16 + i, j] = X[by * 16 + i, j] * s + n

    return scaled_beside


def test_types_of_scalars(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(scaled_beside(), target="cuda:90"), driver, monkeypatch)
    x, y = tensor(64, 32), tensor(64, 32)
    for _ in range(3):
        kernel(x, y, 2.0, 3)
        for message, arguments in {
            "s is a float32 scalar, not OnDevice0": (x, y, x, 3),
            "s is a float32 scalar, not str": (x, y, "2", 3),
            "n is a int32 scalar, not OnDevice0": (x, y, 2.0, x),
            "n is int32, but the argument is the float 3.0": (x, y, 2.0, 3.0),
            "n is a int32 scalar, not NoneType": (x, y, 2.0, None),
        }.items():
            for function in (kernel, kernel.bind):
                with pytest.raises(TileError, match=message):
                    function(*arguments)
    assert [set(launch[3]) for launch in driver.launches] == [{x.data_ptr(), y.data_ptr(), 2.0, 3}] * 3
    kernel(x, y, True, 3)  # in Python a number
    assert set(driver.launches[-1][3]) == {x.data_ptr(), y.data_ptr(), 1.0, 3}


def output_first() -> Any:
    @T.prim_func
    def output_first(Y: T.Tensor((64, 32), "float32"), X: T.Tensor((64, 32), "float32"), s: T.float32):
        with T.Kernel(4, threads=128) as by:
            for i, j in T.Parallel(16, 32):
                Y[by * 16 + i, j] = X[by * 16 + i, j] * s

    return output_first


def test_ways_to_call(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(output_first(), out_idx=0, target="cuda:90"), driver, monkeypatch)
    x, y = tensor(64, 32), tensor(64, 32)
    for _ in range(3):
        made = kernel(x, 2.0)
        assert kernel(y, x, 2.0) is y and kernel(x, s=2.0).shape == (64, 32)
        outputs = [(set(launch[3]) - {x.data_ptr(), 2.0}).pop() for launch in driver.launches[-3:]]
        assert outputs[:2] == [made.data_ptr(), y.data_ptr()]
        for count, arguments in ((0, ()), (1, (x,)), (4, (y, x, 2.0, x))):
            with pytest.raises(TileError, match=f"output_first takes 2 inputs or all 3 parameters .*, not {count}"):
                kernel(*arguments)
        with pytest.raises(TileError, match="no further parameter 'Z'"):
            kernel(x, Z=x)
    assert len(driver.launches) == 9


def test_kinds_of_tensors_take_turns(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(copied(), target="cuda:90"), driver, monkeypatch)
    x, y, needing = tensor(64, 32), tensor(64, 32), tensor(64, 32).requires_grad_()
    with torch.no_grad():
        kernel(x, y), kernel(needing, y)
        monkeypatch.setattr(kernel.caller(2), "run", lambda *arguments: pytest.fail("the long way"))
        kernel(x, y), kernel(needing, y), kernel(x, y)
    addresses = [each.data_ptr() for each in (x, needing, x, needing, x)]
    assert [launch[3][0] for launch in driver.launches] == addresses


def test_the_kinds_of_tensors_seen_last_are_known(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(scaled_rows(T.dynamic("M")), target="cuda:90"), driver, monkeypatch)
    given = [(tensor(rows, 32), tensor(rows, 32), 0.5) for rows in (16, 32, 48, 64, 80, 96)]
    for arguments in given:
        kernel(*arguments)
    recent = kernel.caller(3).recent
    assert len(recent) == 4
    x, y, _ = given[-1]
    assert recent[0][1](x, y) and not recent[0][1](*given[0][:2])


def test_the_guards_of_a_signature_seen_last_are_kept(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(copied(), target="cuda:90"), driver, monkeypatch)
    kernel(tensor(64, 32), tensor(64, 32))
    caller = kernel.caller(2)
    (signature,) = caller.signatures.values()
    guards = [lambda *tensors, number=number: number == 9 for number in range(8)]
    monkeypatch.setattr(launch_triton, "tensor_guard", lambda tensors: guards.pop())
    made = guards[::-1]
    signature.guards = ()
    for count in range(1, 7):
        caller._remember(signature, [tensor(64, 32), tensor(64, 32)])
        assert list(signature.guards) == made[:count][::-1][:4]


def test_a_call_that_knows_its_first_kind_is_not_written_again(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(scaled_rows(T.dynamic("M")), target="cuda:90"), driver, monkeypatch)
    kernel(tensor(16, 32), tensor(16, 32), 0.5)
    known = type(kernel).__call__
    kernel(tensor(32, 32), tensor(32, 32), 0.5)
    assert type(kernel).__call__ is known and len(driver.launches) == 2


def test_spilled_registers_are_four_bytes_each(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.spills = 17
    kernel = pretend(tiledsl.compile(copied(), target="cuda:90"), driver, monkeypatch)
    kernel(tensor(64, 32), tensor(64, 32))
    assert kernel.remarks[-1].startswith("copied_kernel spills 68 bytes a thread")


def test_another_current_device(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(copied(), target="cuda:90"), driver, monkeypatch)
    x, y = tensor(64, 32), tensor(64, 32)
    kernel(x, y)
    driver.device, driver.entered = 1, []
    kernel(x, y)
    assert driver.entered == [0] and driver.device == 1 and driver.launches[0] == driver.launches[1]


def test_one_device_is_not_asked_for(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(copied(), target="cuda:90"), driver, monkeypatch)
    monkeypatch.setattr(launch_triton, "has_one_device", lambda: True)
    x, y = tensor(64, 32), tensor(64, 32)
    kernel(x, y), kernel(x, y), kernel.bind(x, y)()
    assert "current_device" not in kernel.launch_source and len(driver.launches) == 3


def test_other_knobs_of_triton(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(copied(), target="cuda:90"), driver, monkeypatch)
    found = launch_triton.knobs()
    assert found is not None
    x, y = tensor(64, 32), tensor(64, 32)
    kernel(x, y)
    monkeypatch.setattr(found[0], "debug", True)  # which tells nothing of launches
    monkeypatch.setattr(kernel.caller(2), "run", lambda *arguments: pytest.fail("the long way"))
    kernel(x, y)
    assert len(driver.launches) == 2


def test_a_copied_module_shares_its_kernel(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(copied(), target="cuda:90"), driver, monkeypatch)
    kernel(tensor(64, 32), tensor(64, 32))
    module = torch.nn.Linear(2, 2)
    module.kernel = kernel
    assert copy.deepcopy(module).kernel is kernel and isinstance(kernel, Kernel)


def test_threads_compile_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(copied(), out_idx=-1, target="cuda:90"), driver, monkeypatch)
    inputs = [tensor(64, 32) for _ in range(8)]
    barrier, failures = threading.Barrier(8), []

    def work(x: Any) -> None:
        try:
            barrier.wait()
            for _ in range(50):
                kernel(x)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(driver.compiled) == 1 and len(driver.launches) == 400
    assert {launch[3][0] for launch in driver.launches} == {x.data_ptr() for x in inputs}


def test_aliased_arguments_are_not_confused(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(copied(), target="cuda:90"), driver, monkeypatch)
    x, y = tensor(64, 32), tensor(64, 32)
    kernel(x, x)
    kernel(x, y)
    assert [launch[3] for launch in driver.launches] == [(x.data_ptr(),) * 2, (x.data_ptr(), y.data_ptr())]


def test_what_calls_run_can_be_read(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(copied(), target="cuda:90"), driver, monkeypatch)
    kernel(tensor(64, 32), tensor(64, 32))
    assert "def call(self, arg_X=missing, arg_Y=missing, /, *rest, **named):" in kernel.launch_source
    assert "def plan(ptr_arg_X, ptr_arg_Y):" in kernel.launch_source


def test_eager_functions_know_their_last_call(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    @tiledsl.jit(target="cuda:90")
    def eager_copy(X, block=16):
        rows = T.const("rows")
        X: T.Tensor((rows, 32), "float32")
        Y = T.empty((rows, 32), "float32")
        with T.Kernel(T.ceildiv(rows, block), threads=128) as by:
            for i, j in T.Parallel(block, 32):
                Y[by * block + i, j] = X[by * block + i, j]
        return Y

    monkeypatch.setattr(jit_calls, "_tensors", frozenset((OnDevice0,)))
    inputs = [tensor(64, 32), tensor(32, 32)]
    for x in inputs:
        pretend(eager_copy.compile(x), driver, monkeypatch)
    pretend(eager_copy.compile(inputs[0], 32), driver, monkeypatch)
    for x in (*inputs, *inputs):
        assert eager_copy(x).shape == x.shape and eager_copy(x).shape == x.shape
    assert eager_copy(inputs[0], 32).shape == (64, 32) and eager_copy(inputs[0]).shape == (64, 32)
    assert [launch[1][0] for launch in driver.launches] == [4, 4, 2, 2, 4, 4, 2, 2, 2, 4]
    with pytest.raises(TileError, match="X must be float32, but the tensor is float16"):
        eager_copy(inputs[0].half())
    monkeypatch.setattr(jit, "call_key", lambda *arguments: pytest.fail("the long way"))
    assert eager_copy(inputs[0]).shape == (64, 32)


def test_interpreted_threads() -> None:
    kernel = tiledsl.compile(copied(), out_idx=-1, target="interpret")
    inputs = [torch.randn(64, 32) for _ in range(4)]
    results: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda n=number, x=each: results.update({n: kernel(x)}))
        for number, each in enumerate(inputs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(results[number], each) for number, each in enumerate(inputs))


def counted() -> Any:
    @T.prim_func
    def counted(X: T.Tensor((64, 32), "float32"), Y: T.Tensor((64, 32), "float32"), n: T.int32, s: T.float32):
        with T.Kernel(n, threads=128) as by:
            for i, j in T.Parallel(16, 32):
                Y[by * 16 + i, j] = X[by * 16 + i, j] * s

    return counted


def test_a_number_that_the_host_looks_at_is_part_of_the_signature(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = pretend(tiledsl.compile(counted(), target="cuda:90"), driver, monkeypatch)
    x, y = tensor(64, 32), tensor(64, 32)
    counts, scales = [4, 2, 4, 0, 1, 2, 4, 0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    for count, scale in zip(counts, scales):
        kernel(x, y, count, scale)
    launched = [(count, scale) for count, scale in zip(counts, scales) if count]
    assert [(launch[1][0], launch[3][-1]) for launch in driver.launches] == launched
    caller = kernel.caller(4)
    assert caller.read == {"arg_n"} and {each.kinds for each in caller.signatures.values()} == {(4,), (2,), (0,), (1,)}
    for count in (3, 3):
        kernel.bind(x, y, count, 0.5)()
    assert [launch[1][0] for launch in driver.launches[-2:]] == [3, 3]


def test_forgetting_a_plan_looks_at_its_signature_again(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(copied(), target="cuda:90"), driver, monkeypatch)
    x, y = tensor(64, 32), tensor(64, 32)
    kernel(x, y)
    caller = kernel.caller(2)
    caller.forget()
    assert caller.recent == () and caller.first is None
    run = caller.run
    looked: list[Any] = []
    monkeypatch.setattr(caller, "run", lambda *arguments: looked.append(1) or run(*arguments))
    kernel(x, y), kernel(x, y)
    assert len(looked) == 1 and len(driver.launches) == 3


def with_workspace() -> Any:
    @T.prim_func
    def with_workspace(X: T.Tensor((64, 32), "float32"), Y: T.Tensor((64, 32), "float32"), s: T.float32):
        parts = T.alloc_global((64, 32), "float32")
        with T.Kernel(4, threads=128) as by:
            for i, j in T.Parallel(16, 32):
                parts[by * 16 + i, j] = X[by * 16 + i, j] * s
        with T.Kernel(2, threads=128) as by:
            for i, j in T.Parallel(32, 32):
                Y[by * 32 + i, j] = parts[by * 32 + i, 31 - j]

    return with_workspace


def test_a_bound_call_keeps_its_workspace(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(with_workspace(), target="cuda:90"), driver, monkeypatch)
    x, y = tensor(64, 32), tensor(64, 32)
    kernel(x, y, 2.0), kernel(x, y, 3.0)
    bound = kernel.bind(x, y, 4.0)
    del driver.launches[:]
    bound(), bound()
    first, second = driver.launches[:2]
    (workspace,) = {each for each in first[3] if each not in (x.data_ptr(), 4.0)}
    assert driver.launches[2:] == [first, second] and (first[1], second[1]) == ((4, 1, 1), (2, 1, 1))
    assert set(first[3]) == {x.data_ptr(), workspace, 4.0} and set(second[3]) == {workspace, y.data_ptr()}
    assert first[2] == second[2] == driver.stream


def test_how_a_plan_makes_tensors() -> None:
    writer = launch_source.Writer()
    text = launch_source.make(writer, Allocation("zeros", ((2, 3),), torch.int32), 1)
    assert text == 'zeros((2, 3), dtype=int32, device="cuda:1")'
    assert (writer.scope["zeros"], writer.scope["int32"]) == (torch.zeros, torch.int32)
    text = launch_source.make(writer, Allocation("empty_strided", ((2, 3), (3, 1)), torch.int32), 1)
    assert text == "(torch_empty if is_deterministic() else empty)((2, 3), (3, 1), int32)"
    assert writer.scope["int32"] is torch.int32


def test_memory_is_filled_where_torch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch.empty is, but not what compiled graphs allocate with."""
    writer = launch_source.Writer()
    monkeypatch.setattr(launch_triton, "fast_empty", lambda: lambda shape, strides, dtype: "not filled")
    made = lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype)
    monkeypatch.setattr(launch_triton, "torch_empty", made)
    text = launch_source.make(writer, Allocation("empty_strided", ((2, 3), (3, 1)), torch.float32), 0)
    assert eval(text, writer.scope) == "not filled"
    torch.use_deterministic_algorithms(True)
    try:
        assert eval(text, writer.scope).isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)
    assert eval(text, writer.scope) == "not filled"


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("changed", ["", "runtime_set", "compilation_set", "enter_hooks", "exit_hooks"])
def test_launches_are_quiet_where_no_knob_is_set_or_nobody_watches(
    changed: str, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = [types.SimpleNamespace(calls=[]) for _ in range(2)]

    class Runtime:
        launch_enter_hook, launch_exit_hook = hooks

    monkeypatch.setattr(launch_triton, "knobs", lambda: (Runtime(), types.SimpleNamespace()))
    monkeypatch.setattr(launch_triton, "is_watched", lambda: watched)
    writer = launch_source.Writer()
    text = launch_source.quiet_condition(writer)
    if changed.endswith("hooks"):
        writer.scope[changed].append("a profiler")
    elif changed:
        writer.scope[changed]["a knob"] = True
    assert bool(eval(text, writer.scope)) is (not changed or not watched)


def test_descriptors_are_kept_by_their_address_for_a_while() -> None:
    asked = []

    def descriptor(number: int, described: Any) -> tuple[Any, ...]:
        asked.append(described)
        return number, described

    call: Any = types.SimpleNamespace(descriptor=descriptor)
    described: Any = types.SimpleNamespace(number=2, at=lambda address: f"at {address}")
    maps = launch_source._Maps(call, described)
    assert maps[0] == maps[0] == (2, "at 0") and asked == ["at 0"]
    for address in range(1024):
        maps[address]
    assert len(maps) == len(asked) == 1024
    assert maps[1024] == (2, "at 1024") and len(maps) == 1
    assert maps[0] == (2, "at 0") and len(asked) == 1026


def test_names_in_a_plan() -> None:
    writer = launch_source.Writer()
    assert [writer.name("a", each) for each in (None, True, 3, 0.5)] == ["None", "True", "3", "0.5"]
    assert [writer.name("a", each) for each in ("x", (1,), "y")] == ["a", "a1", "a2"]
    assert writer.scope == {"a": "x", "a1": (1,), "a2": "y"}
    assert [launch_source._returned(each) for each in ("x", ("x",), ["x", "y"], (["x"], "y"))] == [
        "x", "(x,)", "[x, y]", "([x], y,)",
    ]  # fmt: skip


@pytest.mark.parametrize("number", [0, 1, 2, 15, 16, 17, 32, -1, -16, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1])
def test_kinds_of_integers(number: int) -> None:
    kind = (number == 1, number % 16 == 0, -(2**31) <= number < 2**31)
    assert launch_source.int_kind(number) == kind == eval(launch_source._INT_KIND.format("number"))


def test_the_loader_is_a_thread_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    driver = types.SimpleNamespace(CudaUtils=lambda: made.append("loader"))
    monkeypatch.setattr(launch_triton.importlib, "import_module", lambda name: driver)
    launch_triton.make_loader().join(10)
    assert made == ["loader"]


def test_tensors_of_no_device_make_none_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_triton, "device_functions", lambda: (None, None, lambda device: f"on {device}"))
    assert [launch._on(device) for device in (0, 1)] == ["on 0", "on 1"]
    with launch._on(-1):
        pass
