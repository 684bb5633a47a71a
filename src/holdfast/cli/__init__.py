"""The command line: `holdfast ls | show | history | get | scan | diff | verify | doctor`.

It only reads, and starts neither Spark nor a JVM.
"""

from holdfast.cli.app import app, main

__all__ = ["app", "main"]
