"""The place of `holdfast.registry` before it had this name."""

from holdfast.deprecation import moved_names

__getattr__ = moved_names(__name__, {
    "StateStores": "holdfast.registry",
})  # fmt: skip
