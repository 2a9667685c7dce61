"""Makes chains from SavedModels written by `tfresidual.export`. TensorFlow only."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import tensorflow as tf

from tfresidual.routing.chain import Block, Chain, Stage
from tfresidual.routing.losses import loss_from
from tfresidual.routing.outputs import LOGITS, OUTPUTS
from tfresidual.saved_model.format import (
    HEAD,
    LOSS,
    PARTS,
    SERVE,
    STEM,
    UNREADABLE,
    block_name,
    damaged,
    layout_of,
    transition_name,
)

if TYPE_CHECKING:
    from tfresidual.types import StrPath


def saved_model_chain(path: StrPath) -> Chain:
    """Returns the chain of a SavedModel, without the code that built its network.

    Nothing in the folder is executed, except for what the loader of TensorFlow itself does.

    Args:
        path: the folder that `tfresidual.export` wrote.

    Returns:
        A `tfresidual.routing.Chain`.

    Raises:
        ValueError: if the path is not a SavedModel written by `tfresidual.export`, if it was
            written without the functions for probing or in a newer format, or if it is damaged.
    """
    path = pathlib.Path(path)
    layout = layout_of(path)
    try:
        root = tf.saved_model.load(str(path))
        pieces = {name: _Piece(root, name) for name in layout["pieces"]}
        parameters = [root.parameters[place] for place in range(layout["parameters"])]
        return _chain(layout, pieces, parameters, _Reference(root))
    except UNREADABLE as error:
        raise damaged(path, error) from error


class _Piece:
    """A loaded function of tensors that accepts any float dtype."""

    def __init__(self, root, name):
        # Keeps the root, because its variables exist only as long as it does.
        self.root = root
        (self.concrete,) = root.pieces[name].concrete_functions
        self.dtypes = [spec.dtype for spec in self.concrete.structured_input_signature[0]]

    def __call__(self, *tensors):
        given = zip(tensors, self.dtypes, strict=True)
        return self.concrete(*(tf.cast(tensor, dtype) for tensor, dtype in given))


class _Reference:
    """Computes the outputs of a loaded network as they are served."""

    def __init__(self, root):
        self.root = root
        self.serve = root.signatures[SERVE]

    def __call__(self, images):
        return self.serve(images=tf.cast(images, tf.float32))[OUTPUTS]


def _chain(layout, pieces, parameters, reference):
    return Chain(
        name=layout["name"],
        stem=pieces[STEM],
        stages=tuple(_stage(stage, pieces, parameters) for stage in layout["stages"]),
        head=_head(pieces[HEAD]),
        loss=_loss(layout, pieces),
        input_shape=tuple(layout["input_shape"]),
        outputs=layout["outputs"],
        notes=tuple(layout["notes"]),
        weights=tuple(parameters),
        reference=reference,
        graphs={tf.compat.as_str(p.concrete.name): p.concrete.graph for p in pieces.values()},
    )


def _stage(layout, pieces, parameters):
    blocks = tuple(
        _block(layout["stage"], index, block, pieces, parameters)
        for index, block in enumerate(layout["blocks"])
    )
    return Stage(layout["stage"], blocks, pieces.get(transition_name(layout["stage"])))


def _block(stage, index, layout, pieces, parameters):
    functions = {part: pieces.get(block_name(stage, index, part)) for part in PARTS}
    bounds = layout["lipschitz"]
    return Block(
        stage=stage,
        index=index,
        keeps_shape=layout["keeps_shape"],
        takes_anchor=layout["takes_anchor"],
        weights={role: parameters[place] for role, place in layout["weights"].items()},
        lipschitz=None if bounds is None else lambda: dict(bounds),
        shortcut=layout["shortcut"],
        name=layout["name"],
        **functions,
    )


def _head(piece):
    def head(state):
        values = piece(state)
        outputs = values[OUTPUTS]
        if LOGITS in values:
            # Keras stores the logits here, and the losses read them from here.
            outputs._keras_logits = values[LOGITS]
        return outputs

    return head


def _loss(layout, pieces):
    if layout["loss"] is not None:
        return loss_from(layout["loss"])
    by_rank = {
        len(piece.concrete.structured_input_signature[0][0].shape): piece
        for name, piece in pieces.items()
        if name.startswith(LOSS)
    }

    def loss(labels, outputs):
        if labels.shape[1:] == (1,) and 1 in by_rank:
            labels = tf.reshape(labels, [-1])
        if not by_rank:
            raise ValueError(
                "Argument `chain` must belong to a network whose loss returns one number per "
                f"image. Received: {layout['name']}, whose loss took no labels when it was "
                "exported"
            )
        if len(labels.shape) not in by_rank:
            raise ValueError(
                "Argument `data` must hold labels as the loss of the network takes them, with "
                f"{' or '.join(map(str, sorted(by_rank)))} axes. "
                f"Received: labels of shape {tuple(labels.shape)}"
            )
        logits = getattr(outputs, "_keras_logits", None)
        return by_rank[len(labels.shape)](labels, outputs, *([] if logits is None else [logits]))

    return loss
