"""Stand-ins for arguments that the program does not give; an editor and `help` show their names."""

from __future__ import annotations

import enum
from typing import Literal


class Default(enum.Enum):
    """Each member is the default of an argument."""

    FROM_COMMAND_LINE = enum.auto()  # as `procsv launch --snapshot-secs` says: "auto" without it

    def __repr__(self) -> str:
        return self.name


FROM_COMMAND_LINE = Default.FROM_COMMAND_LINE
SnapshotSecs = float | Literal["auto"] | Default | None
