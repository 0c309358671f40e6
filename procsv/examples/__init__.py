"""Example programs that run as they are, by themselves or under `procsv launch`."""

import os

# TensorFlow's start-up notes (CPU features, no GPU) would hide what the examples show. If the user has set a
# level, it stays.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
