"""Keep checkpoints in a directory that only TensorFlow's filesystem layer can reach."""
