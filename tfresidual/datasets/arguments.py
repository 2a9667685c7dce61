"""The check of an integer argument that the dataset functions share."""

import operator


def checked_integer(argument, value, minimum):
    """Returns `value` as an `int`, or raises a ValueError that names the argument.

    Args:
        argument: String, the argument's name.
        value: What was passed for it; Python and NumPy integers will do, booleans will not.
        minimum: The smallest value allowed.
    """
    wanted = {0: "a non-negative integer", 1: "a positive integer"}[minimum]
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < minimum:
        raise ValueError(f"`{argument}` must be {wanted}. Received: {argument}={value!r}")
    return number
