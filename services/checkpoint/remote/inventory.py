"""List the checkpoints in a directory at a URL.  tools/inventory.py calls it; it imports TensorFlow and only reads."""

from __future__ import annotations

from procsv.base.run.manifest import MANIFEST_SUFFIX
from procsv.ipc.messaging.checkpoint_messages import KEEP_NEVER_HOURS, CheckpointPlan
from procsv.services.checkpoint.remote import gfile
from procsv.services.checkpoint.remote.catalog import UrlListing
from procsv.services.checkpoint.store.inventory import CheckpointDirectory, Inventory


class _RemotePlace(UrlListing, CheckpointDirectory):
    """A checkpoint directory at a URL.

    It does not check the structure of a checkpoint without a manifest, and takes the step from its name.
    """

    def __init__(self, directory: str) -> None:
        prefix = f"{directory}/model.ckpt"
        super().__init__(
            CheckpointPlan(
                save_path=prefix,
                latest_filename="checkpoint",
                save_secs=0.0,
                max_to_keep=0,
                keep_every_n_hours=KEEP_NEVER_HOURS,
                pad_step_number=False,
                save_relative_paths=False,
                meta_path="",
            )
        )

    def parts_of(self, path: str) -> dict[str, tuple[int, float]]:
        directory = gfile.directory_of(path)
        return {name: gfile.stat(gfile.join(directory, name)) for name in self.files_of(path)}


def take_remote_inventory(url: str, verify: bool) -> Inventory:
    """Lists all checkpoints at `url`; FileNotFoundError if it is not a directory."""
    directory = url.rstrip("/")
    if not gfile.is_directory(directory):
        raise FileNotFoundError(2, "no such directory", directory)
    place = _RemotePlace(directory)
    suffixes = (".index", MANIFEST_SUFFIX)
    prefixes = {name.removesuffix(s) for name in place.names for s in suffixes if name.endswith(s)}
    paths = {gfile.join(directory, name) for name in prefixes} | {c.path for c in place.candidates}
    return place.take_inventory(paths, [name for name in place.names if ".rejected" in name], verify)
