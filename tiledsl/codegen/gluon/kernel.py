"""The writer for a kernel that select-emitter has prepared, by the products in its loops."""

from __future__ import annotations

from tiledsl.analysis.gluon.tiled_products import is_softmax
from tiledsl.codegen.gluon.product import ProductKernelWriter
from tiledsl.codegen.gluon.softmax import SoftmaxKernelWriter
from tiledsl.codegen.gluon.writer import SpecializedWriter
from tiledsl.dialects import triton


def gluon_writer(launch: triton.LaunchOp, module_names: set[str]) -> SpecializedWriter:
    """The writer that knows the structure of the kernel's loops."""
    writer = SoftmaxKernelWriter if is_softmax(launch.body) else ProductKernelWriter
    return writer(launch, module_names)
