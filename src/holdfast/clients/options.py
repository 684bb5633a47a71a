"""How a client reaches its server: the options of a scheme, checked by name, secrets not shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from holdfast.errors import InvalidArgument
from holdfast.schemes import Scheme


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """A base for the options of one scheme: a dataclass with a field for each of them."""

    scheme: ClassVar[Scheme]
    whose: ClassVar[str]
    """The subject of the error for an unknown option; `hint` is added at its end."""
    hint: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        # A dataclass replaces an inherited __repr__, but not one that the class itself has.
        cls.__repr__ = ClientOptions.__repr__  # type: ignore[method-assign]

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """The options with these names. Raises InvalidArgument for others, without their values."""
        known: list[str] = [each.name for each in fields(cls)]
        if unknown := sorted(set(given) - set(known)):
            raise InvalidArgument(
                f"{cls.whose} has no option {unknown[0]!r}; there are {', '.join(known)}.{cls.hint}"
            )
        return cls(**given)

    def __repr__(self) -> str:
        shown: list[tuple[str, Any]] = [
            (each.name, getattr(self, each.name))
            for each in fields(self)
            if each.name not in self.scheme.secrets
        ]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown)})"
