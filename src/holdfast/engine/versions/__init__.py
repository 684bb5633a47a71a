"""The versions of a root: committed, claimed, merged and removed."""

from holdfast.deprecation import moved

__getattr__ = moved(__name__, {"VersionLog": "holdfast.engine.versions.log"})
