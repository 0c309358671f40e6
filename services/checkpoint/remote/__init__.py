"""Checkpoints in a directory that only TensorFlow's filesystem layer can reach."""
