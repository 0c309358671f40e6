"""A terminal in memory with just enough features for a status line."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n])")


class TerminalInMemory:
    """`rows` holds what is visible and what has scrolled off above it."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0

    @property
    def rows(self) -> list[str]:
        return ["".join(row).rstrip() for row in self._rows]

    def feed(self, data: bytes) -> None:
        for match in _TOKEN.finditer(data.decode()):
            number, kind, control, char = match.groups()
            if char:
                self._put(char)
            elif control:
                self._column = 0
                if control == "\n":
                    self._down()
            else:
                self._obey(kind, int(number) if number.isdecimal() else 1)

    def _put(self, char: str) -> None:
        if self._column == self.width:
            self._column = 0
            self._down()
        row = self._rows[self._row]
        row += " " * (self._column - len(row))
        row[self._column : self._column + 1] = [char]
        self._column += 1

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append([])

    def _obey(self, kind: str, number: int) -> None:
        if kind == "A":
            self._row = max(0, self._row - number)
        elif kind == "J":
            del self._rows[self._row][self._column :], self._rows[self._row + 1 :]
        else:
            assert kind == "m", f"{kind} is not known here"
