"""TensorFlow's checkpoint formats, read and written."""
