"""Makes chains from all kinds of sources."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError, check_bool
from tfresidual.layers import BatchNormalization, ResidualUnit
from tfresidual.networks import ResidualNetwork
from tfresidual.routing.chain import OUTPUT_KINDS, Block, Chain, Source, Stage
from tfresidual.routing.devices import checked_strategy, mirrored_strategy
from tfresidual.routing.losses import loss_of, note_of_loss, reference_loss_of, with_note
from tfresidual.sources.calls import SharedCalls
from tfresidual.sources.functional import GUESSED, preparation, unit_parts
from tfresidual.sources.graph import has_graph, reference_of
from tfresidual.sources.keras_file import NOT_COMPILED, model_in
from tfresidual.sources.keras_models import chain_of_model
from tfresidual.sources.one_output import input_names_of
from tfresidual.sources.outputs import kind_of, outputs_of
from tfresidual.sources.padding import LEAVES_NO_LABEL
from tfresidual.sources.saved_model.reader import saved_model_chain

if TYPE_CHECKING:
    from typing import Any, Literal

    from tfresidual.definitions.types import ChainSource, OutputKind
    from tfresidual.sources.graph import Layers


def chain(
    source: Chain | ChainSource,
    *,
    blocks: Layers | None = None,
    expand_nested: bool | Layers | None = None,
    inputs: Any = None,
    padding: str | Literal[False] | None = None,
    positions: bool | None = None,
    output: str | int | None = None,
    outputs: OutputKind | None = None,
    strategy: tf.distribute.Strategy | None = None,
) -> Chain:
    """Returns the chain of a network, which every probe takes.

    The chain computes with the layers of the network itself, so it follows their weights during
    training. Loss and kind of outputs are those for which the model was compiled at the time.

    In a `keras.Model`, every residual addition is a block if all paths from one to the next pass
    through the state, also inside layers that are not of Keras. `print(chain)` shows what was
    found, and notes say what the chain does not show.

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
    >>> inputs = {"ids": np.ones((1, 5)), "valid": np.ones((1, 5))}
    >>> found = chain(model, expand_nested=False, inputs=inputs)
    >>> found.input_shape
    {'ids': (5,), 'valid': (5,)}

    Args:
        source: a `tfresidual.networks.ResidualNetwork`; any other `keras.Model` with residual
            additions on one trunk; the path of a `.keras` file that holds one of these (a note says
            what Keras did not save of its loss, such as `delta` of `Huber`); the path of a
            SavedModel that `tfresidual.export` wrote; or a chain, which is returned as it is. The
            other arguments are for models in which the blocks must be found.
        blocks: which layers are blocks as a whole, F = layer(h) - h: a class
            (`blocks=keras_hub.layers.TransformerEncoder`), the name of a layer, a function of a
            layer that returns a bool, or several of these in a list. They must return the shape
            they take. By default, residual additions are the blocks.
        expand_nested: which layers are replaced by what they compute inside, where additions are
            blocks; chosen in the same way, but not together with `blocks`. `True` opens all layers
            that are not in `keras.layers` or of this package, `False` none. By default all of
            these, but only if no addition is seen without opening them.
        inputs: a batch of inputs of the model (`inputs=next(iter(data))[0]`), or
            `keras.KerasTensor`s in its structure. Needed for a subclassed model, and for opening
            layers that need to know the number of positions; the chain then takes only inputs of
            that size.
        padding: which positions of sequences are padding, and count in no metric: the name of an
            input `(images, positions)` that is nonzero where a position is valid, such as a mask,
            or ids whose padding is 0. It is the key in a dict of inputs (or keys and places in a
            nested structure, `"text/mask"`), the name of the input in a functional model, or
            `"images"` for a single input without a name. `False`: all positions count. By default,
            the mask that Keras attaches to the first state or, failing that, an input called
            `padding_mask`, `encoder_padding_mask`, `decoder_padding_mask` or `attention_mask`; a
            note says what was found. Labels are left out only if the outputs are those of the
            positions of the states, and not where Keras' mask does not reach the outputs, so that
            the loss of `fit` counts them.
        positions: whether outputs `(images, positions, features)` are those of the positions of the
            last state, in their order. By default, they are if there are as many of both.
        output: which output of a model with several: its key in a dict (or keys and places,
            `"heads/left"`), the name of the layer that returns it, or its place in a list, from 0.
            Loss (times its weight in `loss_weights`) and sample weights are those of this output;
            data has labels as `fit` takes them, or those of this output alone.
        outputs: what the outputs are: `"logits"` or `"probabilities"` of classes that exclude one
            another, `"label_logits"` or `"label_probabilities"`, one output per label, or
            `"values"`. By default, the last activation or a loss of Keras says it; if neither does,
            they are taken for logits, and a note says so.
        strategy: a `tf.distribute.MirroredStrategy`: probes share out the images of a batch over
            its replicas. By default that of the model (or, for a SavedModel, of the scope in which
            it is read); one with a single replica, such as `tf.distribute.get_strategy()` outside
            of any scope, for none.

    Returns:
        A `tfresidual.routing.Chain`.

    Raises:
        FileNotFoundError: if there is no such file or directory.
        ValueError: if the source is none of these, no blocks can be found in the model, or another
            argument cannot be used. What Keras cannot load raises its own error.
    """
    options = {
        "blocks": blocks,
        "expand_nested": expand_nested,
        "inputs": inputs,
        "padding": padding,
    }
    options["output"] = output
    if outputs is not None and outputs not in OUTPUT_KINDS:
        raise ArgumentError("outputs", f"be one of {', '.join(map(repr, OUTPUT_KINDS))}", outputs)
    if strategy is None:
        return _declared(_chain_of(source, options), source, outputs, positions)
    wanted = checked_strategy(strategy)
    is_path = isinstance(source, (str, os.PathLike))
    # The variables of what is read are made on all devices.
    with strategy.scope() if is_path else contextlib.nullcontext():
        found = _chain_of(source, options)
    return dataclasses.replace(_declared(found, source, outputs, positions), strategy=wanted)


def numbered(source: Chain | ChainSource) -> Chain:
    """Returns the chain of a source for what gives numbers of blocks, or takes them.

    Raises:
        ValueError: if blocks are inside layers or whole layers, and the source is not a chain yet.
    """
    found = chain(source)
    if found is not source and any(block.inside for block in found.blocks):
        raise ArgumentError(
            "chain",
            "be made by `tfresidual.chain` for a network whose blocks are in layers, or whole "
            "layers: how blocks are numbered depends on which layers are opened",
            received=f"the network {found.name}",
        )
    return found


def _declared(found, source, outputs, positions):
    """Returns a chain with what is declared of its outputs, unless that is `None`."""
    changes = {}
    if outputs is not None:
        changes |= {"outputs": outputs, "notes": _without(GUESSED, found.notes)}
        if isinstance(source, keras.Model) and not source.compiled:
            changes["loss"] = loss_of(source, outputs)
    if positions is not None:
        check_bool("positions", positions)
        notes = _without(LEAVES_NO_LABEL, changes.get("notes", found.notes))
        changes |= {"outputs_at_positions": positions, "notes": notes}
    return dataclasses.replace(found, **changes) if changes else found


def _without(beginning, notes):
    return tuple(note for note in notes if not note.startswith(beginning))


def _chain_of(source, options):
    """Returns the chain of a source, with the other arguments of `chain` by name."""
    if isinstance(source, (str, os.PathLike)):
        path = pathlib.Path(source)
        if not path.is_dir():
            model, notes = model_in(path)
            found = _chain_of(model, options)
            loss = found.loss
            if NOT_COMPILED in notes:
                loss = with_note(loss, f"{path.name}: {NOT_COMPILED}.")
            return dataclasses.replace(found, loss=loss, notes=(*found.notes, *notes))
    # A subclass may compute something else than its units.
    is_network = isinstance(source, ResidualNetwork) and has_graph(source)
    is_found = isinstance(source, keras.Model) and not is_network
    given = [name for name, value in options.items() if value is not None]
    if given and not is_found:
        raise ArgumentError(
            ("blocks", "expand_nested", "inputs", "padding", "output"),
            "be left out unless blocks are to be found in a `keras.Model`: those of other sources "
            "are known",
            received=f"{', '.join(given)} for source={source!r}",
        )
    if isinstance(source, Chain):
        return source
    if isinstance(source, (str, os.PathLike)):
        found = saved_model_chain(path)
        return dataclasses.replace(found, strategy=mirrored_strategy(tf.distribute.get_strategy()))
    if isinstance(source, keras.Model):
        found = _of_residual_network(source) if is_network else chain_of_model(source, **options)
        return dataclasses.replace(
            found,
            strategy=mirrored_strategy(source.distribute_strategy),
            source=Source(source, **options),
        )
    raise ArgumentError(
        "source",
        "be a `tfresidual.networks.ResidualNetwork`, another `keras.Model`, the path of a .keras "
        "file that holds one or of a SavedModel that `tfresidual.export` wrote, or a "
        "`tfresidual.routing.Chain`",
        received=f"source={source!r} of type {type(source).__name__}",
    )


def _of_residual_network(network):
    network.converge()
    stem, sections, head = network.sections()
    stages, calls = [], SharedCalls()
    for index, (transition, units) in enumerate(sections, start=1):
        blocks = []
        for place, unit in enumerate(units):
            keeps_shape = unit.resizing is None
            takes_anchor = keeps_shape and network.anchor == "input"
            parts = unit_parts(unit, takes_anchor, calls)
            blocks.append(Block(index, place, keeps_shape, **parts, variables=tuple(unit.weights)))
        stages.append(Stage(index, tuple(blocks), transition and _sequence([transition])))
    kind = kind_of(network.layers[-1])
    return Chain(
        name=network.name,
        stem=_sequence(stem),
        stages=tuple(stages),
        head=_sequence(head),
        loss=loss_of(network, kind),
        input_shape=network.input_shape[1:],
        outputs=outputs_of(network, kind),
        weights=network.learned_variables(),
        prepare=preparation(unit for _, units in sections for unit in units),
        reference=reference_of(network),
        called=calls.called,
        notes=note_of_loss(network, kind),
        variables=tuple(network.weights),
        is_compiled=network.compiled,
        input_names=input_names_of(network),
        reference_loss=reference_loss_of(network),
    )


def _sequence(layers):
    """Returns a function that applies the layers one after the other, at inference."""

    def function(state):
        for layer in layers:
            has_two_modes = isinstance(layer, (BatchNormalization, ResidualUnit))
            state = layer(state, training=False) if has_two_modes else layer(state)
        return state

    return function
