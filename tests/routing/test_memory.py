"""The bound on memory, measured in a process of its own: many blocks, batches of 256 images.

With 54 blocks all 256 images are taken at once under the default of 1024 MiB, a third of them under
256 MiB.

Not covered: memory of a GPU.
"""

import json
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.system

PROGRAM = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tfresidual as tfr
from tfresidual import networks
from tfresidual.routing import routes
from tfresidual.routing import evaluate

def mib(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

chain = tfr.chain(networks.resnet(int(sys.argv[2])))
last = len(chain.stages[0].blocks) - 1
chosen = [routes.readout(chain, block.stage, block.index) for block in chain.blocks]
chosen += [routes.drop(chain, (stage, last - 1)) for stage in (1, 2, 3)]
chosen += [routes.repeat_last_block(chain, stage, 3) for stage in (1, 2, 3)]
rng = np.random.default_rng(0)
images = rng.normal(size=(256, 32, 32, 3)).astype("float32")
labels = rng.integers(0, 10, 256)
evaluate(chain, (images[:1], labels[:1]), chosen)  # compiles
before = mib("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the highest mark starts again
values = evaluate(chain, (images, labels), chosen, memory_limit=float(sys.argv[1]))
assert values.wrong.shape == (len(chosen), 256)
print(json.dumps({"taken": mib("VmHWM") - before}))
"""


@pytest.mark.skipif(not pathlib.Path("/proc/self/clear_refs").exists(), reason="needs Linux")
@pytest.mark.parametrize(
    ("depth", "limit"),
    [
        (20, 128),
        pytest.param(110, 256, marks=pytest.mark.nightly),
        pytest.param(110, 1024, marks=pytest.mark.nightly),
    ],
)
def test_memory_stays_within_the_bound(depth, limit):
    result = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(limit), str(depth)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    taken = json.loads(result.stdout)["taken"]
    # The bound holds, and is made use of.
    assert limit / 4 < taken <= limit
