"""Models that compute what a route through another model computes. TensorFlow only."""

from __future__ import annotations

import collections
import textwrap
from typing import TYPE_CHECKING

import keras
import pandas as pd

from tfresidual import sources
from tfresidual.definitions.arguments import ArgumentError, check_choice, check_int, is_int
from tfresidual.definitions.warning import warn
from tfresidual.routing import routes
from tfresidual.routing.agreement import allowed_difference, difference, inputs_to_compare
from tfresidual.routing.chain import Chain
from tfresidual.routing.routes import Route
from tfresidual.routing.scores import named_outputs
from tfresidual.sources.graph import has_graph, inputs_of
from tfresidual.sources.one_output import with_output
from tfresidual.surgery.configured import configured_model, inner_config, is_of_hub
from tfresidual.surgery.graphs import functional_model, refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Literal

    from tfresidual.definitions.types import ChainSource, Frame

WEIGHTS = ("copy", "share")
# The bits of a block that a plan takes out.
GONE = 0


def without_blocks(
    model: Chain | ChainSource,
    blocks: Route | Iterable[tuple[int, int] | str] | Frame,
    *,
    weights: Literal["copy", "share"] = "copy",
    output: str | int | None = None,
    inputs: Any = None,
) -> keras.Model:
    """Returns a model without some of its blocks, with the weights of the others.

    A `tfresidual.networks.ResidualNetwork` becomes one of fewer blocks; a model of keras-hub, one
    of fewer layers, also where a functional model calls it, if its configuration counts its layers
    and all of them have the same settings; any other model a plain functional one without the
    branches, and without what only they used. What is frozen stays frozen. Its outputs are compared
    with those of the chain on the same route. It is compiled as the model is, with a new optimizer.

    Refused are blocks that change the shape of the state, that are a part of a layer whose other
    parts stay, and those of a `ResidualNetwork` that share their weights.

    Example:

    >>> smaller = without_blocks(net, [(1, 1), (2, 1)])
    >>> smaller.count_params() < net.count_params()
    True

    Args:
        model: a functional `keras.Model`, or `keras.Sequential`, with residual blocks; the path of
            a `.keras` file that holds one; or the chain that `tfresidual.chain` made of it.
        blocks: pairs (stage, block), or names of blocks, as `print(chain)` shows them; or a
            `tfresidual.routing.Route` that leaves blocks out; or the frame of a
            `tfresidual.surgery.plan`. Where blocks are inside of layers, their numbers depend on
            how the chain is made: names, or the chain in the place of the model.
        weights: `"copy"` for layers of its own, `"share"` for the layers of the model, in a plain
            functional model.
        output: which output the blocks lead to, of a model with several, see `tfresidual.chain`.
            A plain functional model has this output alone, and its loss.
        inputs: a batch of inputs, the longest there are, on which outputs are compared. By default
            that with which the chain was made, or random ones of the sizes that the network
            declares; needed if it declares none. Sequences of open length are compared on the first
            half of them, too.

    Raises:
        ValueError: if an argument cannot be used, or a block cannot be taken out, with the reason.

    Reference:
        Veit et al. 2016, https://arxiv.org/abs/1605.06431.
    """
    chain = chain_of(model, weights, output)
    route = _route_of(chain, blocks, is_numbered=isinstance(model, Chain))
    return rerouted(chain, route, weights, inputs)


def repeated(
    model: Chain | ChainSource,
    stage: int,
    times: int,
    *,
    weights: Literal["copy", "share"] = "copy",
    inputs: Any = None,
) -> keras.Model:
    """Returns a model that applies the last block of a stage several times more.

    It is a plain functional model in which one block, with one set of weights, is called several
    times; see `without_blocks`.

    Example:

    >>> deeper = repeated(net, 2, 3)

    Args:
        model: see `without_blocks`.
        stage: int, the stage, counted from 1.
        times: int, how many times more, 1 or more.
        weights: see `without_blocks`.
        inputs: see `without_blocks`.

    Raises:
        ValueError: see there.

    Reference:
        Jastrzebski et al. 2018, section 4.4.
    """
    chain = chain_of(model, weights)
    _check_numbers(chain, "stage", isinstance(model, Chain))
    route = routes.repeat_last_block(chain, stage, times)
    return rerouted(chain, route, weights, inputs)


def reordered(
    model: Chain | ChainSource,
    stage: int,
    order: Sequence[int],
    *,
    weights: Literal["copy", "share"] = "copy",
    inputs: Any = None,
) -> keras.Model:
    """Returns a model with the blocks of a stage in another order, as a plain functional model.

    Example:

    >>> other = reordered(net, 1, [1, 0])

    Args:
        model: see `without_blocks`.
        stage: int, the stage, counted from 1.
        order: ints, the blocks of the stage in the order in which they are applied, each once.
        weights: see `without_blocks`.
        inputs: see `without_blocks`.

    Raises:
        ValueError: see there.

    Reference:
        Veit et al. 2016, https://arxiv.org/abs/1605.06431.
    """
    chain = chain_of(model, weights)
    own = routes.unperturbed(chain).stages
    check_int("stage", stage, at_least=1, at_most=len(own))
    indices = [application.block for application in own[stage - 1]]
    is_order = isinstance(order, (list, tuple)) and all(map(is_int, order))
    if not is_order or sorted(order) != indices:
        raise ArgumentError("order", f"hold each of the blocks {indices} once", order)
    _check_numbers(chain, "order", isinstance(model, Chain))
    applications = tuple(own[stage - 1][index] for index in order)
    stages = (*own[: stage - 1], applications, *own[stage:])
    route = Route(f"stage {stage} in the order {list(order)}", stages)
    (route,) = routes.checked_routes(chain, [route], "order")
    return rerouted(chain, route, weights, inputs)


def rerouted(chain, route, weights, inputs=None, is_compiled=True):
    """Returns a model that computes what a route of a chain computes, compared with it.

    With `is_compiled`, it is compiled as the model of the chain is, or a warning says why not.
    """
    (route,) = routes.checked_routes(chain, [route])
    routes.check_own_weights("blocks", route)
    if any(application.scale != 1 for stage in route.stages for application in stage):
        raise ArgumentError("blocks", "be a route without scaled branches", received=f"{route}")
    whole = model = chain.source.model
    output = chain.source.output
    made = configured_model(model, chain, route) if weights == "copy" else None
    if made is None:
        if output is not None and len(model.outputs) > 1:
            (model, _), output = with_output(model, output), None
        made = functional_model(model, chain, route, weights)
    verify(made, chain, route, output, inputs)
    if is_compiled and model.compiled:
        compile_as(made, model, whole.optimizer)
    return made


def compile_as(made, model, optimizer):
    """Compiles a model with what another one was compiled with, or warns that it is not compiled.

    Losses and functions are the same objects; the optimizer and metrics are new ones.
    """

    def new(one):
        is_object = isinstance(one, (keras.Metric, keras.Optimizer))
        return type(one).from_config(one.get_config()) if is_object else one

    try:
        options = dict(model._compile_config.config) | {"optimizer": optimizer}
        made.compile(**{name: keras.tree.map_structure(new, one) for name, one in options.items()})
    except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
        reason = textwrap.shorten(str(error), 200)
        warn(f"The smaller network has to be compiled by hand, unlike {model.name}: {reason}")
    if hasattr(model, "sampler"):
        # That of the models of keras-hub that generate text.
        made.sampler = model.sampler


def chain_of(model, weights="copy", output=None):
    """Returns the chain of what is to be changed; raises the errors of its arguments."""
    check_choice("weights", weights, WEIGHTS)
    chain = sources.chain(model, output=output)
    if chain.source is None or not has_graph(chain.source.model):
        raise ArgumentError(
            "model",
            "be a functional `keras.Model` or a `keras.Sequential`, or its chain: blocks in the "
            "code of another model cannot be taken out",
            received=chain.name,
        )
    return chain


def _check_numbers(chain, name, is_numbered):
    """Raises a `ValueError` for numbers of blocks that another chain of the model may not have."""
    if not is_numbered and any(block.inside for block in chain.blocks):
        raise ArgumentError(
            name,
            "be names of blocks or of the layers that hold them, or the chain must be passed in "
            "the place of the model: how its blocks are numbered depends on which layers are "
            "opened",
            received=f"numbers of blocks of the model {chain.name}",
        )


def _route_of(chain, blocks, is_numbered):
    """Returns the route that blocks describe; raises a `ValueError` if one is not there."""
    if isinstance(blocks, Route):
        _check_numbers(chain, "blocks", is_numbered)
        return blocks
    if isinstance(blocks, pd.DataFrame):
        blocks = pairs_of(blocks)
    if isinstance(blocks, str) or not hasattr(blocks, "__iter__"):
        blocks = [blocks]
    return routes.drop(chain, *named_blocks(chain, blocks, is_numbered))


def named_blocks(chain, blocks, is_numbered):
    """Returns the pairs (stage, block) of blocks that are given so, or by names; a list.

    Args:
        chain: the chain.
        blocks: pairs and names.
        is_numbered: whether the chain was given, so that its numbers are known.
    """
    numbers = {f"stage{block.stage}/block{block.index}": [block] for block in chain.blocks}
    named = collections.defaultdict(lambda: collections.defaultdict(list))
    for block in chain.blocks:
        for one in (block, *block.inside):
            named[one.name][id(one)].append(block)
    # A name that several layers have names none of them.
    alone = {name: [*own.values()] for name, own in named.items() if name is not None}
    alone = {name: own[0] for name, own in alone.items() if own.count(own[0]) == len(own)}
    known, pairs = numbers | alone, []
    for one in blocks:
        if not isinstance(one, str) or one in numbers:
            _check_numbers(chain, "blocks", is_numbered)
        if not isinstance(one, str):
            pairs.append(one)
        elif one in known:
            pairs += [(block.stage, block.index) for block in known[one]]
        else:
            names = ", ".join(known)
            raise ArgumentError("blocks", f"name blocks of {chain.name}, of {names}", one)
    return pairs


def pairs_of(plan):
    """Returns the pairs (stage, block) that go by the frame of a plan; rounded ones stay."""
    if "bits" in plan:
        plan = plan[plan["bits"] == GONE]
    rows = plan[["stage", "block", "blocks"]].astype(int).itertuples(index=False)
    return [(stage, block + more) for stage, block, count in rows for more in range(count)]


def _compared(chain, inputs):
    """Yields inputs on which a route is compared, the longest first."""
    model = chain.source.model
    size = inner_config(model).get("max_sequence_length") if is_of_hub(model) else None
    images = inputs_to_compare(chain, inputs, size)
    yield images
    tensors = inputs_of(model)
    if chain.source.inputs is None and any(map(_is_open, keras.tree.flatten(tensors))):
        yield keras.tree.map_structure(
            lambda tensor, one: one[:, : -(-one.shape[1] // 2)] if _is_open(tensor) else one,
            tensors,
            images,
        )


def _is_open(tensor):
    """Returns whether an input is a sequence of any length."""
    return len(tensor.shape) in (2, 3) and tensor.shape[1] is None


def verify(made, chain, route, output=None, inputs=None):
    """Raises a `ValueError` unless a model computes what a route of a chain computes."""
    for images in _compared(chain, inputs):
        expected = named_outputs(routes.follow(chain, route)(images))
        if output is None:
            outputs = made(images, training=False)
        else:
            outputs = sources.chain(made, output=output).reference(images)
        part, most, largest = difference(named_outputs(outputs), expected)
        if not part <= allowed_difference(layer.compute_dtype for layer in made.layers):
            raise refusal(
                chain,
                f"rebuilt, its outputs differ from those of the route by up to {most:.3g}, of up "
                f"to {largest:.3g}",
            )
