"""procsv for Keras: the callbacks that take the place of Keras' own.  Importing this imports Keras."""

from __future__ import annotations

from procsv.training.keras.backup import BackupAndRestore

__all__ = ["BackupAndRestore"]
