"""Makes chains from SavedModels written by `tfresidual.export`. TensorFlow only."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.routing.chain import Block, Chain, Stage
from tfresidual.routing.data import Place
from tfresidual.routing.losses import loss_from
from tfresidual.routing.scores import OUTPUTS, with_logits
from tfresidual.routing.sizes import with_sizes
from tfresidual.sources.saved_model.format import (
    CALLED,
    CONTEXT,
    HEAD,
    LOSS,
    PARTS,
    SERVE,
    STEM,
    WHOLE,
    block_name,
    layout_of,
    transition_name,
)
from tfresidual.sources.saved_model.inputs import flat, of_context, of_images, specs_of
from tfresidual.sources.saved_model.loading import load

if TYPE_CHECKING:
    from tfresidual.definitions.types import StrPath


def saved_model_chain(path: StrPath) -> Chain:
    """Returns the chain of a SavedModel, without the code that built its network.

    Nothing in the folder is executed, except for what the loader of TensorFlow itself does. Raises
    a `ValueError` if it cannot be probed, is of another format, or damaged.
    """
    path = pathlib.Path(path)
    layout = layout_of(path)
    root = load(str(path))
    pieces = {name: _Piece(root, name) for name in layout["pieces"]}
    parameters = [root.parameters[place] for place in range(layout["parameters"])]
    return _chain(layout, pieces, parameters, root)


class _Piece:
    """A loaded function of tensors that accepts any float dtype."""

    def __init__(self, root, name):
        # Keeps the root, because its variables exist only as long as it does.
        self.root = root
        (self.concrete,) = root.pieces[name].concrete_functions
        self.dtypes = [spec.dtype for spec in self.concrete.structured_input_signature[0]]
        self.known_sizes = with_sizes(self.concrete)

    def __call__(self, *tensors):
        given = zip(tensors, self.dtypes, strict=True)
        return self.known_sizes(*(tf.cast(tensor, dtype) for tensor, dtype in given))


class _Reference:
    """Computes the outputs of a loaded network as they are served."""

    def __init__(self, root, shapes, dtypes):
        self.root, self.shapes = root, shapes
        self.specs = specs_of(shapes, dtypes)
        self.serve = root.signatures[WHOLE if WHOLE in root.signatures else SERVE]

    def __call__(self, images):
        given = zip(self.specs.items(), flat(images, self.shapes), strict=True)
        inputs = {name: tf.cast(tensor, spec.dtype) for (name, spec), tensor in given}
        return self.serve(**inputs)[OUTPUTS]


def _chain(layout, pieces, parameters, root):
    shapes = _as_tuples(layout["input_shape"])
    dtypes = _as_tuples(layout["input_dtype"])
    reference, context = _Reference(root, shapes, dtypes), pieces.get(CONTEXT)
    names = None if context is None else sorted(context.concrete.structured_outputs)
    within = {name: of_context(piece, names) for name, piece in pieces.items()}
    functions = [*(piece.concrete for piece in pieces.values()), *getattr(root, CALLED)]
    return Chain(
        name=layout["name"],
        stem=of_images(pieces[STEM], shapes),
        stages=tuple(
            Stage(
                stage["stage"],
                tuple(
                    _block(stage["stage"], index, block, within, parameters)
                    for index, block in enumerate(stage["blocks"])
                ),
                within.get(transition_name(stage["stage"])),
            )
            for stage in layout["stages"]
        ),
        head=lambda *given: with_logits(within[HEAD](*given)),
        loss=_loss(layout, pieces),
        input_shape=shapes,
        input_dtype=dtypes,
        outputs=layout["outputs"],
        notes=tuple(layout["notes"]),
        outputs_at_positions=layout["outputs_at_positions"],
        weights=tuple(parameters),
        reference=reference,
        context=None if context is None else of_images(context, shapes),
        input_names=tuple(layout["input_names"]),
        label_place=layout["label_place"] and Place(*layout["label_place"]),
        called={tf.compat.as_str(one.name): one for one in functions},
    )


def _as_tuples(structure):
    if isinstance(structure, dict):
        return {key: _as_tuples(part) for key, part in structure.items()}
    return tuple(map(_as_tuples, structure)) if isinstance(structure, list) else structure


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


def _loss(layout, pieces):
    if layout["loss"] is not None:
        return loss_from(layout["loss"])
    by_rank = {
        len(piece.concrete.structured_input_signature[0][0].shape): piece
        for name, piece in pieces.items()
        if name.startswith(LOSS)
    }

    def loss(labels, outputs):
        rank = len(labels.shape)
        if rank > 1 and labels.shape[-1] == 1 and rank - 1 in by_rank:
            labels = tf.squeeze(labels, axis=-1)
        if not by_rank:
            raise ArgumentError(
                "chain",
                "belong to a network whose loss returns one number per image",
                received=f"{layout['name']}, whose loss took no labels when it was exported",
            )
        if len(labels.shape) not in by_rank:
            raise ArgumentError(
                "data",
                "hold labels as the loss of the network takes them, with "
                f"{' or '.join(map(str, sorted(by_rank)))} axes",
                received=f"labels of shape {tuple(labels.shape)}",
            )
        logits = getattr(outputs, "_keras_logits", None)
        return by_rank[len(labels.shape)](labels, outputs, *([] if logits is None else [logits]))

    loss.ignore_class = layout["ignore_class"]
    return loss
