"""Publishes which images the last blocks help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.callbacks.probe_callback import ProbeCallback
from tfresidual.probes import borderline
from tfresidual.probes.borderline import (
    COMPARED,
    GROUPS,
    check_arguments,
    check_next_block,
    measured_blocks,
)
from tfresidual.probes.logs import log_key

if TYPE_CHECKING:
    from tfresidual.routing import Chain
    from tfresidual.types import BorderlineGroups, Data, OnError

PUBLISHED = ("accuracy", "cross_entropy", "entropy", "images")


class Borderline(ProbeCallback):
    """Runs `tfresidual.probes.borderline` on the last blocks during `fit`.

    Publishes `"stage3/block2/borderline_accuracy"`, `".../borderline_cross_entropy"`,
    `".../borderline_entropy"` and `".../borderline_images"` (the number of images in the group)
    for each of the last blocks, and the same for the groups `correct` and `all`. With groups of the
    next block, the first of these blocks has no keys, and the others have five more for each group:
    `"stage3/block2/borderline_put_right"` and so on, see `tfresidual.probes.borderline`. All but
    the number of images are NaN for an empty group.

    Example:

    >>> probe = Borderline({"train": train.take(4), "test": test.take(4)}, every=5)
    >>> history = net.fit(train, epochs=5, callbacks=[probe], verbose=0)

    Args:
        data: the data to probe: a `tf.data.Dataset` of batches `(images, labels)`, a pair of
            arrays, or a dict of these by split name; every key then starts with the split name.
        every: int, the probe runs once every `every` epochs; the keys are NaN in the others.
        on_error: `"warn"` or `"raise"`, what happens if the probe fails later, see `ProbeCallback`.
        blocks: int, the number of last blocks to read out; in a shorter stage, all of its blocks.
        probability: float over 0, up to 1: an image is borderline if its prediction changes to or
            from the right class when less than this much probability moves between classes.
        groups: `"fixed"` for groups that are determined after the first of the last blocks,
            `"next block"` for groups that are determined before each of the others.

    Raises:
        ValueError: if `every` or `blocks` is not a positive int, or `data`, `probability` or
            `groups` cannot be used; when training begins, if the data does not fit the network, or
            it has no next block.

    Reference:
        Jastrzebski et al. 2018, https://arxiv.org/abs/1710.04773, section 4.3 and fig. 6.
    """

    runs = "borderline"

    def __init__(
        self,
        data: Data,
        *,
        every: int = 1,
        blocks: int = 5,
        probability: float = 0.1,
        groups: BorderlineGroups = "fixed",
        on_error: OnError = "warn",
    ) -> None:
        super().__init__(data, every=every, on_error=on_error)
        check_arguments(blocks, 0, probability, groups)
        self.blocks: int = blocks
        self.probability: float = probability
        self.groups: BorderlineGroups = groups

    def check(self, chain: Chain) -> None:
        super().check(chain)
        check_next_block(chain, self.groups)

    def probe(self, chain: Chain) -> dict[str, float]:
        frame = borderline(
            chain,
            self.data,
            blocks=self.blocks,
            times=0,
            probability=self.probability,
            groups=self.groups,
        )
        self.keep(borderline=frame)
        logs: dict[str, float] = {}
        for row in frame.to_dict("records"):
            place = (row["stage"], row["block"], row.get("split"))
            logs |= {
                log_key(f"{row['group']}_{name}", *place): row[name] for name in self._published()
            }
        return logs

    def keys(self, chain: Chain) -> list[str]:
        return [
            log_key(f"{group}_{name}", chain.stages[-1].index, block, split)
            for split in self.splits()
            for block in measured_blocks(chain, self.blocks, self.groups)
            for group in GROUPS
            for name in self._published()
        ]

    def _published(self):
        return PUBLISHED if self.groups == "fixed" else (*PUBLISHED, *COMPARED)
