"""Inventory of a checkpoint directory that is a URL.  Called by tools/inventory.py; imports TensorFlow.  Only reads."""

from __future__ import annotations

from procsv.base.run.manifest import MANIFEST_SUFFIX, Manifest
from procsv.ipc.messaging.messages import CheckpointPlan
from procsv.services.checkpoint.remote import files as files
from procsv.services.checkpoint.remote.catalog import RemoteCatalog
from procsv.services.checkpoint.store.inventory import Inventory, Item, is_leftover, make_item
from procsv.services.checkpoint.store.manifest import BadCheckpoint
from procsv.services.checkpoint.store.names import step_in_name


def take_remote_inventory(url: str, verify: bool) -> Inventory:
    """All checkpoints at `url`; FileNotFoundError if it is no directory there."""
    directory = url.rstrip("/")
    if not files.is_directory(directory):
        raise FileNotFoundError(2, "no such directory", directory)
    catalog = RemoteCatalog(CheckpointPlan(f"{directory}/model.ckpt", "checkpoint", 0.0, 0, 10_000.0, False, False, ""))
    suffixes = (".index", MANIFEST_SUFFIX)
    prefixes = {name.removesuffix(s) for name in catalog.names for s in suffixes if name.endswith(s)}
    paths = {files.join(directory, name) for name in prefixes} | {c.path for c in catalog.candidates}
    items = [_item(path, catalog, verify) for path in paths]
    rejected = [files.join(directory, name) for name in catalog.names if ".rejected" in name]
    ordered = sorted(items, key=lambda item: (item.step, item.time or 0.0, item.path))
    known = {files.name_of(path) for path in paths}
    return Inventory(
        directory=directory,
        checkpoints=ordered,
        rejected=rejected,
        leftovers=[files.join(directory, name) for name in catalog.names if is_leftover(name, known)],
        error=catalog.trouble or None,
    )


def _item(path: str, catalog: RemoteCatalog, verify: bool) -> Item:
    listed = [c.path for c in catalog.candidates if c.listed]
    manifest: Manifest | None = None
    size, newest, error = 0, 0.0, None
    try:
        for name in catalog.files_of(path):
            url = files.join(files.directory_of(path), name)
            size, newest = size + files.size(url), max(newest, files.modified(url))
        manifest = catalog.manifest_of(path)
        if verify:
            catalog.verify(path)
        else:
            _look(path, catalog, manifest)
    except BadCheckpoint as bad:
        error = str(bad)
    except OSError as trouble:
        error = f"it cannot be read: {trouble.strerror}"
    step = manifest.step if manifest else step_in_name(path)
    return make_item(path, manifest, step, size, newest or None, path in listed, listed[:1] == [path], verify, error)


def _look(path: str, catalog: RemoteCatalog, manifest: Manifest | None) -> None:
    """Raises what is wrong with a checkpoint, by sizes alone."""
    if not catalog.is_there(path):
        raise BadCheckpoint("its files are gone")
    for name, expected in manifest.files.items() if manifest is not None else ():
        try:
            there = files.size(files.join(files.directory_of(path), name))
        except FileNotFoundError:
            raise BadCheckpoint(f"{name} is gone") from None
        if there != expected.size:
            raise BadCheckpoint(f"{name} has {there} bytes; its manifest says {expected.size}")
