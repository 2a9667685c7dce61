"""The training step and inference of 9 and 54 blocks against stock Keras layers and PyTorch.

    python benchmarks/training_step.py [--blocks 9 54] [--dtypes float32 mixed_bfloat16]

Batches of 64 images of 32x32x3 (256 for inference), widths 16, 32 and 64, SGD with momentum. Above
1, tfresidual is faster. PyTorch has its tensors in the order channels last; it runs eagerly and
with `torch.compile`.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from results import Row, compared, run, timed, without_bfloat16, without_torch
from timing import in_turn

from tfresidual import networks

BATCH = 64
# Images per call of inference.
INFERENCE = 256
WIDTHS = (16, 32, 64)
OURS = "tfresidual"
OTHERS = ("stock Keras", "PyTorch", "torch.compile")


def batch(count=BATCH):
    """Returns images and labels."""
    rng = np.random.default_rng(0)
    images = tf.constant(rng.normal(size=(count, 32, 32, 3)), tf.float32)
    return images, tf.constant(rng.integers(0, 10, count), tf.int32)


def keras_step(model, count=BATCH):
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy")
    images, labels = batch(count)
    return lambda: model.train_on_batch(images, labels)


def keras_inference(model):
    images, _ = batch(INFERENCE)
    return lambda: model.predict_on_batch(images)


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


def torch_network(blocks):
    """Returns the same network in PyTorch."""
    import torch
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
    model = nn.Sequential(*layers, nn.Linear(before, 10))
    return model.to(memory_format=torch.channels_last)


def torch_step(blocks, dtype, is_compiled):
    """Returns the training step of `keras_step` in PyTorch."""
    import torch

    model = torch_network(blocks)
    network = torch.compile(model) if is_compiled else model
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    images = torch.randn(BATCH, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (BATCH,))

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "mixed_bfloat16"):
            outputs = network(images)
        loss = torch.nn.functional.cross_entropy(outputs.float(), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def torch_inference(blocks, dtype, is_compiled):
    """Returns the inference of `keras_inference` in PyTorch."""
    import torch

    model = torch_network(blocks).eval()
    network = torch.compile(model) if is_compiled else model
    images = torch.randn(INFERENCE, 3, 32, 32).to(memory_format=torch.channels_last)

    def infer():
        enabled = dtype == "mixed_bfloat16"
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            return network(images).float().softmax(-1).numpy()

    return infer


def functions_of(kind, others, blocks, dtype):
    """Returns the functions to be timed, by name, and the images of a call."""
    is_training = kind == "training step"
    of_keras = keras_step if is_training else keras_inference
    of_torch = torch_step if is_training else torch_inference
    functions = {
        OURS: of_keras(networks.resnet(2 * blocks + 2, dtype=dtype)),
        "stock Keras": of_keras(stock_network(blocks, dtype)),
    }
    for name in others:
        if name != "stock Keras":
            functions[name] = of_torch(blocks, dtype, name == "torch.compile")
    return functions, BATCH if is_training else INFERENCE


def compare(kind, blocks, dtype, rounds):
    setting = f"{blocks} blocks, {dtype}"
    reasons = {name: without_bfloat16(dtype) or without_torch(name) for name in OTHERS}
    seconds = {}
    if not all(reasons.values()):
        names = [name for name, reason in reasons.items() if not reason]
        functions, images = functions_of(kind, names, blocks, dtype)
        seconds = in_turn(functions, rounds)
    for name, values in seconds.items():
        yield timed(f"{kind}, {name}", setting, values, images)
    for name, reason in reasons.items():
        what = f"{kind}, {name} / {OURS}"
        if reason:
            yield Row(what, setting, note=reason)
        else:
            yield compared(what, setting, seconds[name], seconds[OURS])


def measure(arguments):
    for dtype in arguments.dtypes:
        for blocks in arguments.blocks:
            for kind in ("training step", "inference"):
                yield from compare(kind, blocks, dtype, arguments.rounds)
                keras.backend.clear_session()


def add_arguments(parser):
    parser.add_argument("--blocks", type=int, nargs="+", default=[9, 54])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "mixed_bfloat16"])
    parser.add_argument("--rounds", type=int, default=10)


if __name__ == "__main__":
    run(measure, add_arguments)
