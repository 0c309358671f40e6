"""procsv for Keras: callbacks that replace Keras' own.  Importing this module imports Keras."""

from procsv.training.keras.backup import BackupAndRestore
from procsv.training.keras.model_checkpoint import ModelCheckpoint

__all__ = ["BackupAndRestore", "ModelCheckpoint"]
