"""Layout of the file that Keras makes of a model: which bytes of it are which variable's.

Found once, by having Keras save the model and noting what it stores; afterwards the same file is made of captured variables and
of the bytes in between.  Variables lie in such a file uncompressed and in one piece.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import h5py
import keras
import msgspec

from procsv.base.system import disk
from procsv.ipc.shm.file_parcel import Order, ParcelWriter, temporary_of
from procsv.training.eager import private as eager
from procsv.training.eager.object_graph import READ_MAX, view_of
from procsv.training.keras import private_files
from procsv.training.snapshots.slot_copy import flat_bytes

MEMBER = "model.weights.h5"  # of a .keras archive
CONFIG, METADATA = "config.json", "metadata.json"


class Cannot(Exception):
    """Keras itself has to save this model each time.  The text says why."""


class Hole(msgspec.Struct, frozen=True):
    """The bytes of one variable."""

    offset: int
    size: int
    variable: Any  # a resource variable


class Layout(msgspec.Struct, frozen=True):
    """Of the HDF5 file, which a .keras archive has as a member."""

    size: int
    between: list[tuple[int, bytes]]  # offset and bytes of what is no variable
    holes: list[Hole]
    assets: tuple[tuple[str, bytes], ...]  # further members of the archive


def save_by_keras(model: Any, path: str, weights_only: bool) -> None:
    """As Keras saves it, but whole or not at all."""
    target = Path(path)
    making = temporary_of(target)  # Keras goes by the suffixes, which it keeps
    try:
        save = model.save_weights if weights_only else model.save
        save(str(making), overwrite=True)
        disk.fsync_path(making)
        disk.rename(making, target)
    finally:
        disk.unlink_if_there(making)
    disk.fsync_path(target.parent)


def save_and_find_layout(model: Any, path: str, weights_only: bool) -> Layout:
    """Saves it by Keras, and finds the layout of the file; Cannot, with the file in place, if it has none."""
    stored: list[tuple[str, Any]] = []
    with private_files.noting_stored(lambda name, value: stored.append((name, value))):
        save_by_keras(model, path, weights_only)
    if why := private_files.saves_by_itself(model):
        raise Cannot(why)
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
        raise Cannot(f"{name} is stored as something else than a variable")
    return variable


def _find_layout(file: IO[bytes], variables: dict[str, Any], assets: tuple[tuple[str, bytes], ...]) -> Layout:
    holes = list[Hole]()

    def look(name: str, found: Any) -> None:
        if not isinstance(found, h5py.Dataset):
            return
        variable = variables.pop(f"/{name}", None)
        if variable is None:
            raise Cannot(f"{name} is no variable")
        size = int(variable.shape.num_elements()) * int(variable.dtype.size)
        if size != found.nbytes or (size and (found.chunks or found.id.get_offset() is None)):
            raise Cannot(f"{name} lies in the file in another form than in memory")
        if size:
            holes.append(Hole(int(found.id.get_offset()), size, variable))

    with h5py.File(file, "r") as content:
        content.visititems(look)
    if variables:
        raise Cannot(f"{min(variables)} is not in the file")
    holes.sort(key=lambda hole: hole.offset)
    size, at, between = file.seek(0, os.SEEK_END), 0, list[tuple[int, bytes]]()
    for start, end in [*((hole.offset, hole.offset + hole.size) for hole in holes), (size, size)]:
        if start < at:
            raise Cannot("two variables share their place in the file")
        if start > at:
            file.seek(at)
            between.append((at, file.read(start - at)))
        at = end
    return Layout(size, between, holes, assets)


def make_order(model: Any, path: str, weights_only: bool, layout: Layout) -> Order:
    """What goes beside the variables: the model's configuration as it is now, learning rate included."""
    if weights_only:
        return Order(path, layout.size)
    config, metadata = private_files.describe(model)
    before = ((METADATA, metadata.encode()), (CONFIG, config.encode()))
    return Order(path, layout.size, MEMBER, before, layout.assets)


def capture(layout: Layout) -> Callable[[ParcelWriter], None]:
    """Reads all variables, as views that stay as they are; what it gives writes the file, off the training thread."""
    tensors = _read([hole.variable for hole in layout.holes])

    def fill(parcel: ParcelWriter) -> None:
        for offset, data in layout.between:
            parcel.write(offset, memoryview(data))
        for number, hole in enumerate(layout.holes):
            parcel.write(hole.offset, memoryview(flat_bytes(view_of(tensors[number]))))
            tensors[number] = None  # the next update of this variable need not copy it then

    return fill


def _read(variables: Sequence[Any]) -> list[Any]:
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
