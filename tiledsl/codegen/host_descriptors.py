"""Helper functions of launchers with descriptors or persistent kernels, as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tiledsl.analysis.gluon.words import in_fours, strides_in_fours
from tiledsl.codegen.gluon.api import shared_layout
from tiledsl.dialects import tile, triton
from tiledsl.ir.types import BufferType

DESCRIPTOR_IMPORT = "from triton.tools.tensor_descriptor import TensorDescriptor"

DESCRIPTOR = '''\
_descriptors = {}


class _Address:
    """What a descriptor keeps of a tensor: the tensor itself would keep its memory from being used again."""

    def __init__(self, tensor):
        self.dtype = tensor.dtype
        self.address = tensor.data_ptr()

    def data_ptr(self):
        return self.address


def _descriptor(tensor, shape, strides, block, *layout):
    """What the hardware must know to copy blocks of a tensor. To make one takes longer than a launch: they are kept."""
    if 0 in shape:  # which the hardware refuses; a copy of this, too, gives zeros, as from outside of a tensor
        zeros = torch.zeros(16, dtype=tensor.dtype, device=tensor.device)
        ones = [1] * len(shape)
        return TensorDescriptor(zeros, ones, [16] * (len(shape) - 1) + [1], list(block), *layout)
    key = (tensor.data_ptr(), tensor.dtype, shape, strides, block, layout)
    found = _descriptors.get(key)
    if found is None:
        base = _Address(tensor) if tensor.is_cuda else tensor
        found = TensorDescriptor(base, list(shape), list(strides), list(block), *layout)
        if tensor.is_cuda:
            if len(_descriptors) >= 1024:
                _descriptors.clear()
            _descriptors[key] = found
    return found
'''

DESCRIPTORS = (
    f"{DESCRIPTOR}\n\n"
    + '''\
def _span(tensor):
    """The addresses of the first byte of a tensor and behind the last one."""
    steps = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    start = tensor.data_ptr()
    return start, start + (steps + 1) * tensor.element_size() if tensor.numel() else start


def _with_aligned(function, arguments, aligned, written):
    """Calls a function with copies of the tensors that must begin at a multiple of 16 bytes, for descriptors, and do
    not. Tensors that share their memory share that of the copies."""
    copies = list(arguments)
    spans = {number: _span(value) for number, value in enumerate(arguments) if torch.is_tensor(value)}
    for number in aligned:
        value = copies[number]
        if value.data_ptr() % 16 == 0:
            continue
        if value is not arguments[number]:
            raise ValueError("tensors that share memory begin at different distances from multiples of 16 bytes")
        (start, end), sharing = spans[number], set()
        while True:
            found = {other for other, span in spans.items() if span[0] < end and start < span[1]} | {number}
            if found == sharing:
                break
            sharing, start, end = found, min(spans[each][0] for each in found), max(spans[each][1] for each in found)
        memory = torch.empty(end - start + 16, dtype=torch.uint8, device=value.device)
        begin = -(memory.data_ptr() + spans[number][0] - start) % 16 - start
        for other in sharing:
            tensor, (first, last) = arguments[other], spans[other]
            copy = memory[begin + first : begin + last].view(tensor.dtype)
            copies[other] = copy.as_strided(tensor.shape, tensor.stride()).copy_(tensor)
    function(*copies)
    for number in written:
        if copies[number] is not arguments[number]:
            arguments[number].copy_(copies[number])
'''
)

# Of modules in which some kernels are written in Triton and some in Gluon.
BOTH_DESCRIPTORS = '''\
def TensorDescriptor(base, shape, strides, block, *layout):
    """A descriptor for a kernel in Gluon, which knows its layout in shared memory, or else for one in Triton."""
    return (GluonDescriptor if layout else TritonDescriptor)(base, shape, strides, block, *layout)
'''

MULTIPROCESSORS = '''\
@functools.cache
def _multiprocessors(device):
    """How many programs run at once, one on each multiprocessor; on a CPU, a few, one after the other."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3
'''

# What the functions above take from a module's scope.
DESCRIPTOR_NAMES = {
    "TensorDescriptor",
    "GluonDescriptor",
    "TritonDescriptor",
    "_descriptors",
    "_Address",
    "_descriptor",
    "_span",
    "_with_aligned",
}
MULTIPROCESSOR_NAMES = {"functools", "_multiprocessors"}


def descriptor_text(op: triton.DescriptorOp, buffer: str, dim: Callable[[int | str], str]) -> str:
    """The call that makes a descriptor; `dim` writes a size, which may be a symbol."""
    type, block = tile.buffer_type(op.buffer), op.block
    shape = [dim(type.shape[axis]) for axis in op.dims]
    strides = [_stride(type, axis, dim) for axis in op.dims]
    if op.in_fours:
        extents = tuple(map(int, type.shape))
        shape, strides = list(map(str, in_fours(extents))), list(map(str, strides_in_fours(extents)))
        block = in_fours(block)
    layout = f", {shared_layout(block, type.dtype)}" if op.swizzle else ""
    return f"_descriptor({buffer}, {_tuple(shape)}, {_tuple(strides)}, {block}{layout})"


def _stride(type: BufferType, axis: int, dim: Callable[[int | str], str]) -> str:
    if type.strides is not None:
        return dim(type.strides[axis])
    sizes = [size for size in type.shape[axis + 1 :] if size != 1]
    if all(isinstance(size, int) for size in sizes):
        return str(prod(int(size) for size in sizes))
    return " * ".join(map(dim, sizes))


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)})"
