"""The driver's sockets to its ranks: strangers become ranks by the token, nothing waits for anybody."""

import contextlib
import selectors
import socket
from collections.abc import Callable

from linkwise.runtime.control import MAX_FRAME, Beat, Broken, Channel, FromRank, Hello, new_token, same_token

MAX_STRANGERS = 64


class Peers:
    """hear: takes each message of a rank. lost: a rank's socket is closed, and why. met: all ranks are here.

    The callbacks run inside `poll` and `send`.
    """

    def __init__(
        self,
        host: str,
        ranks: int,
        hear: Callable[[int, FromRank], None],
        lost: Callable[[int, str], None],
        met: Callable[[], None],
    ) -> None:
        self.ranks, self._hear, self._lost, self._met = ranks, hear, lost, met
        self._channels: dict[int, Channel] = {}
        self._strangers: list[Channel] = []
        self._selector = selectors.DefaultSelector()
        self.host, self._token = host, new_token()
        self.store_port = 0  # where the ranks meet, as rank 0 says
        self._listener = socket.create_server((host, 0), backlog=max(MAX_STRANGERS, ranks))
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, "listener")

    @property
    def address(self) -> tuple[str, int, str]:
        """Host, port and token, for ranks that are to call."""
        return self.host, self._listener.getsockname()[1], self._token

    def wake_by(self, source: socket.socket) -> None:
        """Another socket that ends a `poll` when it can be read."""
        self._selector.register(source, selectors.EVENT_READ, "wake")

    def poll(self, bound_s: float) -> None:
        """Pass on what has come; waits so long for something."""
        for key, ready in self._selector.select(bound_s):
            if key.data == "listener":
                self._accept()
            elif isinstance(key.data, Channel):
                self._serve(key.data, ready)

    def send(self, rank: int, data: bytes) -> None:
        """Send a frame, now or when the socket takes it; nothing to a rank that is gone, which is being looked into."""
        channel = self._channels.get(rank)
        if channel is None:
            return
        try:
            channel.send(data)
            if channel.want:
                self._interest(channel)
        except Broken as error:
            self._lost(rank, str(error))

    def part(self, deadline: float) -> None:
        """Wait until then, by time.monotonic(), for the ranks to leave, once they were told to.

        Their last signs of life are passed on, and nothing else any more.
        """
        for rank, channel in self._channels.items():
            for message in channel.part(deadline):
                if isinstance(message, Beat):
                    self._hear(rank, message)

    def close(self) -> None:
        for channel in (*self._channels.values(), *self._strangers):
            channel.close()
        self._listener.close()
        self._selector.close()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            connection, _ = self._listener.accept()
            channel = Channel(connection)
            self._strangers.append(channel)
            self._selector.register(connection, selectors.EVENT_READ, channel)
            if len(self._strangers) > MAX_STRANGERS:
                self._forget(self._strangers[0])

    def _forget(self, channel: Channel) -> None:
        self._selector.unregister(channel.socket)
        if channel in self._strangers:
            self._strangers.remove(channel)
        channel.close()

    def _serve(self, channel: Channel, ready: int) -> None:
        rank = next((r for r, c in self._channels.items() if c is channel), None)
        try:
            if ready & selectors.EVENT_WRITE:
                channel.flush()
                self._interest(channel)
            if ready & selectors.EVENT_READ:
                for message in channel.receive():
                    if rank is None:
                        rank = self._greet(channel, message)
                    else:
                        self._hear(rank, message)
        except Broken as error:
            self._forget(channel)
            if rank is not None:
                self._channels.pop(rank, None)
                self._lost(rank, str(error))

    def _interest(self, channel: Channel) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.want else 0)
        self._selector.modify(channel.socket, wanted, channel)

    def _greet(self, channel: Channel, message: FromRank) -> int:
        """A peer's first message: a rank of ours, or Broken."""
        if not isinstance(message, Hello) or not same_token(message.token, self._token):
            raise Broken("it does not know the token")
        if not 0 <= message.rank < self.ranks or message.rank in self._channels:
            raise Broken(f"there is no rank {message.rank} to be")
        self._strangers.remove(channel)
        channel.frames.limit = MAX_FRAME
        self._channels[message.rank] = channel
        self.store_port = message.port or self.store_port
        self._hear(message.rank, message)
        if len(self._channels) == self.ranks:
            self._met()
        return message.rank
