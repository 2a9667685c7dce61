"""What a callback does when it fails after training has begun."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tfresidual.definitions.arguments import check_choice
from tfresidual.definitions.warning import warn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tfresidual.definitions.types import OnError

ON_ERROR = ("warn", "raise")


class GoesOn:
    """A base class of callbacks whose failures do not end the training, unless `on_error` says so.

    Attributes:
        on_error: `"warn"` or `"raise"`.
        warned_of: what this training has warned of: what was lost, by errors of which class.
    """

    on_error: OnError = "warn"

    def set_on_error(self, on_error: OnError) -> None:
        """Sets what happens; raises a `ValueError` if it is none of both."""
        check_choice("on_error", on_error, ON_ERROR)
        self.on_error = on_error
        self.warned_of: set[tuple[str, type[Exception]]] = set()

    @contextlib.contextmanager
    def going_on(self, lost: str) -> Iterator[None]:
        """Turns errors in a `with` block into a warning for each cause, naming what is `lost`."""
        try:
            yield
        except Exception as error:
            if self.on_error == "raise":
                raise
            kind = lost, type(error)
            if kind not in self.warned_of:
                self.warned_of.add(kind)
                warn(
                    f"{type(self).__name__} failed, and training goes on without {lost}; "
                    f'`on_error="raise"` ends it instead. Cause: {type(error).__name__}: {error}'
                )
