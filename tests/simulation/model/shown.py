"""Choose which facts each invariant sees: only the kinds that its code looks at. The others could
not change its answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")
Kinds = tuple[type, ...]


def by_kind(looks_at: Mapping[T, Kinds], kinds: Iterable[type]) -> dict[type, tuple[T, ...]]:
    """Return for each kind of fact its invariants, in their order. `kinds` are all there are."""
    return {kind: tuple(one for one, its_own in looks_at.items() if kind in its_own) for kind in kinds}
