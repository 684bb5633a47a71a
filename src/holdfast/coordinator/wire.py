"""The bytes between a worker and the driver's endpoint. No I/O happens here.

The endpoint greets with a random number; the worker answers with one of its own and a proof that
it knows the application's secret; the endpoint proves the same. Both numbers and the secret make
a key for each direction. From then on a frame is its length, an HMAC-SHA256 of its number in that
direction and its payload, and the payload. So a frame that is altered, repeated, left out, sent
back or taken from another connection is rejected. Payloads are not encrypted.

    endpoint → worker   "HFC1", 32 random bytes
    worker → endpoint   "HFC1", 32 random bytes, 32 bytes of proof
    endpoint → worker   32 bytes of proof
    either              4 bytes of length, 32 bytes of HMAC, the payload; repeatedly
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from dataclasses import dataclass, field

MAX_REQUEST_BYTES = 64 << 10
MAX_ANSWER_BYTES = 1 << 20
_MAGIC = b"HFC1"
_RANDOM_BYTES = 32
_MAC_BYTES = 32
_LENGTH = struct.Struct(">I")
_COUNT = struct.Struct(">Q")

GREETING_BYTES = len(_MAGIC) + _RANDOM_BYTES
REPLY_BYTES = GREETING_BYTES + _MAC_BYTES
PROOF_BYTES = _MAC_BYTES


class ProtocolError(Exception):
    """The other end violated the protocol; the connection is closed."""


class Secret:
    """The secret that the driver and the workers of one application share.

    Its text form does not show it. Pickle it to pass it to a task.
    """

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def random(cls) -> Secret:
        """A new one."""
        return cls(secrets.token_bytes(32))

    def mac(self, *parts: bytes) -> bytes:
        """A code of these parts that only somebody with the secret can compute."""
        return _mac(self._key, *parts)

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._key, other._key)

    def __hash__(self) -> int:
        return hash(self._key)


@dataclass(frozen=True)
class CoordinatorAddress:
    """The address of an application's endpoint, with its secret. Tasks carry it."""

    host: str
    port: int
    secret: Secret = field(repr=False)


class Sealer:
    """Makes the frames of one direction."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def seal(self, payload: bytes) -> bytes:
        """The next frame."""
        mac = _mac(self._key, _COUNT.pack(self._count), payload)
        self._count += 1
        return _LENGTH.pack(len(payload)) + mac + payload


class Opener:
    """Checks and unpacks the frames of the other direction."""

    def __init__(self, key: bytes, max_bytes: int) -> None:
        self._key = key
        self._max_bytes = max_bytes
        self._count = 0
        self._rest = bytearray()

    @property
    def has_part(self) -> bool:
        """Whether a frame has arrived in part."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads that these bytes complete.

        Raises ProtocolError for a bad frame; the connection must be closed then.
        """
        self._rest += data
        payloads = []
        while len(self._rest) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest)
            if length > self._max_bytes:
                raise ProtocolError(f"a frame of {length} bytes, {self._max_bytes} are the most")
            end = _LENGTH.size + _MAC_BYTES + length
            if len(self._rest) < end:
                break
            frame = bytes(self._rest[_LENGTH.size : end])
            del self._rest[:end]
            payloads.append(self._opened(frame[:_MAC_BYTES], frame[_MAC_BYTES:]))
        return payloads

    def _opened(self, mac: bytes, payload: bytes) -> bytes:
        if not hmac.compare_digest(mac, _mac(self._key, _COUNT.pack(self._count), payload)):
            raise ProtocolError("a frame that was altered, repeated or sent without the secret")
        self._count += 1
        return payload


@dataclass(frozen=True)
class Channel:
    """Both directions of a connection after the handshake."""

    sealer: Sealer
    opener: Opener


def greeting() -> bytes:
    """The first bytes, which the endpoint sends."""
    return _MAGIC + secrets.token_bytes(_RANDOM_BYTES)


def reply_to(secret: Secret, greeted: bytes) -> bytes:
    """A worker's reply to a greeting."""
    _check_magic(greeted)
    own = _MAGIC + secrets.token_bytes(_RANDOM_BYTES)
    return own + secret.mac(b"worker", greeted, own)


def accept_reply(secret: Secret, greeted: bytes, reply: bytes) -> tuple[bytes, Channel]:
    """Check a worker's reply; return the endpoint's proof and channel."""
    _check_magic(reply)
    own, proof = reply[:GREETING_BYTES], reply[GREETING_BYTES:]
    if not hmac.compare_digest(proof, secret.mac(b"worker", greeted, own)):
        raise ProtocolError("a worker without the application's secret")
    to_worker, to_endpoint = _keys(secret, greeted, own)
    channel = Channel(Sealer(to_worker), Opener(to_endpoint, MAX_REQUEST_BYTES))
    return secret.mac(b"endpoint", greeted, own), channel


def accept_proof(secret: Secret, greeted: bytes, reply: bytes, proof: bytes) -> Channel:
    """Check the endpoint's proof that it also knows the secret; return the worker's channel."""
    own = reply[:GREETING_BYTES]
    if not hmac.compare_digest(proof, secret.mac(b"endpoint", greeted, own)):
        raise ProtocolError("an endpoint without the application's secret")
    to_worker, to_endpoint = _keys(secret, greeted, own)
    return Channel(Sealer(to_endpoint), Opener(to_worker, MAX_ANSWER_BYTES))


def _keys(secret: Secret, greeted: bytes, own: bytes) -> tuple[bytes, bytes]:
    return secret.mac(b"to worker", greeted, own), secret.mac(b"to endpoint", greeted, own)


def _check_magic(said: bytes) -> None:
    if not said.startswith(_MAGIC):
        raise ProtocolError("somebody who does not speak this protocol")


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), hashlib.sha256)
