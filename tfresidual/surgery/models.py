"""Models that compute what a route through another model computes. TensorFlow only."""

from __future__ import annotations

import textwrap
import warnings
from typing import TYPE_CHECKING

import keras
import pandas as pd

from tfresidual import sources
from tfresidual.definitions.arguments import ArgumentError, check_choice, check_int, is_int
from tfresidual.definitions.warning import warn
from tfresidual.networks import ResidualNetwork
from tfresidual.routing import routes
from tfresidual.routing.agreement import allowed_difference, difference, sample_images
from tfresidual.routing.routes import Route
from tfresidual.routing.scores import named_outputs
from tfresidual.sources.graph import has_graph
from tfresidual.sources.one_output import with_output
from tfresidual.surgery.configured import configured_model
from tfresidual.surgery.graphs import functional_model, refusal
from tfresidual.surgery.networks import is_shorter, shorter_network

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Literal

    from tfresidual.definitions.types import Frame
    from tfresidual.routing import Chain

WEIGHTS = ("copy", "share")


def without_blocks(
    model: keras.Model,
    blocks: Route | Iterable[tuple[int, int] | str] | Frame,
    *,
    weights: Literal["copy", "share"] = "copy",
    output: str | int | None = None,
) -> keras.Model:
    """Returns a model without some of its blocks, with the weights of the others.

    A `tfresidual.networks.ResidualNetwork` becomes one of fewer blocks; a model of keras-hub whose
    configuration counts its layers, one of fewer layers, also where a functional model calls it;
    any other model a plain functional one without the branches, and without what only they used.
    Its outputs are compared with those of the chain of `model` on the same route. It is compiled as
    `model` is, with a new optimizer.

    Refused are blocks that change the shape of the state, that share weights with another block,
    and that are a part of a layer whose other parts stay.

    Example:

    >>> smaller = without_blocks(net, [(1, 1), (2, 1)])
    >>> smaller.count_params() < net.count_params()
    True

    Args:
        model: a functional `keras.Model`, or `keras.Sequential`, with residual blocks.
        blocks: pairs (stage, block), as `tfresidual.chain(model)` numbers them, or names of blocks;
            or a `tfresidual.routing.Route` that leaves blocks out; or the frame of a
            `tfresidual.surgery.plan`.
        weights: `"copy"` for layers of its own, `"share"` for the layers of `model`, in a plain
            functional model.
        output: which output the blocks lead to, of a model with several, see `tfresidual.chain`.
            A plain functional model has this output alone, and its loss.

    Raises:
        ValueError: if an argument cannot be used, or a block cannot be taken out, with the reason.

    Reference:
        Veit et al. 2016, https://arxiv.org/abs/1605.06431.
    """
    chain = chain_of(model, weights, output)
    return rerouted(model, chain, _route_of(chain, blocks), weights, output)


def repeated(
    model: keras.Model, stage: int, times: int, *, weights: Literal["copy", "share"] = "copy"
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

    Raises:
        ValueError: see there.

    Reference:
        Jastrzebski et al. 2018, section 4.4.
    """
    chain = chain_of(model, weights)
    return rerouted(model, chain, routes.repeat_last_block(chain, stage, times), weights)


def reordered(
    model: keras.Model,
    stage: int,
    order: Sequence[int],
    *,
    weights: Literal["copy", "share"] = "copy",
) -> keras.Model:
    """Returns a model with the blocks of a stage in another order, as a plain functional model.

    Example:

    >>> other = reordered(net, 1, [1, 0])

    Args:
        model: see `without_blocks`.
        stage: int, the stage, counted from 1.
        order: ints, the blocks of the stage in the order in which they are applied, each once.
        weights: see `without_blocks`.

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
    applications = tuple(own[stage - 1][index] for index in order)
    stages = (*own[: stage - 1], applications, *own[stage:])
    route = Route(f"stage {stage} in the order {list(order)}", stages)
    (route,) = routes.checked_routes(chain, [route], "order")
    return rerouted(model, chain, route, weights)


def rerouted(
    model: keras.Model,
    chain: Chain,
    route: Route,
    weights: str,
    output: str | int | None = None,
    is_compiled: bool = True,
) -> keras.Model:
    """Returns a model that computes what a route of its chain computes, verified against it.

    With `is_compiled`, it is compiled as the model is, or a warning says why it is not.
    """
    (route,) = routes.checked_routes(chain, [route])
    if any(application.scale != 1 for stage in route.stages for application in stage):
        raise ArgumentError("blocks", "be a route without scaled branches", received=f"{route}")
    made, whole = None, model
    if weights == "copy" and type(model) is ResidualNetwork and is_shorter(route):
        made = shorter_network(model, chain, route)
    elif weights == "copy":
        made = configured_model(model, chain, route)
    if made is None:
        if output is not None and has_graph(model) and len(model.outputs) > 1:
            (model, _), output = with_output(model, output), None
        made = functional_model(model, chain, route, weights)
    _verify(made, chain, route, output)
    if is_compiled and model.compiled and not made.compiled:
        _compile(made, model, whole)
    return made


def _compile(made, model, whole):
    """Compiles a model like another one, or warns that it is not compiled.

    `whole` is the model of which `model` has one output; the optimizer is the one of `whole`.
    """
    reason = "its `compile` is its own"
    try:
        with warnings.catch_warnings():
            # Keras warns of models that are loaded, which is another matter.
            warnings.simplefilter("ignore")
            config = model.get_compile_config()
            if whole is not model:
                config["optimizer"] = whole.get_compile_config()["optimizer"]
            made.compile_from_config(config)
    except Exception as error:
        # Losses and metrics written by others may not be made from their configuration.
        reason = str(error)
    if not made.compiled:
        (reason, *_) = reason.splitlines() or [""]
        warn(
            f"The smaller network is not compiled as {model.name} is, and has to be compiled by "
            f"hand: {textwrap.shorten(reason, 200)}"
        )


def chain_of(model, weights="copy", output=None):
    """Returns the chain of a model that is to be changed; raises the errors of its arguments."""
    check_choice("weights", weights, WEIGHTS)
    if not isinstance(model, keras.Model):
        raise ArgumentError("model", "be a `keras.Model`", received=f"a {type(model).__name__}")
    if not has_graph(model):
        raise ArgumentError(
            "model",
            "be a functional `keras.Model` or a `keras.Sequential`: blocks in the code of another "
            "model cannot be taken out",
            received=f"{model.name} of type {type(model).__name__}",
        )
    if output is None and len(model.outputs) > 1:
        raise ArgumentError(
            "model",
            "have one output, as `keras.Model(model.inputs, model.outputs[0])` has, compiled with "
            "the loss of this output; argument `output` of `tfresidual.surgery.without_blocks` "
            "chooses one of several",
            received=f"{model.name} with {len(model.outputs)} outputs",
        )
    return sources.chain(model, output=output)


def _route_of(chain, blocks):
    """Returns the route that blocks describe; raises a `ValueError` if one is not there."""
    if isinstance(blocks, Route):
        return blocks
    if isinstance(blocks, pd.DataFrame):
        blocks = _pairs_of(blocks)
    if isinstance(blocks, str) or not hasattr(blocks, "__iter__"):
        blocks = [blocks]
    named = {f"stage{block.stage}/block{block.index}": block for block in chain.blocks}
    named |= {block.name: block for block in chain.blocks if block.name is not None}
    pairs = []
    for one in blocks:
        if isinstance(one, str):
            if one not in named:
                raise ArgumentError(
                    "blocks", f"name blocks of {chain.name}, of {', '.join(named)}", one
                )
            one = named[one].stage, named[one].index
        pairs.append(one)
    return routes.drop(chain, *pairs)


def _pairs_of(plan):
    """Returns the pairs (stage, block) that go by the frame of a plan."""
    missing = [name for name in ("stage", "block", "blocks") if name not in plan]
    if missing:
        raise ArgumentError(
            "blocks",
            "be a frame of `tfresidual.surgery.plan`, or part of one",
            received=f"a frame without {', '.join(missing)}",
        )
    rows = plan[["stage", "block", "blocks"]].astype(int).itertuples(index=False)
    return [(stage, block + more) for stage, block, count in rows for more in range(count)]


def _verify(made, chain, route, output):
    """Raises a `ValueError` unless a model computes what a route of a chain computes."""
    images = sample_images(chain)
    if images is None:
        raise refusal(chain, "none of the inputs that were tried is accepted by it")
    expected = named_outputs(routes.follow(chain, route)(images))
    if output is None:
        outputs = made(images, training=False)
    else:
        outputs = sources.chain(made, output=output).reference(images)
    found = named_outputs(outputs)
    part, most, largest = difference(found, expected)
    if not part <= allowed_difference(layer.compute_dtype for layer in made.layers):
        raise refusal(
            chain,
            f"rebuilt, its outputs differ from those of the route by up to {most:.3g}, of up to "
            f"{largest:.3g}",
        )
