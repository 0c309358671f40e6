"""Print what a test says in a file: each process of a run its own lines, in an order that the test knows."""

from __future__ import annotations

import threading
from pathlib import Path

PAUSE_S = 0.01


def talk(name: str, file: Path) -> None:
    """Prints each text that `file` has for `name`, and never ends."""
    said, pause = "", threading.Event()
    while True:
        whole = file.read_text() if file.exists() else ""
        to, _, text = whole.partition(": ")
        if to == name and whole != said:
            said = whole
            print(text, end="", flush=True)
        pause.wait(PAUSE_S)


def say(file: Path, name: str, text: str) -> None:
    """Has `name` print `text`; killed in between, it prints nothing."""
    new = file.with_name(f".{file.name}")
    new.write_text(f"{name}: {text}")
    new.replace(file)
