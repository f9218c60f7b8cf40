"""The certificate of a kernel: what of its lowering is proved, what is tested, and what is unknown and why."""

from tiledsl.certificate.check import Check
from tiledsl.certificate.report import Certificate

__all__ = ["Certificate", "Check"]
