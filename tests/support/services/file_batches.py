"""Which files Spark took into which batch.

A driver that is killed after Spark noted a file and before it planned the batch gets that file
together with the next one: what a killed stream gives is compared batch by batch as it took them.
"""

from __future__ import annotations

import json
from pathlib import Path


def files_taken(checkpoint: Path) -> list[int]:
    """How many files of a stream, which takes one at a time, are in by the end of each batch."""
    batches = sorted(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*"))
    assert batches == list(range(len(batches)))
    ends = [(checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1] for batch in batches]
    return [json.loads(end)["logOffset"] + 1 for end in ends]
