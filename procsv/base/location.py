"""Locations as people name them: a path that system calls take, or a URL that only TensorFlow's filesystem layer can reach."""

from __future__ import annotations

import os
from pathlib import Path


def is_remote(location: str | os.PathLike[str]) -> bool:
    """Whether it is a URL: gs://, s3://, file://, …"""
    return "://" in os.fspath(location)


def local_path(location: str | os.PathLike[str]) -> Path | None:
    """The path that open() takes; None of a URL."""
    return None if is_remote(location) else Path(location)
