"""Searches for the depth without networks: what a stage measures follows from a law.

A law is a function from the number of measured blocks to the scaled distance. The oracle, the
tuner, its files and its wire format are keras-tuner's.
"""

import dataclasses
import math
from decimal import Decimal

import keras_tuner
import numpy as np
from keras_tuner.src import protos
from keras_tuner.src.distribute.oracle_chief import OracleServicer
from keras_tuner.src.engine.trial import Trial

from tfresidual.tuning import DepthOracle, blocks
from tfresidual.tuning.proposals import Measurement, plan


def constant(distance):
    return lambda depth: distance


def power(distance, exponent=-1.0):
    return lambda depth: distance * depth**exponent


def saturating(distance, scale):
    return lambda depth: -distance * math.expm1(-depth / scale)


def hyperbolic(distance, scale):
    return lambda depth: distance * depth / (depth + scale)


def tanh(distance, scale):
    return lambda depth: distance * math.tanh(depth / scale)


def proportional(slope):
    return lambda depth: slope * depth


# By name, a function from a random generator to a law: what the laws' constants are drawn from.
RANDOM_LAWS = {
    "constant": lambda rng: constant(rng.uniform(0.2, 12)),
    "inverse": lambda rng: power(rng.uniform(1, 200)),
    "saturating": lambda rng: saturating(rng.uniform(1, 10), rng.uniform(1, 15)),
    "hyperbolic": lambda rng: hyperbolic(rng.uniform(1, 10), rng.uniform(1, 15)),
    "tanh": lambda rng: tanh(rng.uniform(1, 10), rng.uniform(1, 15)),
    "power": lambda rng: power(rng.uniform(1, 5), rng.uniform(-1, 0.5)),
}


def single(number):
    """A number as single precision prints it: so it is reported, whoever measured it."""
    return float(str(np.float32(number)))


@dataclasses.dataclass(frozen=True)
class Stages:
    """What all stages of a network measure, whatever its depths.

    Attributes:
        laws: tuple of functions, one per stage.
        offsets: tuple of ints, the blocks of each stage that are not measured; `None` for 0.
        noise: float, the standard deviation of a distance as a share of it. The same setting
            measures the same.
        seed: int, of the noise.
        deepest: int, the most blocks, in all, that can be trained; `None` for any.
    """

    laws: tuple
    offsets: tuple | None = None
    noise: float = 0.0
    seed: int = 0
    deepest: int | None = None

    def can_be_trained(self, setting):
        return self.deepest is None or sum(setting) <= self.deepest

    def measurements(self, setting):
        factors = np.ones(len(setting))
        if self.noise:
            rng = np.random.default_rng([self.seed, *setting])
            factors += self.noise * rng.standard_normal(len(setting))
        measured = []
        offsets = self.offsets or (0,) * len(setting)
        for depth, offset, law, factor in zip(setting, offsets, self.laws, factors, strict=True):
            counted = max(depth - offset, 0)
            distance = single(max(0.0, float(law(counted) * factor))) if counted else 0.0
            measured.append(Measurement(depth, counted, distance))
        return measured

    def metrics(self, setting):
        """What a trial reports, as `DepthSearch.run_trial` does."""
        reported = {"blocks": float(sum(setting)), "seconds": 2.5, "error": 1 / sum(setting)}
        for stage, m in enumerate(self.measurements(setting), start=1):
            reported[f"stage{stage}/blocks"] = float(m.counted)
            reported[f"stage{stage}/distance"] = 30 * m.distance
            reported[f"stage{stage}/scaled_distance"] = m.distance
            if m.counted:
                reported[f"stage{stage}/mean_perturbation"] = 30 * m.distance / m.counted
                reported[f"stage{stage}/mean_scaled_perturbation"] = m.distance / m.counted
        return reported

    def meets(self, setting, epsilon):
        """Whether every stage meets the rule at a setting, in exact decimals."""
        return all(
            m.counted > 0 and Decimal(str(m.distance)) <= m.counted * Decimal(str(float(epsilon)))
            for m in self.measurements(setting)
        )

    def answer(self, epsilon, largest=128, smallest=1):
        """The smallest depth of every stage that meets the rule, by trying all; `None` for none."""
        found = []
        for place in range(len(self.laws)):
            alone = Stages((self.laws[place],), self.offsets and (self.offsets[place],))
            depths = range(smallest, largest + 1)
            found.append(next((d for d in depths if alone.meets((d,), epsilon)), None))
        return tuple(found)


def stages_of(*laws, **kwargs):
    return Stages(laws, **kwargs)


def follow_plan(stages, start, epsilon=0.1, limits=None, tolerance=0, most=300):
    """Does what `plan` says until it says no more.

    Returns:
        The last `Plan` and the settings in their order.
    """
    limits = limits or [(1, 128)] * len(start)
    measured, failed, settings = [], [], []
    while True:
        planned = plan(measured, failed, start, limits, epsilon, tolerance)
        if planned.status != "searching":
            return planned, settings
        setting = planned.proposals[0]
        if setting in settings:
            raise AssertionError(f"{setting} a second time, after {settings}")
        settings.append(setting)
        if len(settings) > most:
            raise AssertionError(f"no end, after {settings}")
        if stages.can_be_trained(setting):
            measured.append(stages.measurements(setting))
        else:
            failed.append(setting)


class SyntheticSearch(keras_tuner.Tuner):
    """A tuner whose trials measure what laws say.

    Args:
        oracle: a `DepthOracle`.
        stages: `Stages`, or a function from the values of a trial's hyperparameters to them.
        interrupt_at: int, the trial, from 0, in which Ctrl-C is pressed, or `None`.
        **kwargs: `directory` and others of `keras_tuner.Tuner`.
    """

    def __init__(self, oracle, stages, interrupt_at=None, **kwargs):
        self.stages = stages if callable(stages) else lambda values: stages
        self.interrupt_at = interrupt_at
        self.ran = []
        super().__init__(oracle, **kwargs)

    def run_trial(self, trial, *args, **kwargs):
        if len(self.ran) == self.interrupt_at:
            raise KeyboardInterrupt
        setting = blocks(trial.hyperparameters)
        self.ran.append(setting)
        stages = self.stages(trial.hyperparameters.values)
        if not stages.can_be_trained(setting):
            raise MemoryError(f"{setting} blocks are too many")
        return stages.metrics(setting)


def quiet_oracle(folder, start=(4,), **kwargs):
    """A `DepthOracle` that prints nothing, in `folder/search`."""
    oracle = DepthOracle(start, **kwargs)
    oracle.verbose = 0
    oracle.place_in(folder / "search")
    return oracle


def search(folder, stages, start=(4,), hypermodel=None, interrupt_at=None, **kwargs):
    """Searches in `folder/search`, or resumes there; returns the tuner."""
    own = {name: kwargs.pop(name) for name in ("overwrite",) if name in kwargs}
    oracle = quiet_oracle(folder, start, **kwargs)
    tuner = SyntheticSearch(
        oracle,
        stages,
        interrupt_at,
        hypermodel=hypermodel,
        directory=str(folder),
        project_name="search",
        **own,
    )
    tuner.search(verbose=0)
    return tuner


class Wire:
    """The oracle as a worker sees it: every call goes through a chief's serialised messages.

    Of the chief, only the network is left out.
    """

    def __init__(self, oracle):
        self.servicer = OracleServicer(oracle)
        self.messages = protos.get_service()

    def create_trial(self, tuner_id):
        request = self.messages.CreateTrialRequest(tuner_id=tuner_id)
        return Trial.from_proto(self._answer("CreateTrial", request).trial)

    def update_trial(self, trial_id, metrics, step=0):
        request = self.messages.UpdateTrialRequest(trial_id=trial_id, metrics=metrics, step=step)
        return Trial.from_proto(self._answer("UpdateTrial", request).trial)

    def end_trial(self, trial):
        self._answer("EndTrial", self.messages.EndTrialRequest(trial=trial.to_proto()))

    def get_trial(self, trial_id):
        request = self.messages.GetTrialRequest(trial_id=trial_id)
        return Trial.from_proto(self._answer("GetTrial", request).trial)

    def _answer(self, method, request):
        request = type(request).FromString(request.SerializeToString())
        response = getattr(self.servicer, method)(request, None)
        return type(response).FromString(response.SerializeToString())


def report(oracle, trial, stages):
    """A worker's report on a trial that it has trained, and the trial's end."""
    oracle.update_trial(trial.trial_id, stages.metrics(blocks(trial.hyperparameters)))
    end(oracle, trial, "COMPLETED")


def end(oracle, trial, status):
    trial.status = status
    oracle.end_trial(trial)


def follow(oracle, stages, tuner_id="a", most=300):
    """Asks for trials and reports them until there are no more; returns their settings."""
    settings = []
    while len(settings) < most:
        trial = oracle.create_trial(tuner_id)
        if trial.status != "RUNNING":
            return settings
        settings.append(blocks(trial.hyperparameters))
        if stages.can_be_trained(settings[-1]):
            report(oracle, trial, stages)
        else:
            end(oracle, trial, "FAILED")
    raise AssertionError(f"no end, after {settings}")


def depths_of(oracle):
    """The settings of all trials in the order in which they began."""
    return [blocks(trial.hyperparameters) for trial in oracle.in_order()]
