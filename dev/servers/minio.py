"""MinIO, a server that speaks S3 with conditional writes, built from its sources by Go."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from pathlib import Path
from urllib.request import urlopen

import boto3

from servers.base import LOOPBACK, Server, ServerError
from servers.fetching import cached

_MODULE = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"
_GO_PLACES = "/usr/local/go/bin"


def minio_binary() -> Path:
    """The program, from the cache or built; that takes minutes, once."""
    return cached("minio", _MODULE, _build) / "minio"


class Minio(Server):
    """One server on one folder, with keys of its own."""

    name = "minio"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ports=2)
        self.key, self.secret = "holdfast", secrets.token_hex(16)

    @property
    def url(self) -> str:
        """What goes into `endpoint_url`."""
        return f"http://{LOOPBACK}:{self.ports[0]}"

    @property
    def options(self) -> dict[str, str]:
        """How Holdfast reaches it."""
        return {"endpoint_url": self.url, "key": self.key, "secret": self.secret}

    def prepare(self) -> list[str]:
        settings = {
            "MINIO_ROOT_USER": self.key,
            "MINIO_ROOT_PASSWORD": self.secret,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            # Small machines share the disk with their system; it says so and would refuse.
            "MINIO_CI_CD": "on",
        }
        address, page = (f"{LOOPBACK}:{port}" for port in self.ports)
        return ["env", *(f"{name}={value}" for name, value in settings.items()),
                str(minio_binary()), "server", "--quiet", str(self.folder / "data"),
                "--address", address, "--console-address", page]  # fmt: skip

    def works(self) -> bool:
        with urlopen(f"{self.url}/minio/health/cluster", timeout=5) as answer:
            return answer.status == 200

    def create_bucket(self, name: str) -> None:
        """Make a bucket."""
        boto3.session.Session().client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
        ).create_bucket(Bucket=name)


def _build(folder: Path) -> None:
    go = shutil.which("go") or shutil.which("go", path=_GO_PLACES)
    if go is None:
        raise ServerError(
            "MinIO is built by Go, which is missing: install Go 1.24 or newer from go.dev, so that "
            "`go` is on the PATH."
        )
    done = subprocess.run(
        [go, "install", _MODULE],
        env={**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        said = "\n".join(done.stderr.splitlines()[-10:])
        raise ServerError(f"Go did not build MinIO; is there a network? It said:\n{said}")
