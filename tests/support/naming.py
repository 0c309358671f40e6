"""Match a message by the words it must name: a task, a step, an option, a path."""

from __future__ import annotations


class Naming(str):
    """Equals any text that contains all `words`, so that it can stand for a message in an expected value."""

    __slots__ = ("words",)
    words: tuple[str, ...]

    def __new__(cls, *words: str) -> Naming:
        text = super().__new__(cls, " … ".join(words))
        text.words = words
        return text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and all(word in str(other) for word in self.words)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]
