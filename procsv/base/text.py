"""Text from people and from the system: escaping, shortening, naming."""

from __future__ import annotations

import re


def escape_surrogates(value: object) -> object:
    """`value`, built of plain types, with every half surrogate in its strings written out as \\udcXX.

    Python reads bytes that are not UTF-8 in names and arguments into such characters; no message can carry them.
    """
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {escape_surrogates(key): escape_surrogates(item) for key, item in value.items()}
        case list() | tuple():
            return [escape_surrogates(item) for item in value]
        case _:
            return value


def gist(error: str) -> str:
    """An error's text without its numbers: the same trouble, however much is free by now and whatever was to be saved."""
    return re.sub(r"\d+(\.\d+)?( [KMGTPE]?i?B\b)?", "#", error)
