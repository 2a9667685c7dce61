"""How much worse the network is with the weights of one of its blocks rounded."""

from __future__ import annotations

import collections
import functools
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from keras import ops

from tfresidual import sources
from tfresidual.definitions.arguments import ArgumentError, check_bool, check_int
from tfresidual.definitions.averages import rise_over, standard_error, weighted_mean
from tfresidual.definitions.chance import warn_of_chance
from tfresidual.probes.measure import joined_splits
from tfresidual.probes.predictions import divergence, logits_of
from tfresidual.routing import evaluate
from tfresidual.routing.data import splits_of
from tfresidual.routing.evaluator import MEMORY_LIMIT, check_scored
from tfresidual.routing.replacement import Replacement
from tfresidual.routing.rounding import (
    TENSOR,
    bytes_of,
    check_bits,
    check_per,
    kernels_by_block,
    rounded,
)
from tfresidual.routing.routes import unperturbed, with_weights

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from tfresidual.definitions.types import ChainSource, Data, Frame
    from tfresidual.routing import Chain


def round_blocks(
    chain: Chain | ChainSource,
    data: Data,
    *,
    bits: Iterable[int] = (8, 4, 3),
    per: Literal["channel", "tensor"] | int = "channel",
    noise: bool = True,
    seed: int = 0,
    memory_limit: float = MEMORY_LIMIT,
    progress: bool = False,
) -> Frame:
    """Measures the network with the weights of one block rounded, every block and number of bits.

    Kernels and embeddings are rounded as Keras' quantizers round them, symmetric and weight only:
    with q = 2^(bits - 1) - 1, the scale of a group of weights is q / (max |w| + 1e-7), and a weight
    becomes round(w scale) / scale. Biases, normalizations and states stay as they are. Unlike
    Keras, convolutions of all kinds are rounded too. What layers derive from their weights and
    keep, such as the norm of a bounded branch, is that of the weights before they are rounded.

    - `bytes_saved`: bytes of the kernels of the block in their own dtype, less those with `bits` /
      8 bytes per weight and 4 per group. A kernel that other blocks have, too, is rounded where
      this block is applied, and nowhere else; it is saved no byte of.
    - `error`, `cross_entropy`: as in `evaluate_routes`; `error_rise` and `cross_entropy_rise` are
      over those of the whole network, `unperturbed_error` is the error of that.
    - `kl`: the Kullback-Leibler divergence of the prediction from that of the whole network, in
      nats, 0 or more; with several labels per image, summed over them.
    - `noise_error_rise`, `noise_cross_entropy_rise`, `noise_kl`: the control, normal random noise
      added to the same weights, as large for every output channel (of every kernel, with
      `per="tensor"`) as what rounding adds, in Euclidean norm. Where rounding does more harm than
      noise, it is not the size of the error that does.

    The rounded weights of all blocks are held in memory, twice with `noise`.

    Example:

    >>> frame = round_blocks(chain, test, bits=(8, 2))
    >>> int(frame.groupby("bits")["bytes_saved"].sum().idxmax())
    2

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        bits: ints, from 2 to 32 bits per weight; with 32, nothing changes.
        per: which weights have a scale of their own: those of an output `"channel"`, the whole
            `"tensor"`, or groups of so many inputs of an output channel.
        noise: whether the control is measured, which takes as long again.
        seed: int, 0 or more, for the noise.
        memory_limit: MiB that the evaluator may use, about 25 or more; results do not depend on it.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `block` (from 0), `bits` and those
        above; `error_rise`, `cross_entropy_rise`, `kl` and the columns of noise are each followed
        by the standard error over the same images (`error_rise_se`). Blocks without a kernel have
        NaN. If `data` is a dict, `split` is the first column.

    Raises:
        ValueError: if an argument cannot be used, no block has a kernel, or the outputs of the
            network are not classes.

    Reference:
        Nagel et al. 2021, https://arxiv.org/abs/2106.08295, equations 4 to 7 and section 2.2.
    """
    bits = check_bits(bits)
    check_per(per)
    check_bool("noise", noise)
    check_int("seed", seed, at_least=0)
    chain = sources.numbered(chain)
    check_scored(chain)
    kernels = kernels_by_block(chain)
    if not any(kernels.values()):
        raise ArgumentError("chain", "have blocks with kernels", received=f"{chain.name}")
    whole, routes, controls = unperturbed(chain), [], []
    saved = {count: savings(kernels, count, per) for count in bits}
    places = [(*place, count, saved[count][place]) for place in kernels for count in bits]
    table = pd.DataFrame(places, columns=["stage", "block", "bits", "bytes_saved"])
    for place, own in kernels.items():
        for count in bits if own else ():
            replacement = rounding(own, count, per)
            name = f"stage {place[0]} block {place[1]}: {replacement.name}"
            routes.append(with_weights(whole, {place: replacement}, name))
            if noise:
                other = noise_of(
                    own, replacement, per, np.random.default_rng((seed, *place, count))
                )
                controls.append(with_weights(whole, {place: other}, f"{name} of noise"))
    has_kernels = np.repeat([bool(own) for own in kernels.values()], len(bits))
    frames, all_values = {}, {}
    for split, part in splits_of(data).items():
        values = evaluate(
            chain,
            part,
            [whole, *routes, *controls],
            memory_limit=memory_limit,
            divergence=functools.partial(_divergence, chain.outputs),
            progress=progress,
        )
        columns = _columns(values, slice(1, 1 + len(routes)))
        if controls:
            of_noise = _columns(values, slice(1 + len(routes), None), "noise_")
            del of_noise["noise_error"], of_noise["noise_cross_entropy"]
            columns |= of_noise
        for name, numbers in columns.items():
            columns[name] = np.full(len(table), np.nan)
            columns[name][has_kernels] = numbers
        error = float(weighted_mean(values.wrong[0], values.weights))
        frames[split] = table.assign(unperturbed_error=error, **columns)
        all_values[split] = values
    warn_of_chance(all_values)
    return joined_splits(frames)


def rounding(kernels, bits, per):
    """Returns the `Replacement` of kernels, pairs of variables and axes, by rounded ones."""
    values = [rounded(variable, bits, per, axes) for variable, axes in kernels]
    return Replacement(f"{bits} bits", [variable for variable, _ in kernels], values)


def savings(kernels, bits, per):
    """Returns the bytes that every block saves by its place, of `kernels_by_block`.

    Kernels that several blocks hold save none.
    """
    holders = collections.Counter(id(variable) for own in kernels.values() for variable, _ in own)
    return {
        place: sum(
            bytes_of(variable) - bytes_of(variable, bits, per, axes)
            for variable, axes in own
            if holders[id(variable)] == 1
        )
        for place, own in kernels.items()
    }


def noise_of(kernels, replacement, per, rng):
    """Returns the `Replacement` by random noise of the norms of another one."""
    values = []
    for (variable, axes), value in zip(kernels, replacement.values, strict=True):
        whole = ops.convert_to_numpy(variable)
        before = whole.astype("float64")
        change, drawn = ops.convert_to_numpy(value) - before, rng.normal(size=before.shape)
        over = None if per == TENSOR else axes
        sizes = [np.sqrt((one**2).sum(axis=over, keepdims=True)) for one in (change, drawn)]
        values.append((before + drawn * sizes[0] / sizes[1]).astype(whole.dtype))
    return Replacement(f"noise of {replacement.name}", replacement.variables, values)


def _divergence(kind, outputs, others):
    (logits, has_several), (other_logits, _) = (logits_of(kind, one) for one in (outputs, others))
    return divergence(logits, other_logits, has_several)


def _columns(values, chosen, prefix=""):
    """Returns the columns of some routes of `RouteValues`, by name."""
    found = {}
    for name, each in (("error", values.wrong), ("cross_entropy", values.cross_entropy)):
        found[name] = weighted_mean(each[chosen].T, values.weights)
        rises = rise_over(each[chosen].T, each[0], values.weights)
        found |= dict(zip((f"{name}_rise", f"{name}_rise_se"), rises, strict=True))
    own = values.divergence[chosen].T
    found["kl"] = weighted_mean(own, values.weights)
    found["kl_se"] = standard_error(own, values.weights)
    return {f"{prefix}{name}": column for name, column in found.items()}
