"""The messages to a coordinator, as plain data and as JSON.

They are not pickled: unpickling bytes from the network could run code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar
from uuid import UUID

from holdfast.coordinator.instances import Coordinator
from holdfast.coordinator.wire import ProtocolError
from holdfast.errors import InvalidArgument
from holdfast.ids import StateStoreId, StateStoreProviderId

_NAME = re.compile(r"[\w.:\[\]-]{1,255}")
"""What the name of a host or executor may look like."""


@dataclass(frozen=True)
class ReportActiveInstance:
    """An executor holds a provider from now on."""

    provider_id: StateStoreProviderId
    host: str
    executor_id: str
    is_question: ClassVar[bool] = False

    def tell(self, coordinator: Coordinator) -> None:
        coordinator.report_active_instance(self.provider_id, self.host, self.executor_id)


@dataclass(frozen=True)
class VerifyIfInstanceActive:
    """Whether an executor's instance of a provider is the active one."""

    provider_id: StateStoreProviderId
    executor_id: str
    is_question: ClassVar[bool] = True

    def tell(self, coordinator: Coordinator) -> bool:
        return coordinator.verify_if_instance_active(self.provider_id, self.executor_id)


@dataclass(frozen=True)
class GetLocation:
    """Where the active instance of a provider is, if anywhere."""

    provider_id: StateStoreProviderId
    is_question: ClassVar[bool] = True

    def tell(self, coordinator: Coordinator) -> str | None:
        return coordinator.get_location(self.provider_id)


@dataclass(frozen=True)
class DeactivateInstances:
    """A run has stopped."""

    query_run_id: UUID
    is_question: ClassVar[bool] = True

    def tell(self, coordinator: Coordinator) -> None:
        coordinator.deactivate_instances(self.query_run_id)


@dataclass(frozen=True)
class ReportSnapshotUploaded:
    """The state of a version is in a snapshot."""

    provider_id: StateStoreProviderId
    version: int
    is_question: ClassVar[bool] = False

    def tell(self, coordinator: Coordinator) -> None:
        coordinator.report_snapshot_uploaded(self.provider_id, self.version)


@dataclass(frozen=True)
class GetLaggingStores:
    """Which stores of a run have old snapshots."""

    query_run_id: UUID
    newest_version: int
    min_lag: int
    is_question: ClassVar[bool] = True

    def tell(self, coordinator: Coordinator) -> list[StateStoreProviderId]:
        return coordinator.get_lagging_stores(self.query_run_id, self.newest_version, self.min_lag)


Message = (
    ReportActiveInstance
    | VerifyIfInstanceActive
    | GetLocation
    | DeactivateInstances
    | ReportSnapshotUploaded
    | GetLaggingStores
)
_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in Message.__args__}


def encode(message: Message) -> bytes:
    """A message as bytes."""
    given = [_plain(getattr(message, part.name)) for part in fields(message)]
    return json.dumps([type(message).__name__, *given]).encode()


def decode(payload: bytes) -> Message:
    """Decode a message. Raises ProtocolError for anything else."""
    try:
        name, *given = json.loads(payload)
        kind = _KINDS[name]
        parts = [part.name for part in fields(kind)]
        read = {part: _READ[part](value) for part, value in zip(parts, given, strict=True)}
    except (ValueError, TypeError, KeyError, RecursionError, InvalidArgument) as error:
        raise ProtocolError(f"no message of the coordinator ({type(error).__name__})") from None
    return kind(**read)


def encode_answer(answer: Any) -> bytes:
    """The answer to a question as bytes."""
    return json.dumps(_plain(answer)).encode()


def decode_answer(message: Message, payload: bytes) -> Any:
    """Decode the answer to `message`, as `message.tell` returned it."""
    try:
        answer = json.loads(payload)
        if isinstance(message, GetLaggingStores):
            return [_provider_id(each) for each in answer]
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"no answer of the coordinator ({type(error).__name__})") from None
    return answer


def _plain(value: Any) -> Any:
    if isinstance(value, StateStoreProviderId):
        store = value.store_id
        return [
            store.checkpoint_root_location,
            store.operator_id,
            store.partition_id,
            store.store_name,
            str(value.query_run_id),
        ]
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, UUID) else value


def _provider_id(value: Any) -> StateStoreProviderId:
    root, operator, partition, name, run = value
    store = StateStoreId(_text(root), _number(operator), _number(partition), _text(name))
    return StateStoreProviderId(store, _run(run))


def _run(value: Any) -> UUID:
    return UUID(_text(value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _name(value: Any) -> str:
    if not _NAME.fullmatch(_text(value)):
        raise ValueError
    return str(value)


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError
    return value


_READ: dict[str, Callable[[Any], Any]] = {
    "provider_id": _provider_id,
    "host": _name,
    "executor_id": _name,
    "query_run_id": _run,
    "version": _number,
    "newest_version": _number,
    "min_lag": _number,
}
