"""Calls of a kernel: everything is checked and worked out once for tensors of one signature, and replayed after that.

A *signature* is what a launch depends on of its arguments: types, shapes, strides, dtypes and device of the tensors,
which of them begin at a multiple of 16 bytes, and the scalars that the host function looks at. A signature that was met
before proves that all checks have passed. See launch_source for what a warm call runs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiledsl.errors import TileError, ends_tracebacks, user_loc
from tiledsl.runtime import launch_source, launch_triton
from tiledsl.runtime.launch_checks import as_bytes, refuse_tangents, stand_in, strides_of
from tiledsl.runtime.launch_trace import Trace, Untraceable, trace
from tiledsl.runtime.ranges import range_of

if TYPE_CHECKING:
    from tiledsl.kernels.kernel import Kernel
    from tiledsl.runtime.parameter import Parameter

MOST_SIGNATURES = 1024
"""Plans that one caller keeps; then it forgets all of them."""
_RECENT = 4
_calls_change = threading.RLock()
"""Held while the function that calls run, or what it looks through, is replaced."""


def write_call(kernel: Kernel) -> None:
    """Make `__call__` of the kernel's own class a function that knows its callers."""
    with _calls_change:
        callers = [caller for caller in kernel.callers.values() if caller.can_plan]
        writer = launch_source.Writer()
        launch_source.write_call(writer, callers)
        writer.scope["cold"] = _cold
        for caller in callers:
            writer.scope |= {f"find_{len(caller.names)}": caller.find, f"recent_{len(caller.names)}": caller.recent}
            caller.written = caller.first
        call = writer.define("call", f"call of {kernel.name}")
        launch_triton.traced_as(call, type(kernel).call)
        kernel.call_scope, kernel.call_text = writer.scope, writer.text
        # Python looks for __call__ in the class: a kernel that is called gets a class of its own.
        shared = type(kernel)
        if "is_own" in vars(shared):
            shared.__call__ = call  # type: ignore[method-assign]
        else:
            about = {"__doc__": shared.__doc__, "__module__": shared.__module__, "__call__": call, "is_own": None}
            kernel.__class__ = type(shared.__name__, (shared,), about)


def _cold(kernel: Kernel, arguments: Sequence[Any], rest: Sequence[Any], named: Mapping[str, Any]) -> Any:
    given = [each for each in arguments if each is not launch_triton.MISSING]
    return kernel.call(*given, *rest, **named)


@dataclass
class Signature:
    """What is known of one signature. Without a trace and a plan, the host function is called as it is."""

    kinds: tuple[Any, ...]
    aligned: bool
    device: int
    trace: Trace | None = None
    plan: Callable[..., Any] | None = None
    text: str = ""
    guards: tuple[Callable[..., bool], ...] = ()


class Launcher:
    """A kernel called with its inputs, or with all its parameters.

    Several threads may call it: what they share are dicts and tuples that are replaced whole, and the first call with a
    signature is made under a lock, so that each is compiled once.
    """

    def __init__(self, kernel: Kernel, params: Sequence[Parameter], function: str, outputs: Sequence[int]) -> None:
        """`outputs`: positions of the arguments that a call returns, where the host function returns nothing."""

        self.kernel, self.params, self.function = kernel, list(params), function
        self.names = [f"arg_{p.name}" for p in self.params]
        self.tensors = [number for number, p in enumerate(self.params) if p.is_tensor]
        self.scalars = {n: scalar_type(p.dtype) for n, p in zip(self.names, self.params) if not p.is_tensor}
        self.outputs = [self.names[position] for position in outputs]
        self.module = kernel.loaded
        self.range = range_of(kernel.name, kernel.config)
        host = getattr(self.module, function)
        self.host = host if self.range is None else self.range.around(host)
        self.can_plan = kernel.target.kind == "cuda" and bool(self.tensors) and launch_triton.knobs() is not None
        self.lock = threading.RLock()
        self.read: set[str] = set()
        self.signatures: dict[Any, Signature] = {}
        self.stand_ins: dict[Any, Any] = {}
        self.recent: tuple[tuple[Any, ...], ...] = ()
        """What calls look through: kinds of scalars, a guard of the tensors, and the plan for them."""
        self.first: tuple[Callable[..., bool], Signature] | None = None
        """What calls ask for before that: a guard and its signature, whose launches stand in the call itself."""
        self.written: Any = launch_triton.MISSING  # `first` as it stands there

    # The way of a call that no guard has recognised

    @ends_tracebacks
    def find(self, *arguments: Any) -> Any:
        """Run the kernel, after checks if the signature is new."""
        refuse_tangents(self.kernel.name, arguments)
        differentiable = self.kernel.backward is not None and self._needs_gradient(arguments)
        if differentiable and self.outputs:
            names = " and ".join(name.removeprefix("arg_") for name in self.outputs)
            raise TileError(
                f"{self.kernel.name}: an argument requires gradients, which torch cannot give through {names}",
                user_loc(),
                [f"call it without the output {names}, or under torch.no_grad()"],
            )
        if differentiable or self._belongs_to_torch(arguments):
            return self.kernel.in_graph(*self._converted(arguments))
        if self.kernel.backward is None and self._needs_gradient(arguments):
            import torch

            self.kernel.note_lost_gradients()
            with torch.no_grad():  # so that no guard takes such calls past here
                return self.run(*arguments)
        result = self.run(*arguments)
        if self.can_plan and self.written is not self.first:
            write_call(self.kernel)
        return result

    def run(self, *arguments: Any) -> Any:
        """As `find`, for plain tensors, past torch's modes and autograd."""
        arguments = self._converted(arguments)
        signature = self.signature(arguments)
        if signature.plan is None or launch_triton.is_watched():
            result = self.host(*arguments)
        else:
            self._remember(signature, arguments)
            pointers = [arguments[number].data_ptr() for number in self.tensors]
            result = signature.plan(*pointers, *(arguments[self.names.index(name)] for name in self.scalars))
        return self.returned(arguments) if self.outputs else result

    def returned(self, arguments: Sequence[Any]) -> Any:
        """Those of all parameters that a call returns."""
        results = [arguments[self.names.index(name)] for name in self.outputs]
        return None if not results else results[0] if len(results) == 1 else results

    def signature(self, arguments: Sequence[Any]) -> Signature:
        """What is known of these arguments' signature, found out if it is new. Raises TileError if they do not fit."""
        key = self._key(arguments)
        signature = self.signatures.get(key)
        if key is None or signature is None:
            try:
                self.kernel.check(self.params, arguments)
            except TileError as error:
                error.loc = error.loc or user_loc()
                raise
            with self.lock:
                signature = self.signatures.get(self._key(arguments)) or self._explore(arguments)
        return signature

    def _converted(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Numbers as the program's scalars have them: an int for a float becomes one; a tensor without memory for None,
        where it is not used; bytes of two float4 as uint8. The rest is left to `check`."""
        converted = list(arguments)
        for number in self.tensors:
            if arguments[number] is None and not self.params[number].is_used:
                converted[number] = self._stand_in(number, arguments)
            elif self.params[number].is_packed:
                converted[number] = as_bytes(arguments[number])
        for name, type in self.scalars.items():
            number = self.names.index(name)
            if isinstance(arguments[number], int) or (type == "float" and isinstance(arguments[number], float)):
                with contextlib.suppress(OverflowError):
                    converted[number] = {"int": int, "float": float, "bool": bool}[type](arguments[number])
        return tuple(converted)

    def _stand_in(self, number: int, arguments: Sequence[Any]) -> Any:
        """A tensor for a parameter that is not used, kept for calls with others of the same kinds."""
        import torch

        key = (
            number,
            *(
                (each.shape, strides_of(each), each.device)
                if isinstance(each, torch.Tensor)
                else each
                if isinstance(each, int)
                else None
                for each in arguments
            ),
        )
        found = self.stand_ins.get(key)
        if found is None:
            found = stand_in(self.params[number], self.params, arguments)
            if len(self.stand_ins) >= MOST_SIGNATURES:
                self.stand_ins = {}
            self.stand_ins = {**self.stand_ins, key: found}
        return found

    def _explore(self, arguments: Sequence[Any]) -> Signature:
        tensors = [arguments[number] for number in self.tensors]
        device = tensors[0].get_device() if tensors else -1
        aligned = all(each.data_ptr() % 16 == 0 for each in tensors)
        signature = Signature((), aligned, device)
        if self.can_plan:
            try:
                with _on(device):
                    signature.trace = trace(self.module, self.function, self.names, arguments)
                    if signature.trace.read - self.read:  # plans so far did not depend on these
                        self.read |= signature.trace.read
                        self.signatures = {}
                        self.forget()
                    self._write_plan(signature)
            except Untraceable as reason:
                signature.trace, signature.text = (
                    None,
                    f"# {self.kernel.name} is launched by its host function: {reason}\n",
                )
        signature.kinds = self._kinds(arguments)
        if len(self.signatures) >= MOST_SIGNATURES:
            self.signatures = {}
        self.signatures[self._key(arguments)] = signature
        return signature

    def _write_plan(self, signature: Signature) -> None:
        assert signature.trace is not None
        writer = launch_source.Writer()
        tensors = [self.names[number] for number in self.tensors]
        launch_source.write_plan(writer, signature.trace, signature.device, tensors, list(self.scalars), self.range)
        for each in signature.trace.launches:  # loaded by now, so that Triton knows; it counts registers
            self.kernel.note_spills(str(each.compiled.metadata.name), 4 * (getattr(each.compiled, "n_spills", 0) or 0))
        signature.text = writer.text
        signature.plan = writer.define("plan", f"plan {len(self.signatures)} of {self.kernel.name}")

    def _remember(self, signature: Signature, arguments: Sequence[Any]) -> None:
        """Have the call's guards recognise this signature, and forget the one not used for longest."""
        if not signature.aligned:
            return
        tensors = [arguments[number] for number in self.tensors]
        with _calls_change:
            guard = next((each for each in signature.guards if each(*tensors)), None)
            if guard is None:
                guard = launch_triton.tensor_guard(tensors)
                if guard is None:
                    return
                signature.guards = (guard, *signature.guards)[:_RECENT]
            others = [each for each in self.recent if each[1] is not guard]
            self.recent = ((signature.kinds, guard, signature.plan), *others)[:_RECENT]
            self.first = self.first or (guard, signature)
            if self.kernel.call_scope:
                self.kernel.call_scope[f"recent_{len(self.names)}"] = self.recent

    def _key(self, arguments: Sequence[Any]) -> Any:
        """Equal for arguments of one signature; None for what cannot be arguments."""
        try:
            tensors = [arguments[number] for number in self.tensors]
            return (
                *[(t.dtype, t.shape, t.stride(), t.get_device(), t.data_ptr() & 15 == 0) for t in tensors],
                self._kinds(arguments),
            )
        except (AttributeError, TypeError, RuntimeError):  # not a tensor, or one without memory
            return None

    def _kinds(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        kinds: list[Any] = []
        for name, type in self.scalars.items():
            value = arguments[self.names.index(name)]
            if value.__class__.__name__ != type:
                raise TypeError(f"{name} is no {type}")
            if name in self.read:
                kinds.append(value)
            elif type != "float":
                kinds.append(launch_source.int_kind(value))
        return tuple(kinds)

    def _belongs_to_torch(self, arguments: Sequence[Any]) -> bool:
        """Whether a mode, a subclass or a rule of torch is to see the call: fake and meta tensors, tracing, torch.vmap,
        autocast where it has something to convert, tensors whose memory holds the negative of what they are."""
        import torch

        tensors = [arguments[number] for number in self.tensors]
        return (
            launch_triton.belongs_to_torch(tensors)
            or {getattr(each, "is_meta", False) for each in tensors if each is not None} == {True}
            or any(each.is_neg() for each in tensors if isinstance(each, torch.Tensor))
            or launch_triton.is_transformed()
            or launch_triton.is_autocast(tensors)
            and any(
                str(getattr(each, "dtype", ""))[6:] != self.params[n].dtype for n, each in zip(self.tensors, tensors)
            )
        )

    def _needs_gradient(self, arguments: Sequence[Any]) -> bool:
        import torch

        tensors = (arguments[number] for number in self.tensors)
        return torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)

    def forget(self) -> None:
        """Have the next call with each signature look at it anew."""
        with _calls_change:
            self.recent, self.first = (), None
            if self.kernel.call_scope:
                write_call(self.kernel)

    # Fixed arguments

    def bound(self, arguments: Sequence[Any]) -> Callable[[], Any]:
        """A function without parameters that runs the kernel on these arguments, without looking at them again."""
        converted = self._converted(arguments)
        signature, result = self.signature(converted), self.returned(converted)

        def through_host() -> Any:
            self.host(*converted)
            return result

        if signature.trace is None:
            return through_host

        def elsewhere() -> Any:
            if launch_triton.is_watched():
                return through_host()
            with launch_triton.device_functions()[2](signature.device):
                return bound()

        values = {name: converted[self.names.index(name)] for name in self.scalars}
        values |= {launch_source.pointer(self.names[each]): converted[each].data_ptr() for each in self.tensors}
        writer = launch_source.Writer()
        writer.scope |= {"elsewhere": elsewhere, "result": result, "kept": converted}
        launch_source.write_bound(writer, signature.trace, signature.device, values, "result", self.range)
        bound: Callable[[], Any] = writer.define("bound", f"bound {self.kernel.name}")
        return bound


def _on(device: int) -> Any:
    return launch_triton.device_functions()[2](device) if device >= 0 else nullcontext()


def scalar_type(dtype: str) -> str:
    """The Python type of a scalar argument: "int", "float" or "bool"."""
    return "bool" if dtype == "bool" else "int" if dtype.startswith(("int", "uint")) else "float"
