"""What the ranks of a process group say to each other while they tune.

They talk through the store by which the job was started, not by collectives: that works with every backend, each wait
has an end, and a rank that gives up can say so. All ranks take part in the same exchanges in the same order.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, Protocol

from tiledsl.autotuner.user_functions import errors_of, named_arguments
from tiledsl.errors import TileError

Group = (
    Any  # None, True, a torch.distributed.ProcessGroup, or a function of a call's arguments that returns one of these
)
_ENDED = "ended"  # the key under which a rank says that it has given up
_SPIN_SECONDS, _SHORT_SECONDS = 0.005, 1.0  # waits are looked at often for so long, and less often for so long
_sessions: dict[str, int] = {}  # that this process has begun, by group


class RanksFailed(TileError):
    """Something that all ranks did has failed on some of them; raised on all."""

    def __init__(self, message: str, status: Literal["out_of_resources", "launch_error"]) -> None:
        super().__init__(message)
        self.status = status


class RanksLost(TileError):
    """The ranks are no longer at the same exchange: what they do together cannot go on."""


class Ranks(Protocol):
    """Those that do something together: a RankSession, or Alone."""

    rank: int
    size: int

    def exchange(self, kind: str, value: Any) -> list[Any]: ...

    def together(self, kind: str, call: Callable[[], Any]) -> list[Any]: ...


class Alone:
    """One process that tunes for itself."""

    rank, size = 0, 1

    def exchange(self, kind: str, value: Any) -> list[Any]:
        return [value]

    def together(self, kind: str, call: Callable[[], Any]) -> list[Any]:
        return [call()]


class RankSession:
    """One tuning by the ranks of a group."""

    def __init__(self, store: Any, path: str, rank: int, size: int, timeout: float, what: str) -> None:
        self.rank, self.size, self.what = rank, size, what
        self._store, self.path, self._timeout = store, path, timeout
        self._count = 0  # of exchanges
        self.inner = 0  # sessions inside, since the last exchange

    def exchange(self, kind: str, value: Any) -> list[Any]:
        """Every rank's value, in their order, where all have come to this exchange. Values are JSON's.

        RanksLost if a rank does not come in time, has given up, or is at another exchange.
        """
        number, self._count, self.inner = self._count, self._count + 1, 0
        keys = [self._key(number, rank) for rank in range(self.size)]
        try:
            self._store.set(keys[self.rank], json.dumps([kind, value]))
            self._wait(keys, kind)
            said = [json.loads(self._store.get(key)) for key in keys]
            if number > 1:  # those that are here have read what was said two exchanges before
                with suppress(RuntimeError):  # not every store forgets
                    self._store.delete_key(self._key(number - 2, self.rank))
        except RuntimeError as error:  # of torch.distributed
            raise RanksLost(
                f"autotune: {self.what}: the connection to the other ranks is lost ({error})",
                notes=["the process of rank 0 may have ended"],
            ) from error
        other = next((rank for rank, (theirs, _) in enumerate(said) if theirs != said[0][0]), None)
        if other is not None:
            raise RanksLost(
                f"autotune: {self.what}: rank 0 is at {said[0][0]!r}, and rank {other} at {said[other][0]!r}",
                notes=["all ranks of a group tune the same in the same order"],
            )
        return [theirs for _, theirs in said]

    def together(self, kind: str, call: Callable[[], Any]) -> list[Any]:
        """What a call returns on every rank. RanksFailed on all if it raises on some."""
        value, failure = None, None
        try:
            value = call()
        except RanksLost:
            raise
        except Exception as error:
            failure = error
        described = None if failure is None else _described(failure)
        try:
            said = self.exchange(kind, [value, described])
        except RanksLost as error:
            if described is not None:
                error.notes.append(
                    f"here it failed: {described['text']}; others may wait in a collective for this rank"
                )
            raise
        failed = {rank: error for rank, (_, error) in enumerate(said) if error is not None}
        if failed:
            raise RanksFailed(where(failed, self.size), failed[min(failed)]["status"]) from failure
        return [each for each, _ in said]

    def _key(self, number: int, rank: int) -> str:
        return f"{self.path}/{number}/{rank}"

    def _wait(self, keys: Sequence[str], kind: str) -> None:
        start = time.monotonic()
        while not self._store.check(list(keys)):
            waited = time.monotonic() - start
            if self._store.check([f"{self.path}/{_ENDED}"]) and not self._store.check(list(keys)):
                raise RanksLost(f"autotune: {self.what}: {self._store.get(f'{self.path}/{_ENDED}').decode()}")
            if waited > self._timeout:
                missing = [str(rank) for rank, key in enumerate(keys) if not self._store.check([key])]
                raise RanksLost(
                    f"autotune: {self.what}: rank {' and '.join(missing)} did not come to {kind!r} "
                    f"within {self._timeout:g} s",
                    notes=[
                        "has its process ended, or does it not make the same calls?",
                        "group_timeout=... waits longer",
                    ],
                )
            time.sleep(1e-4 if waited < _SPIN_SECONDS else 1e-3 if waited < _SHORT_SECONDS else 1e-2)

    def give_up(self, error: BaseException) -> None:
        """Tell those that wait for this rank that it does not come any more."""
        shown = str(error).splitlines() or [""]
        with suppress(Exception):  # the job may be ending
            self._store.set(
                f"{self.path}/{_ENDED}", f"rank {self.rank} has ended it: {type(error).__name__}: {shown[0]}"
            )


_current: ContextVar[RankSession | None] = ContextVar("tiledsl_group_session", default=None)


@contextmanager
def session(group: Any, timeout: float, what: str) -> Iterator[RankSession]:
    """The ranks of a process group, for one tuning that all begin. One inside another one's is a part of that."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store

    name = f"tiledsl/{group.group_name}"
    outer = _current.get()
    if outer is not None and outer.path.startswith(f"{name}/"):
        path = f"{outer.path}/{outer._count}.{outer.inner}"
        outer.inner += 1
    else:
        path = f"{name}/{_sessions.get(name, 0)}"
        _sessions[name] = _sessions.get(name, 0) + 1
    begun = RankSession(_get_default_store(), path, dist.get_rank(group), dist.get_world_size(group), timeout, what)
    with entered(begun):
        yield begun


@contextmanager
def entered(begun: RankSession) -> Iterator[None]:
    """Inside, `begun` is this thread's session; if what is inside raises, the other ranks are told."""
    token = _current.set(begun)
    try:
        yield
    except BaseException as error:
        begun.give_up(error)
        raise
    finally:
        _current.reset(token)


def process_group(group: Group, values: Mapping[str, Any]) -> Any:
    """The process group that an option `group` means for a call; None to tune alone. TileError if there is none."""
    if group is None or group is False:
        return None
    import torch.distributed as dist

    if callable(group):
        with errors_of("autotune: group", f"it is given the arguments that it names, of {', '.join(values)}"):
            chosen = group(**named_arguments(group, values))
        return process_group(chosen, values)
    if not dist.is_available() or not dist.is_initialized():
        raise TileError(
            "autotune: group=... is for processes of torch.distributed",
            notes=["call torch.distributed.init_process_group first"],
        )
    resolved = dist.group.WORLD if group is True else group
    if not isinstance(resolved, dist.ProcessGroup):
        raise TileError(
            f"autotune: group is {group!r}, of which this process is no member",
            notes=["it is True, a torch.distributed.ProcessGroup, or a function of the arguments that returns one"],
        )
    return resolved if dist.get_world_size(resolved) > 1 else None


def _is_of_others(group: Group) -> bool:
    """Whether it is what torch.distributed.new_group returns on ranks that are no members."""
    import torch.distributed as dist

    return dist.is_available() and group is dist.GroupMember.NON_GROUP_MEMBER


def check_group(group: Group, timeout: Any) -> None:
    """TileError for options that cannot be meant."""
    is_group = group is None or isinstance(group, bool) or callable(group) or hasattr(group, "group_name")
    if not is_group and not _is_of_others(group):
        raise TileError(f"autotune: group is {group!r}; it is True, a ProcessGroup, or a function that returns one")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise TileError(f"autotune: group_timeout is {timeout!r}; it is seconds, more than 0")


def place(folder: Path) -> str:
    """Equal for processes that keep results in the same folder of the same machine."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    rank = os.environ.get("RANK", "")
    machine = str(int(rank) // int(local)) if local.isdecimal() and rank.isdecimal() and int(local) else ""
    return f"{socket.gethostname()}/{os.environ.get('GROUP_RANK', machine)}{folder.absolute()}"


def _described(error: Exception) -> dict[str, str]:
    text = str(error) if isinstance(error, TileError) else f"{type(error).__name__}: {error}"
    return {"status": failure_status(error), "text": text}


def failure_status(error: BaseException) -> Literal["out_of_resources", "launch_error"]:
    """What a trial becomes whose function raised this."""
    if isinstance(error, RanksFailed):
        return error.status
    text = str(error).lower()
    return "out_of_resources" if "out of resource" in text or "out of memory" in text else "launch_error"


def where(failed: Mapping[int, Mapping[str, str]], size: int) -> str:
    """What failed, and on which ranks: `on rank 1: ValueError: ...`."""
    by_text: dict[str, list[int]] = {}
    for rank, error in failed.items():
        by_text.setdefault(error["text"], []).append(rank)
    if len(by_text) == 1 and len(failed) == size:
        return next(iter(by_text))
    parts = [f"on rank {', '.join(map(str, ranks))}: {text}" for text, ranks in by_text.items()]
    return "\n".join(parts)
