"""Name, read and write a checkpoint's files: TensorFlow's formats, and procsv's manifest."""
