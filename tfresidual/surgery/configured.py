"""Models whose configuration says how many layers they have, with fewer of these."""

from __future__ import annotations

import keras

from tfresidual.sources.graph import has_graph
from tfresidual.surgery.graphs import layers_of, steps_of

# The entry of a configuration that counts the layers that are the blocks.
COUNT = "num_layers"


def configured_model(model, chain, route):
    """Returns a model with fewer layers than its configuration says, or `None`.

    It is one of keras-hub, a task with one inside, or a functional model that calls one, whose
    `num_layers` is the number of layers that hold the blocks; a route that leaves out whole layers
    makes it smaller.
    """
    if _is_of_hub(model):
        return _shorter(model, chain, route)
    for layer in model.layers if has_graph(model) else ():
        if not _is_of_hub(layer):
            continue
        own = set(map(id, layer._flatten_layers()))
        if all(block.inside and id(block.inside[0]) in own for block in chain.blocks):
            shorter = _shorter(layer, chain, route)
            return None if shorter is None else _replaced(model, layer, shorter)
    return None


def _is_of_hub(layer):
    is_model = isinstance(layer, keras.Model)
    return is_model and type(layer).__module__.partition(".")[0] == "keras_hub"


def _replaced(model, layer, other):
    """Returns a copy of a functional model that calls another layer in the place of one."""
    copies = []

    def copy(own):
        if own is layer:
            return other
        copies.append((own, type(own).from_config(own.get_config())))
        return copies[-1][1]

    made = keras.models.clone_model(model, clone_function=copy)
    for own, copied in copies:
        # Operations, such as an addition, have none.
        if isinstance(own, keras.layers.Layer):
            copied.set_weights(own.get_weights())
    return made


def _shorter(model, chain, route):
    """Returns a model of the same class with fewer layers, or `None` if that cannot be made."""
    deepest = max(len(block.inside) for block in chain.blocks)
    for level in range(deepest):
        layers = layers_of(chain, level)
        count = _count(model.get_config())
        if count is None or len(layers) != count:
            continue
        kept = [place for stage in steps_of(chain, route, layers, level) for place in stage]
        if kept != sorted(set(kept)) or not kept:
            return None
        try:
            made = type(model).from_config(_with_count(model.get_config(), len(kept)))
        except (TypeError, ValueError):
            return None
        own, others = (_of_kinds(of, set(map(type, layers))) for of in (model, made))
        if own[::-1] == layers:
            # Keras lists the layers inside of a layer from the last to the first.
            own, others = own[::-1], others[::-1]
        if own != layers:
            return None
        return made if _copied(model, made, [layers[i] for i in kept], layers, others) else None
    return None


def _of_kinds(model, kinds):
    """Returns the layers of some classes in a model, each of them once."""
    found = {id(one): one for one in model._flatten_layers() if type(one) in kinds}
    return list(found.values())


def _inner(config):
    """Returns the configuration that counts layers: that of a backbone, or of the one inside."""
    inner = config.get("backbone")
    return inner["config"] if isinstance(inner, dict) and "config" in inner else config


def _count(config):
    return _inner(config).get(COUNT)


def _with_count(config, count):
    """Returns a configuration with another number of layers."""
    changed = _inner(config) | {COUNT: count}
    if _inner(config) is config:
        return changed
    return config | {"backbone": config["backbone"] | {"config": changed}}


def _copied(model, made, kept, layers, others):
    """Copies the weights of some layers, and of all that is outside of them; whether they fit."""
    pairs = list(zip(kept, others, strict=False))
    groups = [([*one.weights], [*other.weights]) for one, other in pairs]
    groups.append((_outside(model, layers), _outside(made, others)))
    if len(kept) != len(others) or any(
        [weight.shape for weight in one] != [weight.shape for weight in other]
        for one, other in groups
    ):
        return False
    for one, other in groups:
        for own, new in zip(one, other, strict=True):
            new.assign(own)
    return True


def _outside(model, layers):
    """Returns the weights of a model that are in none of some layers."""
    inside = {id(weight) for layer in layers for weight in layer.weights}
    return [weight for weight in model.weights if id(weight) not in inside]
