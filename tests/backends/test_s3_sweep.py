"""A sweep of unfinished uploads on S3 touches those of its own root alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.backends.s3 import S3Storage

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
ATTEMPT = "0123456789abcdef" * 2
OWN = [f"7-{ATTEMPT}.delta", f"0/3/7-{ATTEMPT}.snapshot", f"0/3/left/7-{ATTEMPT}.merge",
       f"packs/7-{ATTEMPT}.pack", f"outbox/7-{ATTEMPT}.outbox"]  # fmt: skip
OTHERS = ["report.pdf", "videos/7.mp4", f"packs/7-{ATTEMPT}.mp4", "versions/7", "0/3/part-0",
          f"another/place/packs/7-{ATTEMPT}.pack", f"backup/0/3/7-{ATTEMPT}.delta"]  # fmt: skip


class Server:
    """Unfinished uploads behind boto3's calls."""

    def __init__(self, keys: list[str]) -> None:
        self.keys = keys
        self.asked: list[str] = []
        self.aborted: list[str] = []

    def get_paginator(self, name: str) -> Any:
        assert name == "list_multipart_uploads"
        return self

    def paginate(self, *, Bucket: str, Prefix: str) -> list[dict[str, Any]]:
        uploads = [
            {"Key": key, "UploadId": key, "Initiated": LONG_AGO}
            for key in self.keys
            if key.startswith(Prefix)
        ]
        return [{"Uploads": uploads}]

    def list_parts(self, *, Bucket: str, Key: str, UploadId: str) -> dict[str, Any]:
        self.asked.append(Key)
        return {"Parts": []}

    def abort_multipart_upload(self, *, Bucket: str, Key: str, UploadId: str) -> None:
        self.aborted.append(Key)


@pytest.mark.parametrize(
    ("location", "prefix"), [("s3://bucket/root", "root/"), ("s3://bucket", "")]
)
def test_only_uploads_that_the_root_may_have_begun_are_aborted(
    monkeypatch: pytest.MonkeyPatch, location: str, prefix: str
) -> None:
    own = [prefix + name for name in OWN]
    server = Server([*own, *(prefix + name for name in OTHERS), f"root-2/{OWN[0]}"])
    monkeypatch.setattr(S3Storage, "client", server)
    assert S3Storage(location).sweep(3600) == len(own)
    assert server.aborted == own
    assert server.asked == own
