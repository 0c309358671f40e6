"""`procsv.Supervisor`: a drop-in for tf.compat.v1.train.Supervisor."""
