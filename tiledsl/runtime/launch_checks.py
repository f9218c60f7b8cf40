"""Do these arguments fit the program: rank, shape, dtype, strides and device, with a message that names both values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiledsl.errors import TileError, ends_tracebacks, user_loc
from tiledsl.formulas import names_in, polynomial, solved, text_of, value_of
from tiledsl.runtime.launch_triton import has_tangents
from tiledsl.runtime.target import Target

if TYPE_CHECKING:
    from tiledsl.runtime.parameter import Parameter


@ends_tracebacks
def by_position(
    kernel: str, inputs: Sequence[Parameter], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[Any, ...]:
    """A call's arguments in order. Raises TileError for a name that is unknown or missing."""
    by_name = inputs[len(arguments) :]
    unknown = set(keywords) - {p.name for p in by_name}
    if unknown:
        raise TileError(f"{kernel} has no further parameter {sorted(unknown)[0]!r}")
    missing = [p.name for p in by_name if p.name not in keywords]
    if missing:
        raise TileError(f"{kernel} is called without {missing[0]}")
    return (*arguments, *(keywords[p.name] for p in by_name))


def refuse_tangents(kernel: str, arguments: Sequence[Any]) -> None:
    """TileError under forward-mode differentiation, whose results would say that they do not depend on the inputs."""
    if has_tangents(arguments):
        raise TileError(
            f"{kernel}: an argument has a tangent, and kernels have no forward-mode derivatives",
            user_loc(),
            ["take gradients: torch.func.vjp or jacrev in place of jvp, jacfwd or hessian; see register_backward"],
        )


def check(kernel: str, target: Target, params: Sequence[Parameter], arguments: Sequence[Any]) -> None:
    """Compare rank, shape, dtype, strides and device of tensors with what the program was compiled for.

    Raises TileError, which names the argument, what it is and what it should be.
    """
    import torch

    symbols: dict[str, tuple[int, str]] = {}
    device = None
    for param, argument in zip(params, arguments, strict=True):
        if not param.is_tensor:
            _check_scalar(kernel, param, argument)
            if isinstance(argument, int):
                symbols[param.name] = (argument, "the argument")
            continue
        if argument is None:
            raise TileError(
                f"{kernel}: {param.name} is None, but the program uses it",
                notes=[f"pass a tensor of {param.dtype} with shape {param.shape}"],
                code="wrong-argument",
            )
        if not isinstance(argument, torch.Tensor):
            raise TileError(f"{kernel}: {param.name} is a tensor, not {type(argument).__name__}", code="wrong-argument")
        if argument.layout is not torch.strided:
            shown = str(argument.layout).removeprefix("torch.")
            raise TileError(
                f"{kernel}: {param.name} is a tensor of layout {shown}, but must be strided",
                notes=[
                    f"pass {param.name}.to_dense()" if "sparse" in shown else f"pass its parts, or {param.name} padded"
                ],
                code="wrong-argument",
            )
        if str(argument.dtype) != f"torch.{param.dtype}":
            raise TileError(
                f"{kernel}: {param.name} must be {param.dtype}, but the tensor is {str(argument.dtype)[6:]}",
                code="wrong-argument",
            )
        _check_shape(kernel, param, argument, symbols)
        if device is None:
            device = (argument.device, param.name)
        elif argument.device != device[0]:
            raise TileError(
                f"{kernel}: {param.name} is on {argument.device}, but {device[1]} is on {device[0]}",
                code="wrong-argument",
            )
    _check_formulas(kernel, params, symbols)
    if device is not None and target.kind != "interpret" and device[0].type == "cpu":
        raise TileError(
            f"{kernel}: {device[1]} is on the CPU, but the program is compiled for {target}",
            notes=["move the tensors with .cuda(), or compile with target='interpret'"],
            code="wrong-argument",
        )


def as_bytes(argument: Any) -> Any:
    """A tensor of two float4 in each element as one of uint8, the same memory; anything else as it is."""
    import torch

    kinds = (torch.int8, getattr(torch, "float4_e2m1fn_x2", None))
    return argument.view(torch.uint8) if isinstance(argument, torch.Tensor) and argument.dtype in kinds else argument


def strides_of(tensor: Any) -> tuple[int, ...]:
    """A tensor's strides; none where its layout has none."""
    import torch

    return tuple(tensor.stride()) if tensor.layout is torch.strided else ()


def stand_in(param: Parameter, params: Sequence[Parameter], arguments: Sequence[Any]) -> Any:
    """A tensor without memory for a parameter that is not used, on the device of the other tensors. Sizes that no other
    argument gives, and that do not follow from those, are 1."""
    import torch

    sizes: dict[str, int] = {}
    device = torch.device("cpu")
    for other, given in zip(params, arguments):
        if isinstance(given, torch.Tensor):
            device = given.device
            for dim, size in (*zip(other.strides or (), strides_of(given)), *zip(other.shape, given.shape)):
                if isinstance(dim, str):
                    sizes.setdefault(dim, size)
        elif not other.is_tensor:
            sizes[other.name] = given
    formulas = [pair for each in params for pair in each.formulas.items()]
    for name, formula in formulas * len(formulas):  # what one tells may be what another one needs
        needed = value_of(formula, sizes)
        if needed is not None:
            sizes.setdefault(name, needed)
        elif name in sizes:
            sizes |= solved(formula, sizes[name], sizes)
    shape = [sizes.get(dim, 1) if isinstance(dim, str) else dim for dim in param.shape]
    dtype = getattr(torch, param.dtype)
    if param.strides is None:
        tensor = torch.empty(shape, dtype=dtype, device=device)
    else:
        strides = [sizes.get(dim, 1) if isinstance(dim, str) else dim for dim in param.strides]
        tensor = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    tensor.untyped_storage().resize_(0)
    return tensor


def _check_formulas(kernel: str, params: Sequence[Parameter], symbols: Mapping[str, tuple[int, str]]) -> None:
    sizes = {name: size for name, (size, _) in symbols.items()}
    for param in params:
        for name, formula in param.formulas.items():
            needed = value_of(formula, sizes)
            if needed is not None and sizes.get(name, needed) != needed:
                known = ", ".join(f"{each} is {sizes[each]}" for each in sorted(names_in(formula)))
                wanted = f"{text_of(formula, _AsItIs())} is {needed}: {known}"
                raise TileError(f"{kernel}: {symbols[name][1]} is {sizes[name]}, but {wanted}", code="wrong-argument")
            least = _least(formula)
            if sizes.get(name, least) < least:  # the sizes that it is computed from would be negative
                wanted = f"{text_of(formula, _AsItIs())}, at least {least}"
                raise TileError(
                    f"{kernel}: {symbols[name][1]} is {sizes[name]}, but it is {wanted}", code="wrong-argument"
                )


def _least(formula: Any) -> int:
    """What a size is at least, as those that it is computed from are not negative."""
    found = polynomial(formula, {})
    return found.get((), 0) if found and min(found.values()) > 0 else 0


class _AsItIs(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return name


# Below the sign, of the integers that a kernel takes as they are; others it converts, by their lower bits.
_KEPT_BITS = {"int32": 31, "int64": 63}


def _check_scalar(kernel: str, param: Parameter, argument: Any) -> None:
    if not isinstance(argument, (int, float)):
        notes = [f"pass the number that {param.name}.item() gives"] if hasattr(argument, "item") else []
        wanted = f"{param.name} is a {param.dtype} scalar, not {type(argument).__name__}"
        raise TileError(f"{kernel}: {wanted}", notes=notes, code="wrong-argument")
    if isinstance(argument, float) and param.dtype.startswith(("int", "uint", "bool")):
        raise TileError(
            f"{kernel}: {param.name} is {param.dtype}, but the argument is the float {argument}", code="wrong-argument"
        )
    too_large = param.dtype in _KEPT_BITS and int(argument) >> _KEPT_BITS[param.dtype] not in (0, -1)
    if too_large or isinstance(argument, int) and abs(argument) >= 1 << 1023:  # which no type holds, and no float
        given = argument if abs(argument) < 1 << 64 else f"an integer of {int(argument).bit_length()} bits"
        raise TileError(f"{kernel}: {param.name} is {given}, which {param.dtype} does not hold", code="wrong-argument")


_LARGEST_SIZE = (1 << 31) - 1


def _check_shape(kernel: str, param: Parameter, tensor: Any, symbols: dict[str, tuple[int, str]]) -> None:
    shape = tuple(tensor.shape)
    if len(shape) != len(param.shape):
        raise TileError(
            f"{kernel}: {param.name} has shape {shape}, but {len(param.shape)} dimensions {param.shape} are declared",
            code="wrong-argument",
        )
    if any(isinstance(dim, int) and dim != size for dim, size in zip(param.shape, shape, strict=True)):
        raise TileError(
            f"{kernel}: {param.name} has shape {shape}, but it was compiled for {param.shape}", code="wrong-argument"
        )
    # A symbol is read where it comes first, strides before sizes; the stride of one element, or of none, may be any.
    places = [
        (dim, stride, f"{param.name}.stride({axis})", shape[axis] > 1)
        for axis, (dim, stride) in enumerate(zip(param.strides or (), tensor.stride()))
    ]
    places += [
        (dim, size, f"{param.name}.shape[{axis}]", True) for axis, (dim, size) in enumerate(zip(param.shape, shape))
    ]
    for dim, found, place, counts in places:
        if isinstance(dim, str):
            known, where = symbols.setdefault(dim, (found, place))
            if known != found and counts:
                raise TileError(f"{kernel}: {place} is {found}, but {dim} is {known} by {where}", code="wrong-argument")
    if any(isinstance(dim, str) and size > _LARGEST_SIZE for dim, size in zip(param.shape, shape)):
        raise TileError(
            f"{kernel}: {param.name} has shape {shape}, but dynamic sizes are at most {_LARGEST_SIZE}",
            notes=["indices are int32: give the tensor more dimensions"],
            code="wrong-argument",
        )
    if param.strides is None:
        if not tensor.is_contiguous():
            raise TileError(
                f"{kernel}: {param.name} has strides {tuple(tensor.stride())}, but must be contiguous",
                notes=[f"pass {param.name}.contiguous(), or declare it with T.StridedTensor"],
                code="wrong-argument",
            )
        return
    for axis, (dim, stride) in enumerate(zip(param.strides, tensor.stride(), strict=True)):
        if dim != stride and isinstance(dim, int) and shape[axis] > 1:
            raise TileError(
                f"{kernel}: {param.name} has stride {stride} in dimension {axis}, not {dim}", code="wrong-argument"
            )
