"""Data as Keras takes it: batches `(x, y, sample_weight)`, and what of them a chain reads.

The inputs of a network are called images: a tensor with a leading axis of images, or a dict, tuple
or list of these. TensorFlow only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.machine.compiled import compiled
from tfresidual.machine.passes import without_tuning
from tfresidual.routing.positions import are_per_position, labels_within, takes_signs

BATCH_SIZE = 128


class Place(NamedTuple):
    """Which of several outputs a chain has: its number, that of all of them, and its names."""

    number: int
    total: int
    names: tuple[str, ...]


def splits_of(data):
    """Returns the data as a dict by split name; data that is not a mapping has the key `None`."""
    if isinstance(data, Mapping):
        if not data:
            raise ArgumentError("data", "not be empty", data)
        return dict(data)
    return {None: data}


def check_data(data, again=False):
    """Raises a `ValueError` for data that never ends or, with `again`, can be read once."""
    if isinstance(data, tf.data.Dataset) and data.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ArgumentError(
            "data", "be finite, since a probe runs over all of it: use `data.take(n)`", data
        )
    if again and isinstance(data, Iterator):
        raise ArgumentError(
            "data",
            "be data that can be read again, since it is read in every epoch: a generator can be "
            "read once",
            data,
        )


def batches_of(data, chain=None, with_labels=True, with_all=False):
    """Yields the data as batches of tensors `(images, labels, weights)`, reading it once.

    Args:
        data: see `tfresidual.definitions.types.Images`: a `tf.data.Dataset`, a
            `keras.utils.PyDataset`, an iterator of batches, or arrays, with sample weights after
            the labels or not.
        chain: the `tfresidual.routing.Chain` that the images are for, or `None`.
        with_labels: whether the labels are read; if not, the first of them are returned as they
            are, or zeros without any.
        with_all: whether images of weight 0 are yielded, too.

    Yields:
        Images in the structure of the inputs of the chain, integers as float32 unless the network
        takes integers, as in `predict`; labels, see `prepared_labels`; and the weights of
        images, `(images,)`, in float64, 1 if the data has none. Batches without images are left
        out.

    Raises:
        ValueError: if the data holds no images, is infinite, or labels or weights do not fit.
    """
    is_empty = True
    for batch in raw_batches(data):
        images, labels, of_images, of_positions = _tensors(chain, *batch, with_labels)
        if not with_all and not (of_images.numpy() > 0).all():
            images, labels, of_images, of_positions = chosen_of(
                (images, labels, of_images, of_positions), of_images > 0
            )
        if len(of_images):
            is_empty = False
            if with_labels and chain is not None:
                labels = prepared_labels(chain, images, labels, of_positions)
            yield images, labels, of_images
    if is_empty:
        raise _no_images()


def first_batch(data):
    """Returns the first batch `(images, labels, weights)` as it is; all of arrays."""
    first = next((batch for batch in raw_batches(data, whole=True) if _count(batch[0])), None)
    if first is None:
        raise _no_images()
    return first


def _no_images():
    return ArgumentError("data", "hold images, not all of weight 0", received="none that count")


def count_of(data):
    """Returns the number of batches of the data, `None` if it is not known."""
    if isinstance(data, tf.data.Dataset):
        return max(int(data.cardinality()), 0) or None
    if isinstance(data, keras.utils.PyDataset):
        return data.num_batches
    if isinstance(data, Iterator):
        return None
    return -(-_count(keras.utils.unpack_x_y_sample_weight(data)[0]) // BATCH_SIZE)


def raw_batches(data, whole=False):
    """Yields batches `(x, y, sample_weight)`; arrays in parts, unless they are taken as a whole."""
    check_data(data)
    unpacked = keras.utils.unpack_x_y_sample_weight
    if isinstance(data, tf.data.Dataset):
        yield from map(unpacked, without_tuning(data))
    elif isinstance(data, keras.utils.PyDataset):
        yield from (unpacked(data[index]) for index in range(data.num_batches))
    elif isinstance(data, Iterator):
        yield from map(unpacked, data)
    else:
        parts = tuple(map(_array, unpacked(data)))
        if whole:
            yield parts
            return
        for start in range(0, _count(parts[0]), BATCH_SIZE):
            yield tuple(
                None if part is None else sliced(part, slice(start, start + BATCH_SIZE))
                for part in parts
            )


def _array(part):
    """Returns a list of numbers as an array; lists of arrays are several inputs or outputs."""
    is_list = isinstance(part, list)
    has_arrays = is_list and any(hasattr(leaf, "shape") for leaf in keras.tree.flatten(part))
    return np.asarray(part) if is_list and not has_arrays else part


def _count(images):
    return len(keras.tree.flatten(images)[0])


def _tensors(chain, images, labels, weights, with_labels):
    """Returns images, labels, and the weights of images and of positions, or `None`."""
    if chain is None:
        images, place = keras.tree.map_structure(lambda one: _input(one, "float32"), images), None
    else:
        images, place = inputs_for(chain, images), chain.label_place
    if labels is None and with_labels:
        raise ArgumentError("data", "hold labels, since they are read", received="images alone")
    if labels is None:
        labels = tf.zeros([_count(images)])
    else:
        (labels, *_) = [of_output(labels, place)] if with_labels else keras.tree.flatten(labels)
        labels = tf.convert_to_tensor(labels)
    of_images, of_positions = tf.ones([_count(images)], tf.float64), None
    if weights is not None:
        weights = tf.convert_to_tensor(of_output(weights, place))
        if weights.shape.rank > 1 and set(weights.shape[1:]) == {1}:
            weights = tf.reshape(weights, [-1])
        if weights.shape.rank > 1:
            of_positions = weights
        else:
            of_images = tf.cast(weights, tf.float64)
        if not (weights.numpy() >= 0).all():
            raise ArgumentError("data", "hold sample weights of 0 or more", received=f"{weights}")
    counts = {len(part) for part in (*keras.tree.flatten(images), labels, of_images)}
    if len(counts) > 1:
        raise ArgumentError(
            "data",
            "hold as many labels and sample weights as images",
            received=f"{_count(images)} images, {len(labels)} labels and {len(of_images)} weights",
        )
    return images, labels, of_images, of_positions


def inputs_for(chain, images):
    """Returns the images of a batch as tensors, in the structure that a chain takes."""
    like = chain.input_dtype
    return keras.tree.map_structure(_input, in_structure(images, like, chain.input_names), like)


def _input(values, declared):
    tensor = tf.convert_to_tensor(values)
    return tensor if tensor.dtype.is_floating else tf.cast(tensor, dtype_taken(declared))


def in_structure(images, like, names=()):
    """Returns inputs in a structure, as Keras takes them for it.

    A dict may hold more than another one. Where no dict is expected, one is read by the `names` of
    the inputs, and one of several inputs without names is an error of Keras; a bare array stands
    for a structure of one.
    """
    if isinstance(like, Mapping) and isinstance(images, Mapping):
        return {name: in_structure(images[name], like[name]) for name in like}
    leaves = keras.tree.flatten(images)
    if isinstance(images, Mapping) and names:
        leaves = [images[name] for name in names]
    elif len(leaves) > 1 and isinstance(images, Mapping) != isinstance(like, Mapping):
        keras.tree.assert_same_structure(images, like)
    return keras.tree.pack_sequence_as(like, leaves)


def of_output(values, place=None):
    """Returns what of labels, losses or weights belongs to an output, by names or its number."""
    if not keras.tree.is_nested(values):
        return values
    if place is not None and isinstance(values, Mapping):
        for name in place.names:
            if name in values:
                return values[name]
    leaves = keras.tree.flatten(values)
    if len(leaves) == 1:
        return leaves[0]
    if place is None or len(leaves) != place.total:
        structure = keras.tree.map_structure(lambda _: "*", values)
        raise ArgumentError(
            "data",
            "hold labels and weights in the structure of the outputs",
            received=f"{structure}",
        )
    return leaves[place.number]


def shape_of_outputs(chain, images):
    """Returns the shape of the outputs of a chain for one image, found once by a pass of one."""
    key = (chain.head, *key_of(images))
    if key not in chain.output_shapes:
        outputs = chain(sliced(images, slice(1)))
        chain.output_shapes[key] = tuple(outputs.shape)[1:]
    return chain.output_shapes[key]


def prepared_labels(chain, images, labels, weights=None):
    """Returns the labels of a batch in which all positions are left out that do not count.

    Labels are returned as they are unless outputs and labels are per position; weights `(images,
    positions)` must then be 0 and 1, and otherwise there must be none.
    """
    shape = shape_of_outputs(chain, images) if labels.shape.rank > 1 else ()
    if not are_per_position(labels, shape):
        if weights is not None:
            raise ArgumentError(
                "data",
                "hold one sample weight per image",
                received=f"weights of shape {tuple(weights.shape)}",
            )
        return labels
    is_weighted = _weighted_positions(weights, labels)
    if chain.context is None:
        return labels_within(chain, labels, shape[-1], is_weighted)
    if is_weighted is None:
        is_weighted = tf.ones(tf.shape(labels)[:2], bool)
    return _compiled_labels(chain, images, labels, shape[-1])(images, labels, is_weighted)


def _weighted_positions(weights, labels):
    """Returns which weights of positions are not 0; `None` if there are none of positions."""
    if weights is None:
        return None
    if weights.shape.rank == 3 and weights.shape[-1] == 1:
        weights = weights[:, :, 0]
    if weights.shape != labels.shape[:2]:
        raise ArgumentError(
            "data",
            "hold one sample weight per position, for outputs per position",
            received=f"weights of shape {tuple(weights.shape)} for labels of shape "
            f"{tuple(labels.shape)}",
        )
    is_weighted = tf.cast(weights, tf.float64) != 0
    if not np.isin(weights.numpy().astype(float), (0, 1)).all():
        raise ArgumentError(
            "data",
            "hold sample weights of 0 and 1 for positions, which leave positions out: probes "
            "weight all others alike",
            received=f"weights from {weights.numpy().min()} to {weights.numpy().max()}",
        )
    return is_weighted


def _compiled_labels(chain, images, labels, outputs):
    """Returns the compiled `labels_within` for such a batch, kept on the chain."""
    settings = chain.outputs, getattr(chain.loss, "ignore_class", None), takes_signs(chain.loss)
    key = ("labels", *settings, *key_of([images, labels]))
    if key not in chain.compiled:
        is_weighted = tf.TensorSpec([None, labels.shape[1]], bool)
        chain.compiled[key] = compiled(
            lambda images, labels, is_weighted: labels_within(
                chain.with_context(images), labels, outputs, is_weighted
            ),
            [spec_of(images), spec_of(labels), is_weighted],
        )
    return chain.compiled[key]


def chosen_of(batch, is_chosen):
    """Returns the images of a batch for which a mask `(images,)` is true; keeps `None`s."""
    return keras.tree.map_structure(
        lambda tensor: None if tensor is None else tf.boolean_mask(tensor, is_chosen), batch
    )


def rebatched(batches, size):
    """Yields structures of tensors in batches of a size, an int or a function of a batch.

    The last batch may be smaller, and the last one before others of another shape.
    """
    size_of = size if callable(size) else lambda batch: size
    waiting, count = [], 0
    for batch in batches:
        if waiting and key_of(batch) != key_of(waiting[0]):
            if count:
                yield joined(waiting)
            waiting, count = [], 0
        waiting.append(batch)
        count += len(batch[1])
        while count > (size := size_of(batch)):
            whole = joined(waiting)
            yield sliced(whole, slice(size))
            waiting, count = [sliced(whole, slice(size, None))], count - size
        if count == size:
            yield joined(waiting)
            waiting, count = [], 0
    if count:
        yield joined(waiting)


def concatenated(parts):
    """Returns arrays as one; the second axis, of positions, is filled up if there are several."""
    most = max((part.shape[1] for part in parts if part.ndim > 1), default=0)
    filled = []
    for part in parts:
        if part.ndim > 1 and part.shape[1] < most:
            fill = np.nan if part.dtype.kind == "f" else 0
            width = [(0, 0), (0, most - part.shape[1]), *[(0, 0)] * (part.ndim - 2)]
            part = np.pad(part, width, constant_values=fill)
        filled.append(part)
    return np.concatenate(filled)


def sliced(images, part):
    """Returns a part of a batch of images, given by a slice of its first axis."""
    return keras.tree.map_structure(lambda array: array[part], images)


def joined(batches):
    """Returns batches as one."""
    if len(batches) == 1:
        return batches[0]
    return keras.tree.map_structure(lambda *parts: tf.concat(parts, axis=0), *batches)


def spec_of(values):
    """Returns the `tf.TensorSpec`s of such a batch, with any number of images."""
    return keras.tree.map_structure(
        lambda tensor: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype), values
    )


def key_of(values):
    """Returns what distinguishes tensors, or structures of them, for a compiled function."""
    specs = keras.tree.flatten(values)
    return tuple((tuple(spec.shape[1:]), spec.dtype) for spec in specs)


def dtype_taken(declared):
    """Returns the dtype in which images reach a network: float32, unless it declares integers."""
    is_whole = keras.backend.is_int_dtype(declared) or declared == "bool"
    return declared if is_whole else "float32"


def is_shape(shape):
    """Returns whether something is the shape of one input, not a structure of shapes."""
    return isinstance(shape, (tuple, list)) and all(
        size is None or isinstance(size, (int, np.integer)) for size in shape
    )


def path_name(path):
    """Returns the name of an input: its keys and places in a structure, joined by slashes."""
    return "/".join(map(str, path))
