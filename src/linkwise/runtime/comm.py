"""Every collective of the runtime, under the role the plan gives it.

A group of one rank is no group: its calls return at once. `Comm` counts calls and says what it waits in, which is what
the supervisor reads from outside; a listener sees each call with its times, which is what the trace is made of.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from linkwise.core.layout import AXES
from linkwise.dist.groups import Team


class Call(NamedTuple):
    """One finished call of this rank. S_bytes as in DESIGN §3. Times: time.monotonic_ns(). peer: world rank, -1 none.

    sequence: number of the call in its group, from 0; -1: no call of the group, as waiting until a message has left.
    """

    kind: str
    role: str
    axis: str
    members: tuple[int, ...]
    sequence: int
    S_bytes: int
    dtype: str
    peer: int
    enqueued_ns: int
    started_ns: int
    ended_ns: int


Listener = Callable[[Call], None]
Entered = Callable[[str, str, str, int, int, str, int, int], None]  # fields of `Call` without members, up to started_ns


class Comm:
    """This rank's groups. teams: by axis, those of more than one rank.

    listener: hears of each call when it has ended; entered: before it begins. calls: finished so far; waiting: the role
    of the call under way, empty outside.
    """

    def __init__(self, teams: Mapping[str, Team], listener: Listener | None = None) -> None:
        self.teams = dict(teams)
        self.listener = listener
        self.calls = 0
        self.waiting = ""
        self.entered: Entered | None = None
        self._sequence = dict.fromkeys((*AXES, "handoff"), 0)
        self._dtypes: dict[Any, str] = {}

    def size(self, axis: str) -> int:
        """Ranks of this rank's group on an axis; 1 when it has none."""
        team = self.teams.get(axis)
        return team.size if team else 1

    def place(self, axis: str) -> int:
        """This rank's number in its group on an axis."""
        team = self.teams.get(axis)
        return team.place if team else 0

    def all_reduce(self, axis: str, role: str, tensor: Any) -> Any:
        """Sum over the group, in place."""
        if axis not in self.teams:
            return tensor
        import torch.distributed as dist

        team = self.teams[axis]
        self._do("all_reduce", role, team, tensor, lambda: dist.all_reduce(tensor, group=team.handle))
        return tensor

    def all_gather(self, axis: str, role: str, tensor: Any) -> Any:
        """All ranks' tensors (equal shapes) one after another along dimension 0."""
        if axis not in self.teams:
            return tensor
        import torch.distributed as dist

        team = self.teams[axis]
        tensor = tensor.contiguous()
        out = tensor.new_empty((team.size * tensor.shape[0], *tensor.shape[1:]))
        # torch renamed both in 2.13 and warns of the old names.
        call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        self._do("all_gather", role, team, out, lambda: call(out, tensor, group=team.handle))
        return out

    def reduce_scatter(self, axis: str, role: str, tensor: Any) -> Any:
        """This rank's equal part, along dimension 0, of the sum over the group."""
        if axis not in self.teams:
            return tensor
        import torch.distributed as dist

        team = self.teams[axis]
        tensor = tensor.contiguous()
        out = tensor.new_empty((tensor.shape[0] // team.size, *tensor.shape[1:]))
        call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        self._do("reduce_scatter", role, team, tensor, lambda: call(out, tensor, group=team.handle))
        return out

    def all_to_all(self, axis: str, role: str, tensor: Any, sends: Sequence[int], takes: Sequence[int]) -> Any:
        """Rows along dimension 0: sends[i] of them go to place i, takes[i] come from it."""
        if axis not in self.teams:
            return tensor
        import torch.distributed as dist

        team = self.teams[axis]
        tensor = tensor.contiguous()
        out = tensor.new_empty((sum(takes), *tensor.shape[1:]))
        self._do(
            "all_to_all", role, team, tensor,
            lambda: dist.all_to_all_single(out, tensor, list(takes), list(sends), group=team.handle),
        )  # fmt: skip
        return out

    def send(self, axis: str, role: str, tensor: Any, to: int, *, wait: bool = True) -> Any:
        """Send to a place of the group. wait False: returns what to wait for, until whose end the tensor must live."""
        import torch.distributed as dist

        team = self.teams[axis]
        peer = team.members[to]
        if wait:
            return self._do("send", role, team, tensor, lambda: dist.send(tensor, peer, group=team.handle), peer)
        work = self._do("send", role, team, tensor, lambda: dist.isend(tensor, peer, group=team.handle), peer)
        return Leaving(self, work, team, role, peer)

    def recv(self, axis: str, role: str, out: Any, source: int) -> Any:
        """Receive into a tensor from a place of the group."""
        import torch.distributed as dist

        team = self.teams[axis]
        peer = team.members[source]
        self._do("recv", role, team, out, lambda: dist.recv(out, peer, group=team.handle), peer)
        return out

    def exchange(self, axis: str, role: str, tensor: Any, out: Any, to: int, source: int) -> Any:
        """Send to one place while receiving from another: one pass of a ring."""
        work = self.send(axis, role, tensor, to, wait=False)
        self.recv(axis, role, out, source)
        work.wait()
        return out

    def _do(self, kind: str, role: str, team: Team, counted: Any, call: Callable[[], Any], peer: int = -1) -> Any:
        name = self._dtypes.get(counted.dtype)
        if name is None:  # writing a dtype's name takes longer than looking it up
            name = self._dtypes[counted.dtype] = str(counted.dtype)[6:]
        number = self._sequence[team.axis]
        result = self.timed(kind, role, team, number, counted.nbytes, name, peer, call)
        self._sequence[team.axis] = number + 1
        return result

    def timed(
        self, kind: str, role: str, team: Team, number: int, size: int, dtype: str, peer: int, call: Callable[[], Any]
    ) -> Any:  # fmt: skip
        """A call, told of before and after."""
        began = time.monotonic_ns()
        if self.entered is not None:
            self.entered(kind, role, team.axis, number, size, dtype, peer, began)
        self.waiting = role
        result = call()
        ended = time.monotonic_ns()
        self.waiting = ""
        self.calls += number >= 0  # waiting for a message to leave is no call of the group
        if self.listener is not None:
            self.listener(Call(kind, role, team.axis, team.members, number, size, dtype, peer, began, began, ended))
        return result


class Leaving(NamedTuple):
    """A message on its way from here. The time until it has left is a call of its own in the record: the receiver may
    not be there yet."""

    comm: Comm
    work: Any
    team: Team
    role: str
    peer: int

    def wait(self) -> None:
        """Returns once the message has left."""
        self.comm.timed("wait", self.role, self.team, -1, 0, "", self.peer, self.work.wait)
