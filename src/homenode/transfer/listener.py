"""Who hears of what happens to an agent's connections (`links.Links`)."""

from __future__ import annotations

from typing import Protocol

from homenode.transfer.connection import Connection
from homenode.transfer.wire.lane import Announced
from homenode.transfer.wire.message import Hello, Message
from homenode.transfer.wire.payload import PagesReader, PayloadReader


class Listener(Protocol):
    """`performing.Performer`."""

    def on_greeted(self, connection: Connection, hello: Hello, fds: list[int]) -> None:
        """Both Hellos were good; takes `fds` over. PeerError: the other side is refused after all."""

    def on_message(self, connection: Connection, message: Message) -> None:
        """A frame for this process."""

    def on_announced(self, connection: Connection, said: Announced) -> None:
        """The same, of a `Ready` that came over a lane."""

    def on_payload(self, connection: Connection, incoming: PayloadReader | PagesReader) -> None:
        """A payload has come completely."""

    def on_sent(self, token: int, ok: bool) -> None:
        """A payload is through, or never will be."""

    def on_not_connected(self, address: str, reason: str) -> None:
        """`connect` came to nothing."""

    def on_lost(self, connection: Connection, reason: str, incoming: int | None) -> None:
        """A greeted connection has ended, perhaps inside the payload with token `incoming`."""

    def on_gone(self, number: int, reason: str, dead: bool) -> None:
        """As `machine.PeerLost`."""
