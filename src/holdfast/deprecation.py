"""Names that have moved: their old place serves them for one release, with a warning."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def moved_names(
    module: str, names: Mapping[str, str], others: Callable[[str], Any] | None = None
) -> Callable[[str], Any]:
    """A `__getattr__` for `module` that finds each of `names` where it is now.

    `names` maps a name to the dotted path of its present module, or to `module:name` where the
    name has changed as well. `others` finds the names that have not moved, if the module has a
    `__getattr__` for them. Any other name raises AttributeError, as without this function.
    """

    def found(name: str) -> Any:
        if name not in names:
            if others is not None:
                return others(name)
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, new = names[name].partition(":")
        warnings.warn(
            f"Import {new or name} from {place}: the next release has it there only.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(place), new or name)

    return found
