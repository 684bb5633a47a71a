"""Who holds which store: inside one process, in the driver, and across the network."""

from __future__ import annotations

import json
import logging
import pickle
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import UUID, uuid4

import pytest

from holdfast.coordinator import (
    Coordinator,
    CoordinatorAddress,
    LocalCoordinator,
    Secret,
    StateStoreCoordinator,
    StateStoreCoordinatorRef,
    connection,
    wire,
)
from holdfast.coordinator import endpoint as serving
from holdfast.coordinator import ref as coordinator_ref
from holdfast.coordinator.messages import (
    GetLaggingStores,
    GetLocation,
    ReportActiveInstance,
    decode,
    encode,
)
from holdfast.ids import StateStoreId, StateStoreProviderId

TIMEOUT_S = 20.0
HASTY_S = 0.3
PATIENCE_S = 60.0
opened: list[socket.socket] = []
"""Every connection a test has made by itself."""


@pytest.fixture(autouse=True)
def _closed_in_the_end() -> Iterator[None]:
    yield
    while opened:
        opened.pop().close()


def provider_id(partition: int = 0, run: int = 1) -> StateStoreProviderId:
    return StateStoreProviderId(StateStoreId("/r", 0, partition), UUID(int=run))


@pytest.fixture
def endpoint() -> Iterator[StateStoreCoordinator]:
    coordinator = StateStoreCoordinator(timeout_s=TIMEOUT_S, proof_timeout_s=TIMEOUT_S)
    yield coordinator
    assert coordinator.is_running, "nothing ends the endpoint but stop"
    coordinator.stop()


@pytest.fixture
def hasty() -> Iterator[StateStoreCoordinator]:
    """An endpoint that waits for nobody."""
    coordinator = StateStoreCoordinator(timeout_s=HASTY_S, proof_timeout_s=HASTY_S)
    yield coordinator
    assert coordinator.is_running, "nothing ends the endpoint but stop"
    coordinator.stop()


@pytest.fixture(params=["one process", "driver", "executor"])
def coordinator(
    request: pytest.FixtureRequest, endpoint: StateStoreCoordinator
) -> Iterator[Coordinator]:
    if request.param == "one process":
        yield LocalCoordinator()
    elif request.param == "driver":
        yield StateStoreCoordinatorRef.for_driver(str(uuid4()))
    else:
        with connected(endpoint) as far:
            yield far


@contextmanager
def connected(
    endpoint: StateStoreCoordinator, secret: Secret | None = None, timeout_s: float = 5
) -> Iterator[StateStoreCoordinatorRef]:
    """A worker's reference, with the application's secret unless another is given."""
    found = endpoint.address
    address = CoordinatorAddress(found.host, found.port, secret or found.secret)
    link = connection.Connection(address, timeout_s=timeout_s, handshake_timeout_s=timeout_s)
    yield StateStoreCoordinatorRef(link, address)
    link.close()


# -- what a coordinator knows ------------------------------------------------------------------


def test_unknown_instance_is_inactive_and_nowhere(coordinator: Coordinator) -> None:
    assert not coordinator.verify_if_instance_active(provider_id(), "1")
    assert coordinator.get_location(provider_id()) is None


def test_reported_instance_is_active_where_it_was_reported(coordinator: Coordinator) -> None:
    coordinator.report_active_instance(provider_id(), "host", "1")
    assert coordinator.verify_if_instance_active(provider_id(), "1")
    assert not coordinator.verify_if_instance_active(provider_id(), "2")
    assert coordinator.get_location(provider_id()) == "executor_host_1"


def test_last_report_takes_the_instance_over(coordinator: Coordinator) -> None:
    coordinator.report_active_instance(provider_id(), "host-1", "1")
    coordinator.report_active_instance(provider_id(), "host-2", "2")
    assert not coordinator.verify_if_instance_active(provider_id(), "1")
    assert coordinator.verify_if_instance_active(provider_id(), "2")
    assert coordinator.get_location(provider_id()) == "executor_host-2_2"


def test_deactivating_a_run_forgets_its_instances_and_no_others(coordinator: Coordinator) -> None:
    for partition in (0, 1):
        for run in (1, 2):
            coordinator.report_active_instance(provider_id(partition, run), "host", "1")
    coordinator.deactivate_instances(UUID(int=1))
    active = {
        (partition, run): coordinator.verify_if_instance_active(provider_id(partition, run), "1")
        for partition in (0, 1)
        for run in (1, 2)
    }
    assert active == {(0, 1): False, (0, 2): True, (1, 1): False, (1, 2): True}
    coordinator.deactivate_instances(UUID(int=9))


def test_stores_whose_snapshots_are_old_lag_behind_worst_first(coordinator: Coordinator) -> None:
    for partition in range(4):
        coordinator.report_active_instance(provider_id(partition), "host", "1")
    coordinator.report_active_instance(provider_id(0, run=2), "host", "1")
    coordinator.report_snapshot_uploaded(provider_id(0), 18)
    coordinator.report_snapshot_uploaded(provider_id(1), 10)
    coordinator.report_snapshot_uploaded(provider_id(1), 7)  # a late report of an older one
    coordinator.report_snapshot_uploaded(provider_id(2), 4)
    lagging = coordinator.get_lagging_stores(UUID(int=1), 20, 10)
    assert lagging == [provider_id(3), provider_id(2), provider_id(1)]
    coordinator.deactivate_instances(UUID(int=1))
    assert coordinator.get_lagging_stores(UUID(int=1), 20, 10) == []


def test_threads_may_report_at_once(coordinator: Coordinator) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda n: coordinator.report_active_instance(provider_id(n), "host", str(n)),
                range(200),
            )
        )
    assert all(coordinator.verify_if_instance_active(provider_id(n), str(n)) for n in range(200))


def test_many_questions_are_answered_in_their_order(endpoint: StateStoreCoordinator) -> None:
    with connected(endpoint) as far:
        for n in range(0, 1000, 2):
            far.report_active_instance(provider_id(n), "host", "1")
        asked = [provider_id(n) for n in range(1000)]
        assert far.inactive_among(asked, "1") == set(asked[1::2])


def test_many_workers_are_served_at_once() -> None:
    start = threading.Barrier(40)
    busy = StateStoreCoordinator(timeout_s=PATIENCE_S, proof_timeout_s=PATIENCE_S)

    def work(number: int) -> bool:
        with connected(busy, timeout_s=PATIENCE_S) as far:
            start.wait()
            for partition in range(50):
                far.report_active_instance(provider_id(partition, number), "host", str(number))
            ids = [provider_id(partition, number) for partition in range(50)]
            return far.inactive_among(ids, str(number)) == set()

    with ThreadPoolExecutor(40) as pool:
        served = list(pool.map(work, range(40)))
    busy.stop()
    assert served == [True] * 40


# -- finding it --------------------------------------------------------------------------------


def test_the_driver_registers_the_endpoint_once_for_each_application(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="holdfast.coordinator")
    first = StateStoreCoordinatorRef.for_driver("application-1")
    again = StateStoreCoordinatorRef.for_driver("application-1")
    other = StateStoreCoordinatorRef.for_driver("application-2")
    told = [(record.levelname, record.message) for record in caplog.records]
    registered = ("INFO", "Registered StateStoreCoordinator endpoint")
    found = ("DEBUG", "Retrieved existing StateStoreCoordinator endpoint")
    assert told == [registered, found, registered]
    assert first.address == again.address
    assert other.address.secret != first.address.secret


def test_executors_find_the_drivers_endpoint(caplog: pytest.LogCaptureFixture) -> None:
    near = StateStoreCoordinatorRef.for_driver(str(uuid4()))
    caplog.set_level(logging.DEBUG, logger="holdfast.coordinator")
    far = StateStoreCoordinatorRef.for_executor(pickle.loads(pickle.dumps(near.address)))
    assert [(r.levelname, r.message) for r in caplog.records] == [
        ("DEBUG", "Retrieved existing StateStoreCoordinator endpoint")
    ]
    far.report_active_instance(provider_id(), "host", "1")
    assert far.get_location(provider_id()) == near.get_location(provider_id()) == "executor_host_1"
    connection.connection_to(far.address).close()


def test_an_endpoint_that_is_gone_costs_one_warning_and_no_error(
    endpoint: StateStoreCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    gone = StateStoreCoordinator()
    gone.stop()
    link = connection.Connection(gone.address, timeout_s=1, retry_after_s=0)
    far = StateStoreCoordinatorRef(link, gone.address)
    for _ in range(3):
        far.report_active_instance(provider_id(), "host", "1")
        assert far.get_location(provider_id()) is None
        assert far.verify_if_instance_active(provider_id(), "1")
        assert far.get_lagging_stores(UUID(int=1), 20, 1) == []
        far.deactivate_instances(UUID(int=1))
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "cannot be reached" in warning.message


def test_an_endpoint_that_failed_is_left_alone_for_a_while() -> None:
    tried = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = CoordinatorAddress("127.0.0.1", silent.getsockname()[1], Secret.random())
        far = StateStoreCoordinatorRef(connection.Connection(address, timeout_s=2), address)
        for _ in range(3):
            started = time.monotonic()
            assert far.get_location(provider_id()) is None
            tried.append(time.monotonic() - started)
    assert tried[0] >= 2
    assert max(tried[1:]) < 1


def test_a_connection_that_was_lost_is_opened_anew(endpoint: StateStoreCoordinator) -> None:
    with connected(endpoint) as far:
        far.report_active_instance(provider_id(), "host", "1")
        assert far.get_location(provider_id()) == "executor_host_1"
        link = far._link
        assert isinstance(link, connection.Connection)
        assert link._open is not None
        link._open[0].shutdown(socket.SHUT_RDWR)
        assert far.get_location(provider_id()) == "executor_host_1"


# -- who is let in -----------------------------------------------------------------------------


def raw(endpoint: StateStoreCoordinator) -> socket.socket:
    own = socket.create_connection((endpoint.address.host, endpoint.address.port), 5)
    own.settimeout(5)
    opened.append(own)
    return own


def shaken(endpoint: StateStoreCoordinator) -> tuple[socket.socket, wire.Channel]:
    """A connection that has proved itself."""
    own, secret = raw(endpoint), endpoint.address.secret
    greeted = own.recv(wire.GREETING_BYTES)
    reply = wire.reply_to(secret, greeted)
    own.sendall(reply)
    return own, wire.accept_proof(secret, greeted, reply, own.recv(wire.PROOF_BYTES))


def is_ended(own: socket.socket) -> bool:
    """Whether the endpoint ends the connection, soon and without a word."""
    try:
        return own.recv(1) == b""
    except ConnectionResetError:
        return True
    finally:
        own.close()


def test_a_wrong_secret_is_let_in_nowhere(
    endpoint: StateStoreCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(endpoint, Secret.random()) as stranger:
        stranger.report_active_instance(provider_id(), "evil", "1")
        assert stranger.get_location(provider_id()) is None
    assert endpoint.instances.get_location(provider_id()) is None
    assert "a worker without the application's secret" in caplog.text


def test_a_worker_tells_nothing_to_an_impostor() -> None:
    heard = bytearray()

    def pose(listener: socket.socket) -> None:
        own, _ = listener.accept()
        with own:
            own.sendall(wire.greeting())
            heard.extend(own.recv(1 << 16))
            own.sendall(bytes(wire.PROOF_BYTES))
            heard.extend(own.recv(1 << 16))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=pose, args=(listener,))
        thread.start()
        address = CoordinatorAddress("127.0.0.1", listener.getsockname()[1], Secret.random())
        far = StateStoreCoordinatorRef(connection.Connection(address, timeout_s=5), address)
        far.report_active_instance(provider_id(), "host", "1")
        thread.join()
    assert len(heard) == wire.REPLY_BYTES


def report(executor: str) -> bytes:
    return encode(ReportActiveInstance(provider_id(), "host", executor))


def test_a_frame_sent_twice_is_refused(endpoint: StateStoreCoordinator) -> None:
    own, channel = shaken(endpoint)
    frame = channel.sealer.seal(report("1"))
    own.sendall(frame)
    deadline = time.monotonic() + PATIENCE_S
    while endpoint.instances.get_location(provider_id()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    own.sendall(frame)
    assert is_ended(own)
    assert endpoint.instances.get_location(provider_id()) == "executor_host_1"


def test_frames_in_another_order_are_refused(endpoint: StateStoreCoordinator) -> None:
    own, channel = shaken(endpoint)
    first, second = channel.sealer.seal(report("1")), channel.sealer.seal(report("2"))
    own.sendall(second + first)
    assert is_ended(own)
    assert endpoint.instances.get_location(provider_id()) is None


def test_a_frame_of_another_connection_is_refused(endpoint: StateStoreCoordinator) -> None:
    _, recorded = shaken(endpoint)
    own, _ = shaken(endpoint)
    own.sendall(recorded.sealer.seal(report("1")))
    assert is_ended(own)
    assert endpoint.instances.get_location(provider_id()) is None


def test_a_whole_conversation_played_again_is_refused(endpoint: StateStoreCoordinator) -> None:
    secret = endpoint.address.secret
    with raw(endpoint) as recorded:
        greeted = recorded.recv(wire.GREETING_BYTES)
        reply = wire.reply_to(secret, greeted)
        recorded.sendall(reply)
        proof = recorded.recv(wire.PROOF_BYTES)
        channel = wire.accept_proof(secret, greeted, reply, proof)
    own = raw(endpoint)
    own.recv(wire.GREETING_BYTES)
    own.sendall(reply + channel.sealer.seal(report("1")))
    assert is_ended(own)
    assert endpoint.instances.get_location(provider_id()) is None


def test_an_altered_frame_is_refused(endpoint: StateStoreCoordinator) -> None:
    own, channel = shaken(endpoint)
    frame = channel.sealer.seal(report("1"))
    own.sendall(frame.replace(b'"host"', b'"evil"'))
    assert is_ended(own)
    assert endpoint.instances.get_location(provider_id()) is None


def test_an_oversized_frame_is_refused_before_it_has_come(endpoint: StateStoreCoordinator) -> None:
    own, _ = shaken(endpoint)
    own.sendall(struct.pack(">I", wire.MAX_REQUEST_BYTES + 1))
    started = time.monotonic()
    assert is_ended(own)
    assert time.monotonic() - started < TIMEOUT_S


def test_garbage_is_refused(endpoint: StateStoreCoordinator) -> None:
    rnd = random.Random(20260101)
    for _ in range(50):
        own = raw(endpoint)
        own.sendall(rnd.randbytes(wire.REPLY_BYTES + rnd.randrange(2000)))
        assert own.recv(wire.GREETING_BYTES)
        assert is_ended(own)
        own, _ = shaken(endpoint)
        own.sendall(rnd.randbytes(40 + rnd.randrange(2000)))
        assert is_ended(own)


def test_what_is_no_message_is_refused_from_a_worker_too(endpoint: StateStoreCoordinator) -> None:
    good = json.loads(report("1"))
    hostile: list[object] = [
        None, 7, "GetLocation", {}, [], ["eval", "1"], ["GetLocation"],
        ["ReportActiveInstance", good[1], "host"],
        [*good, "more"],
        ["ReportActiveInstance", good[1], "host\nexecutor_other_1", "1"],
        ["ReportActiveInstance", good[1], "host", "1 2"],
        ["ReportActiveInstance", ["/r", -1, 0, "default", good[1][4]], "host", "1"],
        ["ReportActiveInstance", ["/r", 0, True, "default", good[1][4]], "host", "1"],
        ["ReportActiveInstance", ["/r", 0, 0, "../../versions", good[1][4]], "host", "1"],
        ["ReportActiveInstance", ["/r", 0, 0, "/etc/passwd", good[1][4]], "host", "1"],
        ["ReportActiveInstance", ["/r", 0, 0, "default", "no run"], "host", "1"],
        ["ReportSnapshotUploaded", good[1], -1],
    ]  # fmt: skip
    payloads = [json.dumps(each).encode() for each in hostile]
    payloads += [b"", b"\xff\xfe", b"[" * 60_000, pickle.dumps(good)]
    for payload in payloads:
        own, channel = shaken(endpoint)
        own.sendall(channel.sealer.seal(payload))
        assert is_ended(own), payload[:100]
    assert endpoint.instances.get_location(provider_id()) is None
    assert decode(report("1")) == ReportActiveInstance(provider_id(), "host", "1")


def silent_reply(endpoint: StateStoreCoordinator) -> socket.socket:
    own = raw(endpoint)
    assert len(own.recv(wire.GREETING_BYTES)) == wire.GREETING_BYTES
    return own


def half_a_reply(endpoint: StateStoreCoordinator) -> socket.socket:
    own = silent_reply(endpoint)
    own.sendall(b"HFC1 and then")
    return own


def half_a_frame(endpoint: StateStoreCoordinator) -> socket.socket:
    own, channel = shaken(endpoint)
    own.sendall(channel.sealer.seal(report("1"))[:-3])
    return own


@pytest.mark.parametrize("begun", [silent_reply, half_a_reply, half_a_frame])
def test_silence_in_the_middle_ends_a_connection(
    hasty: StateStoreCoordinator, begun: Callable[[StateStoreCoordinator], socket.socket]
) -> None:
    started = time.monotonic()
    own = begun(hasty)
    assert is_ended(own)
    assert HASTY_S / 2 < time.monotonic() - started < PATIENCE_S


def send_slowly(own: socket.socket, parts: Iterable[bytes], pause_s: float = 0.02) -> None:
    for part in parts:
        own.sendall(part)
        time.sleep(pause_s)


def test_bytes_that_come_one_by_one_are_not_waited_for(hasty: StateStoreCoordinator) -> None:
    own, channel = shaken(hasty)
    started = time.monotonic()
    bytes_of = (bytes([byte]) for byte in channel.sealer.seal(report("1")))
    with pytest.raises(OSError, match=r"reset|Broken pipe"):
        send_slowly(own, bytes_of)
    assert time.monotonic() - started < PATIENCE_S
    assert hasty.instances.get_location(provider_id()) is None


def test_an_idle_worker_stays_connected(hasty: StateStoreCoordinator) -> None:
    own, channel = shaken(hasty)
    time.sleep(2 * HASTY_S)
    own.sendall(channel.sealer.seal(encode(GetLocation(provider_id()))))
    assert channel.opener.feed(own.recv(1000)) == [b"null"]


def test_answers_that_nobody_reads_end_a_connection(endpoint: StateStoreCoordinator) -> None:
    for partition in range(100):
        endpoint.instances.report_active_instance(provider_id(partition), "host", "1")
    own, channel = shaken(endpoint)
    question = encode(GetLaggingStores(UUID(int=1), 20, 1))
    frames = (channel.sealer.seal(question) for _ in range(100_000))
    with pytest.raises(OSError, match=r"reset|Broken pipe|timed out"):
        send_slowly(own, frames, pause_s=0)


def test_a_worker_takes_the_place_of_the_one_that_was_silent_longest() -> None:
    small = StateStoreCoordinator(proof_timeout_s=TIMEOUT_S, max_connections=2)
    try:
        with connected(small) as first, connected(small) as second, connected(small) as third:
            first.report_active_instance(provider_id(1), "host", "1")
            for far in (second, first, third):
                assert far.get_location(provider_id(1)) == "executor_host_1"
            links = [far._link for far in (first, second, third)]
            assert all(isinstance(link, connection.Connection) for link in links)
            stale = [connection._is_stale(link._open[0]) for link in links]  # type: ignore[attr-defined]
            assert stale == [False, True, False]
            # It comes again when it has something to say, and loses none of it.
            second.report_active_instance(provider_id(2), "host", "2")
            assert second.get_location(provider_id(2)) == "executor_host_2"
    finally:
        small.stop()


def test_a_worker_gets_in_while_more_than_there_is_room_for_are_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settled_s = serving._SETTLED_S
    monkeypatch.setattr(serving, "_FEWEST_UNPROVED", 2)
    monkeypatch.setattr(serving, "_SETTLED_S", 0.0)
    small = StateStoreCoordinator(proof_timeout_s=PATIENCE_S, max_connections=2)
    try:
        shaken(small)
        shaken(small)
        arriving = [(own := raw(small), own.recv(wire.GREETING_BYTES)) for _ in range(2)]
        monkeypatch.setattr(serving, "_SETTLED_S", PATIENCE_S)  # all have just spoken
        for own, greeted in arriving:
            own.sendall(wire.reply_to(small.address.secret, greeted))
            assert own.recv(wire.PROOF_BYTES)
        deadline = time.monotonic() + PATIENCE_S
        while small._unproved:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert len(small._connections) == 4
        monkeypatch.setattr(serving, "_SETTLED_S", settled_s)
        small._wake.send(b"!")  # it slept for as long as it was told
        link = connection.Connection(small.address, handshake_timeout_s=PATIENCE_S)
        fifth = StateStoreCoordinatorRef(link, small.address)
        fifth.report_active_instance(provider_id(1), "host", "1")
        assert fifth.get_location(provider_id(1)) == "executor_host_1"
        link.close()
    finally:
        small.stop()


def test_others_are_served_while_some_misbehave(endpoint: StateStoreCoordinator) -> None:
    begun = [half_a_reply(endpoint), half_a_frame(endpoint), silent_reply(endpoint)]
    with connected(endpoint) as far:
        far.report_active_instance(provider_id(), "host", "1")
        assert far.get_location(provider_id()) == "executor_host_1"
    for own in begun:
        own.close()


def test_a_flood_of_refusals_is_one_warning(
    endpoint: StateStoreCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        own = raw(endpoint)
        own.recv(wire.GREETING_BYTES)
        own.sendall(bytes(wire.REPLY_BYTES))
        assert is_ended(own)
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


def test_the_secret_is_in_no_text(caplog: pytest.LogCaptureFixture) -> None:
    key = b"planted-secret-of-32-bytes-long!"
    secret = Secret(key)
    address = CoordinatorAddress("127.0.0.1", 1, secret)
    caplog.set_level(logging.DEBUG)
    link = connection.Connection(address, timeout_s=0.2)
    far = StateStoreCoordinatorRef(link, address)
    far.report_active_instance(provider_id(), "host", "1")
    texts = [caplog.text, *map(repr, (secret, address, far, link)), str(secret), str(address)]
    texts += [f"{address}", f"{secret!r}", repr(vars(far)), repr(vars(link))]
    for text in texts:
        assert "planted" not in text
        assert key.hex() not in text
    assert pickle.loads(pickle.dumps(secret)) == secret != Secret.random()


def test_a_fork_that_ends_leaves_the_endpoint_at_rest(endpoint: StateStoreCoordinator) -> None:
    endpoint._wake.send(b"!")  # as the inherited hook of a fork would
    assert endpoint._thread.ident is not None
    clock = time.pthread_getcpuclockid(endpoint._thread.ident)
    before = time.clock_gettime(clock)
    time.sleep(0.3)
    assert endpoint.is_running
    assert time.clock_gettime(clock) - before < 0.15


def test_a_fork_does_not_end_the_endpoint_it_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = coordinator_ref._Registry()
    registry.found("forked", "127.0.0.1", None)
    with monkeypatch.context() as child:
        child.setattr(coordinator_ref.os, "getpid", lambda: -1)
        registry.stop()
    assert registry._endpoint is not None
    assert registry._endpoint.is_running
    registry.stop()
    assert registry._endpoint is None
