"""Find, list and verify the checkpoints in a remote directory, and move bad ones aside.

It does through TensorFlow's filesystem what store/catalog.py does, and never deletes anything.
url_files.py calls it on the disk thread. tools/inventory.py calls `take_remote_inventory`, which
only reads.
"""

from __future__ import annotations

import contextlib
import re

from procsv.base.run.manifest import MANIFEST_SUFFIX, Manifest
from procsv.ipc.messaging.checkpoint_messages import KEEP_NEVER_HOURS, CheckpointPlan
from procsv.services.checkpoint.format.manifest import BadCheckpoint, check_sum, decode_manifest
from procsv.services.checkpoint.format.names import step_in_name
from procsv.services.checkpoint.format.state_file import GarbledStateFile, StateFile, parse_state, state_of_names
from procsv.services.checkpoint.remote import gfile
from procsv.services.checkpoint.store.inventory import CheckpointDirectory, Inventory
from procsv.services.checkpoint.store.search import Listing

_PART = re.compile(r"(\.index|\.data-\d{5}-of-\d{5}|\.meta|\.manifest\.json)$")


class UrlListing(Listing):
    """The checkpoints of one plan, as they were when this listing was made."""

    def __init__(self, plan: CheckpointPlan) -> None:
        self.directory, basename = gfile.directory_of(plan.save_path), gfile.name_of(plan.save_path)
        self.names = gfile.names_in(self.directory)
        listed, trouble = list[str](), ""
        if plan.latest_filename in self.names:
            url = gfile.join(self.directory, plan.latest_filename)
            try:
                listed = self._listed(parse_state(gfile.read_file(url), url))
            except GarbledStateFile as error:
                trouble = str(error)
        super().__init__(self.directory, basename, self.names, listed, trouble, bool(trouble))

    def is_there(self, path: str) -> bool:
        if gfile.directory_of(path) == self.directory:
            return f"{gfile.name_of(path)}.index" in self.names
        with contextlib.suppress(OSError):
            return gfile.exists(f"{path}.index")
        return False

    def files_of(self, path: str) -> list[str]:
        """Returns the names of a checkpoint's existing files, the index first."""
        name = gfile.name_of(path)
        found = [n for n in self.names if n.startswith(f"{name}.") and _PART.fullmatch(n[len(name) :])]
        return sorted(found, key=lambda n: (not n.endswith(".index"), n.endswith(MANIFEST_SUFFIX), n))

    def manifest_of(self, path: str) -> Manifest | None:
        try:
            return decode_manifest(gfile.read_file(path + MANIFEST_SUFFIX))
        except FileNotFoundError:
            return None

    def _listed(self, state: StateFile) -> list[str]:
        order = [state.latest] + [path for path in reversed(state.all_paths) if path != state.latest]
        found = []
        for path in order:
            # A moved or copied logdir still lists its old paths.  Use the files here.
            beside = gfile.join(self.directory, gfile.name_of(path))
            found.append(beside if self.is_there(beside) else gfile.join(self.directory, path))
        return found

    def verify_checkpoint(self, path: str) -> int:
        manifest = self.manifest_of(path)
        if not self.is_there(path):
            raise BadCheckpoint("its files are gone")
        if manifest is None:
            return self._verify_foreign(path)
        try:
            verify_files(manifest, gfile.directory_of(path))
        except BadCheckpoint:
            with contextlib.suppress(
                BadCheckpoint
            ):  # another save may have replaced the files; the manifest is then void
                return self._verify_foreign(path)
            raise
        return manifest.step

    def _verify_foreign(self, path: str) -> int:
        """Verifies a checkpoint without a manifest by its own checksums; returns its step."""
        try:
            step = gfile.read_tensors(path)
        except OSError:
            # TensorFlow's reader raises the same error for an unreadable directory and for bad bytes.  So read the files
            # here: that raises OSError if the directory is unreadable.
            for name in self.files_of(path):
                gfile.sum_of(gfile.join(gfile.directory_of(path), name))
            try:
                step = gfile.read_tensors(path)
            except OSError as error:
                raise BadCheckpoint(str(error.strerror)) from error
        return step_in_name(path) if step is None else step

    def move_aside(self, path: str) -> None:
        name, number = gfile.name_of(path), 1
        while (target := f"{name}.rejected" + (f".{number}" if number > 1 else "")) in self.names:
            number += 1
        aside = gfile.join(self.directory, target)
        moving = self.files_of(path)
        if moving:
            gfile.make_dirs(aside)
        for file in moving:
            gfile.move(gfile.join(self.directory, file), gfile.join(aside, file))

    def write_list(self, plan: CheckpointPlan, paths: tuple[str, ...]) -> None:
        """Replaces the `checkpoint` file, with names relative to its directory.

        TensorFlow does the same for such paths.
        """
        names = [path.removeprefix(self.directory + "/") for path in paths]
        gfile.replace(gfile.join(self.directory, plan.latest_filename), state_of_names(names))


def verify_files(manifest: Manifest, directory: str) -> None:
    """Raises BadCheckpoint if one of the manifest's files is missing or wrong.

    OSError if one cannot be read.
    """
    for name, expected in manifest.files.items():
        try:
            found = gfile.sum_of(gfile.join(directory, name))
        except FileNotFoundError:
            raise BadCheckpoint(f"{name} is missing in {directory}") from None
        check_sum(name, found, expected)


class _RemotePlace(UrlListing, CheckpointDirectory):
    """A checkpoint directory at a URL.

    If a checkpoint has no manifest, its structure is not checked, and its step comes from its name.
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
