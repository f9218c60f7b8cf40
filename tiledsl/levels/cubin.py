"""What a cubin says of its kernels, read from the ELF file itself: no tool is needed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_INFO = ".nv.info."
_NO_BITS = 8
# Attributes of .nv.info, as cuobjdump names them.
_KPARAM_INFO, _REQNTID = 0x17, 0x10
_WITH_SIZE = 4  # the format of an attribute whose value has a size of its own


@dataclass(frozen=True)
class CubinEntry:
    """A kernel in a cubin: the sizes of its parameters in bytes, and threads of a block if it fixes them."""

    name: str
    parameter_bytes: tuple[int, ...]
    threads: int | None


def entries(binary: bytes) -> list[CubinEntry]:
    """The kernels of a cubin. ValueError for what is none."""
    try:
        return [_entry(name, data) for name, data in _sections(binary) if name.startswith(_INFO)]
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"it is torn or no cubin ({error})") from None


def capability(binary: bytes) -> int | None:
    """The compute capability it was assembled for (90 for sm_90a); None where a version of the format is not known."""
    _check_magic(binary)
    (flags,) = struct.unpack_from("<I", binary, 0x30)
    return {7: flags & 0xFF, 8: flags >> 8 & 0xFF}.get(binary[8])


def _check_magic(binary: bytes) -> None:
    if binary[:6] != b"\x7fELF\x02\x01" or len(binary) < 64:
        raise ValueError("it is no cubin: an ELF file begins otherwise")


def _sections(binary: bytes) -> Iterator[tuple[str, bytes]]:
    _check_magic(binary)
    (start,) = struct.unpack_from("<Q", binary, 0x28)
    size, count, names = struct.unpack_from("<HHH", binary, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", binary, start + number * size) for number in range(count)]
    (segments,) = struct.unpack_from("<Q", binary, 0x20)
    segment_size, segment_count = struct.unpack_from("<HH", binary, 0x36)
    ends = [header[4] + header[5] for header in headers if header[1] != _NO_BITS]
    if max(segments + segment_size * segment_count, *ends) > len(binary):
        raise ValueError("it is torn: parts of it lie behind its end")
    texts = headers[names][4]
    for header in headers:
        first = texts + header[0]
        name = binary[first : binary.index(b"\0", first)].decode()
        yield name, b"" if header[1] == _NO_BITS else binary[header[4] : header[4] + header[5]]


def _entry(section: str, data: bytes) -> CubinEntry:
    sizes: dict[int, int] = {}
    threads = None
    place = 0
    while place + 4 <= len(data):
        how, attribute, size = struct.unpack_from("<BBH", data, place)
        place += 4
        if how != _WITH_SIZE:
            continue
        value = data[place : place + size]
        place += size
        if attribute == _KPARAM_INFO:
            _, ordinal, _, described = struct.unpack("<IHHI", value)
            sizes[ordinal] = described >> 18
        elif attribute == _REQNTID:
            x, y, z = struct.unpack("<III", value)
            threads = x * y * z
    return CubinEntry(section[len(_INFO) :], tuple(sizes[number] for number in sorted(sizes)), threads)
