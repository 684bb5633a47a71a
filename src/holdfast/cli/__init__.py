"""The command line: `holdfast ls | show | history | get | scan | diff | verify | copy | doctor`.

`copy` writes to the place it copies to, and `doctor` tries a root with files that it removes again.
The other commands only read. None starts Spark.
"""

from holdfast.cli.app import app, main

__all__ = ["app", "main"]
