"""Name, read and write the files of a checkpoint: TensorFlow's formats, its `checkpoint` file, and the manifest."""
