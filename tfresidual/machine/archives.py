"""Looks into archives and HDF5 files before anything of them is unpacked or opened."""

from __future__ import annotations

import io
import math
import pathlib
import stat
import zipfile
from typing import TYPE_CHECKING

import numpy as np

from tfresidual.machine.memory import TooLargeError, check_fits

if TYPE_CHECKING:
    from tfresidual.definitions.types import StrPath

# How many times larger than what is stored of it something may become when it is read, beyond
# `HARMLESS` bytes in a file. Keras and `np.savez` store numbers as they are, and compressed images
# and weights stay far below: above is only what repeats itself.
MOST_EXPANSION = 30
HARMLESS = 64 * 2**20


class RefusedFileError(ValueError):
    """A file is not opened: it leads to other files, or becomes too large."""


def check_model_file(path: StrPath) -> None:
    """Raises an error unless a `.keras` file can be opened without harm, whatever Keras checks."""
    check_sizes(path)
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith((".h5", ".hdf5")):
                check_weights_file(path, io.BytesIO(_content(archive, name)))
            elif name.endswith(".npz"):
                check_sizes(path, io.BytesIO(_content(archive, name)))


def check_weights_file(path: StrPath, content: io.BytesIO | None = None) -> None:
    """Raises an error unless an HDF5 file holds all of its data itself, and not too much of it.

    That is a `RefusedFileError`, or an `OSError` for a file that cannot be read.
    """
    # Loading it takes time, and only models need it.
    import h5py

    with h5py.File(content or path, "r") as file:
        sizes, seen, groups = _Sizes(path, content), set(), [file]
        while groups:
            group = groups.pop()
            for name in group:
                _check_link(path, group, name)
                item = group[name]
                address = h5py.h5o.get_info(item.id).addr
                if address in seen:
                    # A group may be in itself.
                    continue
                seen.add(address)
                if isinstance(item, h5py.Group):
                    groups.append(item)
                elif isinstance(item, h5py.Dataset):
                    if item.external or item.is_virtual:
                        raise _refused(
                            path, f"{item.name} in it reads its numbers from other files"
                        )
                    unpacked = math.prod(item.shape or (0,)) * item.dtype.itemsize
                    sizes.add(item.name, unpacked, item.id.get_storage_size())


def check_sizes(path: StrPath, content: io.BytesIO | None = None) -> int:
    """Returns the number of bytes that an archive, at `path` or in it, unpacks to.

    A `RefusedFileError` says that it unpacks to many times its size or to more than all memory,
    or that a name in it is there twice or leads out of the folder it is unpacked to.
    """
    sizes = _Sizes(path, content)
    with zipfile.ZipFile(content or path) as archive:
        _check_names(path, archive)
        for info in archive.infolist():
            sizes.add(info.filename, info.file_size, info.compress_size)
            if info.filename.endswith(".npy"):
                # Its header decides how much memory is taken for it.
                shape, dtype = npy_header(archive, info.filename)
                unpacked = math.prod(shape) * dtype.itemsize
                sizes.add(info.filename, max(0, unpacked - info.file_size), 0)
    return sizes.total


def npy_header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype]:
    """Returns shape and dtype of an array in an archive, whose values are not read."""
    form = np.lib.format
    with archive.open(name) as file:
        major, _ = form.read_magic(file)
        read = form.read_array_header_1_0 if major == 1 else form.read_array_header_2_0
        shape, _, dtype = read(file)
    return shape, dtype


class _Sizes:
    """Adds up what the parts of a file become when they are read."""

    def __init__(self, path, content):
        self.path, self.total, self.expanding = path, 0, 0
        whole = pathlib.Path(path).stat().st_size
        self.stored = whole if content is None else len(content.getbuffer())

    def add(self, name, unpacked, stored):
        self.total += unpacked
        if unpacked > MOST_EXPANSION * stored:
            self.expanding += unpacked
        # The file may say that its parts are larger than they are, or where others are, too.
        if max(self.expanding, self.total - MOST_EXPANSION * self.stored) > HARMLESS:
            raise _refused(
                self.path,
                f"{name} in it would become {unpacked:,} bytes, of {stored:,}; what becomes more "
                f"than {MOST_EXPANSION} times as large may have {HARMLESS:,} bytes in a file",
            )
        try:
            check_fits(self.total, "its content", "")
        except TooLargeError as error:
            raise _refused(self.path, f"its content {error.amounts}") from error


def _check_names(path, archive):
    names = set()
    for info in archive.infolist():
        # Windows takes both, and a letter with a colon for the root of a drive.
        parts = info.filename.replace("\\", "/").split("/")
        leads_out = parts[0] == "" or ":" in parts[0] or ".." in parts
        if leads_out or stat.S_ISLNK(info.external_attr >> 16):
            raise _refused(path, f"{info.filename!r} in it leads out of the folder it unpacks to")
        if info.filename in names:
            raise _refused(path, f"{info.filename!r} is in it twice")
        names.add(info.filename)


def _check_link(path, group, name):
    import h5py

    try:
        link = group.get(name, getclass=True, getlink=True)
    except TypeError:
        # A kind of link that somebody has defined.
        link = None
    if link is not h5py.HardLink:
        where = f"{group.name.rstrip('/')}/{name}"
        raise _refused(path, f"{where} in it is a link, which may lead to another file")


def _content(archive, name):
    try:
        return archive.read(name)
    except OSError:
        raise
    except Exception as error:
        # Each kind of compression uses its own library, with its own errors.
        raise zipfile.BadZipFile(f"{name} in it cannot be read, {error}") from error


def _refused(path, reason):
    name = pathlib.Path(path).name
    return RefusedFileError(f"{name} is not opened: {reason}. Received: path={str(path)!r}")
