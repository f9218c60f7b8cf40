"""What a call of a function has to give."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from inspect import Signature

from tiledsl.errors import TileError, user_loc, value_options, way_out


def takes_any(signature: Signature) -> bool:
    """Whether a function takes keywords of any name."""
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())


def not_given(signature: Signature, given: Collection[str]) -> list[str]:
    """The parameters that have neither a default nor a value among those that are given."""
    return [
        name for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty and name not in given
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]  # fmt: skip


def check_given(function: str, signature: Signature, given: Collection[str]) -> None:
    """TileError for a parameter that gets no value, if `given` are the names of what a call gives and of tunables."""
    for name in not_given(signature, given):
        raise TileError(
            f"{function} is called without {name!r}, which is not a tunable",
            user_loc(),
            [f"give it: {way_out(f'{function}({name}=...)', value_options([name]))}"],
        )


def check_known(function: str, signature: Signature, names: Iterable[str], further: str = "") -> None:
    """TileError for a name that no parameter has; `further` says what else there is to know of them."""
    for name in names:
        if name not in signature.parameters and not takes_any(signature):
            known = ", ".join(signature.parameters) or "none"
            raise TileError(f"{function} has no parameter {name!r}", user_loc(), [f"it has {known}{further}"])
