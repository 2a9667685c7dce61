"""The training step of 9 and 54 blocks against stock Keras layers and PyTorch, in one run.

    python benchmarks/training_step.py [--blocks 9 54] [--dtypes float32 mixed_bfloat16]

Batches of 64 images of 32x32x3, widths 16, 32 and 64, SGD with momentum. Prints seconds per step
and ratios: above 1, tfresidual is faster. PyTorch (channels last, eager) is included if it is
installed.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from timing import in_turn, show

from tfresidual import networks

BATCH = 64
WIDTHS = (16, 32, 64)


def keras_step(model):
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy")
    rng = np.random.default_rng(0)
    images = tf.constant(rng.normal(size=(BATCH, 32, 32, 3)), tf.float32)
    labels = tf.constant(rng.integers(0, 10, BATCH), tf.int32)
    return lambda: model.train_on_batch(images, labels)


def stock_network(blocks, dtype):
    """Returns the network of `networks.resnet`, built from Keras' own layers."""
    options = {"dtype": dtype, "kernel_initializer": "he_normal"}

    def convolution(width, size, strides=1):
        return keras.layers.Conv2D(width, size, strides=strides, padding="same", **options)

    def activated(state):
        return keras.layers.ReLU(dtype=dtype)(keras.layers.BatchNormalization(dtype=dtype)(state))

    inputs = keras.Input((32, 32, 3))
    state = convolution(WIDTHS[0], 3)(inputs)
    for stage, width in enumerate(WIDTHS):
        for index in range(blocks // 3):
            strides = 2 if stage and not index else 1
            branch = convolution(width, 3, strides)(activated(state))
            branch = convolution(width, 3)(activated(branch))
            shortcut = convolution(width, 1, 2)(state) if strides == 2 else state
            state = keras.layers.Add(dtype=dtype)([shortcut, branch])
    state = keras.layers.GlobalAveragePooling2D(dtype=dtype)(activated(state))
    outputs = keras.layers.Dense(10, activation="softmax", dtype="float32")(state)
    return keras.Model(inputs, outputs)


def torch_step(blocks, dtype):
    """Returns the same step of the same network in PyTorch, or `None` if it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before, width, stride):
            super().__init__()
            self.bn1, self.bn2 = nn.BatchNorm2d(before), nn.BatchNorm2d(width)
            self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1)
            self.conv2 = nn.Conv2d(width, width, 3, padding=1)
            self.project = nn.Conv2d(before, width, 1, stride) if stride == 2 else nn.Identity()

        def forward(self, state):
            branch = self.conv1(torch.relu(self.bn1(state)))
            return self.project(state) + self.conv2(torch.relu(self.bn2(branch)))

    layers, before = [nn.Conv2d(3, WIDTHS[0], 3, padding=1)], WIDTHS[0]
    for stage, width in enumerate(WIDTHS):
        for index in range(blocks // 3):
            layers.append(Block(before, width, 2 if stage and not index else 1))
            before = width
    layers += [nn.BatchNorm2d(before), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(before, 10)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    images = torch.randn(BATCH, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (BATCH,))

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "mixed_bfloat16"):
            outputs = model(images)
        loss = nn.functional.cross_entropy(outputs.float(), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def compare(blocks, dtype, rounds):
    steps = {
        "tfresidual": keras_step(networks.resnet(2 * blocks + 2, dtype=dtype)),
        "stock Keras": keras_step(stock_network(blocks, dtype)),
        "PyTorch": torch_step(blocks, dtype),
    }
    steps = {name: step for name, step in steps.items() if step is not None}
    seconds = in_turn(steps, rounds)
    print(f"{blocks} blocks, {dtype}:")
    for name, values in seconds.items():
        print(
            f"  {name}: {np.median(values):.3f} s per step, "
            f"{BATCH / np.median(values):.0f} images/s"
        )
    for name in list(steps)[1:]:
        show(f"{name} / tfresidual", seconds[name], seconds["tfresidual"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, nargs="+", default=[9, 54])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "mixed_bfloat16"])
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    for dtype in arguments.dtypes:
        for blocks in arguments.blocks:
            compare(blocks, dtype, arguments.rounds)
