"""Runs a compiled function of a chain over data, batch by batch. TensorFlow only."""

from tfresidual.machine.console import progress_bar
from tfresidual.routing.agreement import check_run
from tfresidual.routing.data import batches_of, concatenated, count_of, key_of, rebatched, spec_of
from tfresidual.routing.devices import devices_of

# Under this name, `run_over` returns the weights of the images.
WEIGHTS = "weights"
# Under this name, functions return which images their plain sums are right for, bool, `(images,)`.
IN_RANGE = "in_range"


def begun(
    chain, data, with_labels=True, with_losses=True, at_once=None, outputs=None, with_all=False
):
    """Yields the batches of data for a probe, the first one after the check of `check_run`.

    Args:
        chain: a `tfresidual.routing.Chain`.
        data: see `batches_of`, as for `with_labels` and `with_all`.
        with_losses: whether the loss of each image is computed from the labels.
        at_once: int, the number of images per batch, or `None` for the batches of the data.
        outputs: the function `(images, labels) -> named_outputs` by which the probe itself computes
            the chain's outputs, or `None` for those of the chain compiled as a whole.
    """
    if chain.prepare is not None:
        chain.prepare()
    batches = batches_of(data, chain, with_labels, with_all)
    is_checked = False
    for images, labels, weights in batches if at_once is None else rebatched(batches, at_once):
        if not is_checked:
            check_run(chain, images, labels, with_labels and with_losses, outputs)
            is_checked = True
        yield images, labels, weights


def run_over(*arguments, **settings):
    """Returns the values of all images, a dict of arrays, see `batches_over`.

    If the data holds batches of several shapes, values per position are filled up to the longest.
    """
    parts = [*batches_over(*arguments, **settings)]
    return {name: concatenated([part[name].numpy() for part in parts]) for name in parts[0]}


def batches_over(
    chain,
    name,
    function,
    data,
    progress=False,
    at_once=None,
    check=None,
    with_labels=True,
    plain=None,
    with_losses=True,
    key=(),
):
    """Applies a function of a chain to every batch.

    The function is compiled once per chain and shape of the images, whatever the batch size.

    Args:
        chain: a `tfresidual.routing.Chain`.
        name: what the function computes, part of the key under which it is kept on the chain.
        function: `function(images, labels)` returns a dict of tensors whose first axis is the
            image.
        data: see `batches_of`.
        progress: whether to show a progress bar.
        at_once: int, the number of images per call, or `None` for the batches of the data.
        check: `check(images, labels)` raises an error for a batch that cannot be used, or `None`.
        with_labels: whether the function reads the labels.
        plain: a faster `function(images, labels)`, or `None`. It also returns a mask under
            `IN_RANGE`; from the first batch on in which an image is not, `function` is used.
        with_losses: whether a function that reads the labels computes the loss of each image.
        key: what tells functions of one name apart, the other part of the key; `None` for a
            function that is not kept.

    Yields:
        A dict of tensors whose first axis is the image, with the weights under `WEIGHTS`.
    """
    kept = {} if key is None else chain.compiled
    count = None if at_once else count_of(data)
    with progress_bar(name if progress else None, count) as advance:
        for images, labels, weights in begun(chain, data, with_labels, with_losses, at_once):
            if check is not None:
                check(images, labels)
            found = None
            if plain is not None:
                found = computed(chain, kept, (f"{name}, plain", key), plain, images, labels)
                if not found.pop(IN_RANGE).numpy().all():
                    found, plain = None, None
            if found is None:
                found = computed(chain, kept, (name, key), function, images, labels)
            yield found | {WEIGHTS: weights}
            advance(1)


def computed(chain, kept, key, function, images, labels):
    """Returns what a function that is compiled once says of a batch."""
    devices, signature = devices_of(chain), [spec_of(images), spec_of(labels)]
    key = (*key, *key_of(signature))
    if key not in kept:
        kept[key] = devices.compiled(function, signature)
    found = kept[key](*map(devices.split, (images, labels)))
    return devices.joined(found, len(labels))
