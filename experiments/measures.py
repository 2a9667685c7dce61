"""What is measured on trained networks: functions from a `Trained` to a frame.

Each of them says on how many images it is measured (`on`), which the page repeats.

Errors of a trained network, `error` and `train_error`, are those at inference on images that are
not augmented: all test images, and the first `IMAGES` training images. The training error over the
epochs is that of the first `IMAGES_PER_EPOCH` of them.
"""

from __future__ import annotations

import functools
import itertools
import time

import keras
import numpy as np
import pandas as pd
from catalogue import UPDATES, Untrained, settle

import tfresidual
from tfresidual import probes
from tfresidual.jobs.building import compile_for
from tfresidual.jobs.training import IMAGES_PER_EPOCH
from tfresidual.probes import from_logs
from tfresidual.routing import routes

# Images of each split on which trained networks are measured, if not on all.
IMAGES = 2000
# Scale of the branch of a repeated block. Jastrzebski et al. 2018 do not say which one they use.
SCALE = 0.3
# Images whose statistics batch normalization has in a network that is measured before training.
WARMUP = 512
# Images whose paths are measured, a pass per block.
LINES = 256


def on(**counts):
    """Decorator: a function `(trained, images) -> frame` is a measure, which takes the images.

    Args:
        **counts: about how many images, by split; `None` for all.
    """

    def decorate(function):
        @functools.wraps(function)
        def measure(trained):
            return function(trained, trained.images(counts))

        measure.images = counts
        return measure

    return decorate


def logged_on(**counts):
    """Decorator: a measure reads the log of the training, which was made on so many images."""

    def decorate(measure):
        measure.images, measure.of_training = counts, True
        return measure

    return decorate


class Clock(keras.callbacks.Callback):
    """Logs the seconds of processor time that every epoch took, whatever ran beside it."""

    def on_epoch_begin(self, epoch, logs=None):
        self._began = time.process_time()

    def on_epoch_end(self, epoch, logs=None):
        logs["seconds"] = time.process_time() - self._began


class TrainingError(keras.callbacks.Callback):
    """Logs error and loss on training images at inference, without augmentation."""

    def __init__(self, images):
        super().__init__()
        self.images = images

    def on_epoch_end(self, epoch, logs=None):
        found = self.model.evaluate(self.images, verbose=0, return_dict=True)
        logs["plain_loss"] = found.pop("loss")
        logs["plain_accuracy"] = found.popitem()[1]


def clocked(images):
    """The callbacks of every training: its time, and its error on training images."""
    return [Clock(), TrainingError(images["train"])]


def _error(chain, data):
    frame = probes.evaluate_routes(chain, data, [routes.unperturbed(chain)])
    return frame["error"].item(), frame["cross_entropy"].item()


@on(train=IMAGES, test=None)
def summary(trained, images):
    """The errors of the network, its parameters, and the time its training took."""
    error, loss = _error(trained.chain, images["test"])
    train_error, train_loss = _error(trained.chain, images["train"])
    network = trained.untrained()
    found = {
        "error": [error],
        "train_error": train_error,
        "loss": loss,
        "train_loss": train_loss,
        "parameters": network.count_params(),
    }
    if not isinstance(trained.network, Untrained):
        log = trained.log
        found |= {"best_epoch": log[f"val_{trained.metric}"].idxmax(), "epochs": len(log)}
        found |= {"seconds": log["seconds"].sum()}
    return pd.DataFrame(found)


@logged_on(train=IMAGES_PER_EPOCH, validation=None)
def history(trained):
    """Errors and losses on training and validation images after every epoch."""
    log, metric = trained.log, trained.metric
    return pd.DataFrame(
        {
            "epoch": log["epoch"],
            "error": 1 - log[f"val_{metric}"],
            "train_error": 1 - log["plain_accuracy"],
            "loss": log["val_loss"],
            "train_loss": log["plain_loss"],
        }
    )


@logged_on(train=IMAGES_PER_EPOCH, validation=IMAGES_PER_EPOCH)
def by_epoch(trained):
    """What the callbacks of the training published for every block and epoch."""
    return from_logs(trained.log)


@on(train=IMAGES, test=IMAGES)
def block_metrics(trained, images):
    """Cosine loss, l2 ratio, gradient norm and perturbations of every block, of two splits."""
    return probes.block_metrics(trained.chain, images)


@on(train=IMAGES, test=IMAGES)
def first_order(trained, images):
    """The first-order term of every block against what it does to the loss."""
    return probes.first_order(trained.chain, images)


@on(test=IMAGES)
def drop_blocks(trained, images):
    """The predictions without each of the blocks."""
    return probes.drop_blocks(trained.chain, images)


@on(test=IMAGES)
def perturbation(trained, images):
    """How far every block moves the state."""
    return probes.perturbation(trained.chain, images)


@on(train=IMAGES, test=IMAGES)
def borderline(trained, images):
    """Groups of images after each of the last blocks and as the last one is repeated."""
    frames = [
        probes.borderline(trained.chain, images, times=20, scale=scale) for scale in (1.0, SCALE)
    ]
    return pd.concat(frames).drop_duplicates(["split", "along", "scale", "block", "group"])


@on(train=IMAGES, test=IMAGES)
def repetitions(trained, images):
    """The last block of every stage repeated twenty times, as it is and with a scaled branch."""
    return pd.concat(
        probes.repeat_last_block(trained.chain, images, times=20, scale=scale)
        for scale in (1.0, SCALE)
    )


@on(train=WARMUP, validation=WARMUP)
def initial_signal(trained, images):
    """State and gradient at every block of the network as it is built.

    Batch normalization has the statistics with which it begins, means of 0 and variances of 1, so
    that it changes nothing.
    """
    return signal_of(trained.untrained(), trained.settings, images)


def signal_of(network, settings, images):
    """Returns the state and the gradient at every block of an untrained network."""
    compile_for(network, settings, 1)
    return probes.signal_propagation(tfresidual.chain(network), images)


@on(train=WARMUP, validation=WARMUP)
def first_signal(trained, images):
    """State and gradient at every block before the training, with the statistics of images."""
    network = trained.untrained()
    settle(network, [next(iter(images["train"].unbatch().batch(WARMUP)))[0]] * UPDATES)
    return signal_of(network, trained.settings, images)


def _convergence(trained, images):
    """Returns the frames of three kinds of routes, and of the indices, which are measured once."""
    if "convergence" not in trained.kept:
        found = probes.convergence_frames(trained.chain, images, at_chance="nan")
        trained.kept["convergence"] = found
    return trained.kept["convergence"]


@on(test=IMAGES)
def route_errors(trained, images):
    """Every stage left early, every block dropped, every last block repeated 16 times."""
    frames, _ = _convergence(trained, images)
    renamed = {"repetition": "block"}
    return pd.concat(
        frame.rename(columns=renamed).assign(route=name) for name, frame in frames.items()
    )


@on(test=IMAGES)
def indices(trained, images):
    """The convergence, recurrence and divergence index of every stage."""
    return _convergence(trained, images)[1]


def weights(trained):
    """Raw and effective number of parameters, and the mean deviation of the weights."""
    first = trained.settings.coupling_from
    count = probes.effective_parameters(trained.chain, first_block=first).iloc[-1]
    deviations = probes.weight_deviations(trained.chain, first_block=first)
    return pd.DataFrame(
        {
            "raw_parameters": [count["raw"]],
            "recurrent_parameters": count["recurrent"],
            "effective_parameters": count["effective"],
            "deviation": deviations["l1"].sum() / deviations["parameters"].sum(),
        }
    )


def lines(trained, pairs=64):
    """Straight lines between the first states of two images, of one class and of two.

    The pairs are among the first test images, as the entry says.
    """
    images = trained.images({"test": IMAGES})["test"]
    images, labels = next(iter(images.unbatch().batch(IMAGES)))
    images, labels = images.numpy(), labels.numpy()
    if labels.ndim > 1:
        # The lowest of the digits on the image.
        labels = labels.argmax(axis=-1)
    order = np.argsort(labels, kind="stable")
    same = [(i, j) for i, j in itertools.pairwise(order) if labels[i] == labels[j]]
    rng = np.random.default_rng(0)
    same = rng.permutation(same)[:pairs]
    other = [
        (i, j) for i, j in rng.integers(0, len(labels), (8 * pairs, 2)) if labels[i] != labels[j]
    ]
    chosen = {"one class": same, "two classes": np.array(other[:pairs])}
    return pd.concat(
        probes.line_between(trained.chain, images[of[:, 0]], images[of[:, 1]], stage=stage)
        .mean()
        .to_frame()
        .T.assign(classes=classes, stage=stage)
        for classes, of in chosen.items()
        for stage in range(1, 1 + len(trained.chain.stages))
    ).drop(columns=["pair", "block"])


@on(test=LINES)
def path_lengths(trained, images):
    """The lengths of the paths of images through the stages, by the line element with the step."""
    frame = probes.path_lengths(trained.chain, images)
    return frame.rename(columns={"blocks": "measured"})
