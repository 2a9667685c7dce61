"""Batches of images in memory as `tf.data` pipelines."""

from __future__ import annotations

import math

import tensorflow as tf

from tfresidual.datasets.augmentation import flip_and_crop
from tfresidual.machine.passes import without_tuning


def in_memory(images, labels):
    """Returns images and labels as tensors."""
    # tf.data runs on the CPU.
    with tf.device("CPU:0"):
        return tf.constant(images), tf.constant(labels)


def epoch_counter():
    """Returns the variable by which a training pipeline counts its epochs, from 0."""
    with tf.device("CPU:0"):
        return tf.Variable(0, dtype=tf.int64, trainable=False, name="epoch")


def training_pipeline(images, labels, batch_size, epoch, seed, shuffle, augment, finish):
    """Returns batches in a new order each epoch, augmented and passed through `finish`."""
    count = len(images)
    steps = math.ceil(count / batch_size)

    def begin(_):
        current = epoch.read_value()
        epoch.assign_add(1)
        return tf.stack([tf.constant(seed, tf.int64), current])

    def places(epoch_seed):
        order = tf.range(count)
        if shuffle:
            order = tf.random.experimental.stateless_shuffle(order, epoch_seed)
        return tf.data.Dataset.range(steps).map(
            lambda step: (
                tf.random.fold_in(epoch_seed, step),
                order[step * batch_size : (step + 1) * batch_size],
            )
        )

    def batch(batch_seed, indices):
        chosen = tf.gather(images, indices)
        if augment:
            chosen = flip_and_crop(chosen, batch_seed)
        return finish(chosen, tf.gather(labels, indices))

    return without_tuning(
        tf.data.Dataset.range(1)
        .map(begin)
        .flat_map(places)
        .map(batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .apply(tf.data.experimental.assert_cardinality(steps))
        .prefetch(tf.data.AUTOTUNE)
    )


def fixed_pipeline(images, labels, batch_size, finish):
    """Returns batches in the order of the images, passed through `finish`."""
    steps = math.ceil(len(images) / batch_size)

    def batch(step):
        here = slice(step * batch_size, (step + 1) * batch_size)
        return finish(images[here], labels[here])

    return without_tuning(
        tf.data.Dataset.range(steps)
        .map(batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .prefetch(tf.data.AUTOTUNE)
    )
