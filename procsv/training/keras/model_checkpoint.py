"""Provide ModelCheckpoint, a Keras callback whose files the checkpoint service writes.

    best = procsv.keras.ModelCheckpoint("best.keras", save_best_only=True)
    model.fit(..., callbacks=[best, procsv.keras.BackupAndRestore()])

Keras itself makes the first save of a callback, from which procsv learns the layout of the file. A
later save costs a capture and, for a `.keras` archive, the model's configuration. A file that
procsv writes is replaced whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import h5py
import keras
import msgspec

from procsv.base.location import local_path
from procsv.base.system import disk
from procsv.ipc.shm.file_parcel import FileOrder, ParcelWriter, temporary_of
from procsv.training.eager import private as eager
from procsv.training.eager.object_graph import READ_MAX, view_of
from procsv.training.graph.patches import AttributePatch
from procsv.training.keras import hooks
from procsv.training.keras.private import find_private
from procsv.training.runtime.log import log
from procsv.training.snapshots.slot_fill import flat_bytes

UNKNOWN = f"procsv does not know how Keras {keras.__version__} saves"

saving = find_private("saving", "saving_lib")
BaseOptimizer = find_private("optimizers.base_optimizer", "BaseOptimizer")
Store = getattr(saving, "H5IOStore", None)
knows_files = (
    None not in (Store, BaseOptimizer)
    and hasattr(saving, "_serialize_model_as_json")
    and any("_h5_entry_group" in one.__code__.co_names for one in vars(Store).values() if hasattr(one, "__code__"))
)
# Since Keras 3.10, ModelCheckpoint has a separate method that decides whether to save.
decides_apart = hasattr(keras.callbacks.ModelCheckpoint, "_should_save_model")

MEMBER = "model.weights.h5"  # in a .keras archive
CONFIG, METADATA = "config.json", "metadata.json"


class NoFileLayout(Exception):
    """Keras itself has to save this model each time. The message says why."""


class Hole(msgspec.Struct, frozen=True):
    """The bytes of one variable in the file."""

    offset: int
    size: int
    variable: Any  # a resource variable


class FileLayout(msgspec.Struct, frozen=True):
    """Where each variable lies in an HDF5 file of weights, alone or in a .keras archive.

    The layout is found once, by having Keras save the model and recording what it stores. Later
    files are made from captured variables and the bytes in between. Such a file stores a variable
    uncompressed and in one piece.
    """

    size: int
    between: list[tuple[int, bytes]]  # offset and bytes of everything that is not a variable
    holes: list[Hole]
    assets: tuple[tuple[str, bytes], ...]  # further members of the archive


# -- private names of how Keras saves ------------------------------------------------------------------------
@contextlib.contextmanager
def noting_stored(keep: Callable[[str, Any], None]) -> Iterator[None]:
    """Inside the context, give `keep` the dataset name and value of everything that Keras stores.

    For an optimizer, the value is the variable itself and not a copy.
    """

    class Noting(Store):  # type: ignore[misc, valid-type]  # keras is untyped
        def __setitem__(self, key: str, value: Any) -> None:
            super().__setitem__(key, value)
            keep(f"{self._h5_entry_group.name}/{key}", value)

    def save_own_variables(self: Any, store: Any) -> None:
        for number, variable in enumerate(self.variables):
            store[str(number)] = variable

    with (
        AttributePatch(saving, "H5IOStore", lambda _: Noting),
        AttributePatch(BaseOptimizer, "save_own_variables", lambda _: save_own_variables),
    ):
        yield


def saves_by_itself(model: Any) -> str:
    """Return which part of a model saves itself in its own way, or "" if none does."""
    for part in (model, model.optimizer, *model._flatten_layers()):
        for name in ("save_own_variables", "save_assets"):
            home = getattr(getattr(type(part), name, None), "__module__", None)
            if home is not None and home.partition(".")[0] not in ("keras", __name__.partition(".")[0]):
                return f"{type(part).__qualname__} has a {name} of its own"
    return ""


def describe(model: Any) -> tuple[str, str]:
    """Return a model's configuration and metadata as a .keras archive has them."""
    config, metadata = saving._serialize_model_as_json(model)
    return config, metadata


# -- the layout of a file --------------------------------------------------------------------------------------
def save_by_keras(model: Any, path: str, weights_only: bool) -> None:
    """Save the model with Keras, but replace the file whole or not at all."""
    target = Path(path)
    making = temporary_of(target)  # keeps the suffixes, by which Keras chooses the format
    try:
        save = model.save_weights if weights_only else model.save
        save(str(making), overwrite=True)
        disk.fsync_path(making)
        disk.rename(making, target)
    finally:
        disk.unlink_if_there(making)
    disk.fsync_path(target.parent)


def save_and_find_layout(model: Any, path: str, weights_only: bool) -> FileLayout:
    """Save the model with Keras, and find the layout of the file.

    Raise NoFileLayout if procsv cannot describe the file. The file is in place in that case, too.
    """
    stored: list[tuple[str, Any]] = []
    with noting_stored(lambda name, value: stored.append((name, value))):
        save_by_keras(model, path, weights_only)
    if why := saves_by_itself(model):
        raise NoFileLayout(why)
    variables = {name: _variable_of(name, value) for name, value in stored}
    if weights_only:
        with open(path, "rb") as file:  # noqa: PTH123  as HDF5 wants it
            return _find_layout(file, variables, ())
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name not in (MEMBER, CONFIG, METADATA)]
        assets = tuple((name, archive.read(name)) for name in names)
        with archive.open(MEMBER) as file:
            return _find_layout(file, variables, assets)


def _variable_of(name: str, value: Any) -> Any:
    variable = getattr(value, "value", None) if isinstance(value, keras.Variable) else value
    if not isinstance(variable, eager.resource_variable):
        raise NoFileLayout(f"{name} is stored as something else than a variable")
    return variable


def _find_layout(file: IO[bytes], variables: dict[str, Any], assets: tuple[tuple[str, bytes], ...]) -> FileLayout:
    holes = list[Hole]()

    def look(name: str, found: Any) -> None:
        if not isinstance(found, h5py.Dataset):
            return
        variable = variables.pop(f"/{name}", None)
        if variable is None:
            raise NoFileLayout(f"{name} is no variable")
        size = int(variable.shape.num_elements()) * int(variable.dtype.size)
        if size != found.nbytes or (size and (found.chunks or found.id.get_offset() is None)):
            raise NoFileLayout(f"{name} has another form in the file than in memory")
        if size:
            holes.append(Hole(int(found.id.get_offset()), size, variable))

    with h5py.File(file, "r") as content:
        content.visititems(look)
    if variables:
        raise NoFileLayout(f"{min(variables)} is not in the file")
    holes.sort(key=lambda hole: hole.offset)
    size, at, between = file.seek(0, os.SEEK_END), 0, list[tuple[int, bytes]]()
    for start, end in [*((hole.offset, hole.offset + hole.size) for hole in holes), (size, size)]:
        if start < at:
            raise NoFileLayout("two variables share their place in the file")
        if start > at:
            file.seek(at)
            between.append((at, file.read(start - at)))
        at = end
    return FileLayout(size, between, holes, assets)


def make_order(model: Any, path: str, weights_only: bool, layout: FileLayout) -> FileOrder:
    """Order a file with the model's current configuration, learning rate included."""
    if weights_only:
        return FileOrder(path, layout.size)
    config, metadata = describe(model)
    before = ((METADATA, metadata.encode()), (CONFIG, config.encode()))
    return FileOrder(path, layout.size, MEMBER, before, layout.assets)


def capture_file(layout: FileLayout) -> Callable[[ParcelWriter], None]:
    """Read all variables as views that do not change.

    The function that is returned writes the file, off the training thread.
    """
    tensors = _read_variables([hole.variable for hole in layout.holes])

    def fill(parcel: ParcelWriter) -> None:
        for offset, data in layout.between:
            parcel.write_at(offset, memoryview(data))
        for number, hole in enumerate(layout.holes):
            parcel.write_at(hole.offset, memoryview(flat_bytes(view_of(tensors[number]))))
            tensors[number] = None  # without this view, the next update of the variable need not copy its memory

    return fill


def _read_variables(variables: Sequence[Any]) -> list[Any]:
    values: list[Any] = [None] * len(variables)
    by_device: dict[str, list[int]] = {}
    for number, variable in enumerate(variables):
        by_device.setdefault(variable.handle.device, []).append(number)
    for numbers in by_device.values():
        for at in range(0, len(numbers), READ_MAX):
            part = [variables[number] for number in numbers[at : at + READ_MAX]]
            tensors = eager.read_variables([v.handle for v in part], [v.dtype.base_dtype for v in part])
            for number, tensor in zip(numbers[at : at + READ_MAX], tensors, strict=True):
                values[number] = tensor
    return values


class ModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """A `keras.callbacks.ModelCheckpoint` that does not hold up the training.

    It takes Keras' arguments. After a crash, a local file is the old one or the new one, and never
    a part of one. Two cases are excepted: a whole model as `.h5`, and Keras before 3.10. In a fit
    that procsv protects, `best` survives a restart. In any other fit, and if a layer saves itself
    in its own way, Keras writes on the training thread, and a log line says so once.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._files = _ModelFiles()
        self._has_saved = False  # during the current hook

    def _save_model(self, epoch: int, batch: int | None, logs: Any) -> None:
        if not decides_apart:
            self._files.say_why(UNKNOWN, str(self.filepath))
            super()._save_model(epoch, batch, logs)
            return
        path = self._get_file_path(epoch, batch, logs)
        if not self._should_save_model(epoch, batch, logs, path):
            return
        local = local_path(path)
        if local is None or path.endswith(".h5") != self.save_weights_only:
            self._files.say_why("it is remote, or in Keras' older format", path)
            save = self.model.save_weights if self.save_weights_only else self.model.save
            save(path, overwrite=True)
            return
        target = local.absolute()
        if target.is_dir():
            raise OSError(f"{path} is a directory: pass ModelCheckpoint the path of a file")
        target.parent.mkdir(parents=True, exist_ok=True)
        self._has_saved = True
        self._files.save(self.model, str(target), self.save_weights_only)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Save as Keras does, if a save is due after this batch."""
        super().on_train_batch_end(batch, logs)
        if self._has_saved:
            self._finish_files()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save as Keras does. A later callback of the program finds the file in place."""
        super().on_epoch_end(epoch, logs)
        if self._has_saved:
            self._finish_files()

    def _finish_files(self) -> None:
        self._has_saved = False
        fit = hooks.fit_of(self.model)
        if fit is not None:
            fit.finish_files_for_others(self)


class _ModelFiles:
    """The files of one callback."""

    def __init__(self) -> None:
        self._layout: FileLayout | None = None
        self._variables: list[Any] = []  # of the model, when the layout was found
        self._refusal = ""  # why Keras has to save this model
        self._said = set[str]()

    def say_why(self, why: str, path: str) -> None:
        if why not in self._said:
            self._said.add(why)
            log.warning("procsv: %s is written by Keras on the training thread: %s", path, why)

    def save(self, model: Any, path: str, weights_only: bool) -> None:
        """Save the model as it is now. On return it is on disk, or on its way there."""
        fit = hooks.fit_of(model)
        variables = _variables_of(model)
        if list(map(id, variables)) != list(map(id, self._variables)):
            self._layout, self._refusal, self._variables = None, "", variables
        if not knows_files:
            self._refusal = UNKNOWN
        if fit is None or self._refusal:
            self.say_why(self._refusal or "procsv does not protect this fit (BackupAndRestore does)", path)
            if fit is not None:
                fit.files.wait_written()  # otherwise an older file might be written last
            save_by_keras(model, path, weights_only)
        elif self._layout is None:
            fit.files.wait_written()
            try:
                self._layout = save_and_find_layout(model, path, weights_only)
            except NoFileLayout as why:
                self._refusal = str(why)
                self.say_why(self._refusal, path)
        else:
            order = make_order(model, path, weights_only, self._layout)
            fit.files.submit(order, capture_file(self._layout))


def _variables_of(model: Any) -> list[Any]:
    found = [*model.variables, *(v for metric in model.metrics for v in metric.variables)]
    return found if model.optimizer is None else [*found, *model.optimizer.variables]
