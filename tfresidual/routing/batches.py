"""Runs a compiled function of a chain over a dataset, batch by batch. TensorFlow only."""

from collections.abc import Iterator, Mapping

import keras
import numpy as np
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.definitions.warning import warn
from tfresidual.machine.console import progress_bar
from tfresidual.machine.passes import is_from_python, without_tuning
from tfresidual.routing.agreement import check_run
from tfresidual.routing.devices import devices_of
from tfresidual.routing.images import (
    check_images,
    dtype_taken,
    is_alike,
    is_shape,
    joined,
    key_of,
    map_up_to,
    sliced,
    spec_of,
)
from tfresidual.routing.labels import prepared_labels

BATCH_SIZE = 128
# From more shapes on in one pass over data, there is a warning.
MOST_SHAPES = 4
# Under this name, `run_over` returns the weights of the images.
WEIGHTS = "weights"
# Under this name, functions return which images their plain sums are right for, bool, `(images,)`.
IN_RANGE = "in_range"


def batches_of(data, chain=None, with_labels=True, with_all=False):
    """Returns the data as batches.

    Args:
        data: see `tfresidual.definitions.types.Images`, or a generator of batches; with sample
            weights after the labels or not, in all structures that `fit` takes. Where labels are
            not read, images alone will do.
        chain: the `tfresidual.routing.Chain` that the images are for, or `None`.
        with_labels: whether the labels are read; if not, they are returned as they are.
        with_all: whether images of weight 0 are yielded, too.

    Returns:
        A tuple `(batches, count)`: an iterator of tensors `(images, labels, weights)`, and the
        number of batches, `None` if it is not known. Dtypes are the same in all batches; batches
        without images are left out. Weights are those of images, `(images,)`, 1 if the data has
        none; those of positions are in the labels, see `tfresidual.routing.labels`. Integer images
        become float32, as in `predict`, unless the network takes integers.

    Raises:
        ValueError: if the data has another type or is infinite; the iterator also raises it if a
            batch cannot be used.
    """
    check_data(data)
    batches, count = _raw_batches(data, chain)
    return _checked(batches, chain, with_labels, with_all), count


def _raw_batches(data, chain=None):
    if isinstance(data, tf.data.Dataset):
        count = int(data.cardinality())
        return map(_parts, without_tuning(data)), count if count >= 0 else None
    if isinstance(data, keras.utils.PyDataset):
        count = data.num_batches
        return (_parts(data[index]) for index in range(count)), count
    if isinstance(data, Iterator):
        return map(_parts, data), None
    parts = _parts(data)
    count = _count(*parts[:2])
    several = *_are_several(parts[0], chain), False
    are_structures = [_is_structure(*pair, count) for pair in zip(parts, several, strict=True)]

    def part(start):
        chosen, found = slice(start, start + BATCH_SIZE), []
        for values, is_structure in zip(parts, are_structures, strict=True):
            if is_structure:
                found.append(sliced(values, chosen))
            else:
                found.append(values[chosen] if _is_array(values) else None)
        return tuple(found)

    starts = range(0, count, BATCH_SIZE)
    return map(part, starts), len(starts)


def _are_several(images, chain):
    """Returns whether lists of as many arrays as images are several inputs, and several outputs."""
    if chain is None:
        return False, False
    shape, arrangement = chain.input_shape, chain.arrangement
    has_outputs = arrangement is not None and keras.tree.is_nested(arrangement.outputs)
    return not is_shape(shape) or _are_batches(images, shape), has_outputs


def _are_batches(images, shape):
    """Returns whether images in a list are arrays with an axis of images before some shape."""
    return isinstance(images, (list, tuple)) and all(
        isinstance(part, Mapping) or len(getattr(part, "shape", ())) == len(shape) + 1
        for part in images
    )


def check_data(data, again=False):
    """Raises a `ValueError` unless `batches_of` accepts the data, `again` if need be."""
    endless = "be finite: a probe runs over all of it"
    if isinstance(data, tf.data.Dataset):
        if data.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ArgumentError("data", f"{endless}. Use `data.take(n)`", data)
        _parts(data.element_spec)
    elif isinstance(data, keras.utils.PyDataset):
        if data.num_batches is None:
            raise ArgumentError("data", endless, said=f"data={data!r} with num_batches=None")
    elif isinstance(data, Iterator):
        if again:
            raise ArgumentError(
                "data",
                "be data that can be read again, since it is read in every epoch: a generator "
                "can be read once. Pass arrays, a `keras.utils.PyDataset`, or "
                "`tf.data.Dataset.from_generator` with the function that makes the generator",
                data,
            )
    elif _is_dense(data) or (isinstance(data, (list, tuple)) and len(data) in (1, 2, 3)):
        images, labels, _ = _parts(data)
        given = [images] if labels is None else [images, labels]
        for part in given:
            leaves = keras.tree.flatten(part) if isinstance(part, Mapping) else [part]
            if not all(map(_is_array, leaves)):
                raise ArgumentError(
                    "data",
                    "be a pair of arrays, if it is a tuple or a list; `.to_tensor()` makes one "
                    "of a ragged tensor, `tf.sparse.to_dense` of a sparse one",
                    said=f"{' and '.join(type(one).__name__ for one in given)}",
                )
        count = _count(images, labels)
        for part in given:
            is_structure = _is_structure(part, False, count)
            for leaf in keras.tree.flatten(part) if is_structure else [part]:
                if len(leaf) != count:
                    raise _other_count(
                        *map(len, (leaf, labels) if part is images else (images, leaf))
                    )
    else:
        raise ArgumentError(
            "data",
            "be a `tf.data.Dataset`, `keras.utils.PyDataset` or generator of batches `(images, "
            "labels)`, or a pair of arrays; several inputs of a network are a dict in the place of "
            "the images",
            said=f"data={_short(data)} of type {type(data).__name__}",
        )


def _short(data):
    """Returns what data looks like, arrays by their shapes."""
    if isinstance(data, tuple):
        return f"({', '.join(map(_short, data))})"
    if isinstance(data, Mapping):
        return f"a dict of {', '.join(map(repr, data))}"
    return f"an array of shape {tuple(data.shape)}" if hasattr(data, "shape") else repr(data)


def no_images(data):
    """Returns the error for data without images that count."""
    return ArgumentError(
        "data",
        "hold images, not all of weight 0: at least one batch with images",
        said=f"data={_short(data)}",
    )


def first_batch(data, again=False):
    """Returns the first batch of the data with images, `(images, labels, weights)`; all of arrays.

    Weights may be `None`. With `again`, data that comes from a Python function is read twice, and
    must begin with the same batch each time. A `ValueError` is raised if the data cannot be used.
    """
    check_data(data, again)
    batch = _first_of(data)
    if batch is None:
        raise no_images(data)
    if again and isinstance(data, tf.data.Dataset) and is_from_python(data):
        second = _first_of(data)
        if second is None or not _are_equal(batch, second):
            raise ArgumentError(
                "data",
                "begin with the same batch whenever it is read, if it comes from a Python "
                "function: a probe reads it in every epoch. Make a new iterator in each call of "
                "the function, or pass arrays",
                said=f"data={data!r}, which "
                f"{'is empty' if second is None else 'began otherwise'} when "
                "it was read for the second time",
            )
    return _parts(data) if _is_dense(data) or isinstance(data, (list, tuple)) else batch


def labels_of(chain, batch):
    """Returns the labels in what `first_batch` returned, without those of images of weight 0."""
    images, labels, weights = batch
    labels, weights = _labels_of(labels, weights, chain, True, _count(images, labels))
    of_images, _ = _weights_of(weights, labels)
    return tf.boolean_mask(labels, of_images > 0)


def _first_of(data):
    """Returns the first batch with images; `None` if there is none."""
    batches, _ = _raw_batches(data)
    return next((batch for batch in batches if any(_checked([batch]))), None)


def _are_equal(some, others):
    pairs = zip(*map(keras.tree.flatten, (some, others)), strict=True)
    return all(
        np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f")
        for one, other in pairs
    )


def _is_structure(values, several, count):
    """Returns whether values are several arrays; for a list of `count`, `several` says so."""
    if isinstance(values, Mapping):
        return True
    is_list = isinstance(values, (tuple, list)) and (several or len(values) != count)
    return is_list and all(_is_structure_or_array(part, count) for part in values)


def _are_arrays(values, count):
    """Returns whether something is a tuple or list of arrays with a number of rows."""
    return isinstance(values, (tuple, list)) and all(
        _is_dense(part) and len(part) == count for part in values
    )


def _is_structure_or_array(part, count):
    if isinstance(part, (list, tuple)) and len(part) != count:
        leaves = keras.tree.flatten(part)
        return all(_is_dense(leaf) and len(leaf) == count for leaf in leaves)
    return isinstance(part, Mapping) or (_is_array(part) and len(part) == count)


def _count(images, labels):
    """Returns the number of images of arrays."""
    for part in (labels, images):
        if isinstance(part, Mapping) or _is_dense(part):
            return len(keras.tree.flatten(part)[0])
    if labels is None:
        return len(images[0]) if all(map(_is_dense, images)) else len(images)
    leaves = keras.tree.flatten((images, labels))
    counts = {len(leaf) for leaf in leaves} if all(map(_is_dense, leaves)) else ()
    return counts.pop() if len(counts) == 1 else len(labels)


def splits_of(data):
    """Returns the data as a dict by split name; data that is not a mapping has the key `None`."""
    if isinstance(data, Mapping):
        if not data:
            raise ArgumentError("data", "not be empty", data)
        return dict(data)
    return {None: data}


def run_over(
    chain,
    name,
    function,
    data,
    progress=False,
    at_once=None,
    check=None,
    with_labels=True,
    plain=None,
    with_losses=True,
    key=(),
):
    """Applies a function of a chain to every batch and concatenates the values of the images.

    The function is compiled once per chain and shape of the images, whatever the batch size. If the
    data holds batches of several shapes, values per position are filled up to the longest.

    Args:
        chain: a `tfresidual.routing.Chain`.
        name: what the function computes, part of the key under which it is kept on the chain.
        function: `function(images, labels)` returns a dict of tensors whose first axis is the
            image.
        data: see `batches_of`.
        progress: whether to show a progress bar.
        at_once: int, the number of images per call, or `None` for the batches of the data.
        check: `check(images, labels)` raises an error for a batch that cannot be used, or `None`.
        with_labels: whether the function reads the labels.
        plain: a faster `function(images, labels)`, or `None`. It also returns a mask under
            `IN_RANGE`; from the first batch on in which an image is not, `function` is used.
        with_losses: whether a function that reads the labels computes the loss of each image.
        key: what tells functions of one name apart, the other part of the key; `None` for a
            function that is not kept.

    Returns:
        A dict of arrays whose first axis is the image, with the weights under `WEIGHTS`.

    Raises:
        ValueError: if the data holds no batch, or images that the chain does not accept.
    """
    if chain.prepare is not None:
        chain.prepare()
    batches, count = batches_of(data, chain, with_labels)
    parts, shapes, kept = [], set(), {} if key is None else chain.compiled
    if at_once is not None:
        batches, count = rebatched(batches, at_once), None
    with progress_bar(name if progress else None, count) as advance:
        for images, labels, weights in batches:
            if key_of(images) not in shapes:
                shapes.add(key_of(images))
                check_images(chain, images)
                check_run(chain, images, labels if with_labels and with_losses else None)
            if check is not None:
                check(images, labels)
            found = None
            if plain is not None:
                found = _found(chain, kept, (f"{name}, plain", key), plain, images, labels)
                if not found.pop(IN_RANGE).numpy().all():
                    found, plain = None, None
            if found is None:
                found = _found(chain, kept, (name, key), function, images, labels)
            parts.append(found | {WEIGHTS: weights})
            advance(1)
    if not parts:
        raise no_images(data)
    return {key: concatenated([part[key].numpy() for part in parts]) for key in parts[0]}


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


def _checked(batches, chain=None, with_labels=False, with_all=False):
    """Yields batches as tensors with weights; warns of many shapes, and of images with gaps."""
    first, shapes, is_whole = None, set(), True
    for images, labels, weights in batches:
        images = _images_of(images, chain, labels)
        count = len(keras.tree.flatten(images)[0])
        labels, weights = _labels_of(labels, weights, chain, with_labels, count)
        for part in keras.tree.flatten(images):
            if len(part) != len(labels):
                raise _other_count(len(part), len(labels))
        specs = spec_of(images), spec_of(labels)
        first = specs if first is None else first
        if _kinds(specs) != _kinds(first):
            raise ArgumentError(
                "data",
                "hold batches of the same dtypes and numbers of axes",
                said=f"images and labels as {_listed(first)}, and then as {_listed(specs)}",
            )
        shapes.add(key_of(specs))
        of_images, weights = _weights_of(weights, labels)
        if not with_all and not (of_images.numpy() > 0).all():
            given = (images, labels, of_images, weights)
            images, labels, of_images, weights = chosen_of(given, of_images > 0)
        if len(labels):
            if is_whole and any(map(_has_gaps, keras.tree.flatten(images))):
                is_whole = False
                warn(
                    "The data holds images in which no number is finite: what is measured on them, "
                    "and every mean over them, is NaN or says nothing."
                )
            if with_labels and chain is not None:
                labels = prepared_labels(chain, images, labels, weights)
            yield images, labels, of_images
    if len(shapes) > MOST_SHAPES:
        warn(
            f"The data holds batches of {len(shapes)} shapes, and probes are compiled for each of "
            "them. Padded to a few lengths, they take less time."
        )


def _has_gaps(tensor):
    """Returns whether no number of an image is finite; single ones may be under padding."""
    if not tensor.dtype.is_floating or tensor.shape.rank < 2:
        return False
    has_some = tf.reduce_any(tf.math.is_finite(tensor), axis=range(1, tensor.shape.rank))
    return not bool(tf.reduce_all(has_some))


def chosen_of(batch, is_chosen):
    """Returns the images of a batch for which a mask `(images,)` is true; keeps `None`s."""
    return keras.tree.map_structure(
        lambda tensor: None if tensor is None else tf.boolean_mask(tensor, is_chosen), batch
    )


def _kinds(specs):
    """Returns the structure, the dtypes and the numbers of axes of specs of batches."""
    return keras.tree.map_structure(lambda spec: (spec.dtype.name, len(spec.shape)), specs)


def _weights_of(weights, labels):
    """Returns the weights of images, `(images,)`, and those of positions, or `None`."""
    same = tf.ones([len(labels)], tf.float64)
    if weights is None:
        return same, None
    weights = tf.convert_to_tensor(weights)
    if weights.shape.rank > 1 and set(weights.shape[1:]) == {1}:
        weights = tf.reshape(weights, [-1])
    if len(weights) != len(labels):
        raise _other_weights(f"{len(weights)} weights for {len(labels)} images")
    if weights.shape.rank > 1:
        return same, weights
    weights = tf.cast(weights, tf.float64)
    if not np.isfinite(weights).all() or not (weights.numpy() >= 0).all():
        raise _other_weights(f"weights from {weights.numpy().min()} to {weights.numpy().max()}")
    return weights, None


def _other_weights(what):
    return ArgumentError(
        "data", "hold one sample weight of 0 or more per image, if it holds weights", said=f"{what}"
    )


def _images_of(images, chain, labels):
    """Returns images as a tensor, or as tensors in the structure of the inputs of a chain."""
    shape = None if chain is None else chain.input_shape
    is_structure = isinstance(images, Mapping) or (
        isinstance(images, (tuple, list))
        and (
            _are_arrays(images, _count(images, labels))
            if chain is None
            else not is_shape(shape) or _are_batches(images, shape)
        )
    )
    if chain is not None and chain.arrangement is not None:
        if not is_structure:
            images = _tensor_of("images", images, None)
        images = chain.arrangement.images(images)
        is_structure = keras.tree.is_nested(images)
    if not is_structure:
        dtype = "float32" if chain is None or not is_shape(shape) else chain.input_dtype
        return _tensor_of("images", images, dtype)
    if chain is None or not is_alike(images, shape):
        # What does not fit is refused where images are compared with the chain.
        return keras.tree.map_structure(lambda part: _tensor_of("images", part), images)
    return map_up_to(
        lambda part, dtype: _tensor_of("images", part, dtype), images, chain.input_dtype
    )


def _labels_of(labels, weights, chain, with_labels, count):
    """Returns the labels of the output of a chain, zeros if there are none, and their weights."""
    if labels is None:
        if with_labels:
            raise ArgumentError(
                "data",
                "hold labels, in batches `(images, labels)`, since they are read",
                said="images alone",
            )
        return tf.zeros([count]), None
    several = _are_arrays(labels, count) if chain is None else _are_several(None, chain)[1]
    if not _is_structure(labels, several, count):
        labels = _tensor_of("labels", labels)
    if isinstance(weights, (list, tuple)) and not _is_structure(weights, several, count):
        weights = _tensor_of("weights", weights)
    is_read = with_labels or keras.tree.is_nested(labels) or keras.tree.is_nested(weights)
    if chain is not None and chain.arrangement is not None and is_read:
        labels, weights = chain.arrangement.labels(labels, weights)
    elif not with_labels:
        (labels, *_) = keras.tree.flatten(labels)
        weights = None if keras.tree.is_nested(weights) else weights
    if keras.tree.is_nested(weights):
        leaves = keras.tree.flatten(weights)
        if isinstance(weights, Mapping) or len(leaves) != 1:
            structure = keras.tree.map_structure(lambda _: "*", weights)
            raise _other_weights(f"weights of structure {structure} for the labels of one output")
        # As Keras takes them for the labels of one output.
        (weights,) = leaves
    return _tensor_of("labels", labels), weights


def _tensor_of(name, values, dtype="float32"):
    try:
        tensor = tf.convert_to_tensor(values)
    except (ValueError, TypeError) as error:
        raise _no_numbers(name, f"of type {type(values).__name__}") from error
    is_image = name == "images"
    if tensor.dtype.is_floating or not is_image:
        is_usable = True
    else:
        is_usable = tensor.dtype.is_integer or tensor.dtype.is_bool
        # As `predict` does.
        tensor = tf.cast(tensor, dtype_taken(dtype)) if is_usable and dtype else tensor
    if not is_usable or not tensor.shape.rank:
        raise _no_numbers(name, f"of shape {tuple(tensor.shape)} and dtype {tensor.dtype.name}")
    return tensor


def _no_numbers(name, what):
    return ArgumentError(
        "data",
        f"hold arrays or dense tensors with a leading axis of images, and {name} of numbers; "
        "`.to_tensor()` makes a dense tensor of a ragged one",
        said=f"{name} {what}",
    )


def _other_count(images, labels):
    return ArgumentError(
        "data", "hold as many labels as images", said=f"{images} images and {labels} labels"
    )


def _listed(specs):
    specs = keras.tree.flatten(specs)
    return " and ".join(f"{tuple(spec.shape[1:])} {spec.dtype.name}" for spec in specs)


def rebatched(batches, size):
    """Yields structures of tensors in batches of a size, an int or a function of a batch.

    The last batch may be smaller, and the last one before others of another shape.
    """
    size_of = size if callable(size) else lambda batch: size
    waiting, count = [], 0
    for batch in batches:
        if count and key_of(batch) != key_of(waiting[0]):
            yield joined(waiting)
            waiting, count = [], 0
        waiting.append(batch)
        count += len(batch[1])
        while count >= (size := size_of(batch)):
            whole = joined(waiting)
            yield sliced(whole, slice(size))
            waiting, count = [sliced(whole, slice(size, None))], count - size
    if count:
        yield joined(waiting)


def _is_array(values):
    """Returns whether something has a first axis and can be sliced along it."""
    return isinstance(values, (list, tuple)) or _is_dense(values)


def _is_dense(values):
    """Returns whether something is a dense array or tensor with at least one axis."""
    is_dense = not isinstance(values, (tf.RaggedTensor, tf.SparseTensor))
    return is_dense and bool(getattr(values, "shape", None)) and hasattr(values, "__getitem__")


def _parts(batch):
    """Returns images, labels and sample weights of a batch, `None` for what it does not have."""
    if isinstance(batch, (list, tuple)) and len(batch) not in (1, 2, 3):
        raise ArgumentError(
            "data",
            "yield batches `(images, labels)`",
            said=f"a batch of type {type(batch).__name__} with {len(batch)} parts",
        )
    return keras.utils.unpack_x_y_sample_weight(batch)


def _found(chain, kept, key, function, images, labels):
    """Returns what a function that is compiled once says of a batch."""
    devices, signature = devices_of(chain), [spec_of(images), spec_of(labels)]
    key = (*key, *key_of(signature))
    if key not in kept:
        kept[key] = devices.compiled(function, signature)
    found = kept[key](*map(devices.split, (images, labels)))
    return devices.joined(found, len(labels))
