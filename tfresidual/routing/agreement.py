"""Whether a chain computes what its network does. TensorFlow only."""

import numpy as np
import tensorflow as tf

from tfresidual.routing.outputs import LOGITS, OUTPUTS, named_outputs

# What rounding may change, as a share of an image's largest output, by the coarsest dtype that is
# computed in. Where parts of a network are compiled one by one, TensorFlow rounds otherwise.
ALLOWED = {tf.bfloat16: 0.1, tf.float16: 0.02}
ALLOWED_OTHERWISE = 1e-3
# How many images of random numbers a network is tried on.
SAMPLES = 2
# Sizes for which shapes are worked out where a model takes any: that of most images first, then
# those for tokens with fewer positions, and for sound, which is made shorter many times.
SIZES = (224, 256, 64, 32, 16, 512, 4096, 65536)


def check_agreement(chain, images, found):
    """Raises a `ValueError` if a chain's outputs are not those of its network, up to rounding.

    Args:
        chain: a `tfresidual.routing.Chain`.
        images: some images, as a tensor.
        found: what the chain makes of them on the unperturbed route, as `named_outputs` returns
            it.
    """
    if chain.reference is None:
        return
    function, allowed = _compiled(chain, images)
    expected = function(images)
    share, difference, largest = _difference(found, expected)
    if share <= allowed:
        return
    again = _difference(expected, function(images))
    if again[0] > allowed:
        raise ValueError(
            "Argument `chain` must be of a network that gives the same outputs for the same "
            "images whenever it is called without training: what is drawn at random cannot be "
            f"told from what a perturbation does. Received: {chain.name}, whose outputs differ by "
            f"up to {again[1]:.3g} from one call to the next"
        )
    raise ValueError(
        "Argument `chain` must compute what its network does. On the unperturbed route some of "
        "these images have other outputs than from the network itself, by more than rounding: "
        "what the network computes is lost where it is parted into blocks, or an image's outputs "
        "depend on the other images. A chain whose functions were replaced on purpose has no "
        "reference: `dataclasses.replace(chain, reference=None)`. "
        f"Received: {chain.name}, whose outputs differ by up to {difference:.3g}, of up to "
        f"{largest:.3g}"
    )


def sample_images(chain):
    """Images that a network takes, or `None` where it takes none of those that are tried.

    Their numbers are from 0 to 2: those of a network that reads indices become 0 and 1.
    """
    rng = np.random.default_rng(0)
    for size in SIZES:
        shape = [SAMPLES, *(size if known is None else known for known in chain.input_shape)]
        for images in (rng.uniform(0, 2, shape), np.zeros(shape)):
            images = tf.constant(images, tf.float32)
            if _takes(chain, images):
                return images
        if None not in chain.input_shape:
            break
    return None


def _takes(chain, images):
    """Whether a chain's network computes anything for some images."""
    try:
        _compiled(chain, images)[0](images)
    except Exception:
        # Anything may be raised by what somebody else wrote, on what it does not take.
        return False
    return True


def _compiled(chain, images):
    """The network's own function for such images, and how much rounding may change."""
    key = ("reference", tuple(images.shape[1:]), images.dtype)
    if key not in chain.compared:
        function = tf.function(
            lambda images: named_outputs(chain.reference(images)),
            input_signature=[tf.TensorSpec([None, *images.shape[1:]], images.dtype)],
            autograph=False,
        )
        graphs = [function.get_concrete_function().graph, *chain.graphs.values()]
        dtypes = {
            tensor.dtype
            for graph in graphs
            for operation in graph.get_operations()
            for tensor in operation.outputs
        }
        allowed = max([ALLOWED_OTHERWISE, *(ALLOWED.get(dtype, 0) for dtype in dtypes)])
        chain.compared[key] = function, allowed
    return chain.compared[key]


def _difference(found, expected):
    """How far two sets of outputs are apart: as a share of the size, in numbers, and the size.

    Outputs that are finite in neither of them are equal. An image's size is that of its largest
    output, but no less than that of half of the images: numbers close to zero may be differences
    of large ones.
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
