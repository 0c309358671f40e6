"""The position in a program's input as part of its state: a tf.data iterator that is saved and restored with the variables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from procsv.base.errors import UserError


def keep_position(iterator: Any) -> None:
    """Makes `iterator` part of what the program's Saver saves: after a restart it goes on with the element that comes next.

    The buffer of a `shuffle` is saved with it, so the elements are those of an undisturbed run, in their order.  Call it before the
    Supervisor, the Scaffold or the Saver is made.  Such a state is saved by the Saver's own op: training waits for it.

    Args:
        iterator: Of `tf.compat.v1.data.make_one_shot_iterator`.

    Raises:
        UserError: `iterator` is initialized in the session.  TensorFlow restores it only after it is initialized, and the
            session initializes it only after the restore.
    """
    try:
        has_initializer = iterator.initializer is not None
    except ValueError:
        has_initializer = False
    if has_initializer:
        raise UserError(
            "the position of an initializable iterator cannot be kept: its session begins it anew after each restore. "
            "Make it with tf.compat.v1.data.make_one_shot_iterator"
        )
    saveable = tf.data.experimental.make_saveable_from_iterator(iterator)
    tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS, saveable)
