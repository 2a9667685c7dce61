"""Times several functions in turn, so that a slow phase of the machine affects all of them."""

import json
import os
import statistics
import subprocess
import sys
import time


def in_turn(functions, rounds=10, calls=3, clock=time.perf_counter):
    """Times functions round by round.

    Args:
        functions: functions by name; each is called once before every measurement, untimed.
        rounds: number of measurements of each function.
        calls: number of calls per measurement.
        clock: function that returns the time in seconds, also as an array of several times.

    Returns:
        A dict from name to a list of seconds per call, one entry per round.
    """
    seconds = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(rounds):
        for name, function in functions.items():
            function()
            begun = clock()
            for _ in range(calls):
                function()
            seconds[name].append((clock() - begun) / calls)
    return seconds


def seconds_of(function):
    """Returns what a function returns, and the seconds that it took."""
    begun = time.perf_counter()
    result = function()
    return result, time.perf_counter() - begun


def printed_in_fresh_process(script, *arguments, **environment):
    """Returns what `script --serve ARGUMENTS` prints in a process of its own."""
    return subprocess.run(
        [sys.executable, script, "--serve", *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | environment,
    ).stdout


def in_fresh_process(script, *arguments):
    """Returns the last line that `printed_in_fresh_process` returns, which must be JSON."""
    return json.loads(printed_in_fresh_process(script, *arguments).splitlines()[-1])


def ratio(slow, fast):
    """Returns median, lowest and highest ratio of two lists of seconds, taken round by round."""
    ratios = sorted(a / b for a, b in zip(slow, fast, strict=True))
    return statistics.median(ratios), ratios[0], ratios[-1]


def show(label, slow, fast):
    """Prints the ratio of two lists of seconds."""
    median, low, high = ratio(slow, fast)
    print(f"  {label}: {median:.2f}x ({low:.2f} to {high:.2f})", flush=True)
