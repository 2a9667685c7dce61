"""Runs all benchmarks one after the other.

python benchmarks/run.py
"""

import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    for name in (
        "startup",
        "depth_search",
        "metrics_pass",
        "training_step",
        "backends",
        "processes",
        "gradient_coupling",
        "step_metrics",
        "routes",
        "saved_model",
        "transformers",
    ):
        print(f"== {name}", flush=True)
        subprocess.run([sys.executable, Path(__file__).with_name(f"{name}.py")], check=True)
