"""procsv for Keras: the callbacks that take the place of Keras' own.  Importing this imports Keras."""

from procsv.training.keras.backup import BackupAndRestore
from procsv.training.keras.model_checkpoint import ModelCheckpoint

__all__ = ["BackupAndRestore", "ModelCheckpoint"]
