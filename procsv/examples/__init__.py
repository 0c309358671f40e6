"""Programs that run as they stand, by themselves or under `procsv launch`."""

import os

# TensorFlow's start-up notes (which CPU features, no GPU) would hide what the examples show.  A user's own level stands.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
