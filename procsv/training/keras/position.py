"""Place of a fit in its data: which iterators were made, and what was taken of each; and the way back to it.

A resumed fit makes as many iterators as there were, for each moves the seed of a shuffle on, and takes from the last what had been
taken.  With `data="iterator"` the last one gets TensorFlow's own state of it instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
import tensorflow as tf

from procsv.base.errors import UserError
from procsv.training.graph.patches import AttributePatch
from procsv.training.keras import private, private_epochs
from procsv.training.keras.epoch_steps import steps_after

Way = Literal["replay", "iterator", "none"]
Step = Any  # batches of one call of the training function, and what it takes them from

_MARK = "_procsv_position"  # attribute of an EpochIterator: its Position
newest: Any = None  # the EpochIterator that was made last: at the beginning of a fit, the fit's own


class Saved(msgspec.Struct, frozen=True):
    """A place in the data."""

    made: list[int]  # of each iterator made in this fit: batches taken
    steps_seen: int
    num_batches: int | None
    has_current: bool  # an iterator outlives its epoch
    shape: list[int | None]  # steps_per_epoch, steps_per_execution, batches
    iterator: bytes = b""
    is_done: bool = False  # no batch of this epoch is left


def shape_of(epochs: Any) -> list[int | None]:
    """How an EpochIterator takes its data: what must not change."""
    return [epochs.steps_per_epoch, epochs.steps_per_execution, epochs._num_batches]


class Position:
    """Of the EpochIterator of one fit."""

    def __init__(self, epochs: Any, way: Way) -> None:
        self._epochs, self._way = epochs, way
        self.made: list[int] = []
        self.is_done = False
        self._resume: tuple[Saved, int, bool] | None = None
        self.shape = shape_of(epochs)
        private.keep_with(epochs, _MARK, self)
        private_epochs.replace_dataset(epochs, _Counted(private_epochs.dataset_of(epochs), self))

    def read(self) -> Saved:
        epochs, state = self._epochs, b""
        current = private_epochs.current_iterator(epochs)
        if self._way == "iterator" and current is not None:
            serialize = tf.raw_ops.SerializeIterator
            found = serialize(resource_handle=current._iterator_resource, external_state_policy=1)
            state = tf.io.serialize_tensor(found).numpy()
        has_current = current is not None
        return Saved(
            list(self.made), epochs._steps_seen, epochs._num_batches, has_current, self.shape, state, self.is_done
        )

    def check(self, saved: Saved) -> None:
        """UserError if the data are taken in another way now."""
        if self._way == "none" or saved.shape == self.shape:
            return
        names = ("steps_per_epoch", "steps_per_execution", "batches in an epoch")
        pairs = zip(names, saved.shape, self.shape, strict=True)
        changed = "; ".join(f"{name}: {before} then, {now} now" for name, before, now in pairs if before != now)
        raise UserError(
            f"the fit cannot go on at its place in the data, which has changed ({changed}): fit as before, or pass "
            'data="none" to go on at the beginning of the epoch'
        )

    def go_to(self, saved: Saved, last_batch: int, is_last: bool = False) -> None:
        """The next epoch begins after `last_batch` (-1: at its beginning) of the one that was saved; `is_last`: none follows."""
        self._resume = (saved, last_batch, is_last) if self._way != "none" else None

    def enumerate_steps(self, enumerate_all: Callable[[], Iterator[Step]]) -> Iterator[Step]:
        resume, self._resume = self._resume, None
        if resume is None:
            yield from self._counted(enumerate_all())
            return
        saved, last_batch, is_last = resume
        if is_last or saved.is_done:
            self._go_to_end(saved)
        elif last_batch < 0 and not saved.has_current:
            self.make_again(saved.made)
            yield from self._counted(enumerate_all())
        else:
            yield from self._counted(self._resumed(saved, last_batch))

    def _counted(self, steps: Iterator[Step]) -> Iterator[Step]:
        for step in steps:
            self.made[-1] += self._epochs.steps_per_execution
            yield step

    def make_again(self, made: list[int]) -> None:
        """Makes the iterators that there were, and begins those that had been begun."""
        for taken in made:
            iterator = iter(private_epochs.dataset_of(self._epochs))
            self.made[-1] = taken
            if taken:
                next(iterator)

    def _resumed(self, saved: Saved, last_batch: int) -> Iterator[Step]:
        """As Keras goes on after `last_batch`."""
        epochs = self._epochs
        private_epochs.tell_epoch_begin(epochs)
        current = self._go_to_last(saved)
        private_epochs.set_place(epochs, num_batches=saved.num_batches, steps_seen=saved.steps_seen)
        yield from steps_after(epochs, last_batch, current)

    def _go_to_end(self, saved: Saved) -> None:
        """All batches of the epoch were taken when the state was saved, or it was to have no more."""
        current = None
        if saved.has_current:
            current = self._go_to_last(saved)
        else:
            self.make_again(saved.made)
        place = {"num_batches": saved.num_batches, "current_iterator": current, "steps_seen": saved.steps_seen}
        private_epochs.set_place(self._epochs, **place)
        self.is_done = saved.is_done

    def _go_to_last(self, saved: Saved) -> Any:
        """The last iterator, at its place."""
        *before, taken = saved.made
        if saved.iterator:
            self.made += before
        else:
            self.make_again(before)
        current = iter(private_epochs.dataset_of(self._epochs))
        self.made[-1] = taken
        if saved.iterator:
            state = tf.io.parse_tensor(tf.constant(saved.iterator), tf.variant)
            tf.raw_ops.DeserializeIterator(resource_handle=current._iterator_resource, serialized=state)
            return current
        for number in range(taken):
            try:
                next(current)
            except (StopIteration, tf.errors.OutOfRangeError):
                if number + self._epochs.steps_per_execution <= taken:
                    raise UserError(
                        f"{taken} batches were taken in this epoch when the state was saved, and the data have {number} now: fit "
                        'with the same data, or pass data="none" to go on at the beginning of the epoch'
                    ) from None
                break
        return current


class _Counted:
    """A dataset whose iterators are counted."""

    def __init__(self, dataset: Any, position: Position) -> None:
        self._dataset, self._position = dataset, position

    def __iter__(self) -> Any:
        self._position.made.append(0)
        return iter(self._dataset)

    def __getattr__(self, name: str) -> Any:
        """What Keras, or we, ask of the dataset besides."""
        return getattr(self._dataset, name)


def _noting(init: Any) -> Any:
    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        global newest
        init(self, *args, **kwargs)
        newest = self

    return noted


def _enumerating(enumerate_all: Any) -> Any:
    def enumerated(self: Any) -> Iterator[Step]:
        position: Position | None = getattr(self, _MARK, None)
        if position is None:
            return enumerate_all(self)  # type: ignore[no-any-return]  # keras is untyped
        return position.enumerate_steps(lambda: enumerate_all(self))

    return enumerated


def patches() -> list[AttributePatch]:
    """What makes Keras' fits know their place; a fit that is not looked after is as it was."""
    changes = {"__init__": _noting, private.ENUMERATES: _enumerating}
    return [AttributePatch(private.EpochIterator, name, make) for name, make in changes.items()]
