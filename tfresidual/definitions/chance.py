"""Standard errors of shares, and when an error counts as lower than that of guessing."""

import math

# Standard errors by which a number must differ from another one.
STANDARD_ERRORS = 2


def error_of_share(share: float, images: float) -> float:
    """Returns the standard error of a share, such as an error, on this number of images."""
    return math.sqrt(share * (1 - share) / images)


def noise_at(chance: float, images: float | None) -> float:
    """Returns by how much a network that guesses may be below chance on some images.

    Args:
        chance: the error of guessing.
        images: the number of images, or `None` for errors that are known without noise.
    """
    if not images:
        return 0.0
    return STANDARD_ERRORS * error_of_share(chance, images)


def is_below(error: float, chance: float, images: float | None) -> bool:
    """Returns whether an error is below that of guessing by more than noise, see `noise_at`."""
    return bool(chance - error > noise_at(chance, images))
