"""The wire between the two processes: msgpack over ZMQ `ipc://` sockets in a private directory.

Each direction is one socket pair, bound by its receiver and connected by its sender: a connecting
sender queues without bound from the first moment, so that sending never waits for the other side.
Once both sides have heard each other, the directory can go: the connections stay.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from inferx.engine.messages import FromEngine, ToEngine

_TO_ENGINE = "to_engine"
_FROM_ENGINE = "from_engine"
_PREFIX = "inferx-"
_LONGEST_NAME = len(f"/{_PREFIX}12345678/{_FROM_ENGINE}")  # mkdtemp adds eight characters

Incoming = TypeVar("Incoming")
Outgoing = TypeVar("Outgoing")


def private_directory() -> tempfile.TemporaryDirectory[str]:
    """A new directory that only this user enters, short enough for a socket's address.

    Raises OSError where no place for temporary files can be written.
    """
    places = [tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"]
    short = [p for p in places if len(os.fsencode(p)) + _LONGEST_NAME <= zmq.IPC_PATH_MAX_LEN]
    for place in short:
        try:
            return tempfile.TemporaryDirectory(prefix=_PREFIX, dir=place)
        except OSError:
            continue
    raise OSError(f"none of {', '.join(places)} takes a new directory for the engine's sockets")


class Wire(Generic[Incoming, Outgoing]):
    """One end. One thread receives; sending is for one thread at a time."""

    def __init__(self, directory: str, incoming: str, outgoing: str, kind: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[Incoming] = msgspec.msgpack.Decoder(kind)
        self._encoder = msgspec.msgpack.Encoder()
        self._context = zmq.Context()
        self.incoming = self._context.socket(zmq.PULL)
        self._outgoing = self._context.socket(zmq.PUSH)
        for socket in (self.incoming, self._outgoing):
            socket.set_hwm(0)
            socket.linger = 0
        self._outgoing.reconnect_ivl = 10  # ms, until the other side has bound its address
        self.incoming.bind(f"ipc://{Path(directory, incoming)}")
        self._outgoing.connect(f"ipc://{Path(directory, outgoing)}")

    def send(self, message: Outgoing) -> None:
        self._outgoing.send(self._encoder.encode(message))

    def receive(self) -> Incoming:
        """Waits for the next message."""
        return self._decoder.decode(self.incoming.recv())

    def drain(self) -> list[Incoming]:
        """Every message that has arrived; does not wait."""
        messages = []
        while True:
            try:
                messages.append(self._decoder.decode(self.incoming.recv(zmq.NOBLOCK)))
            except zmq.Again:
                return messages

    def close(self, linger: float = 0) -> None:
        """Closes, after up to `linger` seconds for what is still to be sent."""
        self._context.destroy(linger=int(linger * 1000))


def parent_wire(directory: str) -> Wire[FromEngine, ToEngine]:
    return Wire(directory, _FROM_ENGINE, _TO_ENGINE, FromEngine)


def engine_wire(directory: str) -> Wire[ToEngine, FromEngine]:
    return Wire(directory, _TO_ENGINE, _FROM_ENGINE, ToEngine)
