"""Programs as in the README, which a type checker must accept; nothing here is run."""

import pathlib
from typing import Any

import keras
import keras_tuner
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

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
    sources,
    training,
    tuning,
)
from tfresidual.definitions.settings import ProbeOptions
from tfresidual.jobs import depth_study, probing, settings, study

# Data, a network, callbacks
train, test = datasets.load("digitclutter", batch_size=128, train_size=2000, test_size=500)
train, held_out, test = datasets.load("cifar10", validation=0.1, data_dir=pathlib.Path("data"))
datasets.set_epoch(train, 3)
error: float = datasets.describe("mnist").chance_error
config = datasets.DigitclutterConfig(digits=4)
x, z = datasets.inverse_problem(2048, slopes=(1.5, 0.75))
net: networks.ResidualNetwork = networks.resnet(
    depth=20, input_shape=(32, 32, 1), classes=10, classifier_activation="sigmoid"
)
net.compile("adam", "binary_crossentropy")
watched: list[callbacks.ProbeCallback] = [
    callbacks.BlockMetrics(test.take(2)),
    callbacks.Perturbation({"test": test.take(2)}, epsilon=0.1),
    callbacks.Readout(test, every=2),
    callbacks.ConvergenceIndices(test, chance="largest class"),
    callbacks.Lipschitz(every=5),
]
net.fit(train, validation_data=test, epochs=2, shuffle=False, callbacks=watched)
exports = callbacks.ExportForProbing("runs/series", epochs=[0, 5])
steps = callbacks.StepMetrics(images=8, every=2, csv=pathlib.Path("steps.csv"), tensorboard="logs")

# Shared blocks
once = layers.UnsharedBatchNormalization(applications=6, share=("gamma", "beta"), momentum=0.9)
repeated: keras.layers.Layer = layers.Repeated(keras.Sequential([once]), times=6)
with layers.forward_pass():
    once(np.ones((2, 3)), application=1)

# Probes
chain: routing.Chain = tfr.chain(net)
chain = sources.chain("net.keras")
frame = probes.block_metrics(chain, test, per_image=True)
figure: Figure = plots.cosine_loss(frame)
figure.savefig("cosine_loss.png", dpi=160)
probes.computational_distance(net, {"train": datasets.plain(train), "test": test})
probes.drop_blocks(chain, (np.zeros((8, 32, 32, 1)), np.zeros(8)), memory_limit=512)
probes.readout(pathlib.Path("saved/net"), test, progress=True)
probes.repeat_last_block(chain, test, times=4, scale=0.5, block_metrics=False)
route: routing.Route = routes.drop(chain, (1, 2), (3, 1))
print(route.applications + 1, route.name.upper())
probes.evaluate_routes(chain, test, [route, routes.shuffle(chain, stage=1, seed=0)])
saved: int = routing.plan_of(chain, [route]).applications
wrong: np.ndarray[Any, Any] = routing.evaluate(chain, test, [route], with_outputs=True).wrong
names: list[str | None] = [block.name for stage in chain.stages for block in stage.blocks]
exits: tuple[int, ...] = chain.stages[0].exits
probes.convergence_indices(chain, test, chance=0.9)
frames, indices = probes.convergence_frames(chain, test, at_chance="nan")
probes.trajectories(networks.InverseProblemNetwork("residual"), [[1.5, 0.75]])
plots.route_errors(
    frames["readout"], frames["drop_blocks"], frames["repeat_last_block"], chance={"test": 0.9}
)
plots.training_curves(frame, metrics=("accuracy",))

# Export
tfr.export(net, "saved/net", overwrite=True)
tfr.probes.readout(tfr.chain("saved/net"), test)

# Shared, coupled, bounded
shared = networks.resnet(depth=38, share_from=2, batch_norm="unshared")
options: dict[str, Any] = {"input_shape": (32, 32, 1), "classes": 10}
networks.resnet(depth=20, **options)
networks.hauser_resnet((2, 3, 4), widths=(8, 16, 32), layout="original")
networks.ResidualNetwork((None, None, 3), 10, shortcut=layers.ScaledShortcut(0.5), pooling=8)
networks.resnet(20, normalization=None, multiplier=layers.LayerScale(0.1), stochastic_depth=0.5)
networks.hauser_resnet(5, normalization="fixup")
unit = layers.ResidualUnit(16, normalization="fixup", blocks=54)
rate: float = layers.StochasticDepth(0.5, seed=1).rate
coupling = training.GradientCoupling(keras.optimizers.SGD(0.1), coupling=0.9, kernel="triangular")
coupling = training.GradientCoupling("sgd", coupling=0.9, groups=tfr.chain(net))
dense = [keras.layers.Dense(4), keras.layers.Dense(4)]
training.GradientCoupling("sgd", coupling=0.9, groups=[dense, [[dense[0]], (dense[1],)]])
metric: str = training.compile_network(net, "wide", epochs=10, steps_per_epoch=100, coupling=0.5)
run: training.Training = training.train(
    net, train, test, folder="runs/a", epochs=3, metric=metric, console=Console()
)
best: int = run.best_epoch
rates: tuple[tuple[int, float], ...] = training.recipe("cifar10").rates
probes.fixed_point(net, test.take(1), times=8)
bound = shared.sections()[1][0][1][0].lipschitz_bound()
if bound is not None:
    certified: float = bound["certified"]
wrapped = layers.SpectralNormalization(keras.layers.Conv2D(64, 3), bound=None)
branch = layers.Bounded([keras.layers.ReLU(), keras.layers.Dense(3)], bound=0.95)
norm: float = wrapped.lipschitz_bound()["estimate"] * branch.lipschitz_bound()["certified"]


# The depth
def build(hp: keras_tuner.HyperParameters) -> networks.ResidualNetwork:
    return networks.ResidualNetwork((32, 32, 1), 10, blocks=tuning.blocks(hp), widths=(4, 8, 16))


search = tuning.DepthSearch(
    build, epsilon=0.5, start=(2, 2, 2), max_trials=2, directory="runs", project_name="depth"
)
search.search(train, validation_data=test, epochs=1, shuffle=False)
outcome: tuning.Outcome = search.outcome()
message: str = outcome.message
if outcome.blocks is not None:
    total: int = sum(outcome.blocks)
sections: list[report.Section] = report.search_sections(search.trace(), 0.5)
page: pathlib.Path = report.write("report.html", "Depth", sections, [("blocks", "6", "")])
depth: int = tuning.depth_for(3.69, epsilon=0.1)
depths: list[int] = tuning.depth_for([4.11, 3.12])
tuning.run_workers(["python", "search.py"], 2)

# Jobs
small = settings.Settings(data="mnist", network="hauser_resnet", depth=2, layout="original")
study.run("runs/study", small, Console()).read_text()
found = depth_study.run("runs/depth", small, depth_study.SearchSettings(start=(2, 2, 2)))
status: str = found.status if found is not None else "worker"
measured, paths = probing.probe("runs/study", ["readout"], options=ProbeOptions(times=4))
first: pathlib.Path = paths[0]
