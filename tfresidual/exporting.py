"""Networks as SavedModels that can be served, and probed without their code. TensorFlow only."""

from tfresidual import sources
from tfresidual.arguments import check_bool
from tfresidual.files import checked_path, remove_unfinished
from tfresidual.locks import locked, remove_abandoned
from tfresidual.saved_model.writer import check_target, write


def export(net, path, *, probing=True, overwrite=False):
    """Writes a network as one SavedModel that can be served, and probed later.

    The folder is loaded by TensorFlow Serving and by `tf.saved_model.load`, with no code of
    Keras, of this package or of the network, and by `tfresidual.chain`, for all probes. Its
    signatures, `images` being `(images, height, width, channels)`, float32:

    - `serving_default(images)`: `outputs`;
    - `states(images)`: the state `stem`, and that behind every block by name, `stage1/block0`;
    - `block_metrics(images, labels)`: those of `tfresidual.probes.block_metrics` for each image
      and block, `(images, blocks)`, with the gradient computed inside; labels are int64 class
      indices, or float32 rows where an image has several or the loss takes them. Left out where
      outputs are no classes, or the loss has no gradient or takes neither;
    - `route(images, applications)`: `outputs` when every block is applied so often: int32, one a
      block, 0 drops it, 1 for blocks that change the shape of the state;
    - `read_out(images, stage, block)`: `outputs` when the stage is left behind that block;
    - `repeat_last_block(images, stage, times, scale)`: `outputs` with so many further
      applications of the stage's last block, their branch multiplied by `scale`.

    Stages count from 1, blocks of a stage from 0. What a network cannot do is an
    `InvalidArgumentError` of TensorFlow.

    Before anything is written, the functions are compared with the network itself, on two images
    of random numbers. The folder is written beside the target and moved into place.

    Example:

    >>> export(net, "saved/net")
    >>> loaded = tf.saved_model.load("saved/net")
    >>> place = {"stage": tf.constant(3), "block": tf.constant(0)}
    >>> answers = loaded.signatures["read_out"](images=tf.constant(images), **place)

    Args:
        net: a network, or what else `tfresidual.chain` makes a chain of.
        path: the folder to write. The folders above it are made.
        probing: whether what probes read is written too. Without, the SavedModel can be served
            only.
        overwrite: whether a SavedModel that is there is replaced. A folder that holds anything
            else is not, and no symbolic link.

    Raises:
        FileExistsError: if something is there that is not to be replaced, or a folder above is
            none.
        tfresidual.locks.FolderInUseError: if another process is writing the same SavedModel.
        OSError: if it cannot be written, because the disk is full for example.
        ValueError: if `net` is no network that can be probed, computes with what a SavedModel
            cannot hold, or differs, by more than rounding, from what would be written, or if
            another argument cannot be used.
    """
    check_bool("probing", probing)
    check_bool("overwrite", overwrite)
    path = checked_path("path", path)
    check_target(path, overwrite)
    with locked(path, "path", beside=True):
        # One that was killed may have left the new SavedModel, and the old one, beside the path.
        remove_unfinished(path.parent)
        remove_abandoned(path.parent)
        check_target(path, overwrite)
        write(sources.chain(net), path, probing)
