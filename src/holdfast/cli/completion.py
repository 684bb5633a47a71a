"""What the shell completes beside commands and options: what is in the root that was typed.

It runs at every press of a key, so a root that cannot be read completes to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from holdfast.reading import Root

_MOST = 50
"""Versions that are offered, the newest first."""


def offered_versions(context: typer.Context, incomplete: str) -> list[str]:
    """The tags and versions of the root that was typed."""
    root = _typed_root(context)
    if root is None:
        return []
    newest = map(str, reversed(root.versions[-_MOST:]))
    return [each for each in (*sorted(root.tags), *newest) if each.startswith(incomplete)]


def offered_operators(context: typer.Context, incomplete: str) -> list[str]:
    """The operators of the root that was typed."""
    root = _typed_root(context)
    found = [] if root is None else sorted({str(each.operator) for each in root.info().stores})
    return [each for each in found if each.startswith(incomplete)]


def offered_stores(context: typer.Context, incomplete: str) -> list[str]:
    """The names of the stores of the root that was typed."""
    root = _typed_root(context)
    found = [] if root is None else sorted({each.store for each in root.info().stores})
    return [each for each in found if each.startswith(incomplete)]


def _typed_root(context: typer.Context) -> Root | None:
    # With an option at the end that lacks its value, nothing is parsed: the root is the first
    # argument that is no option.
    unparsed = (each for each in context.args if not each.startswith("-"))
    location = context.params.get("root") or next(unparsed, None)
    if not location:
        return None
    from holdfast import reading
    from holdfast.errors import HoldfastError

    try:
        root = reading.open_root(location)
        root.info()
    except (HoldfastError, ImportError, OSError):
        return None
    return root
