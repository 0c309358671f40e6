"""Place of a fit in its data: which iterators were made, and what was taken of each; and the way back to it.

A resumed fit makes as many iterators as there were, for each moves the seed of a shuffle on, and takes from the last what had been
taken.  With `data="iterator"` the last one gets TensorFlow's own state of it instead.

A PyDataset has no such seeds.  Keras draws the order of an epoch from `random` when the epoch begins, and the program may shuffle in
`on_epoch_end`: so an epoch begins again with the random state that it began with, after the `on_epoch_end` calls before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
import tensorflow as tf

from procsv.base.errors import UserError
from procsv.base.plain_values import decode, encode
from procsv.training.graph.patches import AttributePatch
from procsv.training.keras import private, private_epochs
from procsv.training.keras.callbacks import read_random, write_random
from procsv.training.keras.epoch_steps import steps_after

Way = Literal["replay", "iterator", "none"]
Step = Any  # batches of one call of the training function, and what it takes them from

ENDS_BYTES_MAX = 4 << 20  # of the random states before `on_epoch_end`; then the order of later epochs is not restored

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
    random: bytes = b""  # the random state that this epoch began with
    ends: list[
        bytes
    ] = []  # of each `on_epoch_end` of a PyDataset: the random state that it drew from; empty if it drew nothing


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
        self._random = b""
        self._ends: list[bytes] = []
        self._py_dataset = private_epochs.py_dataset_of(epochs)
        if self._py_dataset is not None and private_epochs.shuffles_itself(self._py_dataset):
            private_epochs.wrap_epoch_end(epochs, self._end_epoch)
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
        place = (list(self.made), epochs._steps_seen, epochs._num_batches, has_current, self.shape, state, self.is_done)
        return Saved(*place, self._random, list(self._ends))

    def _end_epoch(self, end: Callable[[], None]) -> None:
        """Calls the dataset's `on_epoch_end`, and notes what it draws from."""
        before = encode(read_random())
        end()
        has_drawn = encode(read_random()) != before
        if has_drawn and sum(map(len, self._ends)) + len(before) > ENDS_BYTES_MAX:
            return
        self._ends.append(before if has_drawn else b"")

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
            self._random = encode(read_random())
            yield from self._counted(enumerate_all())
            return
        saved, last_batch, is_last = resume
        self._end_epochs_again(saved)
        if is_last or saved.is_done:
            self._go_to_end(saved)
        elif last_batch < 0 and not saved.has_current:
            self.make_again(saved.made)
            self._random = encode(read_random())
            yield from self._counted(enumerate_all())
        else:
            self._random = saved.random if last_batch >= 0 else encode(read_random())
            yield from self._counted(self._resumed(saved, last_batch))

    def _end_epochs_again(self, saved: Saved) -> None:
        """Has a PyDataset that shuffles itself in the order of this epoch."""
        self._ends = list(saved.ends)
        keep = read_random()
        for state in saved.ends:
            self._py_dataset.on_epoch_begin()
            if state:
                write_random(decode(state))
            self._py_dataset.on_epoch_end()
        write_random(keep)

    def _counted(self, steps: Iterator[Step]) -> Iterator[Step]:
        for step in steps:
            self.made[-1] += self._epochs.steps_per_execution
            yield step

    def make_again(self, made: list[int]) -> None:
        """Makes the iterators that there were, and begins those that had been begun."""
        if self._py_dataset is not None:  # they have no seeds, and those of several workers share one queue
            self.made += made
            return
        keep = read_random()
        for taken in made:
            iterator = iter(private_epochs.dataset_of(self._epochs))
            self.made[-1] = taken
            if taken:
                next(iterator)
        write_random(keep)

    def _resumed(self, saved: Saved, last_batch: int) -> Iterator[Step]:
        """As Keras goes on after `last_batch`."""
        epochs = self._epochs
        self._make_before(saved)
        keep = read_random() if last_batch >= 0 and saved.random else None
        if keep is not None:  # the order of this epoch is drawn once more
            write_random(decode(saved.random))
        private_epochs.tell_epoch_begin(epochs)
        current = self._take_of_last(saved)
        if keep is not None:
            write_random(keep)
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
        self._make_before(saved)
        return self._take_of_last(saved)

    def _make_before(self, saved: Saved) -> None:
        before = saved.made[:-1]
        if saved.iterator:
            self.made += before
        else:
            self.make_again(before)

    def _take_of_last(self, saved: Saved) -> Any:
        taken = saved.made[-1]
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
