"""Commit a checkpoint, ordering the writes so that a kill at any line does no damage.

The store calls it on the disk thread. It works on files alone and knows nothing of TensorFlow,
slots or messages.

A *staging area* is a directory on the checkpoint's own filesystem. In it,
`staging/<sequence>.<run>/` holds a checkpoint in the making. If the checkpoint replaces an older
one of the same name, `replaced/<sequence>.<run>/` holds links to the older files.

A staging directory with `intent.json` is complete and on disk. If a kill interrupts the commit, the
next process finishes it from there. A staging directory without `intent.json` is swept. Either way
the directory disappears.

The staging directory is also the commit's fence. Every rename of a commit moves a file into or out
of this directory. When another machine takes over the logdir, it first finishes or sweeps the
directory. So a process that has lost the logdir can no longer change a checkpoint
(base/system/fenced_rename.py).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from procsv.base.run.checkpoint_lock import hold_checkpoint_lock
from procsv.base.run.manifest import MANIFEST_SUFFIX
from procsv.base.system import disk
from procsv.base.system.data_file import read_data
from procsv.base.system.failpoints import declare, failpoint
from procsv.base.system.fenced_rename import Fenced, FencedRename
from procsv.services.checkpoint.format.manifest import (
    BadCheckpoint,
    encode_manifest,
    read_manifest,
    verify_file,
    with_index,
)
from procsv.services.checkpoint.format.names import all_files, base_of, manifest_of, placing_order
from procsv.services.checkpoint.format.state_file import GarbledStateFile, list_text, read_state
from procsv.services.checkpoint.store.intent import INTENT, Intent, read_intent, write_intent

declare(
    "checkpoint.before_rename",
    "checkpoint.before_directory_fsync",
    "checkpoint.before_manifest",
    "checkpoint.before_state",
    "checkpoint.deleting_old",
)


_OWN = re.compile(r"(\d+)(\.[0-9a-f]+)?")  # names of our directories; earlier versions of procsv left the run out
SWEEPS_MAX = 10  # tries to empty a directory in which another process keeps creating files


class StagingArea:
    """The directories `staging` and `replaced` on one filesystem."""

    def __init__(self, home: Path, run: str = "") -> None:
        """`run`: the run that commits here.

        Two runs may use the same sequence, so directory names include the run.
        """
        self.home = home
        self.staging = home / "staging"
        self.replaced = home / "replaced"
        self._run = run

    def begin_commit(self, sequence: int) -> Path:
        """Create an empty staging directory.

        A machine that takes over the logdir writes its lease first, and then removes the staging
        directories that it finds. Suppose that we still hold the lease after this call. Then
        every later takeover finds this directory and removes it, and our renames fail from then on.
        """
        staging = self.staging / (f"{sequence}.{self._run}" if self._run else str(sequence))
        if staging.exists():
            disk.remove_tree(staging)
        disk.make_dirs(staging.parent)
        disk.mkdir(staging)
        # Killed here or at any time before the intent is written: the next start sweeps the directory.
        # The directory's own name goes to disk together with the intent.
        return staging

    def commit(self, staging: Path, intent: Intent) -> list[str]:
        """Move the synced files of `staging` into place.

        Return the old checkpoints that could not be deleted. On an error, undo everything, then
        raise the error. If another run has taken over, undo nothing and raise Fenced: that run has
        already finished, undone or dropped this commit.
        """
        try:
            disk.fsync_path(staging)  # sync the file names, so that no power failure leaves an intent without files
            # Killed here: there is no intent, so the next start sweeps the directory.
            write_intent(staging, intent)
            disk.fsync_path(staging.parent)
        except BaseException:
            disk.try_to_remove_tree(staging)
            raise
        try:
            self._carry_out(staging, intent)
        except Fenced:
            raise
        except Exception:
            self._undo(staging, intent)
            raise
        undeleted = self._delete_old(staging, intent)
        self._tidy(staging)
        return undeleted

    def is_empty(self) -> bool:
        """Whether the area holds no remains of a commit."""
        return not any(self._own_directories(self.staging)) and not any(self._own_directories(self.replaced))

    def recover_commits(self, elsewhere: Path | None = None) -> None:
        """Finish interrupted commits: carry out whole ones, undo damaged ones, and sweep the rest.

        Two kinds of commit stay for the next call. One kind cannot be read now. The other kind
        points to a foreign directory, because an `intent.json` that came with a copied logdir must
        not decide where we write. Only two directories are not foreign: the directory that holds
        the staging area, and `elsewhere`, the checkpoint directory that the program asks for.
        Killed here: the next start does the same again.
        """
        ours = {os.path.realpath(place) for place in (self.home.parent, elsewhere) if place is not None}
        unread = set()
        for staging in sorted(self._own_directories(self.staging), key=lambda p: int(p.name.partition(".")[0])):
            try:
                intent = read_intent(staging)
                is_wanted = intent is not None and self._is_newest(intent)
            except OSError:
                unread.add(staging.name)
                continue
            if intent is not None and os.path.realpath(intent.directory) not in ours:
                unread.add(staging.name)
                continue
            if intent is not None and is_wanted:
                # A trainer that outlived the last service may be saving with the program's own Saver.
                with hold_checkpoint_lock(intent.directory):
                    if not self._take_up(staging, intent):
                        unread.add(staging.name)
                        continue
            self._tidy(staging)
            _sweep(staging)
        over = [path for path in self._own_directories(self.replaced) if path.name not in unread]
        for leftover in [*over, *self.replaced.glob(".*.new")]:
            disk.try_to_remove_tree(leftover)  # its commit was complete; a kill cut only the clean-up short

    def _take_up(self, staging: Path, intent: Intent) -> bool:
        """Carry out an interrupted commit, or undo a damaged one.

        Return False if its files cannot be read now.
        """
        try:
            _verify_wherever(staging, intent)
        except BadCheckpoint:
            if not self._was_over(staging, intent):
                self._undo(staging, intent)
            return True
        except OSError:
            return False
        listed = _listed_since(intent)
        self._carry_out(staging, msgspec.structs.replace(intent, listed=listed))
        self._delete_old(staging, intent)
        return True

    def _was_over(self, staging: Path, intent: Intent) -> bool:
        """Whether this commit was complete, and a kill cut only its clean-up short.

        If so, nothing is undone: the checkpoint may have been acknowledged. catalog.py reports the
        damage when it verifies the checkpoint.
        """
        names = list(intent.manifest.files)
        if (self.replaced / staging.name).exists() or any((staging / name).exists() for name in names):
            return False
        if not all((intent.directory / name).exists() for name in names):
            return False
        with contextlib.suppress(BadCheckpoint):
            there = read_manifest(manifest_of(intent.path))
            return there is not None and there.sequence == intent.manifest.sequence
        return False

    def _own_directories(self, where: Path) -> Iterator[Path]:
        if where.is_dir() and not where.is_symlink():  # a link may lead to other people's files
            found = [p for p in where.iterdir() if _OWN.fullmatch(p.name)]
            yield from [p for p in found if p.is_dir() and not p.is_symlink()]

    def _is_newest(self, intent: Intent) -> bool:
        """Return False if a later commit has put another checkpoint under the same name."""
        with contextlib.suppress(BadCheckpoint):
            there = read_manifest(manifest_of(intent.path))
            return there is None or there.sequence <= intent.manifest.sequence
        return True

    def _carry_out(self, staging: Path, intent: Intent) -> None:
        """Carry out an intent, except for the deletions. Every line can run again after a kill."""
        fence = FencedRename(staging, INTENT)
        failpoint("checkpoint.before_rename")
        self._set_aside(staging, intent)
        # Killed from here on: all files are whole, some staged and some in place, and the next start continues.
        for name in placing_order(list(intent.manifest.files)):
            fence.place(name, intent.directory / name)
        for stale in _stale_files(intent):
            fence.take_away(stale)  # a file of the older checkpoint; `replaced` has a link to it
        failpoint("checkpoint.before_directory_fsync")
        fence.flush_removals()
        # Killed here: the checkpoint is complete but not listed, so TensorFlow still reads the
        # previous one. Putting the manifest in place also syncs the directory, and with it the files'
        # names, so a power failure cannot leave the checkpoint listed without its files.
        failpoint("checkpoint.before_manifest")
        fence.put(manifest_of(intent.path), encode_manifest(with_index(intent.manifest, intent.path)))
        # Killed here: the checkpoint is complete and verifiable, but not the latest yet.
        failpoint("checkpoint.before_state")
        listed = list_text(intent.save_path, list(intent.listed), intent.relative, intent.lists_times)
        fence.put(Path(intent.state_file), listed)
        # Killed here: the checkpoint is durable but not acknowledged, and too many old ones are kept.

    def _delete_old(self, staging: Path, intent: Intent) -> list[str]:
        undeleted, fence = [], FencedRename(staging, INTENT)
        for path in set(intent.delete) - set(intent.listed):
            try:
                failpoint("checkpoint.deleting_old")
                for file in all_files(path):  # the index first, so that no torn checkpoint remains; the manifest last
                    fence.take_away(file)
            except Fenced:
                raise
            except OSError:
                undeleted.append(path)  # harmless; the next commit tries again
        # Killed here, or power lost: the intent is still there, so the next start deletes the files again. (A power
        # failure may bring them back.) An OSError is ignored. Either the directory is gone with all its files, or the
        # disk is failing, and the next commit will report that.
        with contextlib.suppress(OSError):
            fence.flush_removals()
        for directory in {Path(path).parent for path in intent.delete}:
            with contextlib.suppress(OSError):
                disk.fsync_path(directory)
        return undeleted

    def _set_aside(self, staging: Path, intent: Intent) -> None:
        """Link the files of an older checkpoint of the same name into `replaced`, for an undo."""
        kept = self.replaced / staging.name
        if kept.exists():
            return  # linked before a kill; the files in place may already be the new ones
        old = all_files(intent.path)
        if not old:
            return
        making = _making(kept)
        disk.remove_tree(making)
        disk.make_dirs(making)
        for path in old:
            disk.link_or_copy(path, making / path.name)
        disk.fsync_files(making)  # on a filesystem without hard links, these are copies
        disk.fsync_path(making)
        disk.rename(making, kept)
        # Killed here: the links lead to files that are still in place, which is harmless.
        disk.fsync_path(self.replaced)

    def _undo(self, staging: Path, intent: Intent) -> None:
        """Remove the files that were placed, and restore the older checkpoint of that name."""
        kept, fence = self.replaced / staging.name, FencedRename(staging, INTENT)
        is_placed = kept.exists() or not intent.replaces  # otherwise the older checkpoint is untouched
        for name in intent.manifest.files if is_placed else ():
            if not (staging / name).exists():
                fence.take_away(intent.directory / name)
        with contextlib.suppress(BadCheckpoint):
            there = read_manifest(manifest_of(intent.path)) if is_placed else None
            if there is not None and there.sequence == intent.manifest.sequence:
                fence.take_away(manifest_of(intent.path))
        if kept.exists():
            for path in kept.iterdir():
                target = intent.directory / path.name
                fence.take_away(target)
                disk.link_or_copy(path, target)
                disk.fsync_path(target)  # on a filesystem without hard links it is a copy
        fence.flush_removals()
        disk.fsync_path(intent.directory)
        # Killed before this: if a file is already missing or damaged, the next start undoes the commit
        # again, from what was set aside. Otherwise all files are whole, and the next start carries the
        # commit out.
        if kept.exists():
            disk.rename(kept, _making(kept))
            disk.fsync_path(self.replaced)
        # Killed here: the older checkpoint of this name, if there was one, is in place again, and a
        # further undo leaves it alone.
        _put_state_back(fence, Path(intent.state_file), intent.state_before)
        fence.flush_removals()
        self._tidy(staging)

    def _tidy(self, staging: Path) -> None:
        """Remove the traces of a commit. The intent goes last, when nothing needs it any more."""
        kept = self.replaced / staging.name
        disk.try_to_remove_tree(_making(kept))
        disk.try_to_remove_tree(kept)
        # Killed here after a commit: the next start carries the commit out again, which changes nothing.
        # Killed here after an undo: the next start undoes the commit again, or carries it out if all files are still staged.
        with contextlib.suppress(OSError):
            disk.unlink_if_there(staging / INTENT)
        disk.try_to_remove_tree(staging)


def _making(kept: Path) -> Path:
    """Return the directory where the links are made before it is renamed to `kept`."""
    return kept.with_name(f".{kept.name}.new")


def _listed_since(intent: Intent) -> tuple[str, ...]:
    """Return the list to write when an interrupted commit is carried out.

    Another writer, such as a Saver in the trainer, may have replaced the `checkpoint` file since.
    Then the checkpoint that it names as the latest stays the latest.
    """
    now = read_text(Path(intent.state_file))
    if now is None or now == intent.state_before:
        return intent.listed
    try:
        state = read_state(Path(intent.state_file))
    except GarbledStateFile:
        return intent.listed
    assert state is not None, "it was read just now"
    there = [
        str(intent.directory / path) for path in state.all_paths if str(intent.directory / path) not in intent.delete
    ]
    latest = str(intent.directory / state.latest)
    if latest in intent.listed:
        return intent.listed
    return (*(p for p in there if p != latest), *(p for p in intent.listed if p not in there), latest)


def read_text(path: Path) -> str | None:
    """Return the bytes of the `checkpoint` file as latin-1 text, since the file may be garbled.

    None if there is no file.
    """
    try:
        return read_data(path, follows_links=True).decode("latin-1")
    except FileNotFoundError:
        return None


def _put_state_back(fence: FencedRename, path: Path, before: str | None) -> None:
    if read_text(path) == before:
        return
    if before is None:
        fence.take_away(path)
    else:
        fence.put(path, before.encode("latin-1"))


def _sweep(staging: Path) -> None:
    """Remove a staging directory.

    The process that made it may still live, and keep creating files in it. Files that cannot be
    removed stay for the next call.
    """
    for _ in range(SWEEPS_MAX):
        if not staging.exists():
            return
        disk.try_to_remove_tree(staging)


def _verify_wherever(staging: Path, intent: Intent) -> None:
    """Verify each file where it is: still in staging, or already in place."""
    for name, expected in intent.manifest.files.items():
        staged = staging / name
        verify_file(staged if staged.exists() else intent.directory / name, expected)


def _stale_files(intent: Intent) -> list[Path]:
    """Return the older checkpoint's files that the new checkpoint does not overwrite.

    Extra shards are an example.
    """
    own = set(intent.manifest.files) | {manifest_of(intent.path).name}
    return [path for path in all_files(intent.path) if path.name not in own]


def delete_surely(path: str) -> None:
    """Remove a checkpoint without an intent that could repeat the removal after a power failure.

    The index goes first, so that no torn checkpoint remains, then the data, and the manifest last.
    Killed in between: a manifest without an index tells the next start what to remove.
    """
    files = all_files(path)
    index = [file for file in files if file.name.endswith(".index")]
    manifest = [file for file in files if file == manifest_of(path)]
    for part in (index, [file for file in files if file not in (*index, *manifest)], manifest):
        for file in part:
            disk.unlink_if_there(file)
        disk.fsync_path(Path(path).parent)


def finish_deletions(directory: Path, basename: str, listed: set[str]) -> None:
    """Finish interrupted deletions: remove manifests whose index is gone, and their files.

    If a manifest's name does not begin with `basename`, the checkpoint belonged to another Saver of
    the program, which has deleted it. Then remove only the manifest, because we added it.
    """
    kept = {base_of(path) for path in listed}
    for manifest_path in directory.glob(f"*{MANIFEST_SUFFIX}"):
        path = str(directory / manifest_path.name.removesuffix(MANIFEST_SUFFIX))
        if Path(path + ".index").exists() or base_of(path) in kept:
            continue
        try:
            manifest = read_manifest(manifest_path)
        except (BadCheckpoint, OSError):
            continue
        index = [name for name in manifest.files if name.endswith(".index")] if manifest is not None else []
        if index and not (directory / index[0]).exists():
            if manifest_path.name.startswith(basename):
                delete_surely(path)
            else:
                disk.unlink_if_there(manifest_path)
