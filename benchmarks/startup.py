"""Times what `import tfresidual` adds to `import keras`, and how long `tfresidual --help` takes.

    python benchmarks/startup.py

Every measurement starts a new process. `import keras` alone is timed in turn with both imports.
"""

import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 7


def seconds_of(command):
    begun = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begun


if __name__ == "__main__":
    beside = Path(sys.executable).with_name("tfresidual")
    commands = {
        "import keras": [sys.executable, "-c", "import keras"],
        "import keras, tfresidual": [sys.executable, "-c", "import keras, tfresidual"],
        "tfresidual --help": [
            str(beside if beside.exists() else shutil.which("tfresidual")),
            "--help",
        ],
    }
    seconds = {name: [] for name in commands}
    for _ in range(ROUNDS + 1):
        for name, command in commands.items():
            seconds[name].append(seconds_of(command))
    # The first round fills the file system's caches and does not count.
    seconds = {name: values[1:] for name, values in seconds.items()}
    for name, values in seconds.items():
        print(f"{name}: {statistics.median(values):.2f} s")
    pairs = zip(seconds["import keras, tfresidual"], seconds["import keras"], strict=True)
    print(f"added by tfresidual: {statistics.median(both - one for both, one in pairs):.2f} s")
