"""The network of a chain with new initial weights, in the place of its own for a while."""

import contextlib
import random

import keras


def initial_weights(chain, seed):
    """Returns new initial values of the weights of the network of a chain, as its `weights`.

    They are those of a network made from its configuration, with other seeds for its initializers.
    `None` for a chain without a Keras model, and where Keras cannot make
    the model from its configuration.
    """
    if chain.source is None:
        return None
    model, state = chain.source.model, random.getstate()
    classes = {type(layer).__name__: type(layer) for layer in model._flatten_layers()}
    # Initializers of Keras draw their seeds from the generator of Python.
    random.seed(seed)
    try:
        with keras.saving.custom_object_scope(classes):
            made = type(model).from_config(_without_seeds(model.get_config()))
    except (NotImplementedError, TypeError, ValueError):
        return None
    finally:
        random.setstate(state)
    if [w.shape for w in made.weights] != [w.shape for w in model.weights]:
        return None
    with weights_replaced(chain, made.get_weights()):
        if chain.prepare is not None:
            chain.prepare()
        return model.get_weights()


def _without_seeds(config):
    """Returns a configuration whose initializers have no seeds of their own."""
    if isinstance(config, list | tuple):
        return type(config)(map(_without_seeds, config))
    if not isinstance(config, dict):
        return config
    is_initializer = config.get("module") == "keras.initializers"
    if is_initializer and "seed" in config["config"]:
        return config | {"config": config["config"] | {"seed": None}}
    return {key: _without_seeds(value) for key, value in config.items()}


@contextlib.contextmanager
def weights_replaced(chain, weights):
    """Gives the network of a chain other weights within a `with`; none if they are `None`."""
    if weights is None:
        yield
        return
    model = chain.source.model
    own = model.get_weights()
    try:
        model.set_weights(weights)
        yield
    finally:
        model.set_weights(own)
