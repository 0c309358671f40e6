"""Which facts are shown to which invariant: those of the kinds that it looks at.  To the others it would have nothing to say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")
Kinds = tuple[type, ...]


def by_kind(looks_at: Mapping[T, Kinds], kinds: Iterable[type]) -> dict[type, tuple[T, ...]]:
    """Of each kind of fact, who looks at it, in their order; `kinds`: all that there are."""
    return {kind: tuple(one for one, its_own in looks_at.items() if kind in its_own) for kind in kinds}
