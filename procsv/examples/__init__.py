"""Example programs that run as they are, by themselves or under `procsv launch`."""

import os

# TensorFlow's start-up notes (CPU features, no GPU) would hide what the examples show. A user's own level wins.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
