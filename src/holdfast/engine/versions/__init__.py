"""The versions of a root: how they are committed, claimed, merged and removed."""

from holdfast.deprecation import moved_names

__getattr__ = moved_names(__name__, {"VersionLog": "holdfast.engine.versions.log"})
