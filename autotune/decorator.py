"""`@tiledsl.autotune`, and the same as an object with `AutoTuner.from_kernel`."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.call_flags import NONE, CallFlags, split_flags, verbose
from tiledsl.autotuner.context.active import active
from tiledsl.autotuner.engine import BoundCall, TuningProblem
from tiledsl.autotuner.measuring.inputs import given_inputs
from tiledsl.autotuner.option import takes, with_changes
from tiledsl.autotuner.options import TuneOptions
from tiledsl.autotuner.other_names import from_tilelang
from tiledsl.autotuner.results.result import AutotuneResult, owned
from tiledsl.autotuner.space import (
    call_configs,
    called_back,
    check_configs,
    dicts,
    fix,
    given_tunables,
    tunables,
    with_seeds,
)
from tiledsl.autotuner.storage.fingerprint import canonical
from tiledsl.autotuner.storage.key import asked_key
from tiledsl.autotuner.task import tune
from tiledsl.autotuner.trial import config_text
from tiledsl.errors import TileError, ends_tracebacks, user_loc
from tiledsl.kernels.calls import MOST_CALLS, call_key, tuner_settings, value_key
from tiledsl.kernels.function_op import InGraphs
from tiledsl.kernels.jit import JitFunction, resolve_target
from tiledsl.kernels.pass_choice import chosen_passes
from tiledsl.kernels.signatures import check_given, check_known, not_given, takes_any
from tiledsl.runtime.launch_triton import is_autocast, traced_as, without_values
from tiledsl.runtime.target import Target
from tiledsl.settings import current

if TYPE_CHECKING:
    from tiledsl.autotuner.tuned.lookup import TunedMatch
    from tiledsl.autotuner.tuned.recall import TunedConfigs
    from tiledsl.autotuner.tuned.report import TuneReport
    from tiledsl.kernels.kernel import Kernel

_log = logging.getLogger("tiledsl")


class AutotunedFunction(InGraphs):
    """A function under @tiledsl.autotune and @tiledsl.jit.

    Lazy style: called with the builder's arguments except the tunables, it returns an AutotuneResult. Eager style:
    called with tensors, it tunes on copies of them and runs; `compile` gives the AutotuneResult. A tunable that a call
    passes stays fixed, and the others are tuned. Results are cached by arguments, in memory and on disk.
    """

    def __init__(self, jit: JitFunction, configs: Any, options: TuneOptions) -> None:
        """Raises TileError for configurations or options that the function does not have."""
        functools.update_wrapper(self, jit.function)
        self.jit = jit
        self.name = jit.function.__name__
        self.options = options
        self.configs = configs if callable(configs) else check_configs(dicts(configs), jit.signature, self.name)
        unknown = [name for name in options.do_not_specialize if name not in jit.signature.parameters]
        if unknown:
            raise TileError(
                f"autotune of {self.name}: do_not_specialize names {unknown[0]!r}, which is not a parameter"
            )
        names_its_arguments = not jit.is_eager or jit.is_triton
        if options.bucket is not None and names_its_arguments and options.bucket not in jit.signature.parameters:
            raise TileError(f"autotune of {self.name}: bucket names {options.bucket!r}, which is not a parameter")
        if not callable(configs) and options.bucket in tunables(self.configs):
            raise TileError(f"autotune of {self.name}: bucket names {options.bucket!r}, which is a tunable")
        _check_triton(jit, options)
        self._results: dict[Any, AutotuneResult] = {}
        self._by_grid: dict[str, AutotunedFunction] = {}
        self._target = jit.options.get("target") if options.target is None else options.target
        self._known: dict[Any, Callable[..., Any]] = {}  # what answers calls that look like earlier ones
        self._operators = {}

    def __getitem__(self, grid: Any) -> AutotunedFunction:
        """A kernel of Triton with another grid: `f[grid](*arguments)`, as Triton launches it."""
        jit: Any = self.jit
        if not jit.is_triton:
            raise TileError(f"{self.name} has its own grid: call {self.name}(...)", user_loc())
        same = canonical(grid)
        if same not in self._by_grid:
            self._by_grid[same] = AutotunedFunction(jit.with_grid(grid), self.configs, self.options)
        return self._by_grid[same]

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True  # from pytest: see tracebacks.py
        if active.get() is not None:
            from tiledsl.autotuner.context.calls import call_kernel

            return call_kernel(self, arguments, split_flags(keywords, self.jit.signature)[1])
        if keywords:
            flags, keywords = split_flags(keywords, self.jit.signature)
            if flags is not NONE:
                return self._flagged(flags, arguments, keywords)
        like = None if keywords else self._like(arguments)
        known = None if like is None else self._known.get(like)
        if known is not None:
            return known(*arguments)
        if without_values((*arguments, *keywords.values())):
            return self.traced_call(*arguments, **keywords)
        result = self._compile(arguments, keywords, self.options)
        remembers = like is not None and result.complete and not current().always_tune
        if not self.jit.is_eager:
            if remembers:
                again = self._compile(arguments, {}, self.options)
                self._remember(like, lambda *_: replace(again, config=dict(again.config)))
            self.with_gradients(result.kernel)
            return owned(result)
        return self._run(result.kernel, arguments, keywords, like if remembers else None)

    traced_as(__call__, InGraphs.traced_call)

    @property
    def target(self) -> Target:
        """What is tuned for."""
        return resolve_target(self._target)

    @property
    def on_miss_in_graphs(self) -> str:
        """What a call in a graph does that nothing was tuned for."""
        return "error" if self.options.on_miss == "error" else "first"

    def kernel_in_graph(self, values: Mapping[str, Any], on_miss: str) -> Kernel:
        """The kernel for a call's values by name, of what is known; see in_graph.kernel_in_graph."""
        from tiledsl.autotuner import in_graph

        return self.with_gradients(in_graph.kernel_in_graph(self, values, on_miss))

    def sample_kernel(self, values: Mapping[str, Any], dynamic: Sequence[str] | None) -> Kernel:
        """A kernel of the first configuration for such values whose sizes are dynamic; see InGraphs."""
        from tiledsl.autotuner import in_graph

        return in_graph.sample_kernel(self, values, dynamic)

    def size_names(self, constants: Mapping[str, Any]) -> tuple[str, ...]:
        """The parameters of a builder that stand for sizes."""
        from tiledsl.autotuner import in_graph

        return in_graph.size_names(self, constants)

    def _run(self, kernel: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], like: Any = None) -> Any:
        """Run an eager call. like: calls of this kind run so from now on; None: it is not remembered."""
        bound = self.jit._bind(arguments, keywords, partial=True)
        wanted = [bound[param.name] for param in kernel.params if not param.is_output]
        returned = self.with_gradients(kernel)(*wanted)
        count = len(wanted)
        if like is not None and count <= len(arguments) and all(a is b for a, b in zip(wanted, arguments)):
            first = lambda *given: kernel(*given[:count])  # noqa: E731  # what follows are tunables
            self._remember(like, kernel if count == len(arguments) else first)
        return returned

    def _remember(self, like: Any, answer: Callable[..., Any]) -> None:
        if len(self._known) >= MOST_CALLS:
            self._known = {}
        self._known[like] = answer

    def _like(self, arguments: Sequence[Any]) -> Any:
        """A key that is equal for calls served by one result; None if that takes a closer look."""
        if self.options.key is not None or self.options.do_not_specialize or given_inputs() is not None:
            return None
        key = call_key(self._target, arguments)
        return None if key is None else (tuner_settings(), key)

    @ends_tracebacks
    def compile(self, *arguments: Any, **keywords: Any) -> AutotuneResult:
        """The tuned kernel for these arguments. In the eager style, T.const values given by name may replace
        tensors."""
        flags, keywords = split_flags(keywords, self.jit.signature)
        return owned(self._flagged_result(flags, arguments, keywords))

    @ends_tracebacks
    def _flagged(self, flags: CallFlags, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """A call with keywords for the tuner."""
        if not flags.autotune:
            kernel = self.untuned(*arguments, **keywords)
            return self._run(kernel, arguments, keywords) if self.jit.is_eager else kernel
        result = self._flagged_result(flags, arguments, keywords)
        return self._run(result.kernel, arguments, keywords) if self.jit.is_eager else owned(result)

    def _flagged_result(
        self, flags: CallFlags, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> AutotuneResult:
        options = self.options if flags.autotune_pg is None else replace(self.options, group=flags.autotune_pg)
        if not flags.autotune_allow_arg_overwrite:
            given = self._call(arguments, keywords).given
            flags.check_given(given, () if callable(self.configs) else tunables(self.configs), self.name)
        with verbose(flags.autotune_verbose):
            return self._compile(arguments, keywords, options)

    @ends_tracebacks
    def tune_all(self, calls: Iterable[Sequence[Any] | Mapping[str, Any]]) -> list[AutotuneResult]:
        """The results of several calls, such as the shapes of a model, in order; each is cached by itself.

        calls: the arguments of each call, by position or by name. Calls are tuned one after another, with every GPU
        working for each; with shape_grouped=True, as many calls at once as there are GPUs, each on one GPU. Raises
        TileError, after all calls have ended, if none of a call's configurations works. Ctrl-C returns the results so
        far.
        """
        from tiledsl.autotuner.tune_all import split_calls, tune_all

        split = split_calls(calls, f"tune_all of {self.name}")
        target = resolve_target(self._target)
        return tune_all(self._compile, split, target, self.options)

    @ends_tracebacks
    def _compile(
        self,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
        options: TuneOptions,
        started: Callable[[Any], None] | None = None,
    ) -> AutotuneResult:
        call = self._call(arguments, keywords)
        key = self._memory_key(call)
        known = self.known(key, call)
        if known is not None:
            _log.info("autotune: %s runs with %s, from memory", self.name, config_text(known.config))
            return known
        if self.jit.is_eager and not self.jit.is_triton and is_autocast(list(call.values.values())):
            result = self._compile_as_declared(call, options, started)
        else:
            result = self.from_files(call) or self._missed(self._problem(call, options), started)
        if result.complete:
            self.remember(key, result)
        return result

    def _compile_as_declared(
        self, call: BoundCall, options: TuneOptions, started: Callable[[Any], None] | None
    ) -> AutotuneResult:
        """The result for tensors as torch.autocast gives them to the program: where it is tuned, there is none."""
        import torch

        from tiledsl.kernels.torch_op import as_declared

        problem = self._problem(call, options)
        given = as_declared(problem.build(problem.configs[0], problem.target), call.given)
        device = next(each.device.type for each in given.values() if isinstance(each, torch.Tensor))
        with torch.autocast(device, enabled=False):
            return self._compile((), given, options, started)

    def known(self, key: Any, call: BoundCall) -> AutotuneResult | None:
        """The result in memory."""
        found = None if current().always_tune else self._results.get(key)
        if found is not None and self.options.do_not_specialize:
            return replace(found, kernel=self.kernel_for(call.values, found.config, call.target), from_cache="memory")
        return found

    def kernel_for(self, values: Mapping[str, Any], config: Mapping[str, Any], target: Target) -> Kernel:
        """The kernel of a configuration for a call's values by name."""
        kernel = self.jit.kernel_for(values, config, target)
        if not self.options.named_by_config:
            return kernel
        from tiledsl.kernels.named import named_by

        return named_by(kernel, config)

    def remember(self, key: Any, result: AutotuneResult) -> None:
        """Keep a result in memory."""
        self._results[key] = replace(result, from_cache="memory")
        self.forget_found()

    def from_files(self, call: BoundCall) -> AutotuneResult | None:
        """What tuned-config files have for a call, if they are to be looked into."""
        if self.looks_into_files:
            return self.tuned_configs.result(call)
        if current().tuned_misses is not None and not current().always_tune:
            self.tuned_configs.miss(call)
        return None

    @property
    def looks_into_files(self) -> bool:
        """Whether tuned-config files count."""
        settings = current()
        return bool(self.options.tuned or settings.tuned_folders) and not settings.always_tune

    def _memory_key(self, call: BoundCall) -> Any:
        options = self.options
        special = {n: canonical(v) if hasattr(v, "data_ptr") else v for n, v in call.values.items()}
        special = {name: value for name, value in special.items() if name not in options.do_not_specialize}
        own = None if options.key is None else canonical(asked_key(options.key, call.values))
        explicit = frozenset(name for name, value in call.given.items() if value is not None)
        return (own, value_key(special), explicit, call.target, canonical(given_inputs()), current().tuned_configs)

    def _missed(self, problem: TuningProblem, started: Callable[[Any], None] | None) -> AutotuneResult:
        """The result of a call that no tuned-config file serves, as on_miss says."""
        from tiledsl.autotuner.in_graph import refuse_while_capturing

        if any(hasattr(value, "data_ptr") and 0 in value.shape for value in problem.values.values()):
            from tiledsl.autotuner.tuned.recall import of_empty_tensors

            return of_empty_tensors(problem)
        refuse_while_capturing(self.name, f"{self.name}.tune_all([...])")
        if problem.options.on_miss == "tune" or not self.looks_into_files:
            return tune(replace(problem, started=started))
        from tiledsl.autotuner.tuned.recall import missed

        return missed(self, problem)

    @functools.cached_property
    def tuned_configs(self) -> TunedConfigs:
        """What tuned-config files have for this function."""
        from tiledsl.autotuner.tuned.recall import TunedConfigs

        return TunedConfigs(self)

    @ends_tracebacks
    def tuned_for(self, *arguments: Any, **keywords: Any) -> TunedMatch:
        """Which tuned configuration would serve this call, and why; its kind is "exact", "bucket", "default" or "none".

        Nothing is built, tuned or remembered. A call goes on to the next one where the kernel cannot be built.
        """
        call = self._call(arguments, keywords)
        self._check_call(call.values, () if callable(self.configs) else tunables(self.configs))
        return self.tuned_configs.match(call)

    @ends_tracebacks
    def tune_into(
        self, folder: str | os.PathLike[str], calls: Iterable[Sequence[Any] | Mapping[str, Any]], **options: Any
    ) -> TuneReport:
        """Tune calls and keep the best configurations in a tuned-config file of a folder; see offline.tune_into."""
        from tiledsl.autotuner.tuned.offline import tune_into

        return tune_into(self, folder, calls, **options)

    @ends_tracebacks
    def with_options(self, **changes: Any) -> AutotunedFunction:
        """The function with some of its TuneOptions changed; it remembers nothing yet in memory."""
        return AutotunedFunction(self.jit, self.configs, with_changes(self.options, changes))

    @ends_tracebacks
    def untuned(self, *arguments: Any, **keywords: Any) -> Any:
        """The kernel of the first configuration for these arguments; nothing is tuned, read or stored."""
        problem = self._problem(self._call(arguments, keywords))
        return problem.build(problem.configs[0], problem.target)

    def first_config(self, values: Mapping[str, Any], target: Target) -> dict[str, Any]:
        """The first configuration that a call with these values, by name, would try on a target."""
        given = {name: value for name, value in values.items() if name in self.jit.signature.parameters}
        bound = self.jit._bind((), values, partial=True)
        return dict(self._problem(BoundCall((), values, bound, given, target)).configs[0])

    @ends_tracebacks
    def key(self, *arguments: Any, **keywords: Any) -> Any:
        """The key under which the result of this call is stored on disk; None if it is not stored. Tunes nothing."""
        return self._problem(self._call(arguments, keywords)).key()

    def _call(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> BoundCall:
        jit = self.jit
        values = jit._bind(arguments, keywords, partial=True)
        own = {name: value for name, value in keywords.items() if name in jit.signature.parameters}
        given = jit.signature.bind_partial(*arguments, **own).arguments
        if takes_any(jit.signature):
            given |= keywords
        return BoundCall(arguments, keywords, values, given, resolve_target(self._target))

    def _problem(self, call: BoundCall, options: TuneOptions | None = None) -> TuningProblem:
        arguments, keywords, values, explicit, target = call
        jit, configs, options = self.jit, self.configs, options or self.options
        if callable(configs) and getattr(configs, "takes_function", False):  # tiledsl.spaces.for_program
            configs = check_configs(configs(jit, target=target, **explicit), jit.signature, self.name)
            own = [config for config in configs if config and all(values.get(name) == config[name] for name in config)]
            options = replace(options, seed_configs=(*options.seed_configs, *own))
        elif callable(configs):
            found = dicts(call_configs(configs, arguments, keywords, values))
            configs = check_configs(found, jit.signature, self.name)
        configs = called_back(configs, options.config_callback, jit.signature)
        configs = with_seeds(configs, options.seed_configs, jit.signature, self.name)
        names = tunables(configs)
        self._check_call(values, names)
        unknown = [name for name in options.verify_at or () if name not in jit.signature.parameters]
        if unknown:
            raise TileError(f"autotune of {self.name}: verify_at names {unknown[0]!r}, which is not a parameter")
        of_jit = ("grid", "heuristics", "descriptors") if jit.is_triton else ("out_idx", "pass_configs")
        return TuningProblem(
            name=self.name,
            function=jit.function,
            build=lambda config, target: self.kernel_for(values, config, target),
            program=None if jit.is_triton else lambda config: jit.program_for(values, config),
            values=values,
            configs=fix(configs, given_tunables(explicit, names)),
            target=target,
            options=options,
            compile_options={name: jit.options.get(name) for name in of_jit},
            call_inputs=values if jit.is_eager else None,
        )

    def _check_call(self, values: Mapping[str, Any], names: Sequence[str]) -> None:
        if self.jit.is_eager and not self.jit.is_triton:  # tensors may be left out, and T.const values be given
            return
        check_given(self.name, self.jit.signature, {*values, *names})
        check_known(self.name, self.jit.signature, values)

    def __repr__(self) -> str:
        return f"<autotuned {self.name}>"


if TYPE_CHECKING:

    @dataclass(frozen=True, kw_only=True)
    class _Arguments(TuneOptions):
        configs: Any = None
        grid: Any = None
        make_inputs: Callable[..., Any] | None = None
        descriptors: Mapping[str, Sequence[int | str]] | None = None

else:
    _Arguments = TuneOptions


@takes(_Arguments)
def autotune(
    *misplaced: Any,
    configs: Any = None,
    grid: Any = None,
    make_inputs: Callable[..., Any] | None = None,
    descriptors: Mapping[str, Sequence[int | str]] | None = None,
    **options: Any,
) -> Callable[[Any], AutotunedFunction]:
    """Decorator above @tiledsl.jit, @triton.jit or @gluon.jit: choose the best of several configurations at the first
    call with given arguments.

    configs: dicts of tunables (parameters of the function, `pass_configs` and `passes`) or triton.Config objects, whose
    num_warps, num_stages and num_ctas count, too; or a function of the call's arguments that returns them. target: what
    to tune for, in place of @tiledsl.jit's; for a GPU that is not here, configurations are compiled, checked in the
    interpreter and ranked by estimates. For the other options, see TuneOptions.

    Of a kernel of Triton, grid: as Triton takes it; it may also stand in the call, `f[grid](...)`. make_inputs: a
    function of a call's numbers, those that it names, that returns its tensors by name; where shapes are tuned offline,
    nothing else says them. ref_prog, which is called with the tensors among the arguments, writes into its own.
    descriptors: its arguments that are tensor descriptors, with the sizes of their blocks, as numbers or names of
    constants: {"a": ("BLOCK_M", "BLOCK_K")}. A call gives the tensors, or their descriptors, whose blocks do not count.
    """
    if misplaced:
        if callable(misplaced[0]) or isinstance(misplaced[0], JitFunction):
            raise TileError("@tiledsl.autotune needs configurations: write @tiledsl.autotune(configs=[{...}, ...])")
        raise TileError("autotune takes keywords only: write @tiledsl.autotune(configs=[{...}, ...])")
    if configs is None:
        raise TileError("autotune needs configurations: write @tiledsl.autotune(configs=[{...}, ...])")
    chosen = with_changes(TuneOptions(), options)

    @ends_tracebacks
    def decorate(function: Any) -> AutotunedFunction:
        of_triton = (
            None if isinstance(function, JitFunction) else _triton_function(function, grid, make_inputs, descriptors)
        )
        if of_triton is not None:
            return AutotunedFunction(of_triton, configs, chosen)
        if any(option is not None for option in (grid, make_inputs, descriptors)):
            raise TileError(
                "autotune: grid, make_inputs and descriptors belong to a kernel under @triton.jit; others say theirs "
                "themselves"
            )
        if not isinstance(function, JitFunction):
            shown = getattr(function, "__name__", repr(function))
            raise TileError(
                f"@tiledsl.autotune stands above @tiledsl.jit; {shown} is not jitted",
                notes=["@triton.jit and @gluon.jit will do, too"],
            )
        return AutotunedFunction(function, configs, chosen)

    return decorate


def _triton_function(function: Any, grid: Any, make_inputs: Any, descriptors: Any) -> JitFunction | None:
    """A function under @triton.jit or @gluon.jit as a JitFunction; None for another one."""
    if not type(function).__module__.startswith("triton."):
        return None
    from tiledsl.kernels.triton_function import TritonFunction, is_triton

    return TritonFunction(function, grid, make_inputs, descriptors=descriptors) if is_triton(function) else None


def _check_triton(jit: JitFunction, options: TuneOptions) -> None:
    """TileError for options that ask what is known of programs with an IR of tiles alone."""
    if not jit.is_triton:
        return
    asked = {
        "numerics": options.numerics, "rows": options.rows, "verify": options.verify, "verify_at": options.verify_at,
    }  # fmt: skip
    for name, value in asked.items():
        if value:
            raise TileError(
                f"autotune of {jit.__name__}: {name} needs the IR of a program of tiles; this is a kernel of Triton"
            )


class AutoTuner:
    """The tuner as an object. The names are TileLang's.

    Example: `AutoTuner.from_kernel(builder, configs).set_compile_args(out_idx=-1).set_profile_args(ref_prog=f).run()`
    """

    def __init__(self, fn: Any, configs: Any) -> None:
        self.function = fn
        self.configs = configs
        self.options = TuneOptions()
        self.compile_args: dict[str, Any] = {}

    @classmethod
    def from_kernel(cls, kernel: Any, configs: Any) -> AutoTuner:
        """A tuner for a builder: a function of the tunables that returns a @T.prim_func."""
        return cls(kernel, configs)

    def set_compile_args(
        self,
        out_idx: int | Sequence[int] | None = None,
        target: Any = None,
        execution_backend: str | None = None,
        target_host: Any = None,
        verbose: bool | None = None,
        pass_configs: Mapping[str, Any] | None = None,
        passes: Mapping[str, Any] | None = None,
    ) -> AutoTuner:
        """How configurations are compiled; see tiledsl.compile."""
        if passes is not None:
            pass_configs = chosen_passes(pass_configs, passes)
        self.compile_args = {"out_idx": out_idx, "target": target, "pass_configs": pass_configs}
        return self

    @ends_tracebacks
    def set_profile_args(self, **options: Any) -> AutoTuner:
        """How configurations are checked and timed: the fields of TuneOptions."""
        self.options = with_changes(self.options, from_tilelang(options))
        return self

    @ends_tracebacks
    def run(self, warmup: float | None = None, rep: float | None = None, timeout: float | None = None, **options: Any) -> AutotuneResult:  # fmt: skip # noqa: E501
        """Tune, with the builder's defaults for what the configurations leave out. Results are stored on disk.

        `options` are further fields of TuneOptions, and TileLang's names: of the GPUs that measure (benchmark_devices,
        with benchmark_multi_gpu), and of how it compiles (use_pipeline), which have no effect.
        """
        named = {"warmup": warmup, "rep": rep, "timeout": timeout}
        chosen = with_changes(
            self.options, {name: value for name, value in named.items() if value is not None} | from_tilelang(options)
        )
        function = self.function
        if isinstance(function, AutotunedFunction):
            function = function.jit
        if isinstance(function, JitFunction):
            given = {name: value for name, value in self.compile_args.items() if value is not None}
            jit = JitFunction(function.function, {**function.options, **given}, function.frame_locals)
        elif isinstance(function, FunctionType):
            jit = JitFunction(function, self.compile_args, {})
        else:
            raise TileError(f"AutoTuner takes a builder function, not {type(function).__name__}")
        tuned = AutotunedFunction(jit, self.configs, chosen)
        _check_without_arguments(tuned)
        return tuned.compile()


def _check_without_arguments(tuned: AutotunedFunction) -> None:
    """TileError where a builder needs more than the tunables: `AutoTuner.run` gives it nothing else."""
    if tuned.jit.is_eager or callable(tuned.configs):
        return
    names = tunables(tuned.configs)
    missing = not_given(tuned.jit.signature, names)
    if missing:
        given = ", ".join(f"{name}=..." for name in missing)
        raise TileError(
            f"AutoTuner: {tuned.name} needs {', '.join(missing)}, and run() passes tunables only",
            notes=[
                f"give a function of the tunables: `def sized({', '.join(names)}): return {tuned.name}({given}, "
                f"{', '.join(f'{name}={name}' for name in names)})`, {tuned.name} without @tiledsl.jit",
                "or put @tiledsl.autotune above @tiledsl.jit and call the builder with them",
            ],
        )
