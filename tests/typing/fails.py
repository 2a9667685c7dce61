"""Mistakes that a type checker must find: one in every line that is marked, none elsewhere."""

import tfresidual as tfr
from tfresidual import (
    callbacks,
    datasets,
    layers,
    networks,
    plots,
    probes,
    report,
    routes,
    routing,
    training,
    tuning,
)

train, test = datasets.load("mnist")
net = networks.resnet(20)
chain = tfr.chain(net)
frame = probes.block_metrics(chain, test)

# Arguments of the wrong type
networks.resnet(20, classes="ten")  # error
networks.ResidualNetwork((32, 32, 3), "ten")  # error
networks.hauser_resnet(5.5)  # error
layers.Subsampling("32")  # error
callbacks.Readout(test, every="epoch")  # error
routes.drop(chain, 1, 2)  # error
routes.repeat_last_block("saved/net", 1, 4)  # error
training.GradientCoupling("sgd", "strong")  # error
tfr.export(net, 3)  # error
tuning.supervise("python search.py", 2, None)  # error
probes.drop_blocks(chain, test, memory_limit="1 GB")  # error

# Unknown keywords
networks.resnet(20, layuot="original")  # error
networks.wide_resnet(stem_width=8)  # error
networks.resnet101(transition="projection")  # error
datasets.load("mnist", batchsize=64)  # error
probes.readout(chain, test, times=4)  # error
plots.cosine_loss(frame, title="Cosine")  # error
tuning.depth_for(3.69, epsilom=0.1)  # error

# Positional arguments that must be given by name
networks.ResidualNetwork((32, 32, 3), 10, 3)  # error
datasets.load("mnist", 64, 3)  # error
probes.readout(chain, test, 1024)  # error
probes.block_metrics(chain, test, True)  # error
callbacks.BlockMetrics(test, 2)  # error
routing.evaluate(chain, test, [], 1024)  # error
tfr.export(net, "saved/net", False)  # error

# Missing arguments
probes.readout(chain)  # error
report.Section("Title", "Question?")  # error

# Names that do not exist
networks.ResidualNetwork((32, 32, 3), 10, layout="nothing")  # error
networks.resnet110(shortcut="none")  # error
networks.resnet(20, anchor="first")  # error
networks.InverseProblemNetwork("convolutional")  # error
layers.ResidualUnit(16, resize="crop")  # error
layers.ResidualUnit(16, multiplier="skipinit")  # error
networks.resnet(20, normalization="layer")  # error
datasets.load("mnist", pixels="0-100")  # error
training.coupling_kernel([0, 1], 0.5, "square")  # error
probes.convergence_indices(chain, test, chance="guess")  # error
plots.borderline(frame, along="images")  # error

# Results used as something else
name: str = tfr.chain(net).blocks  # error
steps: int = tfr.chain("net.keras").stages[0].exits  # error
plots.cosine_loss(frame).save("cosine_loss.png")  # error
train, held_out, test = datasets.load("mnist")  # error
train, test = datasets.load("mnist", validation=2000)  # error
text: str = routes.unperturbed(chain)  # error
depths: list[int] = tuning.depth_for(3.69)  # error
epochs: str = training.recipe("mnist").epochs  # error
blocks: int = tuning.read_search("runs/depth").plan().best  # error
