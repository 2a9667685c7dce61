"""What refuses an argument says which one."""

import contextlib

import pytest

from tfresidual.definitions.arguments import ArgumentError


@contextlib.contextmanager
def refused(*names):
    """Expects an error about these arguments, which says what was received."""
    with pytest.raises(ValueError, match="Received: ") as caught:
        yield caught
    error = caught.value
    if isinstance(error, ArgumentError) and error.names:
        assert set(names) <= set(error.names)
    else:
        # Keras makes new errors of those in `call`.
        assert all(f"`{name}`" in str(error) for name in names)
