"""What something would take of the machine's memory, before it is made."""

import pathlib

import psutil
import tensorflow as tf

# Where Linux says how much a container may take.
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# How much memory a GPU has cannot be asked without taking it. None has more.
GPU_BYTES = 512 * 2**30


class TooLargeError(ValueError):
    """Something takes more memory than the machine has.

    Attributes:
        amounts: str, how much it takes, and how much there is.
    """

    def __init__(self, what, amounts, received):
        super().__init__(f"{what} {amounts}. Received: {received}")
        self.amounts = amounts


def check_fits(needed, what, received):
    """Raises a `TooLargeError` if something takes more than all memory of the machine.

    Args:
        needed: int, the bytes that it takes at least.
        what: str, the arguments and what it is that takes them, for the error.
        received: str, the arguments as they were given.
    """
    limit = _limit()
    if needed <= limit or needed <= limit + GPU_BYTES * len(tf.config.list_physical_devices("GPU")):
        return
    amounts = f"would take {_shown(needed)} of memory or more, and this machine has {_shown(limit)}"
    raise TooLargeError(what, amounts, received)


def _limit():
    """The memory of the machine, or of the container, and what it can swap."""
    limits = [psutil.virtual_memory().total + psutil.swap_memory().total]
    for path in CONTAINER_LIMITS:
        try:
            limits.append(int(pathlib.Path(path).read_text()))
        except (OSError, ValueError):
            # There is no container, or it has no limit.
            continue
    return min(limits)


def _shown(size):
    return f"{size / 2**30:,.1f} GiB"
