"""Read and write files through TensorFlow's filesystem layer, such as gs://, s3:// and hdfs://.

catalog.py and url_files.py call it on the disk thread; it imports TensorFlow on first use.  It
assumes little about a filesystem.  A closed file exists, but may be incomplete.  Renames are not
atomic.  Nothing can be synced.  TensorFlow's errors become OSError.  Paths are URLs in strings,
because a pathlib.Path would drop a slash.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

from procsv.base.run.manifest import FileSum

PIECE_BYTES = 8 * 2**20

_loading = threading.Lock()
_tensorflow: Any = None


def load() -> Any:
    """Imports TensorFlow once, without the accelerators: they belong to the trainer."""
    global _tensorflow
    with _loading:
        if _tensorflow is None:
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
            import tensorflow

            with contextlib.suppress(RuntimeError):  # other code in this process already uses TensorFlow
                tensorflow.config.threading.set_inter_op_parallelism_threads(1)
                tensorflow.config.threading.set_intra_op_parallelism_threads(1)
            _tensorflow = tensorflow
    return _tensorflow


def directory_of(url: str) -> str:
    return posixpath.dirname(url)


def name_of(url: str) -> str:
    return posixpath.basename(url)


def join(directory: str, name: str) -> str:
    """Returns `name` in `directory`, or `name` itself if it is a whole URL."""
    return name if "://" in name else posixpath.join(directory, name)


@contextlib.contextmanager
def _as_os_error(url: str) -> Iterator[None]:
    tf = load()
    try:
        yield
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, error.message, url) from error
    except tf.errors.ResourceExhaustedError as error:
        raise OSError(errno.ENOSPC, error.message, url) from error
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, error.message, url) from error


def exists(url: str) -> bool:
    with _as_os_error(url):
        return bool(load().io.gfile.exists(url))


def is_directory(url: str) -> bool:
    with _as_os_error(url):
        return bool(load().io.gfile.isdir(url))


def names_in(directory: str) -> list[str]:
    """Lists the names in a directory; an empty list if the directory does not exist."""
    try:
        with _as_os_error(directory):
            return sorted(str(name).rstrip("/") for name in load().io.gfile.listdir(directory))
    except FileNotFoundError:
        return []


def make_dirs(directory: str) -> None:
    with _as_os_error(directory):
        load().io.gfile.makedirs(directory)


def read_file(url: str) -> bytes:
    """Returns the bytes of a file; FileNotFoundError if it does not exist."""
    with _as_os_error(url), load().io.gfile.GFile(url, "rb") as file:
        data: bytes = file.read()
        return data


def stat(url: str) -> tuple[int, float]:
    """Returns a file's size and the time of its last change (Unix seconds).

    FileNotFoundError if it does not exist.
    """
    with _as_os_error(url):
        found = load().io.gfile.stat(url)
        return int(found.length), float(found.mtime_nsec) / 1e9


def replace(url: str, data: bytes) -> None:
    """Replaces a small file.

    This is atomic if the filesystem has atomic moves.  Otherwise a kill leaves the file garbled.
    """
    load()
    from tensorflow.python.lib.io import file_io

    with _as_os_error(url):
        if file_io.has_atomic_move(url):
            new = posixpath.join(directory_of(url), f".{name_of(url)}.new")
            remove(new)
            _write_pieces(new, iter((data,)))
            file_io.rename(new, url, overwrite=True)
        else:
            _write_pieces(url, iter((data,)))


def upload(source: Path, url: str) -> None:
    """Copies a local file to `url`.

    Removes an older file first, because some filesystems do not truncate it.
    """
    remove(url)
    with source.open("rb") as file, _as_os_error(url):
        _write_pieces(url, iter(lambda: file.read(PIECE_BYTES), b""))


def copy(source: str, target: str) -> None:
    """Copies a remote file to another remote path, as `upload` does."""
    remove(target)
    with _as_os_error(target), load().io.gfile.GFile(source, "rb") as file:
        _write_pieces(target, iter(lambda: file.read(PIECE_BYTES), b""))


def _write_pieces(url: str, pieces: Iterator[bytes]) -> None:
    with load().io.gfile.GFile(url, "wb") as file:
        for piece in pieces:
            file.write(piece)


def sum_of(url: str) -> FileSum:
    """Reads a whole file and returns its size and checksum.

    FileNotFoundError if it does not exist.
    """
    digest, size = xxhash.xxh3_128(), 0
    with _as_os_error(url), load().io.gfile.GFile(url, "rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
    return FileSum(size, digest.hexdigest())


def remove(url: str) -> None:
    """Removes a file if it exists."""
    with contextlib.suppress(FileNotFoundError), _as_os_error(url):
        load().io.gfile.remove(url)


def remove_tree(directory: str) -> None:
    with contextlib.suppress(FileNotFoundError), _as_os_error(directory):
        load().io.gfile.rmtree(directory)


def move(source: str, target: str) -> None:
    """Renames a file.  This is not atomic: the filesystem may copy and delete it."""
    with _as_os_error(source):
        load().io.gfile.rename(source, target, overwrite=True)


def read_tensors(path: str) -> int | None:
    """Verifies the checksum of every tensor; returns the global step, or None if there is none.

    OSError if a checksum is wrong, or if a file cannot be read.
    """
    tf = load()
    with _as_os_error(path):
        try:
            reader: Any = tf.compat.v1.train.NewCheckpointReader(path)
            for key in reader.get_variable_to_shape_map():
                reader.get_tensor(key)
        except (ValueError, RuntimeError) as error:  # the reader's errors for a garbled file
            raise OSError(errno.EIO, str(error), path) from error
        if not reader.has_tensor("global_step") or reader.get_variable_to_shape_map()["global_step"]:
            return None
        return int(reader.get_tensor("global_step"))
