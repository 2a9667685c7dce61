"""Checks that something fits into the machine's memory before it is created."""

import pathlib

import psutil

from tfresidual.machine.backends import count_of_gpus

# Files in which Linux gives the memory limit of a container.
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# An upper bound on the memory of a GPU, which cannot be queried without allocating it.
GPU_BYTES = 512 * 2**30


class TooLargeError(ValueError):
    """Something needs more memory than the machine has.

    Attributes:
        amounts: str, how much memory is needed, and how much there is.
    """

    def __init__(self, what, amounts, received):
        super().__init__(f"{what} {amounts}. Received: {received}")
        self.amounts = amounts


def check_fits(needed, what, received):
    """Raises a `TooLargeError` if something needs more than all memory of the machine.

    Args:
        needed: int, the number of bytes needed at least.
        what: str, the arguments concerned and what needs the memory, for the error.
        received: str, the arguments as they were given, for the error.
    """
    limit = _limit()
    if needed <= limit or needed <= limit + GPU_BYTES * count_of_gpus():
        return
    amounts = f"would take at least {_shown(needed)} of memory; this machine has {_shown(limit)}"
    raise TooLargeError(what, amounts, received)


def _limit():
    """Returns the memory of the machine with its swap, or the container's limit if it is lower."""
    limits = [psutil.virtual_memory().total + psutil.swap_memory().total]
    for path in CONTAINER_LIMITS:
        try:
            limits.append(int(pathlib.Path(path).read_text()))
        except (OSError, ValueError):
            # This is not a container, or it has no limit.
            continue
    return min(limits)


def _shown(size):
    return f"{size / 2**30:,.1f} GiB"
