"""Logging is the application's to set up."""

from __future__ import annotations

import logging
import subprocess
import sys

import holdfast


def test_the_library_has_a_null_handler_and_leaves_the_root_logger_alone() -> None:
    code = (
        "import logging, tempfile, holdfast\n"
        "db = holdfast.open(tempfile.mkdtemp() + '/db', key='k long', value='v long')\n"
        "with db.update() as store: store.put((1,), (1,))\n"
        "db.close()\n"
        "own = logging.getLogger('holdfast').handlers\n"
        "print(logging.getLogger().handlers, [type(h).__name__ for h in own])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("[] ['NullHandler']", "")


def test_every_logger_is_below_the_packages_own() -> None:
    assert holdfast.__name__ == "holdfast"
    names = [name for name in logging.root.manager.loggerDict if "holdfast" in name]
    assert all(name == "holdfast" or name.startswith("holdfast.") for name in names)
