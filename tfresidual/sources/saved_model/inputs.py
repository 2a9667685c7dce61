"""Images and contexts as the separate tensors that compiled functions take. TensorFlow only.

A compiled function takes one tensor per input of the network, or states and then one tensor per
entry of the context, in the order of their names.
"""

from collections.abc import Mapping

import tensorflow as tf

from tfresidual.routing.data import dtype_taken, is_shape

# The name of a single input, and the beginning of the names of inputs that have none.
IMAGES = "images"


def specs_of(shapes, dtypes):
    """Returns the `tf.TensorSpec` of every input of a network, as a dict by name.

    Names are `images`, keys, or `images_0`, `images_1` and so on, joined by underscores if nested.
    """
    pairs = zip(_named(shapes, shapes), _named(dtypes, shapes), strict=True)
    return {
        name: tf.TensorSpec([None, *shape], dtype_taken(dtype), name=name)
        for (name, shape), (_, dtype) in pairs
    }


def names_of(shapes):
    """Returns the names of the inputs of a network, see `specs_of`, as a list."""
    return [name for name, _ in _named(shapes, shapes)]


def flat(images, shapes):
    """Returns images of some shapes as a list of tensors, in the order of `specs_of`."""
    return [tensor for _, tensor in _named(images, shapes)]


def _named(structure, shapes, name=None):
    """Yields the names of shapes and what stands at their places in a structure."""
    if is_shape(shapes):
        yield IMAGES if name is None else name, structure
    elif isinstance(shapes, Mapping):
        for key, shape in shapes.items():
            yield from _named(structure[key], shape, key if name is None else f"{name}_{key}")
    else:
        for place, shape in enumerate(shapes):
            yield from _named(structure[place], shape, f"{name or IMAGES}_{place}")


def packed(tensors, shapes):
    """Returns images from an iterator of their tensors, see `flat`."""
    if is_shape(shapes):
        return next(tensors)
    if isinstance(shapes, Mapping):
        return {key: packed(tensors, shape) for key, shape in shapes.items()}
    return type(shapes)(packed(tensors, shape) for shape in shapes)


def of_tensors(function, shapes):
    """Returns a function of images, and of more, as a function of separate tensors."""
    count = len(names_of(shapes))
    return lambda *given: function(packed(iter(given[:count]), shapes), *given[count:])


def of_images(function, shapes):
    """Returns a function of separate tensors as a function of images."""
    return function if is_shape(shapes) else lambda images: function(*flat(images, shapes))


def of_entries(function, names):
    """Returns a function of states and a context, if any, as a function of separate tensors."""
    if function is None or names is None:
        return function

    def of_separate(*tensors):
        count = len(tensors) - len(names)
        context = dict(zip(names, tensors[count:], strict=True))
        return function(*tensors[:count], context)

    return of_separate


def of_context(function, names):
    """Returns a function of separate tensors as a function of states and a context."""
    if function is None or names is None:
        return function
    return lambda *given: function(*given[:-1], *(given[-1][name] for name in names))
