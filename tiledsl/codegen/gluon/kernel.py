"""The writer for a kernel that schedule-loops has been through, by the form of its loops."""

from __future__ import annotations

from tiledsl.codegen.gluon.ordered import OrderedKernelWriter
from tiledsl.codegen.gluon.product import ProductKernelWriter
from tiledsl.codegen.gluon.softmax import SoftmaxKernelWriter
from tiledsl.codegen.gluon.writer import SpecializedWriter, schedule_of
from tiledsl.dialects import triton


def gluon_writer(launch: triton.LaunchOp, module_names: set[str]) -> SpecializedWriter:
    """The writer that knows the structure of the kernel's loops."""
    writers: dict[str, type[SpecializedWriter]] = {"skewed": SoftmaxKernelWriter, "ordered": OrderedKernelWriter}
    return writers.get(schedule_of(launch).form, ProductKernelWriter)(launch, module_names)
