"""A local disk whose files and names stay in memory until they are synced.

`Calls` stands in the place of the module `os` in the product's code: a process may die at every
call that changes something. When the power fails, whatever was not synced stays or goes, each name
and the end of each file by itself. Only the names that lead to a folder stay as soon as one in it
does, as in every file system with a journal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import pyarrow as pa

from simulation.threads import Scheduler

Choose = Callable[[int, float], int]
Watch = Callable[[str, bytes], None]


@dataclass(eq=False)
class File:
    data: bytes = b""
    synced: bytes = b""
    changed_ms: int = 0

    def append(self, data: bytes) -> None:
        self.data += data


@dataclass(eq=False)
class Folder:
    names: dict[str, File | Folder] = field(default_factory=dict)
    synced: dict[str, File | Folder] = field(default_factory=dict)

    def power_lost(self, choose: Choose) -> None:
        """Keep what was synced, and of the rest what `choose` decides."""
        for name in sorted({*self.names, *self.synced}):
            new, old = self.names.get(name), self.synced.get(name)
            found = old if new is not old and choose(2, 0.5) else new
            if found is None:
                self.names.pop(name, None)
            else:
                self.names[name] = found
        self.synced = dict(self.names)
        for _, each in sorted(self.names.items()):
            if isinstance(each, Folder):
                each.power_lost(choose)
            elif each.data != each.synced:
                end = choose(3, 0.6)
                each.data = (each.data, each.synced, each.data[: len(each.data) // 2])[end]
                each.synced = each.data


class Disk:
    """Folders and files by their paths."""

    def __init__(self) -> None:
        self.root = Folder()

    def find(self, path: str) -> File | Folder | None:
        found: File | Folder | None = self.root
        for name in path.strip("/").split("/"):
            if not isinstance(found, Folder):
                return None
            found = found.names.get(name) if name else found
        return found

    def folder(self, path: str) -> Folder:
        found = self.find(path)
        if not isinstance(found, Folder):
            raise FileNotFoundError(2, "No such file or directory", path)
        return found

    def file(self, path: str) -> File:
        found = self.find(path)
        if not isinstance(found, File):
            raise FileNotFoundError(2, "No such file or directory", path)
        return found

    def place(self, path: str) -> tuple[Folder, str]:
        """The folder of a path, and its name there."""
        above, _, name = path.rpartition("/")
        return self.folder(above), name

    def make_folders(self, path: str) -> None:
        """Folders whose names nobody has synced."""
        at = self.root
        for name in path.strip("/").split("/"):
            below = at.names.setdefault(name, Folder())
            assert isinstance(below, Folder)
            at = below

    def files(self, path: str) -> Iterator[tuple[str, File]]:
        """Every file below a folder."""
        found = self.find(path)
        for name, each in sorted(found.names.items()) if isinstance(found, Folder) else ():
            below = f"{path.rstrip('/')}/{name}"
            if isinstance(each, File):
                yield below, each
            else:
                yield from self.files(below)

    def keep(self, folder: Folder) -> None:
        """Keep the names on the way to a folder: the journal of a file system has an order."""

        def leads(at: Folder) -> bool:
            for name, each in at.names.items():
                if each is folder or (isinstance(each, Folder) and leads(each)):
                    at.synced[name] = each
                    return True
            return False

        leads(self.root)

    def put(self, path: str, data: bytes) -> None:
        """Write a file as a file system would that loses nothing."""
        self.make_folders(path.rpartition("/")[0])
        at = self.root
        *folders, name = path.strip("/").split("/")
        for each in folders:
            at.synced[each] = below = at.names[each]
            assert isinstance(below, Folder)
            at = below
        at.names[name] = at.synced[name] = File(data, data)


class Texts(MutableMapping[str, str]):
    """The files below some folders of a disk as texts; what is put there stays."""

    def __init__(self, disk: Disk, *folders: str) -> None:
        self._disk, self._folders = disk, folders

    def __getitem__(self, path: str) -> str:
        found = self._disk.find(path)
        if not isinstance(found, File):
            raise KeyError(path)
        return found.data.decode()

    def __setitem__(self, path: str, text: str) -> None:
        self._disk.put(path, text.encode())

    def __delitem__(self, path: str) -> None:
        self[path]
        folder, name = self._disk.place(path)
        del folder.names[name]

    def __iter__(self) -> Iterator[str]:
        return iter([path for folder in self._folders for path, _ in self._disk.files(folder)])

    def __len__(self) -> int:
        return len(list(iter(self)))


class _OpenFile:
    """What `open` gives for a file to be written."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        """Nothing is lost or kept by it."""

    def __enter__(self) -> _OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Calls:
    """The calls of `os` on a disk; `linked` hears of every file that was given a name by a link."""

    O_RDONLY, O_CLOEXEC = os.O_RDONLY, os.O_CLOEXEC

    def __init__(
        self, disk: Disk, root: str, scheduler: Scheduler, clock_ms: Callable[[], int]
    ) -> None:
        self._disk, self._scheduler, self._clock_ms = disk, scheduler, clock_ms
        self._root = root
        self._open: dict[int, File | Folder] = {}
        self._is_quiet = False
        self.linked: Watch = lambda path, data: None
        given = ("abspath", "join", "dirname", "basename", "relpath")
        self.path = SimpleNamespace(
            **{name: getattr(os.path, name) for name in given},
            isdir=lambda path: isinstance(disk.find(path), Folder),
            exists=lambda path: disk.find(path) is not None,
        )

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Look at the disk without a step: nobody else gets a turn meanwhile."""
        before, self._is_quiet = self._is_quiet, True
        try:
            yield
        finally:
            self._is_quiet = before

    def _step(self, what: str, path: str | None = None) -> None:
        if not self._is_quiet:
            name = "" if path is None else f" {path.removeprefix(self._root).lstrip('/') or '.'}"
            self._scheduler.step(what + name)

    # -- what changes something ----------------------------------------------------------------

    def open_file(self, path: str, mode: str, **_: object) -> _OpenFile:
        """What the built-in function does, for new files."""
        assert mode == "xb"
        self._step("open", path)
        folder, name = self._disk.place(path)
        if name in folder.names:
            raise FileExistsError(path)
        folder.names[name] = made = File(changed_ms=self._clock_ms())
        return _OpenFile(self._descriptor(made))

    def write(self, descriptor: int, data: memoryview) -> int:
        """Half of it, then the rest: whoever dies between them leaves a torn file."""
        file, half = self._open[descriptor], len(data) // 2
        assert isinstance(file, File)
        self._step("write")
        file.append(bytes(data[:half]))
        self._step("write the rest")
        file.append(bytes(data[half:]))
        file.changed_ms = self._clock_ms()
        return len(data)

    def fsync(self, descriptor: int) -> None:
        self._step("fsync")
        opened = self._open[descriptor]
        if isinstance(opened, File):
            opened.synced = opened.data
        else:
            opened.synced = dict(opened.names)
            self._disk.keep(opened)

    def link(self, source: str, target: str) -> None:
        self._step("link", target)
        file = self._disk.file(source)
        folder, name = self._disk.place(target)
        if name in folder.names:
            raise FileExistsError(target)
        folder.names[name] = file
        self.linked(target, file.data)

    def rename(self, source: str, target: str) -> None:
        self._step("rename", target)
        file = self._disk.file(source)
        (old, before), (new, after) = self._disk.place(source), self._disk.place(target)
        del old.names[before]
        new.names[after] = file

    def unlink(self, path: str) -> None:
        self._step("unlink", path)
        self._disk.file(path)
        folder, name = self._disk.place(path)
        del folder.names[name]

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        self._step("mkdir", path)
        folder, name = self._disk.place(path)
        if name in folder.names:
            raise FileExistsError(path)
        folder.names[name] = Folder()

    # -- what only looks -----------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        found = self._disk.find(path)
        if found is None:
            raise FileNotFoundError(path)
        return self._descriptor(found)

    def close(self, descriptor: int) -> None:
        del self._open[descriptor]

    def stat(self, path: str) -> SimpleNamespace:
        self._step("stat", path)
        found = self._disk.find(path)
        if found is None:
            raise FileNotFoundError(path)
        return _status(found)

    def scandir(self, path: str) -> list[SimpleNamespace]:
        self._step("list", path)
        found = self._disk.folder(path)
        return [_entry(path, name, each) for name, each in sorted(found.names.items())]

    def read(self, path: str) -> pa.Buffer:
        """What `map_or_read` does."""
        self._step("read", path)
        return pa.py_buffer(self._disk.file(path).data)

    def read_range(self, path: str, start: int, stop: int) -> pa.Buffer:
        """What `read_file_range` does."""
        self._step("read", path)
        return pa.py_buffer(self._disk.file(path).data[start:stop])

    def _descriptor(self, opened: File | Folder) -> int:
        number = max(self._open, default=2) + 1
        self._open[number] = opened
        return number


def _status(found: File | Folder) -> SimpleNamespace:
    is_file = isinstance(found, File)
    kind = 0o100000 if is_file else 0o040000
    size, changed_ms = (len(found.data), found.changed_ms) if isinstance(found, File) else (0, 0)
    return SimpleNamespace(st_mode=kind | 0o640, st_size=size, st_mtime=changed_ms / 1000)


def _entry(folder: str, name: str, found: File | Folder) -> SimpleNamespace:
    return SimpleNamespace(
        name=name,
        path=f"{folder}/{name}",
        is_dir=lambda follow_symlinks: isinstance(found, Folder),
        is_file=lambda follow_symlinks: isinstance(found, File),
        stat=lambda: _status(found),
    )
