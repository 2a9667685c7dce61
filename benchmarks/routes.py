"""All routes through a network: together, against one model each, and against what must be done.

    python benchmarks/routes.py [--blocks 9 54] [--images 1024] [--floor-only]

The routes of one network (widths 16, 32 and 64) on the same images (32x32x3): every single block is
dropped, every stage is read out after every block, and every stage's last block is applied 1 to 16
more times. Compared are

- the naive method, one Keras model per route (layers are shared, nothing is copied) and `predict`,
  with one call of the evaluator, both including tracing, once; the classes that both predict are
  compared for every route and every image;
- the evaluator with a lower bound (floor), on one batch of 256: the block applications that remain
  in the prefix tree, times the measured time of one block of that stage in the plain forward pass;
- the evaluator with the comparison of the unperturbed route and the network, and without it.

With `--floor-only` the first, which takes half an hour with 54 blocks, is left out. Last, every
block rounded to 8, 4 and 3 bits is compared with three times every block dropped; a block that is
rounded is applied, also if it changes the shape, and the note says how much more that is.
"""

import dataclasses
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from results import Row, compared, run
from timing import in_turn

import tfresidual as tfr
from tfresidual import networks, probes
from tfresidual.routing import evaluate, plan_of, routes
from tfresidual.routing.replacement import Replacement

BATCH = 256
REPETITIONS = 16


def all_routes(chain):
    movable = [block for block in chain.blocks if block.keeps_shape]
    return [
        *(routes.drop(chain, (block.stage, block.index)) for block in movable),
        *(routes.readout(chain, block.stage, block.index) for block in chain.blocks),
        *(
            routes.repeat_last_block(chain, stage.index, times)
            for stage in chain.stages
            for times in range(1, REPETITIONS + 1)
        ),
    ]


def naive_seconds(network, chosen, images):
    """Runs `predict` of one model per route; returns the seconds and the predicted classes."""
    stem, sections, head = network.sections()
    named = []
    begun = time.perf_counter()
    for route in chosen:
        inputs = keras.Input(network.input_shape[1:])
        layers = list(stem)
        for (transition, units), applications in zip(sections, route.stages, strict=True):
            layers += [transition] if transition is not None else []
            layers += [units[application.block] for application in applications]
        state = inputs
        for layer in [*layers, *head]:
            state = layer(state)
        outputs = keras.Model(inputs, state).predict(images, batch_size=BATCH, verbose=0)
        named.append(outputs.argmax(axis=1))
    return time.perf_counter() - begun, np.stack(named)


def naive_row(network, chain, chosen, images, labels, setting, plan):
    begun = time.perf_counter()
    values = evaluate(chain, (images, labels), chosen, with_outputs=True)
    ours = time.perf_counter() - begun
    naive, named = naive_seconds(network, chosen, images)
    others = np.count_nonzero(values.outputs.argmax(axis=-1) != named)
    return Row(
        "one model per route / evaluator, tracing counted",
        setting,
        ratio=naive / ours,
        seconds=naive,
        compared=ours,
        note=f"{plan}; {others} of {named.size} predictions differ",
    )


def stage_passes(chain, images):
    """Returns by index of the stage a compiled pass of its blocks over the images."""
    state = chain.stem(images)
    passes = {}
    for stage in chain.stages:
        if stage.transition is not None:
            state = stage.transition(state)

        def through(state, stage=stage):
            for block in stage.blocks:
                state = block(state)
            return state

        compiled = tf.function(through, autograph=False)
        passes[stage.index] = lambda compiled=compiled, state=state: compiled(state)
        state = compiled(state)
    return passes


def compare(blocks, count, rounds, floor_only):
    network = networks.resnet(2 * blocks + 2)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(count, 32, 32, 3)).astype("float32")
    labels = rng.integers(0, 10, count)
    chain = tfr.chain(network)
    chosen = all_routes(chain)
    plan = plan_of(chain, chosen)
    setting = f"{blocks} blocks, {len(chosen)} routes"
    if not floor_only:
        yield naive_row(network, chain, chosen, images, labels, f"{setting}, {count} images", plan)

    passes = stage_passes(chain, tf.constant(images[:BATCH]))
    part = images[:BATCH], labels[:BATCH]
    alone = dataclasses.replace(chain, reference=None)
    functions = {
        "evaluator": lambda: evaluate(chain, part, chosen),
        "not compared": lambda: evaluate(alone, part, chosen),
        **passes,
    }
    seconds = in_turn(functions, rounds, calls=1)
    applied = {
        stage.index: sum(
            step.operation.kind == "block" and step.operation.stage == stage.index
            for step in plan.steps
        )
        / len(stage.blocks)
        for stage in chain.stages
    }
    floor = [
        sum(seconds[index][i] * factor for index, factor in applied.items()) for i in range(rounds)
    ]
    yield compared("evaluator / floor", setting, seconds["evaluator"], floor)
    what = "evaluator with / without the comparison"
    yield compared(what, setting, seconds["evaluator"], seconds["not compared"])
    functions = {
        "rounded": lambda: probes.round_blocks(chain, (images, labels), noise=False),
        "dropped": lambda: [probes.drop_blocks(chain, (images, labels)) for _ in range(3)],
    }
    seconds = in_turn(functions, rounds, calls=1)
    what = "round_blocks with 3 numbers of bits / 3 drop_blocks"
    setting = f"{blocks} blocks, {count} images"
    row = compared(what, setting, seconds["rounded"], seconds["dropped"])
    places = [(block.stage, block.index) for block in chain.blocks]
    whole, drops = routes.unperturbed(chain), chosen[: sum(b.keeps_shape for b in chain.blocks)]
    rounds_of = [
        routes.with_weights(whole, {place: Replacement("", [], [])}, "")
        for place in places
        for _ in range(3)
    ]
    pair = plan_of(chain, rounds_of).applications, 3 * plan_of(chain, drops).applications
    note = f"{pair[0]:,} / {pair[1]:,} blocks applied: {pair[0] / pair[1]:.2f}"
    yield Row(**vars(row) | {"note": note})


def measure(arguments):
    for blocks in arguments.blocks:
        yield from compare(blocks, arguments.images, arguments.rounds, arguments.floor_only)


def add_arguments(parser):
    parser.add_argument("--blocks", type=int, nargs="+", default=[9, 54])
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--floor-only", action="store_true")


if __name__ == "__main__":
    run(measure, add_arguments)
