"""Training of read-outs of the states of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import keras

from tfresidual.definitions.arguments import check_choice, check_int
from tfresidual.machine.console import progress_bar
from tfresidual.networks.readouts import AFFINE, HEAD, Readouts

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from tfresidual.definitions.types import ChainSource, Images
    from tfresidual.routing import Chain

LEARNING_RATE = 0.01


def fit_readouts(
    model: Chain | ChainSource,
    train: Images,
    *,
    kind: Literal["affine", "head"] = "affine",
    blocks: Iterable[tuple[int, int]] | None = None,
    epochs: int = 1,
    optimizer: str | keras.Optimizer | None = None,
    progress: bool = False,
) -> Readouts:
    """Trains a read-out of the state after every block, all of them in one pass per batch.

    The network stays as it is, at inference. The last state has no read-out: the head of the
    network reads it.

    - `"affine"`, the tuned lens: h + A h + b, position by position, which the network's own head
      takes in place of the last state. A and b begin as 0, which is `tfresidual.probes.lens`
      itself, and lower the Kullback-Leibler divergence of the prediction from that of the network;
      labels are not read. Only states of the shape of the last one have such a read-out: of a
      network for images, mostly those of the last stage.
    - `"head"`: a linear classifier, with 0 for all weights to begin with, of the state's mean over
      its positions that are not padding; or of every position, if the outputs are those of the
      positions of the states. It lowers the cross-entropy with the labels, and has every state.
      Beside each, a control is trained in the same way with the labels of the images half a batch
      away, so that it knows no more than how common the classes are; batches should be of two
      images or more, in an order that has nothing to do with the labels.

    Example:

    >>> readouts = fit_readouts(chain, train, epochs=2)
    >>> tuned = probes.lens(chain, test, readouts=readouts)
    >>> untuned = probes.lens(chain, test)

    Args:
        model: a chain, or anything that `tfresidual.chain` accepts, with classes as outputs.
        train: see `tfresidual.definitions.types.Images`; data that can be read again, for more than
            one epoch. It is read in its order.
        kind: see above.
        blocks: which states have one, pairs (stage, block), after that block, or, for block -1,
            before the first block of the stage; by default, all that can. For
            `tfresidual.probes.early_exit`, a few are faster: each that an image passes takes time.
        epochs: int, 1 or more.
        optimizer: of Keras, or its name; by default, Adam with a learning rate of 0.01.
        progress: whether to show a progress bar.

    Returns:
        The `tfresidual.networks.Readouts`, a `keras.Model`, which `probes.lens`, `probes.readout`
        and `probes.early_exit` take.

    Raises:
        ValueError: if an argument cannot be used, a state that is asked for cannot be read, or
            outputs per position are not those of the positions of the states (`"head"`).

    Reference:
        Belrose et al. 2023, https://arxiv.org/abs/2303.08112, equations 8 and 9 (there, the state
        is normalized before); Teerapittayanon et al. 2016, https://arxiv.org/abs/1709.01686, for
        classifiers after blocks.
    """
    # Loaded here, since training runs on other backends too.
    from tfresidual.probes.predictions import scored_chain
    from tfresidual.routing.data import check_data
    from tfresidual.routing.runs import begun
    from tfresidual.training.readout_steps import Trainer

    check_choice("kind", kind, (AFFINE, HEAD))
    check_int("epochs", epochs, at_least=1)
    check_data(train, again=epochs > 1)
    chain = scored_chain(model)
    trainer: Trainer | None = None
    optimizer = keras.optimizers.get(optimizer or keras.optimizers.Adam(LEARNING_RATE))
    for epoch in range(epochs):
        with progress_bar(f"read-outs, epoch {epoch + 1}" if progress else None, None) as advance:
            for batch in begun(chain, train, with_labels=kind == HEAD, with_losses=False):
                trainer = trainer or Trainer(chain, kind, blocks, optimizer, batch[0])
                trainer.step(*batch)
                advance(1)
    return cast("Trainer", trainer).readouts
