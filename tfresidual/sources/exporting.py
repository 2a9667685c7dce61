"""Exports networks as SavedModels that can be served and probed without their code.

TensorFlow only.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tfresidual import sources
from tfresidual.definitions.arguments import ArgumentError, check_bool, check_number, checked_path
from tfresidual.machine.files import remove_unfinished
from tfresidual.machine.locks import locked
from tfresidual.sources.saved_model.format import check_can_open
from tfresidual.sources.saved_model.writer import check_target, write

if TYPE_CHECKING:
    from typing import Any

    from tfresidual.definitions.types import ChainSource, StrPath
    from tfresidual.networks import Readouts
    from tfresidual.routing.chain import Chain


def export(
    net: Chain | ChainSource,
    path: StrPath,
    *,
    probing: bool = True,
    overwrite: bool = False,
    inputs: Any = None,
    exits: Readouts | None = None,
    threshold: float | None = None,
) -> None:
    """Writes a network as one SavedModel that can be served and probed later.

    TensorFlow Serving and `tf.saved_model.load` load the folder without any code of Keras, of this
    package or of the network, and `tfresidual.chain` does for all probes. Its signatures take any
    number of `images`, see "Serve and probe without the package":

    - `serving_default(images)` returns `outputs`.
    - `states(images)` returns `stem` and the state after every block, such as `stage1/block0`.
    - `block_metrics(images, labels)` returns the metrics of `tfresidual.probes.block_metrics`,
      `(images, blocks)`. Labels are int64 class indices, `(images,)` or, for outputs `(images,
      positions, classes)`, `(images, positions)`, where labels below 0 are left out; or float32
      rows if an image has several labels or the loss takes rows. It is left out if the outputs are
      not classes, or the loss has no gradient or takes no such labels.
    - `route(images, applications)` returns `outputs` when every block is applied so many times:
      int32, one number per block, 0 to drop it; 1 for blocks that change the shape of the state.
    - `readout(images, stage, block)` returns `outputs` when the stage is left after that block.
    - `repeat_last_block(images, stage, times, scale)` returns `outputs` with `times` extra
      applications of the last block of the stage, with its branch multiplied by `scale`.

    With `exits`, `serving_default(images)` returns `outputs`, and the `stage` and `block` that each
    image left at, int32: after the first block whose read-out gives its prediction a probability of
    `threshold` or more, see `tfresidual.probes.early_exit`. The blocks after the one at which the
    last image of a batch leaves are not computed; give one image at a time to save most. What
    `serving_default` returns without exits is returned by `whole(images)`.

    Stages count from 1, blocks of a stage from 0. Unsupported requests raise TensorFlow's
    `InvalidArgumentError`. A network with several inputs has one argument per input: the keys of a
    dict, or `images_0`, `images_1` and so on. Inputs are float32, or of the integer dtype or bool
    that the network declares; sizes that it leaves open are open.

    Before anything is written, the functions are compared with the network itself. The SavedModel
    is written to a temporary folder beside the target and then moved.

    Example:

    >>> export(net, "saved/net")
    >>> loaded = tf.saved_model.load("saved/net")
    >>> place = {"stage": tf.constant(3), "block": tf.constant(0)}
    >>> answers = loaded.signatures["readout"](images=tf.constant(images), **place)

    Args:
        net: a network, or anything else that `tfresidual.chain` accepts.
        path: the folder to write. Its parent folders are created. TensorFlow cannot open a path
            with `[` or `\\`, which are parts of a pattern to it, or one that is not UTF-8.
        probing: whether the functions for probing are written too.
        overwrite: whether an existing SavedModel is replaced. Folders that hold anything else and
            symbolic links are never replaced.
        inputs: a batch of inputs on which they are compared. By default that with which the chain
            was made, or random ones of the sizes that the network declares; needed if it declares
            none.
        exits: what `tfresidual.training.fit_readouts` returned for the network, which must have one
            row of outputs per image; `None` for a network that is never left early.
        threshold: a probability, from 0 to 1, such as one that `tfresidual.probes.early_exit`
            chose; infinity for none. Only with `exits`.

    Raises:
        FileExistsError: if something that may not be replaced exists at the path, or a parent of
            the path is not a folder.
        tfresidual.machine.locks.FolderInUseError: if another process is writing the same
            SavedModel.
        OSError, tensorflow.errors.OpError: if the SavedModel cannot be written, for example because
            the disk is full.
        ValueError: if `net` cannot be probed, computes with something that a SavedModel cannot
            hold, has an input whose name cannot be that of an argument, or differs by more than
            rounding from the functions to be written, or if another argument cannot be used.
    """
    check_bool("overwrite", overwrite)
    if (exits is None) != (threshold is None):
        raise ArgumentError(
            ("exits", "threshold"), "be given together", exits=exits, threshold=threshold
        )
    if threshold != math.inf:
        check_number("threshold", threshold, at_least=0, at_most=1, or_none=True)
    path = checked_path("path", path)
    check_can_open("path", path)
    check_target(path, overwrite)
    with locked(path, "path", beside=True):
        # A process that was killed may have left the new and the old SavedModel beside the path.
        remove_unfinished(path.parent, path.name)
        check_target(path, overwrite)
        write(sources.chain(net), path, probing, inputs, exits, threshold)
