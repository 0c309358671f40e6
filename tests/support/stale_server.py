"""Serve a filesystem in user space whose handles go stale on request, as an NFS client's do.

stale_mount.py runs it as a process of its own. `stale_server.py DIRECTORY` mounts the contents of
DIRECTORY over itself; it needs root. It reads one request a line from standard input and answers
each with a line:

* `stale`: handles that were looked up or opened until now fail with ESTALE for good. New ones work, as after an NFS server has replaced its export.
* `replace`: the first read of each file from now on is stale, as if another machine had replaced the file since it was opened.
* `stale-at TEXT`: like `stale`, at the next write to a file whose path contains TEXT.
* `lose`: everything is stale until `find`, which stands for a new mount.
* `met`: print as JSON which processes have met a stale handle, and in which calls.

It unmounts and exits when standard input is closed.

It speaks the kernel's protocol itself (linux/fuse.h). The kernel asks for the attributes of an open
file by inode alone, and the FUSE libraries that serve paths keep one inode for a path, so with them
no `fstat` would ever be stale.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import stat
import struct
import sys
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

ROOT = 1  # the directory itself, which is never stale
WRITE_BYTES_MAX = 2**17
NAMES_BYTES_MAX = 2**14  # room for the rest of a request
MNT_DETACH = 2
DIRECT_IO = 1  # on an open file: each read and write reaches us
MODE, OWNER, GROUP, SIZE, ATIME, MTIME, ATIME_NOW, MTIME_NOW = 1, 2, 4, 8, 16, 32, 128, 256  # for SETATTR
MAJOR, MINOR = 7, 31

IN = struct.Struct("<IIQQIIIHH")
OUT = struct.Struct("<IiQ")
INIT = struct.Struct("<4I2H2I36x")
ATTRIBUTES = struct.Struct("<6Q10I")
SET_ATTRIBUTES = struct.Struct("<II6Q8I")
HANDLE_AND_RANGE = struct.Struct("<QQI")  # the head of a read, a write and a directory read
RANGE_BYTES = 40  # the size of that head


class Op(IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    FORGET_MANY = 42


UNANSWERED = {Op.FORGET, Op.FORGET_MANY, Op.INTERRUPT}
NEVER_STALE = UNANSWERED | {Op.INIT, Op.DESTROY, Op.RELEASE, Op.RELEASEDIR}


class Node:
    """A file that the kernel has looked up. The kernel counts its lookups."""

    def __init__(self, fd: int, key: tuple[int, int, int]) -> None:
        self.fd, self.key, self.count = fd, key, 0

    @property
    def epoch(self) -> int:
        return self.key[0]

    @property
    def path(self) -> Path:
        """Return a path to this very file, whatever its name is now."""
        return Path(f"/proc/self/fd/{self.fd}")


class Passthrough:
    """The file calls. Each takes a node and the request's data and returns the answer. OSError
    becomes the error code.
    """

    def __init__(self, directory: str) -> None:
        self.epoch = 0
        root = Node(os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), (0, 0, 0))
        self.nodes, self._numbers, self._newest = {ROOT: root}, dict[tuple[int, int, int], int](), ROOT
        self.is_lost = False  # the root is stale, too
        self.stale_at = ""  # the next write to a file with this in its path makes all handles stale
        self.seen: set[tuple[int, int, int]] | None = None  # files already replaced; None: replace none
        self._listings = dict[int, list[tuple[bytes, int, int]]]()  # the open directories by descriptor
        self.calls: dict[Op, Callable[[Node, bytes], bytes]] = {
            Op.INIT: lambda node, data: INIT.pack(MAJOR, MINOR, 0, 0, 0, 0, WRITE_BYTES_MAX, 1),
            Op.LOOKUP: lambda node, data: self._entry(node, data.rstrip(b"\0")),
            Op.GETATTR: lambda node, data: self._attributes(node),
            Op.SETATTR: self._set_attributes,
            Op.READLINK: lambda node, data: os.fsencode(os.readlink("", dir_fd=node.fd)),
            Op.SYMLINK: self._symlink,
            Op.MKDIR: self._mkdir,
            Op.UNLINK: self._unlink,
            Op.RMDIR: self._rmdir,
            Op.RENAME: self._rename,
            Op.LINK: self._link,
            Op.OPEN: self._open,
            Op.CREATE: self._create,
            Op.READ: self._read,
            Op.WRITE: self._write,
            Op.STATFS: self._statfs,
            Op.RELEASE: self._release,
            Op.FSYNC: self._fsync,
            Op.FLUSH: lambda node, data: b"",
            Op.OPENDIR: self._open,
            Op.READDIR: self._read_directory,
            Op.RELEASEDIR: self._release,
            Op.FSYNCDIR: self._fsync,
            Op.DESTROY: lambda node, data: b"",
        }

    def node(self, number: int) -> Node:
        """Return a node. Raises OSError (ESTALE) if it was looked up before the handles went stale."""
        node = self.nodes[number]
        if self.is_lost or (number != ROOT and node.epoch != self.epoch):
            raise _stale()
        return node

    def forget(self, number: int, count: int) -> None:
        node = self.nodes[number]
        node.count -= count
        if node.count <= 0 and number != ROOT:
            del self.nodes[number], self._numbers[node.key]
            os.close(node.fd)

    # -- names ---------------------------------------------------------------------------------------------
    def _entry(self, parent: Node, name: bytes) -> bytes:
        """Look up a name. The entry expires at once, so that the kernel asks each time."""
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent.fd)
        there = os.fstat(fd)
        key = (self.epoch, there.st_dev, there.st_ino)
        if (number := self._numbers.get(key)) is None:
            self._newest += 1
            number = self._numbers[key] = self._newest
            self.nodes[number] = Node(fd, key)
        else:
            os.close(fd)
        self.nodes[number].count += 1
        return struct.pack("<QQQQII", number, 0, 0, 0, 0, 0) + _pack(there)

    def _symlink(self, node: Node, data: bytes) -> bytes:
        name, target = data.split(b"\0")[:2]
        os.symlink(target, name, dir_fd=node.fd)
        return self._entry(node, name)

    def _mkdir(self, node: Node, data: bytes) -> bytes:
        name = data[8:].rstrip(b"\0")
        os.mkdir(name, struct.unpack_from("<I", data)[0], dir_fd=node.fd)
        return self._entry(node, name)

    def _unlink(self, node: Node, data: bytes) -> bytes:
        os.unlink(data.rstrip(b"\0"), dir_fd=node.fd)
        return b""

    def _rmdir(self, node: Node, data: bytes) -> bytes:
        os.rmdir(data.rstrip(b"\0"), dir_fd=node.fd)
        return b""

    def _rename(self, node: Node, data: bytes) -> bytes:
        target = self.node(struct.unpack_from("<Q", data)[0])
        before, after = data[8:].split(b"\0")[:2]
        os.rename(before, after, src_dir_fd=node.fd, dst_dir_fd=target.fd)
        return b""

    def _link(self, node: Node, data: bytes) -> bytes:
        source, name = self.node(struct.unpack_from("<Q", data)[0]), data[8:].rstrip(b"\0")
        os.link(source.path, name, dst_dir_fd=node.fd, follow_symlinks=True)
        return self._entry(node, name)

    # -- attributes ----------------------------------------------------------------------------------------
    def _attributes(self, node: Node) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + _pack(os.fstat(node.fd))

    def _set_attributes(self, node: Node, data: bytes) -> bytes:
        valid, _, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _ = SET_ATTRIBUTES.unpack_from(
            data
        )
        if valid & MODE:
            node.path.chmod(stat.S_IMODE(mode))
        if valid & (OWNER | GROUP):
            os.chown(node.path, uid if valid & OWNER else -1, gid if valid & GROUP else -1)
        if valid & SIZE:
            os.truncate(node.path, size)
        if valid & (ATIME_NOW | MTIME_NOW):
            os.utime(node.path)
        elif valid & (ATIME | MTIME):
            os.utime(node.path, ns=(atime * 10**9 + atime_ns, mtime * 10**9 + mtime_ns))
        return self._attributes(node)

    def _statfs(self, node: Node, data: bytes) -> bytes:
        there = os.statvfs(node.path)
        counts = there.f_blocks, there.f_bfree, there.f_bavail, there.f_files, there.f_ffree
        return struct.pack("<5Q10I", *counts, there.f_bsize, there.f_namemax, there.f_frsize, *(0,) * 7)

    # -- open files ----------------------------------------------------------------------------------------
    def _open(self, node: Node, data: bytes) -> bytes:
        flags = struct.unpack_from("<I", data)[0] & ~(os.O_NOFOLLOW | os.O_DIRECT)
        return struct.pack("<QII", os.open(node.path, flags | os.O_CLOEXEC), DIRECT_IO, 0)

    def _create(self, node: Node, data: bytes) -> bytes:
        (flags, mode), name = struct.unpack_from("<II", data), data[16:].rstrip(b"\0")
        fd = os.open(name, flags & ~os.O_DIRECT | os.O_CREAT | os.O_CLOEXEC, mode, dir_fd=node.fd)
        return self._entry(node, name) + struct.pack("<QII", fd, DIRECT_IO, 0)

    def _read(self, node: Node, data: bytes) -> bytes:
        fd, offset, size = HANDLE_AND_RANGE.unpack_from(data)
        if self.seen is not None and node.key not in self.seen:
            self.seen.add(node.key)
            raise _stale()
        return os.pread(fd, size, offset)

    def _write(self, node: Node, data: bytes) -> bytes:
        fd, offset, size = HANDLE_AND_RANGE.unpack_from(data)
        if self.stale_at and self.stale_at in str(node.path.readlink()):
            self.stale_at, self.epoch = "", self.epoch + 1
            raise _stale()
        return struct.pack("<II", os.pwrite(fd, data[RANGE_BYTES : RANGE_BYTES + size], offset), 0)

    def _fsync(self, node: Node, data: bytes) -> bytes:
        os.fsync(_handle(data))
        return b""

    def _release(self, node: Node, data: bytes) -> bytes:
        os.close(_handle(data))
        self._listings.pop(_handle(data), None)
        return b""

    def _read_directory(self, node: Node, data: bytes) -> bytes:
        fd, offset, size = HANDLE_AND_RANGE.unpack_from(data)
        if not offset:
            with os.scandir(fd) as entries:
                found = [(os.fsencode(one.name), one.inode(), _kind(one)) for one in entries]
            self._listings[fd] = [(b".", 1, 4), (b"..", 1, 4), *found]
        answer = b""
        for position, (name, inode, kind) in enumerate(self._listings[fd][offset:], offset + 1):
            entry = struct.pack("<QQII", inode, position, len(name), kind) + name
            entry += b"\0" * (-len(entry) % 8)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer


class Server:
    """Answers the kernel and the process that started it, one request after the other."""

    def __init__(self, directory: str) -> None:
        self._directory, self._files = directory, Passthrough(directory)
        self._met = dict[int, set[str]]()  # by process, the calls that met a stale handle
        self._buffer = memoryview(bytearray(WRITE_BYTES_MAX + NAMES_BYTES_MAX))
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        self._libc = ctypes.CDLL(None, use_errno=True)

    def serve(self) -> None:
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
        if self._libc.mount(b"stale", os.fsencode(self._directory), b"fuse", 0, options.encode()):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        print("mounted", flush=True)
        try:
            while True:
                ready, _, _ = select.select([self._device, sys.stdin], [], [])
                if self._device in ready:
                    self._answer_kernel()
                elif line := sys.stdin.readline():
                    print(self._answer(line.strip()), flush=True)
                else:
                    return
        finally:
            self._libc.umount2(os.fsencode(self._directory), MNT_DETACH)

    def _answer(self, line: str) -> str:
        word, _, text = line.partition(" ")
        if word == "met":
            return json.dumps({pid: sorted(calls) for pid, calls in self._met.items()})
        if word == "stale":
            self._files.epoch += 1
        elif word in ("lose", "find"):
            self._files.is_lost = word == "lose"
            self._files.epoch += 1
        elif word == "stale-at":
            self._files.stale_at = text
        elif word == "replace":
            self._files.seen = set()
        return word

    def _answer_kernel(self) -> None:
        try:
            size = os.readv(self._device, [self._buffer])
        except FileNotFoundError:  # the caller was interrupted
            return
        _, number, unique, node, _, _, thread, _, _ = IN.unpack_from(self._buffer)
        data, error, answer = bytes(self._buffer[IN.size : size]), 0, b""
        if number == Op.FORGET:
            self._files.forget(node, struct.unpack("<Q", data)[0])
        elif number == Op.FORGET_MANY:
            for one, count in struct.iter_unpack("<QQ", data[8:]):
                self._files.forget(one, count)
        if number in UNANSWERED:
            return
        try:
            answer = self._do(number, node, data)
        except OSError as failure:
            error = failure.errno or errno.EIO
            if error == errno.ESTALE:
                self._met.setdefault(_process_of(thread), set()).add(Op(number).name.lower())
        try:
            os.writev(self._device, [OUT.pack(OUT.size + len(answer), -error, unique), answer])
        except FileNotFoundError:
            return

    def _do(self, number: int, node: int, data: bytes) -> bytes:
        if number not in self._files.calls:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        there = self._files.nodes.get(node) if number in NEVER_STALE else self._files.node(node)
        return self._files.calls[Op(number)](there or self._files.nodes[ROOT], data)


def _stale() -> OSError:
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE))


def _handle(data: bytes) -> int:
    return int(struct.unpack_from("<Q", data)[0])


def _kind(entry: os.DirEntry[str]) -> int:
    return 10 if entry.is_symlink() else 4 if entry.is_dir() else 8  # DT_LNK, DT_DIR, DT_REG


def _pack(there: os.stat_result) -> bytes:
    nanoseconds = there.st_atime_ns, there.st_mtime_ns, there.st_ctime_ns
    return ATTRIBUTES.pack(
        there.st_ino,
        there.st_size,
        there.st_blocks,
        *(time // 10**9 for time in nanoseconds),
        *(time % 10**9 for time in nanoseconds),
        there.st_mode,
        there.st_nlink,
        there.st_uid,
        there.st_gid,
        there.st_rdev,
        there.st_blksize,
        0,
    )


def _process_of(thread: int) -> int:
    """Return the thread's process, or 0 if it is gone."""
    try:
        lines = Path(f"/proc/{thread}/status").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("Tgid:"))


if __name__ == "__main__":
    os.umask(0)
    Server(sys.argv[1]).serve()
