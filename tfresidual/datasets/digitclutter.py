"""Digitclutter: images of several digits that occlude one another and must all be named.

The images are drawn by this module with Pillow and stored by tensorflow-datasets:

```python
import tensorflow_datasets as tfds
import tfresidual.datasets.digitclutter

data = tfds.load("digitclutter/digits3-200-20-20-seed0", split="train", data_dir="data")
```
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
import tensorflow_datasets as tfds
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console

from tfresidual.definitions.arguments import check_choice, check_int
from tfresidual.machine.console import progress_bar, redirected
from tfresidual.machine.locks import locked

if TYPE_CHECKING:
    from typing import Any, Literal

    from tfresidual.definitions.types import Array, StrPath

__all__ = ["Digitclutter", "DigitclutterConfig", "Scene", "builder", "draw", "sample_scene"]

CANVAS = 512  # pixels; the side of the square on which an image is designed
SIZE = 32  # pixels; the side of the image that is kept
BACKGROUND, FACE, OUTLINE = 119, 0, 255  # grey levels
OUTLINE_WIDTH = 20  # pixels of the canvas
FONT_SIZE = 384  # pixels of the canvas
HORIZONTAL = 0.29  # offsets are uniform in +-0.29 of the width ...
VERTICAL = 0.19  # ... and in 0.076 +- 0.19 of the height
VERTICAL_SHIFT = 0.076
# Offsets are measured from the middle of the canvas to the middle of a digit's line of text. The
# height of this middle above the baseline differs between fonts. The shift of 0.076 is made for
# Helvetica Bold, whose line extends from 0.77 above the baseline to 0.23 below: it moves the digits
# to the middle of the canvas, so that +-0.19 then takes them just to its edges. Therefore the
# middle of that line is used here.
MIDDLE = 0.27  # of the font size, above the baseline

SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Scene:
    """Content of an image.

    Attributes:
        digits: Digits from 0 to 9 in the order in which they are painted, the last one on top.
        offsets: For each digit, how far to the right of and below the middle of the canvas its own
            middle is, in pixels of the 512x512 canvas.
    """

    digits: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]


def sample_scene(
    index: int,
    digits: int = 3,
    split: Literal["train", "validation", "test"] = "train",
    seed: int = 0,
) -> Scene:
    """Samples the content of an image, which depends only on the arguments.

    Every choice of different digits is equally likely. Offsets are uniform, horizontally in +-0.29
    and vertically in 0.076 +- 0.19 of the canvas, rounded to pixels.

    Args:
        index: Integer, the index of the image in its split, from 0.
        digits: Integer from 1 to 10, the number of different digits on the image.
        split: `"train"`, `"validation"` or `"test"`.
        seed: Non-negative integer.
    """
    check_choice("split", split, SPLITS)
    # The raw bits of a generator are the same in every version of NumPy; its distributions may
    # differ.
    bits = np.random.PCG64(np.random.SeedSequence([seed, digits, SPLITS.index(split), index]))
    uniform = (bits.random_raw(10 + 2 * digits) >> 11) * 2.0**-53
    chosen = np.argsort(uniform[:10])[:digits]
    right, down = 2 * uniform[10:].reshape(2, digits) - 1
    offsets = np.stack([HORIZONTAL * right, VERTICAL_SHIFT + VERTICAL * down], axis=1)
    pixels = np.rint(offsets * CANVAS).astype(int)
    return Scene(tuple(chosen.tolist()), tuple(map(tuple, pixels.tolist())))


def draw(scene: Scene) -> Array:
    """Draws a scene on the 512x512 canvas, averaged over 16x16 areas to uint8 `[32, 32, 1]`."""
    canvas = Image.new("L", (CANVAS, CANVAS), BACKGROUND)
    for digit, (right, down) in zip(scene.digits, scene.offsets, strict=True):
        ink, shape, left, top = _stamp(digit)
        canvas.paste(ink, (left + right, top + down), shape)
    return np.asarray(canvas.reduce(CANVAS // SIZE))[..., None]


@functools.cache
def _stamp(digit):
    """Returns ink, opacity and top left corner of a digit in the middle of the canvas."""
    path = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans-Bold.ttf")
    font = ImageFont.truetype(path, FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)
    place = (CANVAS // 2, CANVAS // 2 + round(MIDDLE * FONT_SIZE))
    ink = Image.new("L", (CANVAS, CANVAS), OUTLINE)
    ImageDraw.Draw(ink).text(place, str(digit), fill=FACE, font=font, anchor="ms")
    shape = Image.new("L", (CANVAS, CANVAS), 0)
    ImageDraw.Draw(shape).text(
        place, str(digit), fill=255, font=font, anchor="ms", stroke_width=OUTLINE_WIDTH
    )
    box = shape.getbbox()
    return ink.crop(box), shape.crop(box), box[0], box[1]


@dataclasses.dataclass(eq=False, kw_only=True)
class DigitclutterConfig(tfds.core.BuilderConfig):
    """Configuration of the images to draw.

    The name is derived from the other fields, for example `digits3-20000-2000-2000-seed0` (the
    sizes are those of train, validation and test). Image i of a split depends only on the split,
    the seed, `digits` (3, 4 or 5) and i, so that a smaller split is the beginning of a larger one.
    """

    name: str = dataclasses.field(init=False)
    digits: int = 3
    train_size: int = 20_000
    validation_size: int = 2_000
    test_size: int = 2_000
    seed: int = 0

    def __post_init__(self) -> None:
        self.digits = check_int("digits", self.digits, at_least=3, at_most=5)
        sizes = f"{self.train_size}-{self.validation_size}-{self.test_size}"
        self.name = f"digits{self.digits}-{sizes}-seed{self.seed}"
        self.description = (
            f"{self.digits} digits per image; {self.train_size} images to train on, "
            f"{self.validation_size} to validate, {self.test_size} to test; seed {self.seed}."
        )

    @classmethod
    def from_name(cls, name: str) -> DigitclutterConfig | None:
        """Returns the config of that name, or None if there is no such config."""
        numbers = re.fullmatch(r"digits(\d+)-(\d+)-(\d+)-(\d+)-seed(\d+)", name)
        if numbers is None:
            return None
        fields = ("digits", "train_size", "validation_size", "test_size", "seed")
        try:
            config = cls(**dict(zip(fields, map(int, numbers.groups()), strict=True)))
        except ValueError:
            return None
        return config if config.name == name else None


class Digitclutter(tfds.core.GeneratorBasedBuilder):
    """Images of digits that occlude one another, drawn on this machine without a download.

    A config is given as a `DigitclutterConfig` or by its name. Besides the listed configs, any name
    of the form `digits{n}-{train}-{validation}-{test}-seed{seed}` is accepted. Several processes
    may prepare the same data at once: one draws it, and the others wait.

    Reference:
        - [Spoerer et al., 2017](https://doi.org/10.3389/fpsyg.2017.01551)
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First version."}  # noqa: RUF012
    BUILDER_CONFIGS = [  # noqa: RUF012
        DigitclutterConfig(
            digits=digits, train_size=train_size, validation_size=held_out, test_size=held_out
        )
        for train_size, held_out in ((20_000, 2_000), (100_000, 10_000), (8_192, 10_000))
        for digits in (3, 4, 5)
    ]

    def __init__(self, *, config: DigitclutterConfig | str | None = None, **kwargs: Any) -> None:
        if isinstance(config, DigitclutterConfig):
            config = config.name
        super().__init__(config=config, **kwargs)

    @classmethod
    def get_builder_config(cls, name: str, version: Any = None) -> DigitclutterConfig | None:
        """Returns the config of that name, listed or not, or None if there is no such config."""
        return super().get_builder_config(name, version) or DigitclutterConfig.from_name(name)

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description=(
                "Grey images of several digits at random places, black with a white outline, the "
                "later ones covering the earlier ones. The task is to name all digits."
            ),
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(SIZE, SIZE, 1), encoding_format="png"),
                    "digits": tfds.features.Sequence(
                        tfds.features.ClassLabel(num_classes=10), length=self.builder_config.digits
                    ),
                }
            ),
            supervised_keys=("image", "digits"),
            homepage="https://doi.org/10.3389/fpsyg.2017.01551",
            disable_shuffling=True,  # so that the files keep the order of the images
        )

    def download_and_prepare(self, **kwargs: Any) -> None:
        """Draws and writes the images unless they exist. The arguments are those of tfds."""
        if self.data_path.exists():
            super().download_and_prepare(**kwargs)
            return
        versions = Path(self.data_path).parent
        with locked(versions.parent, "data_dir", wait=True):
            for abandoned in versions.glob(f"incomplete.*_{self.version}"):
                shutil.rmtree(abandoned)
            with self._progress():
                super().download_and_prepare(**kwargs)
            if not self.info.splits:  # another process wrote them while this one waited
                self.info.read_from_directory(self.data_path)

    @contextlib.contextmanager
    def _progress(self):
        """Shows the number of images drawn, and hides messages about a download."""
        sizes = [getattr(self.builder_config, f"{split}_size") for split in SPLITS]
        description, nothing = f"Drawing {self.builder_config.name}", io.StringIO()
        # The stream as it is now: stderr is redirected while the bar is shown.
        console = Console(file=sys.stderr)
        with (
            progress_bar(description, sum(sizes), console) as self._drawn,
            redirected(nothing, nothing),
        ):
            yield

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in SPLITS}

    def _generate_examples(self, split):
        config = self.builder_config
        for index in range(getattr(config, f"{split}_size")):
            scene = sample_scene(index, config.digits, split, config.seed)
            self._drawn()
            yield index, {"image": draw(scene), "digits": scene.digits}


def builder(
    digits: int, train_size: int, validation_size: int, test_size: int, data_dir: StrPath | None
) -> Digitclutter:
    """Returns the builder of the images that `load` asks for."""
    config = DigitclutterConfig(
        digits=digits,
        train_size=train_size,
        # At least as many as test images, so that requesting them later does not redraw everything.
        validation_size=max(validation_size, test_size),
        test_size=test_size,
    )
    return Digitclutter(config=config, data_dir=data_dir)
