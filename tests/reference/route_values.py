"""Routes through networks, and what the NumPy version makes of them."""

from reference import numpy_routes
from reference.numpy_network import weights_of
from tfresidual.routing.routes import drop, readout, repeat_last_block, shuffle, swap

# Float32 against float64, and against itself with other kernels, of numbers up to about 10.
TOLERANCE = {"rtol": 1e-4, "atol": 2e-5}


def every_route(chain):
    """Every drop, read-out and kind of repetition, and one each of what is left."""
    routes = []
    for stage in chain.stages:
        movable = [block.index for block in stage.blocks if block.keeps_shape]
        routes += [drop(chain, (stage.index, block)) for block in movable]
        routes += [
            readout(chain, stage.index, block.index)
            for block in stage.blocks
            if all(later.keeps_shape for later in stage.blocks[block.index + 1 :])
        ]
        if stage.blocks[-1].keeps_shape:
            routes += [
                repeat_last_block(chain, stage.index, 1),
                repeat_last_block(chain, stage.index, 3),
                repeat_last_block(chain, stage.index, 1, 0.3),
                repeat_last_block(chain, stage.index, 3, -0.5),
            ]
        if len(movable) > 1:
            routes += [swap(chain, stage.index, *movable[-2:]), shuffle(chain, stage.index, 1)]
    movable = [(block.stage, block.index) for block in chain.blocks if block.keeps_shape]
    return [*routes, drop(chain, *movable[::2]), drop(chain, *movable)]


def expected_of(net, routes, images, labels):
    stages = [route.stages for route in routes]
    return numpy_routes.analyse(net.get_config(), weights_of(net), stages, images, labels)
