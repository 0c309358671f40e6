"""One process a test session that has imported TensorFlow; what the runs of the tests start are its forks."""
