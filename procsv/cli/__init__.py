"""Implement the command line, one module per command. Nothing here imports TensorFlow."""
