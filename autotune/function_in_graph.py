"""With which configuration a function under tune_function runs in a graph of torch: the tracer goes into the function
with what is known for such arguments, never with what would have to be tuned first."""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.call_flags import split_flags
from tiledsl.autotuner.function_run import copy_config
from tiledsl.autotuner.function_tuning import FunctionTuning
from tiledsl.autotuner.task import recall
from tiledsl.autotuner.trial import config_text
from tiledsl.runtime.launch_triton import constant_when_traced, tensor_without_values

if TYPE_CHECKING:
    from tiledsl.autotuner.functions import TunedFunction

_log = logging.getLogger("tiledsl")
_PLAIN = (bool, int, float, complex, str, type(None))
_told: set[str] = set()


def traced_call(function: TunedFunction, *arguments: Any, **keywords: Any) -> Any:
    """A call in a graph. The configuration is a constant of the graph, and so are the sizes that it was found for."""
    flags = tuple([(name, value) for name, value in keywords.items() if name.startswith("autotune")])
    described = tuple([_described(each) for each in arguments])
    named = tuple([(name, _described(each)) for name, each in keywords.items()])
    kept, config = _config(function, described, named, flags)
    return function.function(*arguments, **{name: keywords[name] for name in kept}, **dict(config))


def _described(value: Any) -> Any:
    """An argument as a constant of the graph."""
    import torch

    if isinstance(value, torch.Tensor):
        shape = tuple([operator.index(each) for each in value.shape])
        return "tensor", shape, tuple([operator.index(each) for each in value.stride()]), value.dtype, str(value.device)
    if isinstance(value, torch.SymInt):
        return "plain", operator.index(value)
    if isinstance(value, (list, tuple)):
        return "sequence", isinstance(value, list), tuple([_described(each) for each in value])
    return ("plain", value) if isinstance(value, _PLAIN) else ("other", type(value).__name__)


def _restored(described: Any) -> Any:
    """What stands for an argument where its configuration is looked up: tensors without values."""
    kind, *what = described
    if kind == "tensor":
        return tensor_without_values(*what)
    if kind == "sequence":
        return (list if what[0] else tuple)(map(_restored, what[1]))
    return what[0]


@constant_when_traced
def _config(
    function: TunedFunction,
    described: Sequence[Any],
    named: Sequence[tuple[str, Any]],
    flags: Sequence[tuple[str, Any]],
) -> Any:
    """The keywords that the function itself takes, and the configuration."""
    keywords = {name: _restored(each) for name, each in named} | dict(flags)
    chosen, own = split_flags(keywords, function.signature)
    config = _known_config(function, [_restored(each) for each in described], own, chosen.autotune)
    return tuple(name for name in own if name not in config), tuple(config.items())


def _known_config(
    function: TunedFunction, arguments: Sequence[Any], keywords: Mapping[str, Any], tuned: bool
) -> Mapping[str, Any]:
    """That of a result in memory or on disk; else the first one, which is told once for each function."""
    call, configs = function._problem(arguments, keywords)
    memory_key = function._memory_key(call.values, configs)
    known = function.known(memory_key) if tuned else None
    if known is not None:
        return copy_config(known.config)
    if tuned and function.options.cache:
        key = function._key(call, configs)
        found = recall(FunctionTuning(function.name, call, configs, key, function.options))[1]
        if found is not None:
            function.remember(memory_key, call, found.trials, found.best)
            return copy_config(found.best.config)
    if tuned and function.name not in _told:
        _told.add(function.name)
        shown = config_text(configs[0])
        _log.warning("autotune: %s is not tuned for a call in a graph and runs with %s", function.name, shown)
    return copy_config(configs[0])
