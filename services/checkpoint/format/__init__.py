"""Files of a checkpoint, by name and content: TensorFlow's formats, its `checkpoint` file, and the manifest."""
