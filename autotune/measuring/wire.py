"""The channel between the tuner and its benchmark processes: length-prefixed JSON messages, and tensors as raw files.

Nothing is pickled: a tensor is a file of its elements and a JSON description of dtype, shape and strides.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

_LENGTH = struct.Struct("!I")
_LARGEST_MESSAGE = 1 << 28


class Silence(Exception):
    """The other side did not answer in time."""


class Channel:
    """One end of a socket pair. Messages are JSON objects; NaN and infinities are allowed among their numbers."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: dict[str, Any]) -> None:
        """Raises OSError if the other end is gone."""
        data = json.dumps(message).encode()
        self._end.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self, timeout: float | None = None) -> dict[str, Any] | None:
        """The next message; None when the other end is closed. Raises Silence after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        head = self._read(_LENGTH.size, deadline)
        if head is None:
            return None
        size: int = _LENGTH.unpack(head)[0]
        assert size <= _LARGEST_MESSAGE, f"a message of {size} bytes"
        body = self._read(size, deadline)
        if body is None:
            return None
        message = json.loads(body)
        assert isinstance(message, dict)
        return message

    def _read(self, size: int, deadline: float | None) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._end], [], [], left)
            if not ready:
                raise Silence
            try:
                chunk = self._end.recv(min(size - len(data), 1 << 20))
            except ConnectionError:
                return None
            if not chunk:
                return None
            data += chunk
        return bytes(data)

    def close(self) -> None:
        self._end.close()


def store(value: Any, folder: Path, prefix: str) -> Any:
    """Describe lists, dicts, fields of dataclasses, tensors and scalars for a message; the elements of tensors go to
    files of the folder whose names begin with `prefix`."""
    if isinstance(value, (list, tuple)):
        return [store(each, folder, f"{prefix}-{number}") for number, each in enumerate(value)]
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {"items": [[name, store(each, folder, f"{prefix}-{name}")] for name, each in value.items()]}
    if not hasattr(value, "data_ptr"):
        return {"value": value}
    path = folder / prefix
    return {"file": str(path), **_store(value, path)}


def _store(tensor: Any, path: Path) -> dict[str, Any]:
    import torch

    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    path.touch()
    if flat.numel():
        flat.view(torch.uint8).numpy().tofile(path)
    return {"dtype": str(tensor.dtype)[len("torch.") :], "shape": list(tensor.shape), "strides": list(tensor.stride())}


def load(described: Any, device: str) -> Any:
    """What `store` described, tensors on the device and with their strides (unless elements share memory)."""
    if isinstance(described, list):
        return [load(each, device) for each in described]
    if "items" in described:
        return {name: load(each, device) for name, each in described["items"]}
    return _load(described, device) if "file" in described else described["value"]


def _load(described: dict[str, Any], device: str) -> Any:
    import torch

    dtype, shape, strides = getattr(torch, described["dtype"]), described["shape"], described["strides"]
    size = os.path.getsize(described["file"])
    if size == 0:
        return torch.empty(shape, dtype=dtype, device=device)
    data = torch.from_file(described["file"], shared=False, size=size, dtype=torch.uint8)
    return with_strides(data.view(dtype).reshape(shape).to(device), strides)


def with_strides(tensor: Any, strides: Sequence[int]) -> Any:
    """A tensor's values with other strides, unless elements share memory then."""
    import torch

    if (*tensor.stride(),) == (*strides,) or any(s == 0 and n > 1 for n, s in zip(tensor.shape, strides)):
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
