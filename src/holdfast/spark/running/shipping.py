"""What a user is told when the executors' Python lacks what tasks import."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from holdfast.errors import InvalidArgument

_NEEDED = ("holdfast", "numpy", "pyarrow", "fsspec", "xxhash")
_MISSING = re.compile(
    rf"ModuleNotFoundError: No module named '(?P<module>(?:{'|'.join(_NEEDED)})(?:\.[\w.]+)?)'"
)


@contextmanager
def explained(root: str) -> Iterator[None]:
    """Turn a failure of tasks that could not import the package into an error that says what to
    do. `root` is that of the query's state. Other errors pass as they are.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        missing = _MISSING.search(str(error))
        if missing is None:
            raise
        raise InvalidArgument(
            f"The executors' Python has no module {missing['module']!r}, which the tasks of the "
            f"query with its state in {root} need. Install holdfast on every host, or ship it "
            "with the application: spark-submit --py-files holdfast.zip, or --archives with a "
            "packed environment. docs/streams.md has the commands under 'Getting the package to "
            "the executors'.",
            condition="STATE_STORE_NOT_ON_EXECUTORS",
        ) from None
