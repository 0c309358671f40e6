"""Save the position in a program's input with its variables, by saving a tf.data iterator."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from procsv.base.errors import UserError


def keep_position(iterator: Any) -> None:
    """Make `iterator` part of what the program's Saver saves.

    After a restart it continues with the next element. The buffer of a `shuffle` is saved, too, so
    the elements and their order are the same as in an undisturbed run. Call this before making the
    Supervisor, the Scaffold or the Saver. Only the Saver's own op can save an iterator, so training
    waits while each checkpoint is written.

    Args:
        iterator: An iterator made by `tf.compat.v1.data.make_one_shot_iterator`.

    Raises:
        UserError: `iterator` has an initializer, which the session runs after the restore. That
            would move the iterator back to its beginning.
    """
    try:
        has_initializer = iterator.initializer is not None
    except ValueError:
        has_initializer = False
    if has_initializer:
        raise UserError(
            "the position of an initializable iterator cannot be kept: its session restarts it after each restore. "
            "Make it with tf.compat.v1.data.make_one_shot_iterator"
        )
    saveable = tf.data.experimental.make_saveable_from_iterator(iterator)
    tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS, saveable)
