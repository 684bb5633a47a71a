"""The place of `holdfast.registry` before it had this name."""

from holdfast.deprecation import moved

__getattr__ = moved(__name__, {
    "StateStores": "holdfast.registry",
})  # fmt: skip
