"""Capture, inspect and restore the state of a graph session."""

import logging

# procsv follows TensorFlow's verbosity and handlers.
logging.getLogger("procsv").parent = logging.getLogger("tensorflow")
