"""What a layer is beside its configuration, for one made from this. TensorFlow only."""

from __future__ import annotations

import tempfile

import keras

from tfresidual.layers import ResidualUnit, StochasticDepth

# The kinds of attributes that are settings of a layer.
PLAIN = (bool, int, float, str, type(None))
# The entry of the configuration of a model of keras-hub that counts the layers that are the blocks.
COUNT = "num_layers"


def settings_of(layer):
    """Returns the settings of a layer, by their names, without its name and number of blocks."""
    return {
        name: value
        for name, value in vars(layer).items()
        if isinstance(value, PLAIN) and not name.startswith("_") and name not in ("name", COUNT)
    }


def parts_of(*layers):
    """Returns layers and all that is inside of them, those outside before those inside."""
    found = {id(part): part for layer in layers for part in layer._flatten_layers()}
    return sorted(found.values(), key=lambda part: -len(part._flatten_layers()))


def are_alike(parts, others):
    """Returns whether layers are as many as others, and of the same classes in the same order."""
    return list(map(type, parts)) == list(map(type, others))


def copy_state(parts, others):
    """Gives other layers of the same classes the weights, files and other state of layers.

    What is frozen stays frozen, each layer and each variable; the states of seeds are the same.

    Raises:
        ValueError: if a layer that was made from its configuration has other variables.
    """
    for part, other in zip(parts, others, strict=True):
        other.trainable = part.trainable
        if part.dtype_policy != other.dtype_policy:
            # A layer inside of another one may have been quantized by itself.
            other.dtype_policy = part.dtype_policy
        if getattr(part, "lora_enabled", False) and not other.lora_enabled:
            other.enable_lora(part.lora_rank)
        if getattr(part, "lora_enabled", False):
            # Keras' `build` takes the rank for it.
            other.lora_alpha = part.lora_alpha
        pairs = _variables(part, other)
        # Keras' own way, for what a layer keeps in other forms. It merges the factors of LoRA.
        store = {}
        part.save_own_variables(store)
        other.load_own_variables(store)
        if hasattr(part, "save_assets"):
            with tempfile.TemporaryDirectory() as folder:
                part.save_assets(folder)
                other.load_assets(folder)
        for own, new in pairs:
            new.assign(own)
            new.trainable = own.trainable
        if not isinstance(part, (keras.Model, ResidualUnit, StochasticDepth)):
            # What its configuration does not keep.
            vars(other).update(settings_of(part))


def _variables(part, other):
    """Returns pairs of the variables of two layers themselves, by name or, failing that, order."""
    found = []
    for layer in (part, other):
        states = [one.state for one in layer._seed_generators]
        found.append([*layer._trainable_variables, *layer._non_trainable_variables, *states])
    # Quantized layers have them in another order.
    by_name = [sorted(variables, key=lambda one: one.name) for variables in found]
    if len({tuple(one.name for one in variables) for variables in by_name}) == 1:
        found = by_name
    shapes = [[tuple(one.shape) for one in variables] for variables in found]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"{part.name} has variables of shapes {shapes[0]}, and made from its configuration "
            f"{shapes[1]}"
        )
    return list(zip(*found, strict=True))
