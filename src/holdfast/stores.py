"""The place of `holdfast.registry` before it had this name."""

from holdfast.deprecation import moved_names as _moved_names

_MOVED = {
    "StateStores": "holdfast.registry",
}  # fmt: skip
__all__ = list(_MOVED)
__getattr__ = _moved_names(__name__, _MOVED)
