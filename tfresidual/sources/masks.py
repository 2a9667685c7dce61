"""Which layers may attach an implicit mask of Keras to a tensor."""

import keras

KNOWN_PACKAGES = ("keras", "tfresidual")


def _parts(operation):
    """Yields a layer and the layers it wraps; nothing for an operation of `keras.ops`."""
    while isinstance(operation, keras.layers.Layer):
        yield operation
        operation = operation.layer if isinstance(operation, keras.layers.Wrapper) else None


def _is_opaque(layer):
    """Returns whether other layers may be called inside a layer."""
    is_known = type(layer).__module__.partition(".")[0] in KNOWN_PACKAGES
    return not is_known or isinstance(layer, (keras.Model, keras.layers.Lambda))


def may_mask(operation):
    """Returns whether an operation may make a mask, for inputs without one."""
    return any(
        _is_opaque(part)
        or isinstance(part, keras.layers.Masking)
        or getattr(part, "mask_zero", False)
        for part in _parts(operation)
    )
