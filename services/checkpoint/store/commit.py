"""Commit a checkpoint, ordering the writes so that a kill at any line does no damage.

The store calls it on the disk thread. It works on files alone and knows nothing of TensorFlow,
slots or messages.

A *staging area* is a directory on the same filesystem as the checkpoint. Each commit has two
directories in it. The *staging directory*, `staging/<sequence>.<run>/`, holds the new checkpoint
until its files are moved into place. If the checkpoint replaces an older one of the same name,
`replaced/<sequence>.<run>/` holds links to the older files, for an undo.

If a kill interrupts the commit, the next process looks for `intent.json` in the staging directory.
Once that file is there, the checkpoint is complete and synced, so that process finishes the commit.
If a file has been damaged since, it undoes the commit instead. Without `intent.json`, it drops the
commit. In each case, it then removes both directories.

The staging directory is also the commit's fence (base/system/fenced_rename.py). A commit places,
replaces and deletes files by renames out of the staging directory or into it. Its undo also links
the older files back from `replaced`. A machine that takes over the logdir writes its own lease, and
then finishes, undoes or drops each commit that it finds. Once it has removed both directories, a
process of the old run can no longer continue its commit. There is one gap: a file that cannot be
renamed into the staging directory is deleted in place, right after a check of the fence.

`delete_durably` and `finish_deletions` delete files outside a commit, so they have no fence. Their
callers check the lease first.
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

_OWN = re.compile(r"(\d+)(\.[0-9a-f]+)?")  # names of our directories; earlier versions of procsv left out `.<run>`
SWEEPS_MAX = 10  # how often to try to remove a directory while another process keeps creating files in it


class StagingArea:
    """A staging area: the directory `home` with its subdirectories `staging` and `replaced`."""

    def __init__(self, home: Path, run: str = "") -> None:
        """`run`: the id of the launch that commits here.

        Two launches may use the same sequence number, so directory names include the id.
        """
        self.home = home
        self.staging = home / "staging"
        self.replaced = home / "replaced"
        self._run = run

    def begin_commit(self, sequence: int) -> Path:
        """Create an empty staging directory.

        The caller checks the lease after this call, and before `commit`. A machine that takes over
        the logdir writes its lease before it looks for staging directories. So if we still hold the
        lease at that check, any later takeover finds this directory and removes it, and from then
        on our renames fail.
        """
        staging = self.staging / (f"{sequence}.{self._run}" if self._run else str(sequence))
        if staging.exists():
            disk.remove_tree(staging)
        disk.make_dirs(staging.parent)
        disk.mkdir(staging)
        # Killed here or at any time before the intent is written: the next start sweeps the directory.
        # `commit` syncs the parent, and so this directory's name, once it has written the intent.
        return staging

    def commit(self, staging: Path, intent: Intent) -> list[str]:
        """Move the synced files of `staging` into place.

        Return the old checkpoints that could not be deleted. On an error, undo everything, then
        raise the error. If another launch has taken over, undo nothing and raise Fenced: that
        launch has already finished, undone or dropped this commit.
        """
        try:
            disk.fsync_path(staging)  # the names of the files, so that no power failure leaves an intent without files
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
        self._remove_traces(staging)
        return undeleted

    def is_empty(self) -> bool:
        """Whether no commit has left a directory in the area."""
        return not any(self._own_directories(self.staging)) and not any(self._own_directories(self.replaced))

    def recover_commits(self, elsewhere: Path | None = None) -> None:
        """Clear the area of interrupted commits: finish them, undo the damaged ones, drop the rest.

        A commit without an intent is dropped, and so is a commit whose checkpoint has been replaced
        by a later one. Two kinds of commit are left for a later call: those that cannot be read
        now, and those whose intent names a foreign directory. Such an intent may have come with a
        copied logdir, and must not decide where we write. Only two directories are not foreign: the
        one that contains the staging area, and `elsewhere`, the checkpoint directory that the
        program asks for. A kill at any point is harmless: the next start does the same again.
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
                # A trainer that outlived the previous service may be saving with the program's own Saver.
                with hold_checkpoint_lock(intent.directory):
                    if not self._resume_commit(staging, intent):
                        unread.add(staging.name)
                        continue
            self._remove_traces(staging)
            _sweep(staging)
        over = [path for path in self._own_directories(self.replaced) if path.name not in unread]
        for leftover in [*over, *self.replaced.glob(".*.new")]:
            disk.try_to_remove_tree(leftover)  # no commit needs it any more

    def _resume_commit(self, staging: Path, intent: Intent) -> bool:
        """Finish an interrupted commit; undo it if a file is damaged.

        Return False, with nothing changed, if the files cannot be read now.
        """
        try:
            _verify_files(staging, intent)
        except BadCheckpoint:
            if not self._had_completed(staging, intent):
                self._undo(staging, intent)
            return True
        except OSError:
            return False
        listed = _list_to_write(intent)
        self._carry_out(staging, msgspec.structs.replace(intent, listed=listed))
        self._delete_old(staging, intent)
        return True

    def _had_completed(self, staging: Path, intent: Intent) -> bool:
        """Whether this commit was complete, and only the removal of its traces was interrupted.

        Such a commit must not be undone, because the service may have reported its checkpoint as
        saved. catalog.py reports the damage when it verifies the checkpoint.
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
        if where.is_dir() and not where.is_symlink():  # a link may lead to somebody else's files
            found = [p for p in where.iterdir() if _OWN.fullmatch(p.name)]
            yield from [p for p in found if p.is_dir() and not p.is_symlink()]

    def _is_newest(self, intent: Intent) -> bool:
        """Return False if a later commit has put another checkpoint under the same name."""
        with contextlib.suppress(BadCheckpoint):
            there = read_manifest(manifest_of(intent.path))
            return there is None or there.sequence <= intent.manifest.sequence
        return True

    def _carry_out(self, staging: Path, intent: Intent) -> None:
        """Carry out an intent, except for its deletions. Each line may run again after a kill."""
        fence = FencedRename(staging, INTENT)
        failpoint("checkpoint.before_rename")
        self._back_up_replaced(staging, intent)
        # Killed from here on: all files are whole, some staged and some in place, and the next start continues.
        for name in placing_order(list(intent.manifest.files)):
            fence.place(name, intent.directory / name)
        for stale in _stale_files(intent):
            fence.remove(stale)  # a file of the older checkpoint; `replaced` has a link to it
        failpoint("checkpoint.before_directory_fsync")
        fence.flush_removals()
        # Killed here: the checkpoint is complete but not listed, so TensorFlow still reads the previous one.
        failpoint("checkpoint.before_manifest")
        # `fence.put` syncs the checkpoint's directory after it has placed the manifest. The sync also makes the
        # names of the other files durable, so no power failure can leave the checkpoint listed without its files.
        fence.put(manifest_of(intent.path), encode_manifest(with_index(intent.manifest, intent.path)))
        # Killed here: the checkpoint is complete and verifiable, but not the latest yet.
        failpoint("checkpoint.before_state")
        listed = list_text(intent.save_path, list(intent.listed), intent.relative, intent.lists_times)
        fence.put(Path(intent.state_file), listed)
        # Killed here: the checkpoint is durable, but the service has not reported it, and the old
        # checkpoints are not deleted yet.

    def _delete_old(self, staging: Path, intent: Intent) -> list[str]:
        undeleted, fence = [], FencedRename(staging, INTENT)
        for path in set(intent.delete) - set(intent.listed):
            try:
                failpoint("checkpoint.deleting_old")
                for file in all_files(path):  # the index first, because TensorFlow ignores a checkpoint without it
                    fence.remove(file)
            except Fenced:
                raise
            except OSError:
                undeleted.append(path)  # harmless; the next commit tries again
        # Killed here: the intent is still there, so the next start deletes the files again. The same is true after a
        # power failure, which may have brought them back. An OSError is ignored: either the directory is gone with all
        # its files, or the disk is failing, and then the next commit reports that.
        with contextlib.suppress(OSError):
            fence.flush_removals()
        for directory in {Path(path).parent for path in intent.delete}:
            with contextlib.suppress(OSError):
                disk.fsync_path(directory)
        return undeleted

    def _back_up_replaced(self, staging: Path, intent: Intent) -> None:
        """Link the older checkpoint's files, if there are any, into `replaced`, for an undo."""
        kept = self.replaced / staging.name
        if kept.exists():
            return  # a process that was killed has linked them; the files in place may be the new ones by now
        old = all_files(intent.path)
        if not old:
            return
        temporary = _temporary_of(kept)
        disk.remove_tree(temporary)
        disk.make_dirs(temporary)
        for path in old:
            disk.link_or_copy(path, temporary / path.name)
        disk.fsync_files(temporary)  # on a filesystem without hard links, these are copies
        disk.fsync_path(temporary)
        disk.rename(temporary, kept)
        # Killed here: harmless, because the older files are still in place, too.
        disk.fsync_path(self.replaced)

    def _undo(self, staging: Path, intent: Intent) -> None:
        """Undo a commit, and remove its directories.

        Remove the files that it placed. Restore the older checkpoint of that name, and the
        `checkpoint` file.
        """
        kept, fence = self.replaced / staging.name, FencedRename(staging, INTENT)
        # No file is placed before the older checkpoint is backed up, and an undo drops the backup once it has restored
        # that checkpoint. So if there was an older checkpoint, and there is no backup, leave the files in place alone.
        may_be_placed = kept.exists() or not intent.replaces
        for name in intent.manifest.files if may_be_placed else ():
            if not (staging / name).exists():
                fence.remove(intent.directory / name)
        with contextlib.suppress(BadCheckpoint):
            there = read_manifest(manifest_of(intent.path)) if may_be_placed else None
            if there is not None and there.sequence == intent.manifest.sequence:
                fence.remove(manifest_of(intent.path))
        if kept.exists():
            for path in kept.iterdir():
                target = intent.directory / path.name
                fence.remove(target)
                disk.link_or_copy(path, target)
                disk.fsync_path(target)  # on a filesystem without hard links, it is a copy
        fence.flush_removals()
        disk.fsync_path(intent.directory)
        # Killed before this line: if a file of the new checkpoint is missing or damaged by now, the next
        # start undoes the commit again, from the backup. Otherwise the next start finishes the commit.
        if kept.exists():
            disk.rename(kept, _temporary_of(kept))
            disk.fsync_path(self.replaced)
        # Killed here: the older checkpoint of this name, if there was one, is in place again, and
        # another undo does not touch it.
        _restore_state_file(fence, Path(intent.state_file), intent.state_before)
        fence.flush_removals()
        self._remove_traces(staging)

    def _remove_traces(self, staging: Path) -> None:
        """Remove the directories of a commit, first the backup, then the intent, then the rest."""
        kept = self.replaced / staging.name
        disk.try_to_remove_tree(_temporary_of(kept))
        disk.try_to_remove_tree(kept)
        # Killed here after a commit: the next start carries out the intent again, which changes nothing.
        # Killed here after an undo: the next start undoes the commit again. But if the commit failed before it had
        # placed a file, all files are still staged, and the next start finishes the commit.
        with contextlib.suppress(OSError):
            disk.unlink_if_there(staging / INTENT)
        disk.try_to_remove_tree(staging)


def _temporary_of(kept: Path) -> Path:
    """Return the temporary name of the backup `kept`: while it is made, and once it is obsolete."""
    return kept.with_name(f".{kept.name}.new")


def _list_to_write(intent: Intent) -> tuple[str, ...]:
    """Return the list to write into the `checkpoint` file when an interrupted commit is finished.

    Another writer, such as a Saver in the trainer, may have replaced that file since the intent was
    written. If so, the checkpoint that the file now names as the latest stays the latest.
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
    """Return the contents of a `checkpoint` file; None if there is no file.

    The file may be garbled, so its bytes are decoded as latin-1, which accepts any bytes.
    """
    try:
        return read_data(path, follows_links=True).decode("latin-1")
    except FileNotFoundError:
        return None


def _restore_state_file(fence: FencedRename, path: Path, before: str | None) -> None:
    if read_text(path) == before:
        return
    if before is None:
        fence.remove(path)
    else:
        fence.put(path, before.encode("latin-1"))


def _sweep(staging: Path) -> None:
    """Remove a staging directory, in several tries.

    The process that made it may still be alive and create files in it. What cannot be removed is
    left for a later call of `recover_commits`.
    """
    for _ in range(SWEEPS_MAX):
        if not staging.exists():
            return
        disk.try_to_remove_tree(staging)


def _verify_files(staging: Path, intent: Intent) -> None:
    """Verify each file of the new checkpoint where it is: still staged, or already in place."""
    for name, expected in intent.manifest.files.items():
        staged = staging / name
        verify_file(staged if staged.exists() else intent.directory / name, expected)


def _stale_files(intent: Intent) -> list[Path]:
    """Return the older checkpoint's files that the new checkpoint does not overwrite.

    Extra shards are an example.
    """
    own = set(intent.manifest.files) | {manifest_of(intent.path).name}
    return [path for path in all_files(intent.path) if path.name not in own]


def delete_durably(path: str) -> None:
    """Delete a checkpoint so that no power failure brings part of it back.

    Outside a commit there is no intent to repeat the deletion from, so each part is synced: first
    the index, because TensorFlow ignores a checkpoint without it; then the data; last the manifest.
    After a kill in between, the manifest without an index tells the next start what to delete.
    """
    files = all_files(path)
    index = [file for file in files if file.name.endswith(".index")]
    manifest = [file for file in files if file == manifest_of(path)]
    for part in (index, [file for file in files if file not in (*index, *manifest)], manifest):
        for file in part:
            disk.unlink_if_there(file)
        disk.fsync_path(Path(path).parent)


def finish_deletions(directory: Path, basename: str, listed: set[str]) -> None:
    """Finish interrupted deletions: delete each checkpoint that has a manifest but no index.

    `listed`: checkpoints to leave alone. If a manifest's name does not begin with `basename`, the
    checkpoint belonged to one of the program's own Savers, which has deleted it. Then delete only
    the manifest, because procsv added no other file.
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
                delete_durably(path)
            else:
                disk.unlink_if_there(manifest_path)
