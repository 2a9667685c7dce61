"""Checks that a chain computes what its network computes. TensorFlow only."""

import dataclasses
import functools
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.machine.compiled import compiled
from tfresidual.routing.data import batches_of, dtype_taken, is_shape, key_of, sliced, spec_of
from tfresidual.routing.positions import are_per_position, counted, not_ignored
from tfresidual.routing.scores import LOGITS, OUTPUTS, named_outputs, with_logits

# The largest difference that rounding may cause, as a share of the largest output of an image, by
# the coarsest dtype of the computation. TensorFlow rounds differently when the parts of a network
# are compiled separately.
ALLOWED = {"bfloat16": 0.1, "float16": 0.02}
ALLOWED_OTHERWISE = 1e-3
# From these sizes on, states and what is computed of them may overflow.
HUGE_WEIGHT, HUGE_STATE, HUGE_OTHERWISE = 1e3, {"float16": 4096.0}, 1e15
# The number of images on which a run compares a chain with its network, which keeps all its states
# while it computes.
COMPARED = 4
# The number of random images.
SAMPLES = 2


class DisagreementError(ArgumentError):
    """Says that a chain computes something else than its network."""


def check_agreement(chain, images, found):
    """Raises a `ValueError` if a chain computes something else than its network, up to rounding.

    Args:
        chain: a `tfresidual.routing.Chain`. Nothing is compared if its states overflow.
        images: some images, as a tensor.
        found: the chain's `named_outputs` for these images on the unperturbed route.
    """
    if chain.reference is None:
        return
    # Not compiled: a compiled function stays as it is when the network changes.
    expected = named_outputs(chain.reference(images))
    share, most, largest = difference(found, expected)
    allowed = ALLOWED_OTHERWISE
    if not share <= allowed:
        allowed = _comparison(chain, images).allowed
    if share <= allowed:
        return
    if _has_diverged(chain, images):
        # The network has diverged: near the end of the range of floats, rounding decides which
        # numbers are infinite.
        return
    again = difference(expected, named_outputs(chain.reference(images)))
    if not again[0] <= allowed:
        raise ArgumentError(
            "chain",
            "belong to a network that always gives the same outputs for the same images outside "
            "of training: otherwise random differences cannot be distinguished from the effect "
            "of a route",
            received=f"{chain.name}, whose outputs differ by up to {again[1]:.3g} from one call "
            "to the next",
        )
    raise DisagreementError(
        "chain",
        "compute what its network does. On the unperturbed route, the "
        "outputs for some of these images differ from those of the network itself by more than "
        "rounding: dividing the network into blocks loses part of what it computes, the network "
        "has changed after the chain was made (make another chain), or an image's outputs depend "
        "on the other images. Remove the reference of a chain whose functions were replaced on "
        "purpose: `dataclasses.replace(chain, reference=None)`",
        received=f"{chain.name}, whose outputs differ by up to {most:.3g}, of up to {largest:.3g}",
    )


def _has_diverged(chain, images):
    """Returns whether weights are huge, and states come near the largest numbers of their dtype."""
    if all(np.abs(weight).max(initial=0) <= HUGE_WEIGHT for weight in chain.weights):
        return False
    given = chain.with_context(images)
    pairs, last = given.walk(given.stem(images))
    return any(
        not tf.reduce_max(tf.abs(state)) < HUGE_STATE.get(state.dtype.name, HUGE_OTHERWISE)
        for state in [last, *(before for before, _ in pairs)]
    )


def check_run(chain, images, labels=None, with_losses=False, outputs=None):
    """Compares a chain with its network, on the first images of a run.

    The network is not compiled, and its loss is the one that it has now: whatever has changed since
    the chain was made, the outputs or the losses differ.

    Args:
        chain: a `tfresidual.routing.Chain`. Without a reference, nothing is compared.
        images: the first images of the run, as a tensor or tensors.
        labels: those of the images, as in `data.prepared_labels`.
        with_losses: whether the losses are compared.
        outputs: see `runs.begun`.
    """
    if chain.reference is None:
        return
    few = sliced(images, slice(COMPARED))
    is_first = key_of(few) not in chain.compared
    comparison = _comparison(chain, few)
    if outputs:
        found = outputs(few, labels[:COMPARED])
    else:
        # Once, a pass takes less time than compiling.
        found = named_outputs(chain(few)) if is_first else comparison.function(few)
    check_agreement(chain, few, found)
    loss = chain.reference_loss() if with_losses and chain.reference_loss else None
    if loss is not None:
        check_losses(chain, loss, labels[:COMPARED], found)


def check_losses(chain, loss, labels, found):
    """Raises a `ValueError` if losses per image are not those of `compute_loss` for each image.

    Args:
        chain: a `tfresidual.routing.Chain`.
        loss: the function `(labels, outputs) -> loss` of the network, for one image.
        labels: labels of a few images; positions that they leave out are left out for both.
        found: the chain's `named_outputs` for these images.
    """
    shape = tuple(found[OUTPUTS].shape)[1:]
    is_counted = not_ignored(chain, labels, shape)
    if are_per_position(labels, shape):
        is_counted = counted(labels, shape[-1])
    own = np.asarray(chain.loss(labels, with_logits(found)))
    share = allowed_difference(one.dtype.name for one in (own, *found.values()))
    largest = np.abs(np.asarray(found[OUTPUTS]).astype(np.float64)).max(initial=0)
    for image, value in enumerate(own.astype(np.float64)):
        batch = {"labels": labels, **found}
        batch = {name: part[image : image + 1] for name, part in batch.items()}
        if is_counted is not None:
            mask = is_counted[image : image + 1]
            if not tf.reduce_any(mask):
                continue
            if len(mask.shape) == 2 and not tf.reduce_all(mask):
                batch = {name: part[mask][tf.newaxis] for name, part in batch.items()}
        try:
            expected = float(loss(batch.pop("labels"), with_logits(batch)))
        except ValueError:
            # Labels in another form than that of `fit`, such as rows for a sparse loss.
            return
        # A loss near zero may be the difference of numbers of the size of the outputs.
        allowed = share * max(abs(value), abs(expected)) + 1e-5 * largest
        if np.isfinite([value, expected]).all() and abs(value - expected) > allowed:
            raise DisagreementError(
                "chain",
                "have the losses of its network, image by image. The loss has changed after the "
                "chain was made (make another chain), or it compares the images of a batch, which "
                "cannot be measured per image. To measure another loss on purpose: "
                "`dataclasses.replace(chain, loss=..., reference_loss=None)`",
                received=f"{chain.name}, with a loss of {value:.4g}, where its network has "
                f"{expected:.4g}",
            )


def inputs_to_compare(chain, inputs=None, size=None):
    """Returns a few images on which what is made of a chain is compared with its network.

    They are of `inputs`, a batch, or of the batch that the chain was made with. Without one, their
    sizes are those that the network declares, and `size` where it leaves them open; their values
    are from 0 to 2. Ids are 0 and 1, and the first of a sequence is 1, so that no sequence is all
    padding. Masks are true for a whole image, and for the first half of another.
    """
    if inputs is None and chain.source is not None:
        inputs = chain.source.inputs
    leaves = keras.tree.flatten(inputs)
    if inputs is not None and not any(isinstance(one, keras.KerasTensor) for one in leaves):
        images, *_ = next(batches_of((inputs,), chain, with_labels=False))
        return sliced(images, slice(COMPARED))
    if size is None and None in keras.tree.flatten(chain.input_shape):
        raise ArgumentError(
            "inputs",
            "be a batch of inputs, as long as they get, since the network leaves their sizes open: "
            "what is made of it is compared with it on them",
            received=f"inputs=None for {chain.name}, with inputs of shape {chain.input_shape}",
        )
    rng = np.random.default_rng(0)
    return drawn(chain.input_shape, chain.input_dtype, size, lambda shape: rng.uniform(0, 2, shape))


def drawn(shapes, dtypes, size, draw, name=""):
    """Returns images of some `input_shape` and `input_dtype` of a chain, in their structure.

    Axes of unknown size have the `size`; values are `draw(shape)`, except for masks, which are
    known by their dtype or their `name`, the key of the images in a dict.
    """
    if isinstance(shapes, Mapping):
        return {key: drawn(shapes[key], dtypes[key], size, draw, key) for key in shapes}
    if not is_shape(shapes):
        pairs = zip(shapes, dtypes, strict=True)
        return type(shapes)(drawn(*pair, size, draw, name) for pair in pairs)
    shape = [SAMPLES, *(size if known is None else known for known in shapes)]
    is_mask = dtypes == "bool" or "mask" in name.lower()
    values = _mask(shape) if is_mask else draw(shape)
    if keras.backend.is_int_dtype(dtypes) and len(shape) > 1 and values.any():
        values[:, 0] = 1
    return tf.cast(values, dtype_taken(dtypes))


def _mask(shape):
    """Returns ones, which for every second image end after the first half of the last axis."""
    values = np.ones(shape)
    if len(shape) > 1:
        values[1::2, ..., -(shape[-1] // 2) or shape[-1] :] = 0
    return values


@dataclasses.dataclass(eq=False)
class _Comparison:
    """What a chain computes of one kind of images, compiled when it is asked for."""

    chain: object
    spec: object

    @functools.cached_property
    def function(self):
        """The compiled outputs."""
        return compiled(lambda images: named_outputs(self.chain(images)), [self.spec])

    @functools.cached_property
    def allowed(self):
        """The largest share that rounding may change in the outputs."""
        return allowed_difference(
            tensor.dtype.name
            for one in (self.function.get_concrete_function(), *self.chain.called.values())
            for operation in one.graph.get_operations()
            for tensor in operation.outputs
        )


def _comparison(chain, images):
    key = key_of(images)
    if key not in chain.compared:
        chain.compared[key] = _Comparison(chain, spec_of(images))
    return chain.compared[key]


def allowed_for(chain):
    """Returns the largest share that rounding may change in what a chain has computed so far."""
    return max([ALLOWED_OTHERWISE, *(one.allowed for one in chain.compared.values())])


def allowed_difference(dtypes):
    """Returns the largest share that rounding may change in a computation in these dtypes."""
    return max([ALLOWED_OTHERWISE, *(ALLOWED.get(dtype, 0) for dtype in dtypes)])


def difference(found, expected):
    """Returns the largest difference of outputs as a share of their size, itself, and the size.

    Outputs that are finite in neither set are equal. The size of an image is that of its largest
    output, but at least the median over the images, since small numbers may be differences of large
    ones.
    """
    name = LOGITS if LOGITS in found and LOGITS in expected else OUTPUTS
    one, other = (np.asarray(values[name]).astype(np.float64) for values in (found, expected))
    if one.shape != other.shape:
        return np.inf, np.inf, np.inf
    one, other = (values.reshape(*(values.shape[:1] or (1,)), -1) for values in (one, other))
    is_finite = np.isfinite(one) & np.isfinite(other)
    is_lost = np.isfinite(one) != np.isfinite(other)
    with np.errstate(invalid="ignore"):
        differences = np.where(is_finite, np.abs(one - other), np.where(is_lost, np.inf, 0.0))
    sizes = np.where(is_finite, np.maximum(np.abs(one), np.abs(other)), 0.0).max(axis=1)
    sizes = np.maximum(sizes, np.median(sizes))[:, None]
    shares = np.divide(differences, sizes, out=np.zeros_like(differences), where=differences > 0)
    return shares.max(), differences.max(), sizes.max()
