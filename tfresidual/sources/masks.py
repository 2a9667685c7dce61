"""The implicit masks of Keras, which are lost where a graph is cut into separate functions."""

import inspect
import warnings

import keras

KNOWN_PACKAGES = ("keras", "tfresidual")


def check_masks(model, graph, borders):
    """Raises a `ValueError` if a layer reads a mask that is made on the other side of a border.

    Keras attaches a mask to the tensor that it belongs to. After a border there is another tensor
    with the same values but without the mask, and the layers there would compute without it.

    Args:
        model: the `keras.Model`, for the message.
        graph: its `tfresidual.sources.graph.Graph`.
        borders: pairs of the index of a node and a tensor that is passed on after it.
    """
    if not any(_may_mask(node.operation) for node in graph.nodes):
        return
    trace = _Trace(graph)
    with warnings.catch_warnings():
        # Keras warns whenever a layer drops a mask.
        warnings.simplefilter("ignore")
        trace.compute_output_spec(graph.input)
    for index, tensor in borders:
        crossing = trace.makers_of([tensor])
        for node in graph.nodes[index + 1 :]:
            makers = trace.makers_of(node.inputs) & crossing
            if makers and _may_read_mask(node.operation):
                maker = graph.nodes[min(makers)]
                raise ValueError(
                    "Argument `source` must be a model in which no implicit mask of Keras leads "
                    "from one part to another: a chain's parts are computed one by one, so such "
                    "models cannot be probed yet. Without the mask, such as by `mask_zero=False` "
                    "or without a `Masking` layer, the model can be probed; padding is then "
                    f"treated as any other input. Received: source={model.name}, where "
                    f"{_named(maker)} makes a mask and {_named(node)} reads it"
                )


class _Trace(keras.Operation):
    """Runs a graph and records which tensors have a mask. Keras only traces it, without computing.

    Attributes:
        masked: dict from the id of each tensor of the graph that has a mask to the indices of the
            nodes that may have made this mask: those that return a mask and take none.
    """

    def __init__(self, graph):
        super().__init__()
        self.graph, self.masked = graph, {}

    def makers_of(self, tensors):
        """Returns the indices of the nodes that may have made the masks of some tensors."""
        return set().union(*(self.masked.get(id(tensor), ()) for tensor in tensors))

    def call(self, inputs):
        values = {id(self.graph.input): inputs}
        for index, node in enumerate(self.graph.nodes):
            results = node(values)
            values |= results
            makers = self.makers_of(node.inputs) or {index}
            # Recorded at once, since a later layer may attach a mask to the tensor that it takes.
            for key, value in results.items():
                if getattr(value, "_keras_mask", None) is not None:
                    self.masked[key] = makers
        return values[id(self.graph.output)]


def _parts(operation):
    """Yields a layer and the layers it wraps; nothing for an operation of `keras.ops`."""
    while isinstance(operation, keras.layers.Layer):
        yield operation
        operation = operation.layer if isinstance(operation, keras.layers.Wrapper) else None


def _is_opaque(layer):
    """Returns whether other layers may be called inside a layer."""
    is_known = type(layer).__module__.partition(".")[0] in KNOWN_PACKAGES
    return not is_known or isinstance(layer, (keras.Model, keras.layers.Lambda))


def _may_mask(operation):
    """Returns whether an operation may make a mask, for inputs without one."""
    return any(
        _is_opaque(part)
        or isinstance(part, keras.layers.Masking)
        or getattr(part, "mask_zero", False)
        for part in _parts(operation)
    )


def _may_read_mask(operation):
    """Returns whether the result of an operation may depend on the masks of its inputs."""
    return any(
        _is_opaque(part) or any("mask" in name for name in inspect.signature(part.call).parameters)
        for part in _parts(operation)
        # A mask only affects the statistics it learns in training, and nothing at inference.
        if not isinstance(part, keras.layers.BatchNormalization)
    )


def _named(node):
    return f"{node.operation.name} ({type(node.operation).__name__})"
