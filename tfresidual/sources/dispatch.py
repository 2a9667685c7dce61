"""Makes chains from all kinds of sources."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import zipfile
from typing import TYPE_CHECKING

import keras

from tfresidual.layers import BatchNormalization, ResidualUnit
from tfresidual.machine.archives import RefusedFileError, check_model_file
from tfresidual.machine.files import check_file
from tfresidual.networks import ResidualNetwork
from tfresidual.routing.chain import Block, Chain, Stage, checked_chain
from tfresidual.routing.losses import loss_of, note_of_loss
from tfresidual.saved_model.format import UNREADABLE
from tfresidual.saved_model.reader import saved_model_chain
from tfresidual.sources.calls import SharedCalls
from tfresidual.sources.compiled import NOT_COMPILED, notes_of_file
from tfresidual.sources.functional import preparation, unit_parts
from tfresidual.sources.graph import has_graph, reference_of
from tfresidual.sources.keras_models import chain_of_model
from tfresidual.sources.one_output import arrangement_of
from tfresidual.sources.origin import Origin
from tfresidual.sources.outputs import kind_of, outputs_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Literal

    from tfresidual.sources.choosing import Layers
    from tfresidual.types import ChainSource

# The errors that Keras raises for files that it cannot read.
DAMAGED = (*UNREADABLE, RuntimeError, zipfile.BadZipFile)


def chain(
    source: Chain | ChainSource,
    *,
    blocks: Layers | None = None,
    open: bool | Layers | None = None,
    inputs: Any = None,
    padding: str | Literal[False] | None = None,
    output: str | int | Sequence[str | int] | None = None,
) -> Chain:
    """Returns the chain of a network, which every probe takes.

    Nothing is copied: the chain computes with the layers of the network itself, so it follows their
    weights during training. Loss and kind of outputs are those for which the model was compiled
    when the chain was made.

    In a `keras.Model`, the blocks must be found. Every residual addition is a block if all paths
    from one to the next pass through the state; additions inside layers that are not of Keras are
    found, too. `print(chain)` shows what was found, and notes say what the chain does not show.

    Examples:

    A small transformer whose inputs are a dict of two:

    >>> ids = keras.Input((None,), dtype="int32", name="ids")
    >>> valid = keras.Input((None,), dtype="bool", name="valid")
    >>> attend = keras.layers.MultiHeadAttention(2, 4, name="attend")
    >>> state = keras.layers.Embedding(9, 8)(ids)
    >>> branch = attend(state, state, attention_mask=valid[:, None, :])
    >>> state = keras.layers.Add(name="add")([state, branch])
    >>> state = keras.layers.Dense(8, name="whole")(state)
    >>> model = keras.Model({"ids": ids, "valid": valid}, keras.layers.Dense(3)(state))

    >>> found = chain(model, padding="valid")
    >>> print(found.blocks[0].name, found.notes)
    add ("padding: input 'valid', where it is 0",)
    >>> print(chain(model, blocks="whole").blocks[0].name)
    whole
    >>> found = chain(model, open=False, inputs={"ids": np.ones((1, 5)), "valid": np.ones((1, 5))})
    >>> found.input_shape
    {'ids': (5,), 'valid': (5,)}

    Args:
        source: one of

            - a `tfresidual.networks.ResidualNetwork`;
            - any other `keras.Model` with residual additions on one trunk;
            - the path of a `.keras` file that holds one of these; a note says what Keras did not
              save of its loss, such as `delta` of `Huber`;
            - the path of a SavedModel that `tfresidual.export` wrote;
            - a chain, which is returned as it is.

            The other arguments are for models in which the blocks must be found, and for files that
            hold one.
        blocks: which layers are blocks as a whole, F = layer(h) - h: a class
            (`blocks=keras_hub.layers.TransformerEncoder`), the name of a layer
            (`blocks="encoder_0"`), a function of a layer that returns a bool
            (`blocks=lambda layer: layer.name.startswith("encoder")`), or several of these in a
            list. They must return the shape they take. By default, residual additions are the
            blocks.
        open: which layers are opened, that is, replaced by what they compute inside, where
            additions are blocks; chosen in the same way, but not together with `blocks`. `True`
            opens all layers that are not of Keras or of this package, `False` none. By default all
            of these, but only if no addition is seen without opening them.
        inputs: a batch of inputs of the model (`inputs=next(iter(data))[0]`), or
            `keras.KerasTensor`s in its structure. Needed for a subclassed model, and for opening
            layers that need to know the number of positions, such as those that compute a causal
            mask; the chain then takes only inputs of that size.
        padding: which positions of sequences are padding, and count in no metric: the name of an
            input `(images, positions)` that is nonzero where a position is valid, such as a mask,
            or ids whose padding is 0. It is the key in a dict of inputs (or keys and places in a
            nested structure, `"text/mask"` or `"1"`), the name of the input in a functional model,
            or `"images"` for a single input without a name. `False`: all positions count. By
            default, the mask that Keras attaches to the first state or, failing that, an input
            called `padding_mask`, `encoder_padding_mask`, `decoder_padding_mask` or
            `attention_mask`. A note of the chain says what was found. Padding leaves out labels
            only if the graph shows that the outputs are those of the positions of the states, in
            their order: not of words that are gathered from a sequence, however many.
        output: which output of a model with several outputs is that of the chain: its key in a
            dict of outputs (or keys and places in a nested structure, `"heads/left"`), the name of
            the layer that returns it, or its place in a list, from 0. The loss of the chain is that
            which the model was compiled with for this output, times its weight in `loss_weights`;
            the losses of the other outputs, and their share of the gradient, are left out. Of
            labels and sample weights in the structure that `fit` takes, those of the output are
            taken. A list or tuple of two or more includes all of these: the loss of the chain is
            the sum of theirs, and its outputs are theirs side by side, values of which routes and
            read-outs are not scored. Such outputs are `(images, numbers)`, with the same sample
            weights.

    Returns:
        A `tfresidual.routing.Chain`.

    Raises:
        FileNotFoundError: if there is no such file or directory.
        ValueError: if the source is none of these, no blocks can be found in the model, or the
            file is damaged, holds classes that are not known here, leads to other files, or
            unpacks to many times its size, or if another argument cannot be used.
    """
    options = {"blocks": blocks, "open": open, "inputs": inputs, "padding": padding}
    options["output"] = output
    if isinstance(source, (str, os.PathLike)):
        path = pathlib.Path(source)
        if not path.is_dir():
            return _of_file(path, options)
    # A subclass may compute something else than its units.
    is_network = isinstance(source, ResidualNetwork) and has_graph(source)
    is_found = isinstance(source, keras.Model) and not is_network
    given = [name for name, value in options.items() if value is not None]
    if given and not is_found:
        raise ValueError(
            "Arguments `blocks`, `open`, `inputs`, `padding` and `output` must be left out unless "
            "blocks are to be found in a `keras.Model`: those of other sources are known. "
            f"Received: {', '.join(given)} for source={source!r}"
        )
    if isinstance(source, Chain):
        return checked_chain(source)
    if isinstance(source, (str, os.PathLike)):
        return saved_model_chain(path)
    if is_network:
        return _of_residual_network(source)
    if isinstance(source, keras.Model):
        return chain_of_model(source, **options)
    raise ValueError(
        "Argument `source` must be a `tfresidual.networks.ResidualNetwork`, another "
        "`keras.Model`, the path of a .keras file that holds one or of a SavedModel that "
        "`tfresidual.export` wrote, or a `tfresidual.routing.Chain`. "
        f"Received: source={source!r} of type {type(source).__name__}"
    )


def _of_file(path, options):
    """Returns the chain of the model in a `.keras` file."""
    if not path.exists():
        raise FileNotFoundError(
            "Argument `source` must be the path of a .keras file or of a SavedModel. "
            f"Received: source={str(path)!r}, which does not exist"
        )
    if path.suffix != ".keras":
        raise ValueError(
            "Argument `source` must be the path of a .keras file, as `model.save` writes it. "
            f"{_way_out(path)}Received: source={str(path)!r}"
        )
    # Keras says that a damaged file does not exist.
    if not _is_archive(path):
        raise _unreadable(path, "it is not an archive, or has no config.json")
    model, notes = _loaded(path)
    found = chain(model, **options)
    return dataclasses.replace(found, notes=(*found.notes, *notes))


def _way_out(path):
    """Returns what can be done with a file of weights or of a former format, as a sentence."""
    if path.name.endswith(".weights.h5"):
        return "It holds weights alone: build the model, `model.load_weights`, and pass the model. "
    if path.suffix in (".h5", ".hdf5"):
        return "Load this one by `keras.models.load_model`, and pass the model. "
    return ""


def _is_archive(path):
    check_file(path)
    # An unreadable file is not necessarily damaged.
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return "config.json" in archive.namelist()
        except (zipfile.BadZipFile, NotImplementedError):
            # A damaged version number is a version that Python cannot read.
            return False


def _loaded(path):
    """Returns the model in a `.keras` file, and notes on the parts that could not be loaded."""
    try:
        check_model_file(path)
        model = keras.saving.load_model(path, compile=False)
        with zipfile.ZipFile(path) as archive:
            settings = json.loads(archive.read("config.json")).get("compile_config")
    except RefusedFileError:
        raise
    except DAMAGED as error:
        raise _unreadable(path, error) from error
    try:
        # Perhaps the loss, metrics or optimizer of the model are unknown here.
        if settings:
            model.compile_from_config(settings)
    except DAMAGED:
        return model, (NOT_COMPILED,)
    return model, notes_of_file(model, path)


def _unreadable(path, reason):
    (reason, *_) = str(reason).strip().splitlines() or [""]
    return ValueError(
        "Argument `source` must be the path of a complete .keras file whose classes are known "
        "here; load a model with custom layers, or with `Lambda`, by `keras.saving.load_model` "
        f"and pass the model. Received: source={str(path)!r}, which is damaged, or has unknown "
        f"classes: {reason}"
    )


def _of_residual_network(network):
    network.converge()
    stem, sections, head = network.sections()
    stages, calls = [], SharedCalls()
    for index, (transition, units) in enumerate(sections, start=1):
        blocks = tuple(
            _block(network, calls, index, place, unit) for place, unit in enumerate(units)
        )
        stages.append(Stage(index, blocks, transition and _sequence([transition])))
    losses = loss_of(network, kind_of(network))
    return Chain(
        name=network.name,
        stem=_sequence(stem),
        stages=tuple(stages),
        head=_sequence(head),
        loss=losses,
        input_shape=network.input_shape[1:],
        outputs=outputs_of(network),
        weights=network.learned_variables(),
        prepare=preparation(unit for _, units in sections for unit in units),
        reference=reference_of(network),
        called=calls.called,
        notes=note_of_loss(network),
        made_of=Origin(network, losses),
        arrangement=arrangement_of(network),
    )


def _block(network, calls, stage, index, unit):
    keeps_shape = unit.resizing is None
    takes_anchor = keeps_shape and network.anchor == "input"
    parts = unit_parts(unit, takes_anchor, calls)
    place = {"stage": stage, "index": index, "keeps_shape": keeps_shape}
    return Block(**place, **parts, variables=tuple(unit.weights))


def _sequence(layers):
    """Returns a function that applies the layers one after the other, at inference."""

    def function(state):
        for layer in layers:
            has_two_modes = isinstance(layer, (BatchNormalization, ResidualUnit))
            state = layer(state, training=False) if has_two_modes else layer(state)
        return state

    return function
