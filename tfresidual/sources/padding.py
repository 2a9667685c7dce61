"""Which positions of the states of a model are padding.

Padding leaves out labels only if the outputs `(images, positions, features)` have as many positions
as the states. A note says what is padding, and also that it is not known if blocks read something
that depends on the inputs.
"""

import dataclasses
import re

import keras

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.routing.data import path_name
from tfresidual.sources.graph import mask_of, path_to

# The names of inputs that are nonzero where a position is valid, in keras-hub and elsewhere.
MASK_NAMES = ("encoder_padding_mask", "decoder_padding_mask", "padding_mask", "attention_mask")
# Of a tensor without a name of its own.
_UNNAMED = re.compile(r"keras_tensor(_\d+)?")
_OF_KERAS = "padding: where the mask that Keras attaches to the states is False"
_UNKNOWN_PADDING = (
    "padding is not known, so all positions count: `padding` can name an input that is nonzero "
    "where a position is valid"
)
# The beginning of the notes on labels, and what they say.
LEAVES_NO_LABEL = "padding leaves out no label"
_OTHER_OUTPUTS = f"{LEAVES_NO_LABEL}: the outputs have other positions than the states"
_NOT_IN_FIT = (
    f"{LEAVES_NO_LABEL}: the mask does not reach the outputs, so that the loss of `fit` "
    "counts what is predicted there"
)
_IN_FIT = (
    "padding leaves out labels that the loss of `fit` counts, unless their weights are 0; "
    "`padding=False` counts them here, too"
)
# The name of a single input that has none, as in the signatures of a SavedModel.
_SINGLE = "images"


def check_padding(padding):
    """Raises a `ValueError` unless an argument says which input is the padding mask."""
    if padding is not None and padding is not False and not isinstance(padding, str):
        raise ArgumentError(
            "padding",
            "be the name of an input that is nonzero where a position is valid, False if there "
            "is no padding, or None",
            padding,
        )


def with_padding(division, padding):
    """Returns a division with what is known of the padding of its states, and the notes on it.

    That is the implicit mask of Keras at the first state or, failing that, an input with one of
    `MASK_NAMES`, unless `padding` says another one, see `tfresidual.chain`.
    """
    valid, is_of_keras, notes = _padding_of(division, padding)
    has_slots = len(division.whole.output.shape) == 3
    if valid is None and not has_slots:
        return division, notes
    shapes = [one.shape for one in (division.blocks[-1].after.tensor, division.whole.output)]
    at_outputs = not has_slots or (len(shapes[0]) == 3 and shapes[0][1] == shapes[1][1])
    if valid is not None and not at_outputs:
        notes = (*notes, _OTHER_OUTPUTS)
    elif valid is not None and has_slots and mask_of(division.whole.output) is None:
        # What Keras masks is what its loss leaves out. An input names what is padding, whatever
        # weights the data give it.
        at_outputs = not is_of_keras
        notes = (*notes, _NOT_IN_FIT if is_of_keras else _IN_FIT)
    return dataclasses.replace(division, valid=valid, outputs_at_positions=at_outputs), notes


def _padding_of(division, padding):
    """Returns the mask of the states, whether it is the one of Keras, and notes."""
    state = division.blocks[0].before.tensor
    if isinstance(padding, str):
        return _named(division.whole, state, padding), False, (_note_of_input(padding),)
    if len(state.shape) < 3:
        return None, False, ()
    if padding is False:
        return None, False, ("padding: none, all positions count",)
    for tensor, mask in (pair for node in division.whole.nodes for pair in node.masked):
        if tensor is state and len(mask.shape) == 2:
            return mask, True, (_OF_KERAS,)
    name, mask = _by_name(division.whole, state)
    if mask is not None:
        return mask, False, (_note_of_input(name),)
    if len(state.shape) > 3 or not _reads_inputs(division):
        return None, False, ()
    return None, False, (_UNKNOWN_PADDING,)


def _note_of_input(name):
    return f"padding: input {name!r}, where it is 0"


def _inputs_by_name(whole):
    """Returns the inputs of a graph by their keys and places, and by their names in the model."""
    paths = [path for path, _ in keras.tree.flatten_with_path(whole.structure)]
    pairs = list(zip(paths, whole.inputs, strict=True))
    names = {path_name(path): tensor for path, tensor in pairs if path}
    for _, tensor in pairs:
        if not _UNNAMED.fullmatch(tensor.name):
            names.setdefault(tensor.name, tensor)
    return names or {_SINGLE: whole.input}


def _has_positions_of(tensor, state):
    return len(tensor.shape) == 2 and tensor.shape[1] in (None, state.shape[1])


def _named(whole, state, name):
    names = _inputs_by_name(whole)
    if name not in names:
        raise ArgumentError(
            "padding",
            f"be the name of an input, one of {', '.join(map(repr, names))}, or False",
            name,
        )
    found = names[name]
    if len(state.shape) < 3 or not _has_positions_of(found, state):
        shapes = [("images", *tensor.shape[1:]) for tensor in (found, state)]
        raise ArgumentError(
            "padding",
            "be the name of an input `(images, positions)` with the positions of the states "
            "`(images, positions, features)`",
            received=f"padding={name!r} of shape {shapes[0]} for states of shape {shapes[1]}",
        )
    return found


def _by_name(whole, state):
    """Returns the input whose name says that it is the padding mask, and its name, or `None`s.

    What comes before "padding_mask" also begins the name of an input that the state is computed
    from: the padding of an encoder is not that of its decoder.
    """
    names = _inputs_by_name(whole)
    read = {id(tensor) for node in path_to(whole.nodes, state) for tensor in node.inputs}
    lead = [_last(name) for name, tensor in names.items() if id(tensor) in read | {id(state)}]
    for known in MASK_NAMES:
        prefix = known.removesuffix("padding_mask").removesuffix("attention_mask")
        for name, tensor in names.items():
            is_known = _last(name) == known and _has_positions_of(tensor, state)
            if is_known and any(other.startswith(prefix) for other in lead):
                return name, tensor
    return None, None


def _last(name):
    return name.rpartition("/")[2]


def _reads_inputs(division):
    nodes = [node for node in division.whole.nodes if not node.reads_shapes_alone]
    read = {id(tensor) for tensor in division.context}
    read |= {id(tensor) for node in path_to(nodes, *division.context) for tensor in node.inputs}
    return any(id(tensor) in read for tensor in division.whole.inputs)
