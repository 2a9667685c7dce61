"""Times several things in turn, so that a machine that slows down slows all of them."""

import statistics
import time


def in_turn(functions, rounds=10, calls=3):
    """Times functions round by round.

    Args:
        functions: functions by name; each is called once unmeasured before every measurement.
        rounds: how often each is measured.
        calls: calls in one measurement.

    Returns:
        For every name the list of seconds a call took, one per round.
    """
    seconds = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(rounds):
        for name, function in functions.items():
            function()
            begun = time.perf_counter()
            for _ in range(calls):
                function()
            seconds[name].append((time.perf_counter() - begun) / calls)
    return seconds


def ratio(slow, fast):
    """Median, lowest and highest of the ratio of two lists of seconds, round by round."""
    ratios = sorted(a / b for a, b in zip(slow, fast, strict=True))
    return statistics.median(ratios), ratios[0], ratios[-1]


def show(label, slow, fast):
    """Prints a ratio."""
    median, low, high = ratio(slow, fast)
    print(f"  {label}: {median:.2f}x ({low:.2f} to {high:.2f})", flush=True)
