"""Runs routes over a dataset. TensorFlow only."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError, is_number
from tfresidual.definitions.metrics import change_of, norm, plain_norms_and_cosines
from tfresidual.definitions.settings import MEMORY_LIMIT
from tfresidual.machine.compiled import concrete
from tfresidual.machine.console import progress_bar
from tfresidual.routing.chain import checked_chain
from tfresidual.routing.data import (
    count_of,
    key_of,
    rebatched,
    shape_of_outputs,
    spec_of,
)
from tfresidual.routing.devices import devices_of
from tfresidual.routing.plan import BLOCK, DISTANCE, HEAD, STEM, TRANSITION, plan_of
from tfresidual.routing.positions import (
    check_any_counts,
    check_per_position,
    check_prepared,
    counted,
    counted_images,
    each_position,
    has_positions,
    kept,
    without_padding,
)
from tfresidual.routing.replacement import replaced
from tfresidual.routing.routes import checked_routes
from tfresidual.routing.runs import begun
from tfresidual.routing.scores import (
    LOGITS,
    OUTPUTS,
    is_binary,
    label_sets,
    named_outputs,
    prediction_scores,
    with_logits,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tfresidual.definitions.types import Images, OutputKind
    from tfresidual.routing.chain import Chain
    from tfresidual.routing.routes import Route

# Running more images at once makes a block no faster per image.
MOST_IMAGES = 256
MIB = 2**20
CALL_OPERATIONS = ("PartitionedCall", "StatefulPartitionedCall")
# What the runtime needs in addition to the tensors, measured on networks of 9 and 54 blocks:
# kernels for a new batch size, and unused memory between the tensors.
RUNTIME_MIB = 24
RUNTIME_SHARE = 0.15


@dataclasses.dataclass(frozen=True, eq=False)
class RouteValues:
    """Results of routes on a dataset, as arrays whose first two axes are route and example.

    An example is an image that counts or, for outputs per position, a position that counts, see
    `tfresidual.routing.positions`.

    Attributes:
        wrong: 1.0 where the prediction is wrong, see `tfresidual.routing.scores.prediction_scores`,
            as for `cross_entropy`, `entropy`, `margin`, `predicted` and `is_finite`.
        agreement: 1.0 where the prediction is that of the unperturbed network.
        distance: `(routes, examples, stages)`, the Euclidean distance between the last state of the
            stage and that of the unperturbed network, 0 or more. For outputs per position, it is
            that of the state at the position if the state has the same positions (see
            `Chain.outputs_at_positions`), and that of the state of the image otherwise.
        outputs: `(routes, examples, classes)`; `None`, as is `predicted`, if not requested.
        losses: by the loss of the chain, one per image even for outputs per position, `(routes,
            images)`, NaN for an image that does not count; `None` if not requested.
        divergence: that of the outputs of each route from those of the unperturbed network; `None`
            if not requested.
        labels: the labels of the examples as in the data, without an axis of routes.
        classes: int, the number of classes; 2 if a single output decides between two classes.
        weights: those of the images of the examples, over 0.
        image: int, the image of every example, from 0, in the order of the data.
        images: int, the number of images in the data, with those that do not count.
        position: int, the position of every example in its image, from 0; `None` if examples are
            images.
        kind: the kind of the outputs, see `tfresidual.routing.Chain`.
        width: int, the number of outputs per example.
    """

    wrong: np.ndarray
    cross_entropy: np.ndarray
    entropy: np.ndarray
    margin: np.ndarray
    agreement: np.ndarray
    distance: np.ndarray
    outputs: np.ndarray | None
    predicted: np.ndarray | None
    losses: np.ndarray | None
    divergence: np.ndarray | None
    is_finite: np.ndarray
    labels: np.ndarray
    classes: int
    weights: np.ndarray
    image: np.ndarray
    images: int
    position: np.ndarray | None
    kind: OutputKind
    width: int

    @property
    def label_sets(self) -> np.ndarray:
        """Which classes are the labels of an example, see `scores.label_sets`."""
        return label_sets(self.kind, self.labels, self.width)


def evaluate(
    chain: Chain,
    data: Images,
    routes: Iterable[Route],
    *,
    memory_limit: float = MEMORY_LIMIT,
    with_outputs: bool = False,
    with_losses: bool = False,
    divergence: Callable[[Any, Any], Any] | None = None,
    progress: bool = False,
) -> RouteValues:
    """Runs routes over a dataset; parts that routes have in common are computed once.

    Every block is compiled once per chain and image shape, whatever the routes are. On a few of the
    first images, the unperturbed route is compared with the network itself.

    Args:
        chain: a `tfresidual.routing.Chain`.
        data: images and labels, see `tfresidual.definitions.types.Images`; their batch size does
            not matter.
        routes: `Route`s through it.
        memory_limit: MiB that the call may use for states and the tensors inside the current block,
            in addition to data, results and compiled functions. A lower limit runs fewer images at
            once.
        with_outputs: whether the outputs and the predicted classes are returned too.
        with_losses: whether the losses by the loss of the chain are returned too.
        divergence: the function `(outputs, others) -> numbers` of the outputs of the unperturbed
            route and of another one, one number per image or position; `None` for no such values.
        progress: whether to show a progress bar.

    Returns:
        A `RouteValues`, whose first axis is in the order of `routes`.

    Raises:
        ValueError: if an argument cannot be used, the outputs of the network are not classes,
            `memory_limit` is too low for one image, or the outputs of the unperturbed route differ
            from those of the network by more than rounding.
    """
    chain = checked_chain(chain)
    check_scored(chain)
    check_memory_limit(memory_limit)
    routes = checked_routes(chain, routes)
    plan = plan_of(chain, routes)
    runners: dict[Any, _Runner] = {}

    def runner_of(images, labels, *_):
        """Returns the runner for batches of such shapes."""
        key = key_of([images, labels])
        if key not in runners:
            runners[key] = _Runner(
                chain, plan, with_losses, divergence, memory_limit, images, labels
            )
        return runners[key]

    def unperturbed_outputs(images, labels):
        runner = runner_of(images, labels)
        runner.run(images, labels, False, lambda: None, first_route=True)
        return runner.unperturbed

    batches = begun(chain, data, with_losses=with_losses, outputs=unperturbed_outputs)
    first = next(batches)
    batches = itertools.chain([first], batches)
    parts, all_labels, all_weights, places, images_before = [], [], [], [], 0
    with progress_bar("routes" if progress else None, count_of(data)) as advance:
        for images, labels, weights in rebatched(batches, lambda batch: runner_of(*batch).at_once):
            runner = runner_of(images, labels)
            share = len(labels) / len(first[1]) / len(plan.steps)
            advance_share = functools.partial(advance, share)
            parts.append(runner.run(images, labels, with_outputs, advance_share))
            all_labels.append(labels.numpy()[runner.is_counted])
            image, *position = np.nonzero(runner.is_counted)
            places.append((image + images_before, *position))
            all_weights.append(weights.numpy()[image])
            images_before += len(labels)
    # The routes of the plan begin with the unperturbed one. Routes with the same path share one
    # result.
    paths: dict[tuple[Any, ...], int] = {}
    for index, route in enumerate(plan.routes):
        paths.setdefault(route.stages, index)
    chosen = [paths[route.stages] for route in routes]
    joined: dict[str, Any] = {
        name: np.concatenate([part[name] for part in parts], axis=1)[chosen] for name in parts[0]
    }
    image, *position = map(np.concatenate, zip(*places, strict=True))
    check_any_counts(np.bincount(image, minlength=images_before))
    joined = {
        "outputs": None,
        "predicted": None,
        "losses": None,
        "divergence": None,
        "labels": np.concatenate(all_labels),
        "classes": runner.classes,
        "kind": chain.outputs,
        "width": runner.outputs,
        "weights": np.concatenate(all_weights),
        "image": image,
        "images": images_before,
        "position": position[0] if position else None,
    } | joined
    return RouteValues(**joined)


def check_scored(chain):
    """Raises a `ValueError` unless the outputs of a chain can be right or wrong."""
    if chain.outputs == "values":
        raise ArgumentError(
            "chain",
            "return classes or labels, one row per image or position: errors on a route are not "
            "defined for other outputs, such as values, or classes per pixel. If rows of outputs "
            "stand for classes nevertheless, `tfresidual.chain(model, outputs='logits')` "
            "declares it",
            received=f"{chain.name}, whose outputs are values",
        )


def check_memory_limit(memory_limit):
    """Raises a `ValueError` unless the argument is a number of MiB."""
    is_endless = isinstance(memory_limit, float) and memory_limit == math.inf
    if not is_endless and not (is_number(memory_limit) and memory_limit > 0):
        raise ArgumentError("memory_limit", "be a number of MiB over 0", memory_limit)


class _Runner:
    """The compiled functions of a plan and the memory they need."""

    def __init__(self, chain, plan, with_losses, divergence, memory_limit, images, labels):
        self.plan, self.chain, self.devices = plan, chain, devices_of(chain)
        self.divergence = divergence
        self.stages = len(chain.stages)
        # The number of positions, for outputs per position.
        self.positions = None
        if len(labels.shape) > 1 and has_positions(shape_of_outputs(chain, images)):
            self.positions = labels.shape[1]
        specs, labels = {-1: spec_of(images)}, spec_of(labels)
        self.context, context = _compiled_context(chain, specs[-1])
        self.functions, inner, bound = [], [], {}
        for step in plan.steps:
            anchor = specs.get(step.reference)
            function, weights, of_image, output = _compiled(
                chain,
                step.operation,
                specs[step.source],
                anchor,
                labels,
                context,
                with_losses,
                self.positions if chain.outputs_at_positions else None,
            )
            # Weights stay as they are while the routes run, so those of a block are read once.
            if weights and step.operation.weights is not None:
                function = _reading(function, weights)
            elif weights:
                if weights not in bound:
                    bound[weights] = _bound(function, weights())
                function = bound[weights]
            self.functions.append(function)
            inner.append(of_image)
            if step.target is not None:
                specs[step.target] = tf.TensorSpec(output.shape, output.dtype)
            if step.operation.kind == HEAD:
                self.shape = tuple(output[OUTPUTS].shape)[1:]
                self.outputs = self.shape[-1]
                self.classes = 2 if is_binary(chain.outputs, self.outputs) else self.outputs
        sizes = {place: _bytes(spec) for place, spec in specs.items()}
        self.bytes_per_image = sizes[-1] + _bytes(context) + plan.most_held(sizes, inner)
        of_image = (1 + RUNTIME_SHARE) * self.bytes_per_image / MIB
        self.at_once = int(min(MOST_IMAGES, (memory_limit - RUNTIME_MIB) / of_image))
        if self.at_once < 1:
            raise ArgumentError(
                "memory_limit",
                f"be {math.ceil(RUNTIME_MIB + of_image)} MiB or more: one image needs that much",
                memory_limit,
            )

    def run(self, images, labels, with_outputs, advance, first_route=False):
        """Returns all values of some images by name; which of them count is in `is_counted`.

        The outputs of the unperturbed route, the first of the plan, are in `unperturbed`; with
        `first_route`, no other is run.
        """
        check_prepared(self.chain, labels, self.shape)
        context = [] if self.context is None else [self.context(images)]
        if self.positions is not None:
            is_counted = counted(labels, self.outputs).numpy()
        else:
            chain = self.chain.bind(*context) if context else self.chain
            is_counted = counted_images(chain, labels, self.shape)
            is_counted = np.ones(len(labels), bool) if is_counted is None else is_counted.numpy()
        self.is_counted = is_counted
        split = self.devices.split
        joined = functools.partial(self.devices.joined, count=len(labels))
        context = [split(part) for part in context]
        routes, examples = len(self.plan.routes), int(is_counted.sum())
        values = {"distance": np.zeros((routes, examples, self.stages), np.float32)}
        named = None
        states, given = {-1: split(images)}, split(labels)
        for step, function in zip(self.plan.steps, self.functions, strict=True):
            operation, passing = step.operation, list(step.routes)
            if first_route and 0 not in passing:
                continue
            state = states[step.source]
            if operation.kind == DISTANCE:
                distance = joined(function(state, states[step.reference], *context)).numpy()
                if self.positions is not None:
                    distance = distance.reshape(len(labels), -1)
                distance = np.broadcast_to(distance, is_counted.shape)[is_counted]
                values["distance"][passing, :, operation.stage - 1] = distance
            elif operation.kind == HEAD:
                found = joined(function(state, given, *context))
                outputs = {name: found.pop(name) for name in (OUTPUTS, LOGITS) if name in found}
                if 0 in passing:
                    self.unperturbed = outputs
                if self.divergence is not None:
                    pair = map(with_logits, (self.unperturbed, outputs))
                    found["divergence"] = self.divergence(*pair)
                if with_outputs:
                    found[OUTPUTS] = outputs[OUTPUTS]
                found = {name: array.numpy() for name, array in found.items()}
                losses = found.pop("losses", None)
                found = {name: array[is_counted] for name, array in found.items()}
                if losses is not None:
                    has_loss = is_counted.reshape(len(labels), -1).any(axis=1)
                    found["losses"] = np.where(has_loss, losses, np.nan)
                predicted = found["predicted"] if with_outputs else found.pop("predicted")
                named = predicted if named is None else named
                # A prediction that is not finite agrees with nothing.
                agrees = (predicted == named).all(axis=-1) & found["is_finite"]
                found["agreement"] = agrees.astype(np.float32)
                for name, array in found.items():
                    if name not in values:
                        values[name] = np.zeros((routes, *array.shape), array.dtype)
                    values[name][passing] = array
            else:
                anchor = [] if step.reference is None else [states[step.reference]]
                scale = [split(tf.constant(operation.scale))] if _is_scaled(operation) else []
                read = [] if operation.kind == STEM else context
                with replaced(operation.weights):
                    states[step.target] = function(state, *anchor, *scale, *read)
                del anchor
            del state
            for place in step.frees:
                del states[place]
            advance()
        return values


def _is_scaled(operation):
    return operation.kind == BLOCK and operation.scale != 1


def _compiled_context(chain, images):
    """Returns the compiled function of the context and its specs, or `(None, {})`."""
    if chain.context is None:
        return None, {}
    key = ("context", *key_of(images))
    if key not in chain.compiled:
        function = concrete(chain.context, [images])
        chain.compiled[key] = function, spec_of(function.structured_outputs)
    return chain.compiled[key]


def _compiled(chain, operation, state, reference, labels, context, with_losses, positions):
    """Returns the compiled function of an operation, and what is known of it.

    That is a function of its weights or `None`, its memory, and the specs of its output.
    """
    signature = [state]
    if operation.kind == HEAD:
        signature.append(labels)
    if reference is not None:
        signature.append(reference)
    if _is_scaled(operation):
        signature.append(tf.TensorSpec([], tf.float32))
    if context and operation.kind != STEM:
        signature.append(context)
    key = (
        "routes",
        *(operation.kind, operation.stage, operation.block),
        _is_scaled(operation),
        with_losses and operation.kind == HEAD,
        positions if operation.kind == DISTANCE else None,
        *key_of(signature),
    )
    if key not in chain.compiled:
        arguments = chain, operation, with_losses, bool(context), positions
        function, weights = _shared(chain, operation, signature)
        if function is None:
            of_states = _function_of(*arguments)
            function = concrete(of_states, signature)
        else:
            of_states = _reading(function, weights)
        of_image, output = _inner_bytes(function.graph, chain.called), function.structured_outputs
        if chain.strategy is not None:
            function, weights = devices_of(chain).compiled(of_states, signature), None
        elif operation.kind == DISTANCE:
            plain = concrete(_function_of(*arguments, plain=True), signature)
            function = functools.partial(_plain_or_exact, plain, function)
        chain.compiled[key] = function, weights, of_image, output
    return chain.compiled[key]


def _plain_or_exact(plain, exact, *states):
    """Returns the distances of plain sums, which take half the time, if these are right."""
    distance, is_right = plain(*states)
    return distance if is_right.numpy() else exact(*states)


def _shared(chain, operation, signature):
    """Returns the function that blocks of one kind share, and that of its weights; or `None`s."""
    if operation.kind != BLOCK or _is_scaled(operation):
        return None, None
    block = chain.stages[operation.stage - 1].blocks[operation.block]
    find = getattr(block.apply, "shared", None)
    return (find and find(signature)) or (None, None)


def _bound(function, weights):
    """Returns a function of states alone."""
    return lambda *states: function(*states, *weights)


def _reading(function, weights):
    """Returns a function of states alone, which reads the weights where it runs."""
    return lambda *states: function(*states, *weights())


def _function_of(chain, operation, with_losses, has_context, positions, plain=False):
    """Returns the function of an operation, with only the parameters it is called with."""
    # If a parameter of a compiled function has a default, TensorFlow fails to bind arguments to it,
    # and makes an error message that is never shown, which takes 5 ms per call.
    if has_context and operation.kind != STEM:

        def function(*arguments):
            *arguments, context = arguments
            within = chain.bind(context)
            return _function_of(within, operation, with_losses, False, positions, plain)(*arguments)

        return function
    if operation.kind == HEAD:
        return lambda state, labels: _head_values(chain, state, labels, with_losses)
    if operation.kind == DISTANCE:
        return lambda state, reference: distance_between(chain, reference, state, positions, plain)
    if operation.kind == STEM:
        return lambda images: chain.stem(images)
    stage = chain.stages[operation.stage - 1]
    if operation.kind == TRANSITION:
        return lambda state: stage.transition(state)
    block = stage.blocks[operation.block]
    if block.takes_anchor and _is_scaled(operation):
        return lambda state, anchor, scale: block(state, anchor, scale)
    if block.takes_anchor:
        return lambda state, anchor: block(state, anchor)
    if _is_scaled(operation):
        return lambda state, scale: block(state, scale=scale)
    return lambda state: block(state)


def distance_between(chain, reference, state, positions=None, plain=False):
    """Returns the distance between states; with `plain`, also whether that is right.

    It is that of every position, `(images, positions)`, of states with so many of them.
    """
    change, shape = without_padding(chain)(change_of(reference, state)), [-1]
    if positions is not None and len(change.shape) > 2 and change.shape[1] == positions:
        change, shape = each_position(change), [-1, positions]
    if not plain:
        return tf.reshape(norm(change), shape)
    (distance,), _, is_right = plain_norms_and_cosines([change])
    return tf.reshape(distance, shape), tf.reduce_all(is_right)


def _head_values(chain, state, labels, with_losses):
    outputs = chain.head(state)
    if len(outputs.shape) not in (2, 3):
        raise ArgumentError(
            "chain",
            "return one row of outputs per image or position: errors on a route are not defined "
            "for outputs of other shapes",
            received=f"{chain.name}, whose outputs have the shape {tuple(outputs.shape)}",
        )
    known = labels
    if has_positions(outputs.shape[1:]):
        check_per_position(labels, outputs.shape[1:])
        known = kept(labels, counted(labels, outputs.shape[-1]))
    scores = prediction_scores(chain.outputs, known, outputs)
    if with_losses:
        scores["losses"] = tf.cast(chain.loss(labels, outputs), tf.float32)
    named = named_outputs(outputs)
    return scores | {name: tf.cast(values, tf.float32) for name, values in named.items()}


def _bytes(specs):
    """Returns the number of bytes of one image in a tensor, or in a structure of tensors."""
    return sum(
        int(np.prod(spec.shape[1:], dtype=np.int64)) * spec.dtype.size
        for spec in keras.tree.flatten(specs)
    )


def _inner_bytes(graph, functions):
    """Returns an upper bound of the bytes that one image needs inside a function: none is freed."""
    operations = graph.get_operations()
    called = [
        functions[operation.get_attr("f").name].graph
        for operation in operations
        if operation.type in CALL_OPERATIONS and operation.get_attr("f").name in functions
    ]
    tensors = {
        tensor.ref(): tensor
        for operation in operations
        if operation.type not in ("Placeholder", "Identity", "IdentityN", *CALL_OPERATIONS)
        for tensor in operation.outputs
    }
    return sum(_inner_bytes(other, functions) for other in called) + sum(
        _bytes(tensor)
        for tensor in tensors.values()
        if tensor.shape.rank and tensor.shape[0] is None and tensor.shape[1:].is_fully_defined()
    )
