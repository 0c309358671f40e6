"""The log of a training process.

The graph side makes it a child of TensorFlow's logger: the program's verbosity and handlers hold for it, too.
"""

from __future__ import annotations

import logging

log = logging.getLogger("procsv")
