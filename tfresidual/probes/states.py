"""The states of a network on disk: a Zarr group that is written in parts and read lazily."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from concurrent import futures
from typing import TYPE_CHECKING, cast

import keras
import numpy as np
import pandas as pd
import tensorflow as tf

from tfresidual import sources
from tfresidual.definitions.arguments import (
    ArgumentError,
    check_choice,
    check_ints,
    checked_path,
    checked_places,
    is_int,
)
from tfresidual.machine.console import progress_bar
from tfresidual.machine.locks import LOCK, locked
from tfresidual.probes.measure import check_blocks
from tfresidual.probes.pooled import pooled
from tfresidual.routing.agreement import allowed_for
from tfresidual.routing.data import count_of, first_batch, rebatched, sliced, splits_of
from tfresidual.routing.positions import VALID_POSITIONS, check_positions, known_positions
from tfresidual.routing.runs import begun, computed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Literal

    import zarr

    from tfresidual.definitions.types import Array, ChainSource, Data, Frame, StrPath
    from tfresidual.routing import Chain

MEAN = "mean"
DTYPES = ("float16", "float32", "float64")
# The most bytes of the states of a chunk, all blocks together. Two chunks are held.
MOST_BYTES = 2**25
# Bytes from which on a file does not stay in memory after it was written.
LARGE = 2**16
# More images than there are: how many come is not known before they are written.
ENDLESS = 2**40
LABELS, WEIGHTS, FITS = "labels", "weights", "fits"
# A hash of every chunk of the data: one that has it is written. Its attributes say of what.
DATA = "data_sha256"
# The attribute of a group of splits.
SPLITS = "splits"
METADATA = "zarr.json"
# What variables are called that are neither learned nor estimated from data.
DRAWN = ("seed_generator", "vector_of_", "known_weights")


class States(Mapping):
    """The states of images in a folder that `save_states` wrote, read when they are indexed.

    A mapping from (stage, block) to a `zarr.Array` with the axes of the state after that block,
    images first.

    Attributes:
        index: a `pandas.DataFrame` with a row per array: `stage`, `block`, `layer`, the name of the
            layer that ends the block, or `None`, and `array`, its name in the group.
        labels: an array, images first, or `None` if the data had none. Labels per position leave
            out positions as everywhere in this package: indices below 0, or NaN.
        weights: float64, `(images,)`, 1 if the data had none.
        valid_positions: which positions are not padding, a `zarr.Array` `(images, positions)`, or
            `None` if that is not known or positions were averaged.
        settings: dict of what was saved: network, blocks, pooling.
    """

    def __init__(self, group: zarr.Group) -> None:
        self._group = cast("Any", group)
        self.settings: dict[str, Any] = dict(group.attrs)
        rows = [{"array": name, **self._group[name].attrs} for name in self.settings["blocks"]]
        self.index: Frame = pd.DataFrame(rows, columns=["stage", "block", "layer", "array"])
        self._names = {(row["stage"], row["block"]): row["array"] for row in rows}
        self.labels: Array | None = self._group[LABELS][:] if LABELS in self._group else None
        self.weights: Array = self._group[WEIGHTS][:]
        self.valid_positions: zarr.Array | None = self._group.get(VALID_POSITIONS)

    def __getitem__(self, place: tuple[int, int]) -> zarr.Array:
        return self._group[self._names[place]]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def batches(self) -> Iterator[tuple[dict[tuple[int, int], Array], Array | None, Array]]:
        """Yields states by (stage, block), labels and weights of some images, chunk by chunk."""
        size = self._group[WEIGHTS].chunks[0]
        for start in range(0, len(self.weights), size):
            part = slice(start, start + size)
            states = {place: array[part] for place, array in self.items()}
            yield states, None if self.labels is None else self.labels[part], self.weights[part]

    def __repr__(self) -> str:
        return f"States of {len(self)} blocks for {len(self.weights)} images in {self._group.store}"


def save_states(
    chain: Chain | ChainSource,
    data: Data,
    folder: StrPath,
    *,
    blocks: Iterable[tuple[int, int]] | None = None,
    pool: Literal["mean"] | int | Sequence[int] | None = "mean",
    dtype: Literal["float16", "float32", "float64"] = "float32",
    progress: bool = False,
) -> States | dict[str, States]:
    """Writes the state after every block, for all images, to a folder.

    The folder is a Zarr 3 group with an array per block, `stage1/block0`, images first; `labels`,
    if the data has them; and `weights`. Any reader of Zarr opens it. Chunks are the batches of the
    data, or parts of them if their states take more than 32 MiB; two of them are held in memory.

    After a kill or an error, the same call resumes: chunks that are complete are not measured
    again, and the files are those of a run that was not stopped.
    The group can be opened when all of it is written. The folder must be of the same weights and
    settings, and the data the same in the same order; otherwise an error leaves it as it is.

    Needs the extra `states`.

    Example:

    >>> states = save_states(tfresidual.chain(net), test, "states")
    >>> states[3, 0][:8].shape
    (8, 4)

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images, with labels or without, see `tfresidual.definitions.types.Data`. Images of
            weight 0 are left out. Each split of a dict is a group of its own.
        folder: a new or empty folder, or one that this function wrote.
        blocks: pairs (stage, block), or `None` for all blocks.
        pool: `"mean"` for the mean over all axes but those of images and features (the first and
            the last), without padding, NaN for an image that is all padding; the index of a
            position of states `(images, positions, features)`, from 0, or the indices of several;
            or `None` for whole states. Padding of these is as the network computes it, and
            `valid_positions` says where it is.
        dtype: `"float16"`, `"float32"` or `"float64"`. bfloat16 states are written exactly in
            float32, since neither Zarr nor NumPy files have that type.
        progress: whether to show a progress bar.

    Returns:
        What `load_states` returns.

    Raises:
        ValueError: if an argument cannot be used, the folder holds something else, or a state is
            too large for float16.
        FolderInUseError: an `OSError`, if another process writes to the folder.
    """
    import zarr

    chain = sources.numbered(chain)
    check_blocks(chain)
    check_choice("dtype", dtype, DTYPES)
    path, parts = checked_path("folder", folder), splits_of(data)
    for split in parts:
        if split is not None and pathlib.PurePath(str(split)).name != str(split):
            raise ArgumentError("data", "have splits that can be names of folders", [*parts])
    known = [(block.stage, block.index) for block in chain.blocks]
    asked = tuple(checked_places("blocks", blocks, known)), _checked_pool(pool), dtype
    with locked(path):
        _check_folder(path, None not in parts)
        for split, part in parts.items():
            _save(chain, part, path if split is None else path / str(split), asked, split, progress)
        if None not in parts:
            splits = {str(split): None for split in (*_splits_in(path), *parts)}
            zarr.open_group(path, mode="a").update_attributes({SPLITS: [*splits]})
    return load_states(path)


def load_states(folder: StrPath) -> States | dict[str, States]:
    """Opens the states in a folder that `save_states` wrote; they are read when they are indexed.

    Example:

    >>> _ = save_states(tfresidual.chain(net), {"train": train, "test": test}, "states")
    >>> states = load_states("states")
    >>> {split: len(part.labels) for split, part in states.items()}
    {'train': 32, 'test': 16}

    Args:
        folder: the folder.

    Returns:
        `States`, or a dict of them by the name of the split if the data was a dict.

    Raises:
        ValueError: if the folder holds no states, or not all of them.
    """
    import zarr

    path = checked_path("folder", folder)
    splits = _splits_in(path)
    if not splits and not all((path / name).exists() for name in (METADATA, DATA)):
        what = "hold states that `save_states` has written: if it was stopped, call it again"
        raise ArgumentError("folder", what, str(path))
    opened = [States(zarr.open_group(path / split, mode="r")) for split in splits or [""]]
    return dict(zip(splits, opened, strict=True)) if splits else opened[0]


def _splits_in(path):
    """Returns the names of the splits in a folder, in their order."""
    import zarr

    is_group = (path / METADATA).exists()
    return zarr.open_group(path, mode="r").attrs.get(SPLITS, []) if is_group else []


def _checked_pool(pool):
    """Returns how states are pooled, several positions as a tuple."""
    if pool is None or (isinstance(pool, str) and pool == MEAN):
        return pool
    return int(pool) if is_int(pool) and pool >= 0 else check_ints("pool", pool, 0)


def _check_folder(path, has_splits):
    """Raises a `ValueError` unless a folder is empty, or of what `save_states` wrote."""
    inside = [one for one in path.iterdir() if one.name not in (LOCK, METADATA)]
    if not (all(map(_is_own, inside)) if has_splits else _is_own(path)):
        what = "an empty folder, or one of states of data with the same kind of splits"
        raise ArgumentError("folder", f"be {what}", str(path))


def _is_own(path):
    return path.is_dir() and ((path / DATA).exists() or not {*path.iterdir()} - {path / LOCK})


def _save(chain, data, path, asked, split, progress):
    """Writes the states of one split, or what is missing of them."""
    data, has_labels = _with_first(data)
    with progress_bar("states" if progress else None, count_of(data)) as advance:
        batches = _followed(begun(chain, data, has_labels, with_losses=False), advance)
        first = next(batches)
        sample = _rows(chain, sliced(first, slice(1)), asked, has_labels)
        of_image = sum(row.nbytes for row in sample.values())
        size = max(1, min(len(first[1]), MOST_BYTES // of_image))
        files = _Files(chain, path, asked, split, sample, size)
        batches, images = itertools.chain([first], batches), 0
        size = files.settings["images_per_chunk"]
        del first
        # A chunk is written while the next one is measured.
        with futures.ThreadPoolExecutor(1) as thread:
            written = thread.submit(int)
            for number, batch in enumerate(rebatched(batches, size)):
                data_hash = _hash(map(np.asarray, keras.tree.flatten(batch)))
                if not files.hold(number, data_hash):
                    rows = _rows(chain, batch, asked, has_labels)
                    written.result()
                    written = thread.submit(files.write, number, rows, data_hash)
                    del rows
                images += len(batch[1])
            written.result()
        files.finish(number + 1, images)


def _with_first(data):
    """Returns data, of which an iterator is begun, and whether it has labels."""
    if not isinstance(data, Iterator):
        return data, first_batch(data)[1] is not None
    first = [*itertools.islice(data, 1)]
    has_labels = any(first_batch(iter(first))[1] is not None for _ in first)
    return itertools.chain(first, data), has_labels


def _followed(batches, advance):
    for batch in batches:
        yield batch
        advance()


def _rows(chain, batch, asked, has_labels):
    """Returns all arrays of a batch by their names in the group."""
    images, labels, weights = batch
    function = functools.partial(_batch_states, chain, *asked)
    found = computed(chain, chain.compiled, ("states", asked), function, images, labels)
    rows = {name: np.asarray(value) for name, value in found.items()}
    if not rows.pop(FITS, np.True_).all():
        raise ArgumentError("dtype", "be float32: there are larger states", asked[-1])
    return rows | ({LABELS: np.asarray(labels)} if has_labels else {}) | {WEIGHTS: weights.numpy()}


def _batch_states(chain, places, pool, dtype, images, labels):
    """Returns the states of a batch by the names of their arrays."""
    del labels
    chain = chain.with_context(images)
    pairs, _ = chain.walk(chain.stem(images))
    blocks = zip(chain.blocks, pairs, strict=True)
    states = {(block.stage, block.index): after for block, (_, after) in blocks}
    states = {place: states[place] for place in places}
    if pool not in (None, MEAN):
        check_positions(chain, [*states.values()], "pool")
        most = next(iter(states.values())).shape[1] - 1
        if np.max(pool) > most:
            raise ArgumentError("pool", f"hold positions from 0 to {most}", pool)
    found, fits = {}, []
    for place, state in states.items():
        state = pooled(chain, state) if pool == MEAN else state
        state = state if pool in (None, MEAN) else tf.gather(state, pool, axis=1)
        found[_name(place)] = tf.cast(state, dtype)
        if dtype == DTYPES[0]:
            is_fit = tf.math.is_finite(found[_name(place)]) | ~tf.math.is_finite(state)
            fits.append(tf.reduce_all(tf.reshape(is_fit, [tf.shape(state)[0], -1]), axis=1))
    valid = known_positions(chain)
    extra = {} if valid is None or pool == MEAN else {VALID_POSITIONS: valid}
    return found | extra | ({FITS: tf.stack(fits, axis=1)} if fits else {})


def _name(place):
    return "stage{}/block{}".format(*place)


def _hash(arrays):
    """Returns a hash of arrays, 32 bytes."""
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(f"{array.shape} {array.dtype}".encode())
        whole.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return whole.digest()


def _weights_of(chain):
    """Returns a hash of all weights and statistics of a chain, as text."""
    ordered = {id(one): one for one in (*chain.weights, *chain.variables)}.values()
    lasting = (
        one for one in ordered if not getattr(one, "path", "").split("/")[-1].startswith(DRAWN)
    )
    return _hash(one.numpy() for one in lasting).hex()


class _Files:
    """The group of one split while it is written.

    Its own metadata is written last; until then, the arrays have no end.
    """

    def __init__(self, chain, path, asked, split, sample, size):
        import zarr

        places, pool, dtype = asked
        self.chain, self.path, self.sample = chain, path, sample
        of_split = {} if split is None else {"split": str(split)}
        self.attributes = {
            _name((block.stage, block.index)): {"stage": block.stage, "block": block.index}
            | {"layer": block.name, **of_split}
            for block in chain.blocks
            if (block.stage, block.index) in places
        }
        settings = {
            "weights": _weights_of(chain),
            "blocks": [*self.attributes],
            "pool": [*pool] if isinstance(pool, tuple) else pool,
            "dtype": dtype,
        }
        self.settings = settings | {"network": chain.name, "images_per_chunk": size}
        self.is_whole, begun_with = (path / METADATA).exists(), None
        # The files of the last chunk, which the system may still be writing to the disk.
        self.last = []
        if (path / DATA / METADATA).exists():
            begun_with = dict(zarr.open_array(path / DATA, mode="r").attrs)
            others = [name for name, one in settings.items() if begun_with[name] != one]
            if others:
                what = "be new, or hold states of the same network with the same settings"
                raise ArgumentError("folder", what, received=f"{path}, with other {others}")
        if begun_with and (self.is_whole or self._written(0)):
            self.settings = begun_with
            if self.is_whole:
                return
        else:
            # Nothing is written that counts.
            for one in path.glob("*/"):
                shutil.rmtree(one)
        self._create(ENDLESS, ENDLESS)

    def _create(self, images, chunks):
        """Writes the metadata of all arrays, of which nothing else changes."""
        size = self.settings["images_per_chunk"]
        _create(self.path / DATA, (chunks, 32), 1, "uint8", self.settings)
        for name, row in self.sample.items():
            shape, attributes = (images, *row.shape[1:]), self.attributes.get(name, {})
            _create(self.path / name, shape, size, row.dtype, attributes)

    def _written(self, number):
        """Returns the hash of the data of a chunk, no bytes if it is not written."""
        path = self.path / DATA / _file(number, 2)
        return path.read_bytes() if path.exists() else b""

    def hold(self, number, data_hash):
        """Returns whether a chunk is written; raises a `ValueError` if it is of other data."""
        known = self._written(number)
        if known != data_hash and (known or self.is_whole):
            raise self._other_data(f"chunk {number} differs")
        if number == 0 and known:
            self._check_network()
        return bool(known)

    def _check_network(self):
        """Raises a `ValueError` unless the states of the first image are those of the network."""
        import zarr

        share = allowed_for(self.chain)
        for name in self.attributes:
            own, written = self.sample[name][0], zarr.open_array(self.path / name, mode="r")[0]
            size = np.abs(own[np.isfinite(own)]).max(initial=0)
            if not np.allclose(own, written, rtol=0, atol=share * size, equal_nan=True):
                what = "be new, or hold states of a network that computes the same"
                received = f"{self.path}, with other states in {name!r}"
                raise ArgumentError("folder", what, received=received)

    def write(self, number, rows, data_hash):
        """Writes the arrays of a chunk, and then its hash."""
        before, self.last = self.last, []
        for name, row in rows.items():
            if row.shape[1:] != self.sample[name].shape[1:]:
                what = "hold images and labels of one shape; with `pool='mean'`, only labels must"
                raise ArgumentError("data", what, received=f"{row.shape[1:]} for {name!r}")
            self._write(name, number, row)
        for path in before:
            with path.open("rb") as file:
                _leave_memory(file)
        self._write(DATA, number, np.frombuffer(data_hash, np.uint8)[None])

    def _write(self, name, number, row):
        """Writes a chunk of an array: its bytes, and zeros if it has fewer images than others.

        zarr-python writes the same, in twice the time. What a kill leaves of a chunk has no hash.
        """
        path = self.path / name / _file(number, row.ndim)
        with path.open("wb") as file:
            file.write(np.ascontiguousarray(row))
            if name != DATA:
                file.truncate(self.settings["images_per_chunk"] * row[:1].nbytes)
            if row.nbytes >= LARGE:
                _leave_memory(file)
                self.last.append(path)

    def finish(self, chunks, images):
        """Writes how long the arrays are, and the group."""
        import zarr

        if len([*(self.path / DATA).glob("c.*")]) != chunks:
            raise self._other_data(f"there are only {images} images")
        if not self.is_whole:
            self._create(images, chunks)
            for stage in {name.split("/")[0] for name in self.attributes}:
                zarr.open_group(self.path / stage, mode="a")
            zarr.create_group(self.path, attributes=self.settings)

    def _other_data(self, why):
        what = "be those of one call: the same data in the same order, from the beginning"
        return ArgumentError(("data", "folder"), what, received=f"{self.path}: {why}")


def _create(path, shape, chunk, dtype, attributes):
    """Writes the metadata of an array, in one step; what is in it stays."""
    import zarr

    new = path / "new"
    zarr.create_array(
        store=new,
        shape=shape,
        chunks=(chunk, *shape[1:]),
        dtype=dtype,
        compressors=None,
        fill_value=0,
        # Files beside each other: a folder per axis of each takes longer than what is in it.
        chunk_key_encoding={"name": "default", "separator": "."},
        attributes=attributes,
        overwrite=True,
    )
    os.replace(new / METADATA, path / METADATA)
    new.rmdir()


def _file(number, axes):
    """Returns the name of the file of a chunk of all sizes but that of the images."""
    return ".".join(["c", str(number), *"0" * (axes - 1)])


def _leave_memory(file):
    """Asks Linux to write a file to the disk, and to forget the part that is there.

    Otherwise files fill the memory, and getting more of it takes longer than writing to the disk.
    """
    file.flush()
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
