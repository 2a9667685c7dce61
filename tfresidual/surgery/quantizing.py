"""Keras models in which some blocks have fewer bits. TensorFlow only."""

from __future__ import annotations

import collections
import contextlib
from typing import TYPE_CHECKING

import keras
import pandas as pd

from tfresidual import sources
from tfresidual.definitions.arguments import ArgumentError, check_int
from tfresidual.routing import routes
from tfresidual.routing.chain import Chain
from tfresidual.routing.replacement import Replacement
from tfresidual.routing.rounding import CHANNEL, WHOLE, check_per, kernels_of, rounded
from tfresidual.surgery.configured import copied, is_of_hub
from tfresidual.surgery.models import (
    GONE,
    chain_of,
    compile_as,
    named_blocks,
    verify,
    without_blocks,
)
from tfresidual.surgery.state import parts_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal

    from tfresidual.definitions.types import ChainSource, Frame

# Keras' quantizers of weights alone, one scale per output channel, by bits.
QUANTIZERS = {
    8: keras.quantizers.Int8QuantizationConfig(activation_quantizer=None),
    4: keras.quantizers.Int4QuantizationConfig(block_size=None),
}


def quantized(
    model: Chain | ChainSource,
    blocks: Mapping[tuple[int, int] | str, int] | Frame,
    *,
    per: Literal["channel", "tensor"] | int = "channel",
    inputs: Any = None,
) -> keras.Model:
    """Returns a copy of a model in which some blocks have weights of fewer bits.

    With 8 or 4 bits per channel, what Keras can quantize (`Dense`, `EinsumDense`, `Embedding`) is
    quantized by Keras, and takes so many bits in memory and in the file. All other kernels, those
    of convolutions above all, have the values that weights of so many bits have, in their own
    dtype: the file becomes smaller only if it is compressed. The file opens in Keras alone, if that
    of `model` does. `tfresidual.probes.round_blocks` rounds in the same way.

    The copy is compared with the chain with rounded weights, and compiled as the model is, with a
    new optimizer. Quantized weights cannot be trained, rounded ones leave their grid in a training.
    Its blocks cannot be taken out any more.

    At 8 bits, Keras' file remembers that only weights are rounded for layers with a configuration
    of their own: not for those inside of other layers, such as `MultiHeadAttention`, and of models
    of keras-hub. These round their inputs to 8 bits too, as after `model.quantize("int8")`, when
    the model is returned, after the comparison, and when the file is opened. From such a file, the
    model cannot be saved again.

    Example:

    >>> smaller = quantized(net, {(1, 0): 8, (2, 1): 4})
    >>> smaller.count_params() == net.count_params()
    True

    Args:
        model: see `tfresidual.surgery.without_blocks`.
        blocks: the number of bits, 2 to 32, by block: a pair (stage, block) or a name, see
            `tfresidual.surgery.without_blocks`. Or the frame of a `tfresidual.surgery.plan` with
            `bits`, or one with columns `stage`, `block` and `bits`; the last row of a block counts.
            Blocks with 32 bits, and those that are not in it, stay as they are; those with 0 are
            taken out first.
        per: what shares a scale, see `tfresidual.probes.round_blocks`; only with `"channel"`, Keras
            quantizes.
        inputs: see `tfresidual.surgery.without_blocks`.

    Raises:
        ValueError: if an argument cannot be used, a block shares weights with another one, or the
            copy computes something else.

    Reference:
        Jacob et al. 2018, https://arxiv.org/abs/1712.05877, section 2.1, symmetric.
    """
    chain = chain_of(model)
    check_per(per)
    bits = _bits_by_block(chain, blocks, isinstance(model, Chain))
    if GONE in bits.values():
        chain, bits = _without_gone(chain, bits, inputs)
    bits = _bits_by_variable(chain, bits)
    whole, route = chain.source.model, routes.unperturbed(chain)
    fewer = {
        id(variable): rounded(variable, bits[id(variable)], per, axes)
        for variable, axes in kernels_of([whole])
        if id(variable) in bits
    }
    # All of them, since some are derived from others anew.
    values = [fewer.get(id(variable), variable) for variable in whole.variables]
    with Replacement("fewer bits", whole.variables, values).in_place():
        if chain.prepare is not None:
            chain.prepare()
        made = copied(whole)
        layers = _quantized_layers(whole, made, bits) if per == CHANNEL else []
        verify(made, chain, route, chain.source.output, inputs)
    _as_in_file(made, layers)
    if whole.compiled:
        compile_as(made, whole, whole.optimizer)
    return made


def _bits_by_block(chain, blocks, is_numbered):
    """Returns the bits of blocks by pairs (stage, block); raises a `ValueError`."""
    if isinstance(blocks, pd.DataFrame):
        rows = blocks if "blocks" in blocks else blocks.assign(blocks=1)
        rows = rows[["stage", "block", "bits", "blocks"]].astype(int).itertuples(index=False)
        blocks = {(row[0], row[1] + more): row[2] for row in rows for more in range(row[3])}
    found = {}
    for key, bits in blocks.items():
        if bits != GONE:
            check_int("blocks", bits, 2, WHOLE)
        for pair in named_blocks(chain, [key], is_numbered):
            routes.block_of(chain, "blocks", *pair, f"{key}")
            found[tuple(pair)] = bits
    return found


def _without_gone(chain, bits, inputs):
    """Returns the chain without blocks of 0 bits, and the bits of the others by their new places.

    Raises:
        ValueError: if the blocks of the new model are not those that are left.
    """
    gone = [pair for pair, own in bits.items() if own == GONE]
    made = sources.chain(without_blocks(chain, gone, inputs=inputs), inputs=inputs)
    old, new = ([(one.stage, one.index) for one in each.blocks] for each in (chain, made))
    left = [place for place in old if place not in gone]
    # In their order; a stage that is empty is none any more.
    if len(left) != len(new):
        raise ArgumentError("blocks", "be taken out with `without_blocks` first", gone)
    places = zip(left, new, strict=True)
    return made, {place: bits[before] for before, place in places if before in bits}


def _bits_by_variable(chain, bits):
    """Returns the bits of the variables of blocks, by their ids; raises a `ValueError`."""
    owners = collections.Counter(
        name for block in chain.blocks for name in set(map(id, block.variables))
    )
    found = {}
    for block in chain.blocks:
        own, place = list(map(id, block.variables)), (block.stage, block.index)
        if place in bits:
            if any(owners[name] > 1 for name in own):
                raise ArgumentError("blocks", "share no weights with other blocks", place)
            found |= dict.fromkeys(own, bits[place])
    return found


def _quantized_layers(model, made, bits):
    """Quantizes the layers of a copy that Keras can quantize, and returns them.

    Args:
        model: the model.
        made: its copy.
        bits: the bits of variables of the model, by their ids.
    """
    layers = []
    for part, layer in zip(parts_of(model), parts_of(made), strict=True):
        own = [bits[id(one)] for one in part._trainable_variables if id(one) in bits]
        if own and own[0] in QUANTIZERS and not layer._flatten_layers(include_self=False):
            with contextlib.suppress(NotImplementedError):
                layer.quantize(config=QUANTIZERS[own[0]])
                layers.append(layer)
    return layers


def _as_in_file(model, layers):
    """Has Keras' file of a model hold the policies of layers that were quantized.

    It knows those of layers of functional models. Models of keras-hub tell it those of all layers
    inside, other layers only if they have a map of them; neither says that inputs are not rounded.
    """
    for layer in [model] if is_of_hub(model) else model.layers:
        if isinstance(layer, keras.Model) and not is_of_hub(layer):
            _as_in_file(layer, layers)
            continue
        inside = set(map(id, layer._flatten_layers(include_self=False)))
        own = [part for part in layers if id(part) in inside]
        for part in own:
            part.quantization_config = None
            if part.quantization_mode == "int8":
                part.inputs_quantizer = keras.quantizers.AbsMaxQuantizer()
        if own and not is_of_hub(layer):
            policies = {part.path: part.dtype_policy for part in own}
            layer.dtype_policy = keras.dtype_policies.DTypePolicyMap(layer.dtype_policy, policies)
