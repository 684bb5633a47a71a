"""What every test may use."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from servers import QUICK_START, connector_jars

pytest_plugins = ["soak_report"]

# A busy machine is no failure; pytest's own timeout catches what hangs.
settings.register_profile("holdfast", deadline=None)
settings.load_profile("holdfast")
_SUPPORT = str(Path(__file__).parent / "support")
"""Where the JVM finds warm_workers; processes that tests start do not."""
_CLASSES = Path(sys.prefix, "spark-classes.jsa")
"""What dev/archive_classes.py has written; a JVM that cannot use it ignores it."""
_ARCHIVE = (f"-XX:SharedArchiveFile={_CLASSES}", "-Xlog:cds=off")
_HAS_ARCHIVE = _CLASSES.exists() and " " not in str(_CLASSES)
# For every driver of the tests, also those in processes of their own, and their executors.
_OPTIONS = " ".join((*QUICK_START, *(_ARCHIVE if _HAS_ARCHIVE else ())))
os.environ.setdefault(
    "PYSPARK_SUBMIT_ARGS",
    f"--driver-java-options '{_OPTIONS}' "
    f"--conf 'spark.executor.extraJavaOptions={_OPTIONS}' pyspark-shell",
)


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One Spark session for the whole run: two cores, two shuffle partitions, UTC, no UI.

    It knows Kafka when a test that needs a server is among those that run.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    pytest.importorskip("pyspark.sql")
    import quiet_spark
    from py4j.clientserver import ClientServerConnection

    settings = {
        **quiet_spark.SETTINGS,
        "spark.sql.timeType.enabled": "true",
        # A stop that waits for a batch that hangs fails, with the stack of the batch.
        "spark.sql.streaming.stopTimeout": "240s",
        "spark.python.daemon.module": "warm_workers",
    }
    if any(item.path.parent.name == "services" for item in request.session.items):
        settings["spark.jars"] = ",".join(map(str, connector_jars()))
        # Spark's own client waits for a NameNode, too, and gives up none of its calls meanwhile.
        settings["spark.hadoop.dfs.client.retry.policy.enabled"] = "true"
        settings["spark.hadoop.dfs.client.retry.policy.spec"] = "1000,60"
    with pytest.MonkeyPatch.context() as patch:
        send = _closing_what_is_cut_off(ClientServerConnection.send_command)
        patch.setattr(ClientServerConnection, "send_command", send)
        with pytest.MonkeyPatch.context() as launch:
            launch.setenv("PYTHONPATH", _SUPPORT, prepend=os.pathsep)
            session = quiet_spark.builder("holdfast-tests", settings).getOrCreate()
        yield session
        session.stop()


def _closing_what_is_cut_off(send: Callable[[Any, str], str]) -> Callable[[Any, str], str]:
    """Have Py4J close a connection whose call a timeout cuts off, as it does after Ctrl-C.

    pytest-timeout raises in the main thread, wherever that is: most often in a call of the JVM,
    which has the question by then. Every later call would get the answer to the one before it,
    and the tests after the one that hung would fail with it.
    """

    @wraps(send)
    def send_command(connection: Any, command: str) -> str:
        try:
            return send(connection, command)
        except (Exception, KeyboardInterrupt):
            raise  # Py4J deals with these
        except BaseException:
            connection.close()
            raise

    return send_command
