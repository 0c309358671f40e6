"""State of an eager program: what a tf.train.Checkpoint tracks, and who supervises its training."""
