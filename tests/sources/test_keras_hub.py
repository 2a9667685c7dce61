"""Models of keras-hub, built small; what is found in all of them is what docs/keras_hub.md says.

keras-hub writes its networks with layers and with custom layers; the latter are opened.
"""

import keras
import numpy as np
import pytest

import tfresidual as tfr
from tfresidual import probes

pytest.importorskip("keras_hub")

from sources import hub_table, zoo

pytestmark = [pytest.mark.eager, pytest.mark.filterwarnings("ignore::UserWarning")]

ROWS = hub_table.read()
IN_EVERY_RUN, IN_SYSTEM = ("BertBackbone", "ResNetBackbone"), ("GPT2CausalLM", "ViTBackbone")


def test_the_page_is_made_from_the_table():
    text = hub_table.PAGE.read_text(encoding="utf-8")
    assert hub_table.page(ROWS, text) == text


def test_no_chain_differs_from_its_model():
    assert {row["equal"] for row in ROWS.values() if row["blocks"]} == {"yes"}


@pytest.mark.nightly
def test_there_is_a_row_for_every_class():
    """A new version of keras-hub needs configurations in zoo.py."""
    assert list(zoo.classes()) == list(ROWS)


def marks_of(name):
    if name in IN_EVERY_RUN:
        return []
    return [pytest.mark.system if name in IN_SYSTEM else pytest.mark.nightly]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [pytest.param(n, marks=marks_of(n)) for n in zoo.classes()])
def test_what_is_found(name):
    row = hub_table.row_of(name)
    assert {column: row[column] for column in hub_table.STABLE} == {
        column: ROWS[name][column] for column in hub_table.STABLE
    }


def built(name):
    model = zoo.build(name)
    return zoo.with_one_output(model)[0], zoo.inputs_of(name, model)


@pytest.mark.system
def test_words_that_are_masked_are_no_positions():
    """As many of them as the sequence has positions, of which some are padding."""
    model, inputs = built("BertMaskedLM")
    shape = inputs["mask_positions"].shape
    assert shape == inputs["padding_mask"].shape
    assert not inputs["padding_mask"].all()
    labels = np.random.default_rng(2).integers(0, zoo.VOCABULARY, shape)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    expected = loss(labels, model.predict(inputs, verbose=0))
    for source in (model, keras.Model(model.input, model.output)):
        chain = tfr.chain(source, inputs=inputs, positions=False)
        assert len(probes.drop_blocks(chain, (inputs, labels))) == 4
        last = probes.lens(chain, (inputs, labels))["cross_entropy"].iloc[-1]
        assert last == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.system
@pytest.mark.compiled
def test_probes_and_export_of_a_classifier(tmp_path):
    model, images = built("ResNetImageClassifier")
    data = images, np.arange(len(images))
    frame = probes.drop_blocks(model, data)
    assert frame["error"].notna().sum() == sum(b.keeps_shape for b in tfr.chain(model).blocks)
    tfr.export(model, tmp_path / "saved")
    again = probes.drop_blocks(tmp_path / "saved", data)
    np.testing.assert_allclose(again["cross_entropy"], frame["cross_entropy"], rtol=1e-6)
