"""Images of a network: a tensor with a leading axis of images, or a dict, tuple or list of these.

TensorFlow only.
"""

import contextlib
import functools
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError


def sliced(images, part):
    """Returns a part of a batch of images, given by a slice of its first axis."""
    return keras.tree.map_structure(lambda array: array[part], images)


def check_images(chain, images):
    """Raises a `ValueError` unless the shape of a batch of images fits a chain."""
    expected = chain.input_shape
    wrong = list(_misfits(images, expected)) if is_alike(images, expected) else [""]
    if wrong:
        shapes = keras.tree.map_structure(lambda part: tuple(part.shape), images)
        inputs = ", ".join(repr(name) for name in wrong if name)
        raise ArgumentError(
            "data",
            f"hold batches of images of shape {expected}",
            said=f"a batch of shape {shapes}" + (f", which differs in {inputs}" * bool(inputs)),
        )


def _misfits(images, expected, path=()):
    """Yields the names of the inputs of another shape than is expected; "" for a single input."""
    if is_shape(expected):
        if len(images.shape) != len(expected) + 1 or any(
            size not in (None, given)
            for size, given in zip(expected, images.shape[1:], strict=True)
        ):
            yield path_name(path)
    else:
        keys = expected if isinstance(expected, Mapping) else range(len(expected))
        for key in keys:
            yield from _misfits(images[key], expected[key], (*path, key))


def path_name(path):
    """Returns the name of an input: its keys and places in a structure, joined by slashes."""
    return "/".join(map(str, path))


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


def is_alike(images, shapes):
    """Returns whether images have the structure of the shapes of a chain."""
    if is_shape(shapes):
        return not isinstance(images, (Mapping, tuple, list))
    if isinstance(shapes, Mapping):
        is_dict = isinstance(images, Mapping) and set(images) == set(shapes)
        return is_dict and all(is_alike(images[name], shapes[name]) for name in shapes)
    is_list = isinstance(images, (tuple, list)) and len(images) == len(shapes)
    return is_list and all(map(is_alike, images, shapes))


def map_up_to(function, images, others):
    """Applies a function to the parts of images and what stands at their places in another."""
    if isinstance(others, Mapping):
        return {name: map_up_to(function, images[name], others[name]) for name in others}
    if isinstance(others, (tuple, list)) and isinstance(images, (tuple, list)):
        return type(images)(map(functools.partial(map_up_to, function), images, others))
    return function(images, others)


def joined(batches):
    """Returns batches as one."""
    return keras.tree.map_structure(lambda *parts: tf.concat(parts, axis=0), *batches)


@contextlib.contextmanager
def known_kernels(chain):
    """Says what can be done where TensorFlow has no kernel for an operation of a chain."""
    try:
        yield
    except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError) as error:
        lines = str(error.message).splitlines()
        reason = next((line for line in lines if "NHWC" in line or "NCHW" in line), None)
        if reason is None:
            raise
        raise ArgumentError(
            "chain",
            "belong to a network that can compute on this machine. Of some layers with "
            '`data_format="channels_first"`, TensorFlow computes nothing on a CPU: use a GPU, '
            f'or build the network with `data_format="channels_last"`. TensorFlow says: {reason}',
            said=f"{chain.name}",
        ) from error
