"""A pytest plugin that replaces TensorFlow's and Keras' classes, as `procsv.install()` does in a program.  For Keras' own tests."""

import procsv

procsv.install()
