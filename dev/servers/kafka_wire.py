"""The two requests of Kafka's protocol that it takes to see a broker work and to make a topic."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")
_METADATA, _METADATA_VERSION = 3, 1
_CREATE_TOPICS, _CREATE_TOPICS_VERSION = 19, 2
_TIMEOUT_S = 10.0


class KafkaWire:
    """A connection to a broker. Raises OSError where there is none or it is closed."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), _TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def metadata(self) -> tuple[int, dict[str, list[int]]]:
        """The number of live brokers, and the leader of every partition by topic (-1: none)."""
        all_topics = struct.pack(">i", -1)
        answer = self._ask(_METADATA, _METADATA_VERSION, all_topics)
        brokers = answer.array(answer.broker)
        answer.int32()  # the controller

        def partition() -> int:
            _, _, leader = answer.int16(), answer.int32(), answer.int32()
            answer.array(answer.int32)  # replicas
            answer.array(answer.int32)  # those in sync
            return leader

        def topic() -> tuple[str, list[int]]:
            _, name, _ = answer.int16(), answer.text(), answer.int8()
            return name, answer.array(partition)

        return len(brokers), dict(answer.array(topic))

    def create_topic(self, name: str, partitions: int) -> int:
        """Make a topic with one copy; 0, or the broker's error code."""
        assigned, settings, check_only = 0, 0, False
        body = (
            struct.pack(">i", 1)
            + _text(name)
            + struct.pack(">ihii", partitions, 1, assigned, settings)
            + struct.pack(">i?", int(_TIMEOUT_S * 1000), check_only)
        )
        answer = self._ask(_CREATE_TOPICS, _CREATE_TOPICS_VERSION, body)
        answer.int32()  # how long the broker asks to wait
        ((_, error, _),) = answer.array(lambda: (answer.text(), answer.int16(), answer.text()))
        return error

    def _ask(self, request: int, version: int, body: bytes) -> _Answer:
        number = 1
        message = struct.pack(">hhi", request, version, number) + _text("holdfast") + body
        self._socket.sendall(struct.pack(">i", len(message)) + message)
        (size,) = struct.unpack(">i", self._receive(4))
        answer = _Answer(self._receive(size))
        if answer.int32() != number:
            raise ConnectionError("The answer belongs to another request.")
        return answer

    def _receive(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            piece = self._socket.recv(size - len(received))
            if not piece:
                raise ConnectionError("The broker closed the connection.")
            received += piece
        return received


class _Answer:
    """Reads the fields of an answer, one after the other."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def _number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._content, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def int8(self) -> int:
        return self._number(">b")

    def int16(self) -> int:
        return self._number(">h")

    def int32(self) -> int:
        return self._number(">i")

    def text(self) -> str:
        """A string; an absent one is empty."""
        size = max(self.int16(), 0)
        self._at += size
        return self._content[self._at - size : self._at].decode()

    def broker(self) -> tuple[int, str, int]:
        """Number, host and port; the rack is skipped."""
        found = self.int32(), self.text(), self.int32()
        self.text()
        return found

    def array(self, element: Callable[[], T]) -> list[T]:
        return [element() for _ in range(self.int32())]


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded
