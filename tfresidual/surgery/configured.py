"""Models with fewer blocks that are made from their configuration, and keep their class."""

from __future__ import annotations

import keras

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.networks import ResidualNetwork
from tfresidual.surgery.graphs import layers_of, steps_of
from tfresidual.surgery.state import COUNT, are_alike, copy_state, parts_of, settings_of


def configured_model(model, chain, route):
    """Returns a model of the same class with fewer blocks, or `None` if that cannot be made.

    It is a `ResidualNetwork`, of which a route leaves out blocks, or a model of keras-hub, a task
    with one inside, or a functional model that calls one, of which it leaves out whole layers, as
    many as `num_layers` says, and which have the same settings wherever they are.
    """
    if type(model) is ResidualNetwork:
        return _shorter_network(model, route)
    if is_of_hub(model):
        return _shorter(model, chain, route)
    for layer in model.layers:
        if is_of_hub(layer):
            own = set(map(id, layer._flatten_layers()))
            if all(block.inside and id(block.inside[0]) in own for block in chain.blocks):
                shorter = _shorter(layer, chain, route)
                return None if shorter is None else _replaced(model, layer, shorter)
    return None


def is_of_hub(layer):
    """Returns whether a layer is a model of keras-hub."""
    is_model = isinstance(layer, keras.Model)
    return is_model and type(layer).__module__.partition(".")[0] == "keras_hub"


def inner_config(model):
    """Returns the configuration of a model of keras-hub, or of the backbone inside of it."""
    config = model.get_config()
    inner = config.get("backbone")
    return inner["config"] if isinstance(inner, dict) and "config" in inner else config


# Models of keras-hub


def copied(model):
    """Returns a copy of a model, as its file would hold it, not compiled."""
    if not (is_of_hub(model) or type(model) is ResidualNetwork):
        return _replaced(model)
    made = type(model).from_config(model.get_config())
    copy_state(parts_of(model), parts_of(made))
    return made


def _replaced(model, layer=None, other=None):
    """Returns a copy of a functional model that calls another layer in the place of one."""
    copies = []

    def copy(own):
        if isinstance(own, keras.layers.Lambda):
            # Keras makes no code from a configuration; there is no weight in it.
            return own
        copies.append((own, other if own is layer else type(own).from_config(own.get_config())))
        return copies[-1][1]

    made = keras.models.clone_model(model, clone_function=copy)
    for own, copied in copies:
        # Operations, such as an addition, have no state.
        if own is not layer and isinstance(own, keras.layers.Layer):
            copy_state(parts_of(own), parts_of(copied))
    return made


def _shorter(model, chain, route):
    """Returns a model of keras-hub with fewer layers, or `None` if that cannot be made."""
    try:
        return _with_fewer(model, chain, route)
    except ArgumentError:
        raise
    except (TypeError, ValueError):
        # Its configuration says more of each layer, or a layer that is now the first has others.
        return None


def _with_fewer(model, chain, route):
    count = inner_config(model).get(COUNT)
    for level in range(max(len(block.inside) for block in chain.blocks)):
        layers = layers_of(chain, level)
        if len(layers) != count:
            continue
        steps = [place for stage in steps_of(chain, route, layers, level) for place in stage]
        if steps != sorted(set(steps)) or not steps:
            return None
        made = type(model).from_config(_with_count(model.get_config(), len(steps)))
        own, others = (_of_kinds(of, set(map(type, layers))) for of in (model, made))
        if own[::-1] == layers:
            # Keras lists the layers inside of a layer from the last to the first.
            own, others = own[::-1], others[::-1]
        kept = [layers[i] for i in steps]
        pairs = [(_outside(model, own), _outside(made, others))]
        pairs += [
            (parts_of(layer), parts_of(other)) for layer, other in zip(kept, others, strict=False)
        ]
        is_same = own == layers and len(kept) == len(others)
        if not is_same or not all(are_alike(*pair) for pair in pairs):
            return None
        inside = [two for pair in pairs[1:] for two in zip(*pair, strict=True)]
        is_same = all(
            settings_of(part).items() <= settings_of(other).items() for part, other in inside
        )
        if not is_same:
            return None
        for parts, new in pairs:
            copy_state(parts, new)
        return made
    return None


def _of_kinds(model, kinds):
    """Returns the layers of some classes in a model, each of them once."""
    found = {id(one): one for one in model._flatten_layers() if type(one) in kinds}
    return list(found.values())


def _outside(model, layers):
    """Returns what is in a model, and in none of some layers."""
    inside = set(map(id, parts_of(*layers)))
    return [part for part in parts_of(model) if id(part) not in inside]


def _with_count(config, count):
    """Returns a configuration with another number of layers."""
    inner = config.get("backbone")
    if not isinstance(inner, dict):
        return config | {COUNT: count}
    return config | {"backbone": inner | {"config": inner["config"] | {COUNT: count}}}


# Networks of this package


def _shorter_network(network, route):
    """Returns a `ResidualNetwork` of the blocks of a route that leaves some of every stage out.

    The rates of stochastic depth are those of a network of its depth.
    """
    kept = [[application.block for application in stage] for stage in route.stages]
    if not all(left and left == sorted(set(left)) for left in kept):
        return None
    share_from = _share_from(network, kept)
    shorter = ResidualNetwork.from_config(
        network.get_config() | {"blocks": [len(left) for left in kept], "share_from": share_from}
    )
    (stem, stages, head), (new_stem, new_stages, new_head) = network.sections(), shorter.sections()
    pairs = [*zip(stem, new_stem, strict=True), *zip(head, new_head, strict=True)]
    for (entry, units), (new_entry, new_units), left in zip(stages, new_stages, kept, strict=True):
        if entry is not None:
            pairs.append((entry, new_entry))
        pairs += zip([units[index] for index in left], new_units, strict=True)
    shorter.trainable = network.trainable
    for layer, new in pairs:
        copy_state(parts_of(layer), parts_of(new))
    return shorter


def _share_from(network, kept):
    """Returns from which block on those of the shorter network are shared."""
    first = network.share_from
    if first is None:
        return None
    missing = set()
    for stage, (count, left) in enumerate(zip(network.blocks, kept, strict=True), start=1):
        dropped = sorted(set(range(count)) - set(left))
        shared = [block for block in dropped if block >= first]
        if shared:
            raise ArgumentError(
                "blocks",
                "be blocks with weights of their own",
                received=f"stage {stage} block {shared[0]} of {network.name}, one of those that "
                "share their weights",
            )
        if count > first:
            missing.add(len(dropped))
    if len(missing) > 1:
        raise ArgumentError(
            "blocks",
            "be as many in every stage, since `share_from` is the same for all of them",
            received=f"blocks of {network.name} of which so many go: {sorted(missing)}",
        )
    return first - max(missing, default=0)
