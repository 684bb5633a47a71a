"""The kit that fetches, starts and stops servers, tried on a small server and slow downloads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from processes import is_alive
from servers import Minio, Server, ServerError
from servers.base import LOOPBACK, free_ports
from servers.fetching import Artifact, cached

ROOT = Path(__file__).resolve().parents[2]

# Makes a cache entry slowly, saying when it begins: "begin", then "made FOLDER".
MAKER = """
import sys, time
from pathlib import Path
from servers.fetching import cached

def make(folder):
    (folder / "first").write_text("1")
    print("begin", flush=True)
    time.sleep(float(sys.argv[1]))
    (folder / "second").write_text("2")

print("made", cached("thing", "recipe", make), flush=True)
"""


class Pages(Server):
    """Python's own web server on a folder; works once it serves a page."""

    name = "pages"
    start_timeout_s = 20.0

    def prepare(self) -> list[str]:
        (self.folder / "index.html").write_text("here")
        return [sys.executable, "-m", "http.server", "--bind", LOOPBACK, str(self.ports[0])]

    def works(self) -> bool:
        with urlopen(f"http://{LOOPBACK}:{self.ports[0]}/index.html", timeout=5) as page:
            return page.read() == b"here"


class Deaf(Pages):
    """Runs, and never works."""

    start_timeout_s = 1.0

    def works(self) -> bool:
        raise HTTPError("", 503, "deaf", None, None)


class Broken(Pages):
    """Ends at once, with a last word."""

    def prepare(self) -> list[str]:
        return [sys.executable, "-c", "import sys; print('disk is full'); sys.exit(3)"]


class Stubborn(Pages):
    """Does not end when it is asked to."""

    stop_timeout_s = 0.5

    def prepare(self) -> list[str]:
        serve = super().prepare()
        ignore = "import signal, runpy, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        run = f"sys.argv = {serve[2:]!r}; runpy.run_module('http.server', run_name='__main__')"
        return [sys.executable, "-c", ignore + run]


def test_a_server_works_when_start_returns_and_is_gone_after_stop(tmp_path: Path) -> None:
    with Pages(tmp_path) as server:
        pid = server.pid
        assert server.works()
        with pytest.raises(ServerError, match="runs already"):
            server.start()
    assert pid is not None
    assert not is_alive(pid)
    assert server.pid is None
    server.stop()


def test_a_killed_server_comes_back_on_its_ports_and_log(tmp_path: Path) -> None:
    with Pages(tmp_path) as server:
        first, ports = server.pid, server.ports
        server.kill()
        assert first is not None
        assert not is_alive(first)
        server.start()
        assert server.ports == ports
        assert server.pid != first
        assert server.log.read_text().count("GET /index.html") >= 2


def test_a_server_that_ends_says_its_last_words(tmp_path: Path) -> None:
    server = Broken(tmp_path)
    with pytest.raises(ServerError, match=r"(?s)pages ended with exit code 3.*disk is full"):
        server.start()
    assert server.pid is None


def test_a_server_that_never_works_is_ended(tmp_path: Path) -> None:
    server = Deaf(tmp_path)
    with pytest.raises(ServerError, match="did not work within 1 s"):
        server.start()
    with pytest.raises(OSError, match="refused"):
        Pages.works(server)


def test_a_server_whose_port_is_taken_is_not_started(tmp_path: Path) -> None:
    with Pages(tmp_path / "one") as server:
        second = Pages(tmp_path / "two")
        second.ports = server.ports
        with pytest.raises(ServerError, match=f"port {server.ports[0]} is taken"):
            second.start()
        assert second.pid is None


def test_a_server_that_does_not_listen_to_reason_is_ended_by_force(tmp_path: Path) -> None:
    with Stubborn(tmp_path) as server:
        pid = server.pid
    assert pid is not None
    assert not is_alive(pid)


def test_free_ports_are_distinct_and_outside_those_of_outgoing_connections() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(20_000 <= port < 32_000 for port in ports)


def maker(cache: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAKER, str(seconds)],
        env={**os.environ, "HOLDFAST_CACHE": str(cache), "PYTHONPATH": str(ROOT / "dev")},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_make_a_download_once(tmp_path: Path) -> None:
    with maker(tmp_path, 1) as one, maker(tmp_path, 1) as two:
        said = sorted(process.communicate(timeout=60)[0].splitlines() for process in (one, two))
    (made,) = {lines[-1] for lines in said}
    assert [len(lines) for lines in said] in ([1, 2], [2, 1])
    assert sorted(path.name for path in Path(made.removeprefix("made ")).iterdir()) == [
        "first",
        "second",
    ]


def test_a_download_that_was_cut_short_is_made_again_whole(tmp_path: Path) -> None:
    with maker(tmp_path, 600) as cut:
        assert cut.stdout is not None
        assert cut.stdout.readline() == "begin\n"
        os.kill(cut.pid, signal.SIGKILL)
    assert list(tmp_path.glob("thing-*")) == []
    with maker(tmp_path, 0) as again:
        assert again.communicate(timeout=60)[0].startswith("begin\nmade ")
    (made,) = tmp_path.glob("thing-*")
    assert len(list(made.iterdir())) == 2
    assert [path.name for path in tmp_path.glob(".thing*")] == []


def test_another_recipe_is_another_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    old = cached("thing", "version 1", lambda folder: None)
    assert cached("thing", "version 2", lambda folder: None) != old
    assert cached("thing", "version 1", lambda folder: pytest.fail("made again")) == old


def test_a_failed_download_leaves_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))

    def fail(folder: Path) -> None:
        raise ServerError("no network")

    with pytest.raises(ServerError, match="no network"):
        cached("thing", "recipe", fail)
    assert cached("thing", "recipe", lambda folder: None).is_dir()


def test_what_an_artifact_leaves_out_is_in_its_pom_entry() -> None:
    entry = Artifact("org.a:b:1.0", without=("org.c:*",)).xml()
    assert "<groupId>org.a</groupId><artifactId>b</artifactId><version>1.0</version>" in entry
    assert "<exclusion><groupId>org.c</groupId><artifactId>*</artifactId></exclusion>" in entry


def test_a_bill_of_materials_is_imported_by_its_pom_entry() -> None:
    entry = Artifact("org.a:bom:1.0").xml(("type", "pom"), ("scope", "import"))
    assert "<version>1.0</version><type>pom</type><scope>import</scope>" in entry


def ensure_maven(path: Path) -> subprocess.CompletedProcess[str]:
    script = ["/bin/sh", str(ROOT / "dev" / "ensure_maven")]
    return subprocess.run(script, env={"PATH": str(path)}, capture_output=True, text=True)


def tool(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("user", [0, 1000])
def test_maven_is_installed_on_debian_as_root_and_named_in_one_line_to_others(
    tmp_path: Path, user: int
) -> None:
    maven = tmp_path / "mvn"
    tool(tmp_path / "id", f"echo {user}")
    tool(
        tmp_path / "apt-get", f'test "$1" = update || {{ echo > {maven}; /bin/chmod +x {maven}; }}'
    )
    done = ensure_maven(tmp_path)
    assert maven.exists() is (user == 0)
    assert done.returncode == (0 if user == 0 else 1)
    if user != 0:
        assert len(done.stderr.splitlines()) == 1
        assert "install it" in done.stderr
    assert ensure_maven(tmp_path).returncode == done.returncode


def test_minio_without_go_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    monkeypatch.setattr("servers.minio.shutil.which", lambda name, path=None: None)
    with pytest.raises(ServerError, match="install Go"):
        Minio(tmp_path / "data").start()


def test_serve_says_what_it_can_serve() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "dev" / "serve.py"), "nothing"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "Servers: kafka, hdfs, minio, cassandra, dynamodb" in done.stderr
