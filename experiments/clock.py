"""The callbacks of every training: its time, and its error on training images."""

from __future__ import annotations

import time

import keras


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
