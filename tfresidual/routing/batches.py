"""Runs a compiled function of a chain over a dataset, batch by batch. TensorFlow only."""

from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from tfresidual.arguments import check_bool
from tfresidual.machine.console import progress_bar
from tfresidual.routing.agreement import check_agreement
from tfresidual.routing.outputs import named_outputs

BATCH_SIZE = 128
# The number of images on which a chain is compared with its network.
COMPARED = 8


def batches_of(data):
    """Returns the data as batches.

    Args:
        data: a `tf.data.Dataset` or `keras.utils.PyDataset` of batches `(images, labels)`, or a
            pair of arrays `(images, labels)`. Sample weights after the labels are ignored.

    Returns:
        A tuple `(batches, count)`. `batches` is an iterator of `(images, labels)`, tensors that
        have the same dtype and, except for the number of images, the same shape in all batches;
        batches without images are left out. `count` is the number of batches of the data, or
        `None` if it is not known in advance. Integer images become float32, as in `predict`.

    Raises:
        ValueError: if the data has another type or is infinite; the iterator also raises it if a
            batch cannot be used.
    """
    check_data(data)
    batches, count = _raw_batches(data)
    return _checked(batches), count


def _raw_batches(data):
    if isinstance(data, tf.data.Dataset):
        count = int(data.cardinality())
        return map(_pair, data), count if count >= 0 else None
    if isinstance(data, keras.utils.PyDataset):
        count = data.num_batches
        return (_pair(data[index]) for index in range(count)), count
    images, labels = _pair(data)
    starts = range(0, len(images), BATCH_SIZE)
    chosen = (slice(start, start + BATCH_SIZE) for start in starts)
    return ((images[part], labels[part]) for part in chosen), len(starts)


def check_data(data):
    """Raises a `ValueError` unless `batches_of` accepts the data, without reading any of it."""
    if isinstance(data, tf.data.Dataset):
        if data.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                "Argument `data` must be finite: a probe runs over all of it. Use "
                f"`data.take(n)`. Received: data={data!r}"
            )
        _pair(data.element_spec)
    elif isinstance(data, keras.utils.PyDataset):
        if data.num_batches is None:
            raise ValueError(
                "Argument `data` must be finite: a probe runs over all of it. Received: "
                f"data={data!r} with num_batches=None"
            )
    elif isinstance(data, (list, tuple)) and len(data) in (2, 3):
        images, labels = _pair(data)
        if not (_is_array(images) and _is_array(labels)):
            raise ValueError(
                "Argument `data` must be a pair of arrays, if it is a tuple or a list. "
                f"Received: {type(images).__name__} and {type(labels).__name__}"
            )
        if len(images) != len(labels):
            raise _other_count(len(images), len(labels))
    else:
        raise ValueError(
            "Argument `data` must be a `tf.data.Dataset` or `keras.utils.PyDataset` of batches "
            "`(images, labels)`, or a pair of arrays. "
            f"Received: data={data!r} of type {type(data).__name__}"
        )


def first_batch(data):
    """Returns the first images of the data and their labels; for arrays, all labels.

    Raises:
        ValueError: if `batches_of` does not accept the data, or it is empty.
    """
    batches, _ = batches_of(data)
    images, labels = next((batch for batch in batches if len(batch[0])), (None, None))
    if images is None:
        raise ValueError(
            f"Argument `data` must hold at least one batch with images. Received: data={data!r}"
        )
    if isinstance(data, (list, tuple)):
        labels = data[1]
    return tuple(part if hasattr(part, "shape") else np.asarray(part) for part in (images, labels))


def splits_of(data):
    """Returns the data as a dict by split name; data that is not a mapping has the key `None`."""
    if isinstance(data, Mapping):
        if not data:
            raise ValueError(f"Argument `data` must not be empty. Received: data={data!r}")
        return dict(data)
    return {None: data}


def run_over(chain, name, function, data, progress=False, at_once=None, check=None):
    """Applies a function of a chain to every batch and concatenates the values of the images.

    The function is compiled once per chain and image shape, whatever the batch size.

    Args:
        chain: a `tfresidual.routing.Chain`.
        name: str, what the function computes; together with the shapes, this is the key under
            which the compiled function is kept on the chain.
        function: `function(images, labels)` returns a dict of tensors whose first axis is the
            image.
        data: see `batches_of`.
        progress: whether to show a progress bar on the terminal.
        at_once: int, the number of images per call of the function, or `None` for the batches of
            the data.
        check: `check(images, labels)` raises an error for a batch that cannot be used, or `None`.

    Returns:
        A dict of arrays whose first axis is the image.

    Raises:
        ValueError: if the data holds no batch, or images that the chain does not accept.
    """
    check_bool("progress", progress)
    if chain.prepare is not None:
        chain.prepare()
    batches, count = batches_of(data)
    compiled, parts = None, []
    if at_once is not None:
        batches, count = rebatched(batches, at_once), None
    with progress_bar(name if progress else None, count) as advance:
        for images, labels in batches:
            if compiled is None:
                compiled = _compiled(chain, name, function, images, labels)
                _check_once(chain, images)
            if check is not None:
                check(images, labels)
            parts.append(compiled(images, labels))
            advance(1)
    if not parts:
        raise ValueError(f"Argument `data` must hold at least one batch. Received: data={data!r}")
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _checked(batches):
    """Yields batches as tensors and leaves out those without images.

    Raises a `ValueError` if the dtype or the shape of a batch differs from the first one.
    """
    first = None
    for batch in batches:
        images, labels = map(_tensor_of, ("images", "labels"), batch)
        if len(images) != len(labels):
            raise _other_count(len(images), len(labels))
        specs = spec_of(images), spec_of(labels)
        first = specs if first is None else first
        if specs != first:
            raise ValueError(
                "Argument `data` must hold batches of the same dtype and shape, except for the "
                f"number of images. Received: images and labels as {_listed(first)}, and then as "
                f"{_listed(specs)}"
            )
        if len(images):
            yield images, labels


def _tensor_of(name, values):
    try:
        tensor = tf.convert_to_tensor(values)
    except (ValueError, TypeError) as error:
        raise _no_numbers(name, f"of type {type(values).__name__}") from error
    is_image = name == "images"
    if tensor.dtype.is_floating or not is_image:
        is_usable = True
    else:
        is_usable = tensor.dtype.is_integer or tensor.dtype.is_bool
        tensor = tf.cast(tensor, tf.float32) if is_usable else tensor
    if not is_usable or not tensor.shape.rank:
        raise _no_numbers(name, f"of shape {tuple(tensor.shape)} and dtype {tensor.dtype.name}")
    return tensor


def _no_numbers(name, what):
    return ValueError(
        "Argument `data` must hold arrays or dense tensors with a leading axis of images, and "
        f"{name} of numbers. Received: {name} {what}"
    )


def _other_count(images, labels):
    return ValueError(
        "Argument `data` must hold as many labels as images. "
        f"Received: {images} images and {labels} labels"
    )


def _listed(specs):
    return " and ".join(f"{tuple(spec.shape[1:])} {spec.dtype.name}" for spec in specs)


def rebatched(batches, size):
    """Yields the same images and labels in batches of another size; the last may be smaller."""
    waiting, count = [], 0
    for batch in batches:
        waiting.append(batch)
        count += len(batch[0])
        while count >= size:
            images, labels = (tf.concat(parts, axis=0) for parts in zip(*waiting, strict=True))
            yield images[:size], labels[:size]
            waiting, count = [(images[size:], labels[size:])], count - size
    if count:
        yield tuple(tf.concat(parts, axis=0) for parts in zip(*waiting, strict=True))


def check_images(chain, images):
    """Raises a `ValueError` unless the shape of a batch of images fits a chain."""
    expected = chain.input_shape
    fits = len(images.shape) == len(expected) + 1 and all(
        size in (None, given) for size, given in zip(expected, images.shape[1:], strict=True)
    )
    if not fits:
        raise ValueError(
            f"Argument `data` must hold batches of images of shape {expected}. "
            f"Received: a batch of shape {tuple(images.shape)}"
        )


def spec_of(values):
    """Returns the `tf.TensorSpec` of such a batch, with any number of images."""
    return tf.TensorSpec([None, *values.shape[1:]], values.dtype)


def _is_array(values):
    """Returns whether something has a first axis and can be sliced along it."""
    if isinstance(values, (list, tuple)):
        return True
    is_dense = not isinstance(values, (tf.RaggedTensor, tf.SparseTensor))
    return is_dense and bool(getattr(values, "shape", None)) and hasattr(values, "__getitem__")


def _pair(batch):
    if not isinstance(batch, (list, tuple)) or len(batch) not in (2, 3):
        raise ValueError(
            "Argument `data` must yield batches `(images, labels)`. "
            f"Received: a batch of type {type(batch).__name__}"
        )
    return batch[0], batch[1]


def _check_once(chain, images):
    """Compares a chain with its network, once per image shape.

    Once is enough: if the two differ, they differ for any weights.
    """
    key = ("agrees", tuple(images.shape[1:]), images.dtype)
    if chain.reference is not None and key not in chain.compared:
        few = images[:COMPARED]
        check_agreement(chain, few, named_outputs(chain(few)))
        chain.compared[key] = True


def _compiled(chain, name, function, images, labels):
    check_images(chain, images)
    signature = [spec_of(images), spec_of(labels)]
    key = (name, *((tuple(spec.shape[1:]), spec.dtype) for spec in signature))
    if key not in chain.compiled:
        chain.compiled[key] = tf.function(function, input_signature=signature, autograph=False)
    return chain.compiled[key]
