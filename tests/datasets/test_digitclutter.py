"""Digitclutter: geometry against a slow second renderer, randomness, preparing on the disk.

Not covered: file systems that ignore locks.
"""

from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont
from refusals import refused

from tfresidual.datasets import Digitclutter, DigitclutterConfig
from tfresidual.datasets.digitclutter import Scene, draw, sample_scene

FONT = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans-Bold.ttf"


def full_size(scene):
    """The scene at 512x512, by stroked text; the middle of a line of Helvetica is its middle."""
    font = ImageFont.truetype(str(FONT), 384)
    image = Image.new("L", (512, 512), 119)
    pen = ImageDraw.Draw(image)
    baseline = 256 + 384 * (0.77 - 0.23) / 2
    stroke = {"stroke_width": 20, "stroke_fill": 255}
    for digit, (right, down) in zip(scene.digits, scene.offsets, strict=True):
        place = (256 + right, round(baseline) + down)
        pen.text(place, str(digit), font=font, anchor="ms", fill=0, **stroke)
    return np.asarray(image, np.float64)


def area_averages(image):
    averages = np.empty((32, 32))
    for row in range(32):
        for column in range(32):
            area = image[16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
            averages[row, column] = area.sum() / 256
    return averages


def prepared(folder, **sizes):
    sizes = {"train_size": 12, "validation_size": 4, "test_size": 4} | sizes
    builder = Digitclutter(config=DigitclutterConfig(**sizes), data_dir=folder)
    builder.download_and_prepare()
    return builder


def contents(builder, split):
    batch = next(builder.as_dataset(split=split).batch(10_000).as_numpy_iterator())
    return batch["image"], batch["digits"]


@pytest.mark.parametrize("digits", [1, 3, 4, 5])
def test_images_agree_with_stroked_text_and_area_averages(digits):
    for index in range(8):
        scene = sample_scene(index, digits)
        image = draw(scene)
        assert image.shape == (32, 32, 1)
        assert image.dtype == np.uint8
        np.testing.assert_allclose(image[..., 0], area_averages(full_size(scene)), atol=1.5)


@pytest.mark.parametrize("digits", [3, 4, 5])
def test_digits_and_offsets_are_equally_likely(digits):
    scenes = [sample_scene(index, digits) for index in range(2000)]
    offsets = np.array([scene.offsets for scene in scenes])
    right, down = offsets[..., 0].ravel() / 512, offsets[..., 1].ravel() / 512 - 0.076
    for values, limit in ((right, 0.29), (down, 0.19)):
        assert np.abs(values).max() <= limit + 1 / 512
        assert values.max() > 0.98 * limit and values.min() < -0.98 * limit
        assert abs(values.mean()) < 0.03 * limit
        assert values.std() == pytest.approx(limit / np.sqrt(3), rel=0.03)
    drawn = np.array([scene.digits for scene in scenes])
    assert drawn.shape == (2000, digits)
    assert all(len(set(row)) == digits for row in drawn.tolist())
    for place in range(digits):
        counts = np.bincount(drawn[:, place], minlength=10)
        assert counts.min() > 140 and counts.max() < 260


def test_a_scene_depends_on_all_of_its_arguments_and_nothing_else():
    # The same in every version.
    assert sample_scene(0) == Scene((8, 9, 4), ((121, -16), (12, 116), (33, 30)))
    scene = sample_scene(7, 3, "train", 0)
    np.random.seed(1)  # noqa: NPY002
    assert sample_scene(7, 3, "train", 0) == scene
    others = [(8, 3, "train", 0), (7, 3, "test", 0), (7, 3, "validation", 0), (7, 3, "train", 1)]
    assert all(sample_scene(*other) != scene for other in others)
    assert sample_scene(7, 4, "train", 0).digits[:3] != scene.digits


def test_prepared_images_are_the_scenes_in_their_order(tmp_path):
    # A smaller set is the beginning of a larger one.
    small = prepared(tmp_path, digits=4, seed=5)
    large = prepared(tmp_path, digits=4, seed=5, train_size=30, test_size=9)
    sizes = {"train": (12, 30), "validation": (4, 4), "test": (4, 9)}
    for split, counts in sizes.items():
        for builder, count in zip((small, large), counts, strict=True):
            images, digits = contents(builder, split)
            scenes = [sample_scene(index, 4, split, 5) for index in range(count)]
            np.testing.assert_array_equal(digits, [scene.digits for scene in scenes])
            np.testing.assert_array_equal(images, [draw(scene) for scene in scenes])


def test_refused():
    with refused("split"):
        sample_scene(0, split="all")
    with refused("digits"):
        DigitclutterConfig(digits=6)


def test_what_a_killed_process_left_is_cleared_away(tmp_path):
    abandoned = tmp_path / "digitclutter" / "digits3-12-4-4-seed0" / "incomplete.ABC123_1.0.0"
    abandoned.mkdir(parents=True)
    (abandoned / "digitclutter-train.tfrecord-00000-of-00001").write_bytes(b"half of an image")
    assert len(contents(prepared(tmp_path), "train")[0]) == 12
    assert not abandoned.exists()
