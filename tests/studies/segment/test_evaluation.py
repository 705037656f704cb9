"""Scores against a confusion matrix that numpy counts."""

import numpy
import pytest
import torch

from legato.errors import InputError
from legato.studies.segment.data import IGNORE, InMemory, Sample
from legato.studies.segment.evaluation import (
    Score,
    evaluate,
    milliseconds,
    predictor,
    same_size,
    score,
    score_labels,
)


class Several(InMemory):
    """Images of three sizes with random labels, class 3 nowhere."""

    def __init__(self, count=11):
        rng = torch.Generator().manual_seed(0)
        self.samples = []
        for index in range(count):
            size = ((6, 8), (8, 6), (5, 5))[index % 3]
            labels = torch.randint(3, size, generator=rng, dtype=torch.uint8)
            labels[torch.rand(size, generator=rng) < 0.2] = IGNORE
            image = torch.randint(256, (3, *size), generator=rng, dtype=torch.uint8)
            self.samples.append(Sample(image, labels, f"image-{index}"))
        self.names = [sample.name for sample in self.samples]
        self.class_names = ("a", "b", "c", "d")

    def __getitem__(self, index):
        return self.samples[index]


@pytest.fixture(scope="module")
def several():
    return Several()


def by_colour(image):
    """Some label for each pixel, 0 to 2."""
    return (3 * image.mean(1)).long().clamp(max=2)


def counted(data, classes):
    matrix = numpy.zeros((classes, classes), int)
    for sample in data.samples:
        found = by_colour(sample.image[None].float() / 255)[0].numpy()
        for truth, label in zip(sample.labels.numpy().flat, found.flat, strict=True):
            if truth != IGNORE:
                matrix[truth, label] += 1
    return matrix


def test_against_a_count_by_hand(several):
    keep = {}
    found = score(by_colour, several, 4, batch=3, keep=keep)
    matrix = counted(several, 4)
    right = numpy.diag(matrix)
    assert found.images == 11
    assert found.accuracy == pytest.approx(100 * right.sum() / matrix.sum())
    iou = [right[k] / (matrix[k].sum() + matrix[:, k].sum() - right[k]) for k in range(3)]
    assert found.iou_per_class[:3] == pytest.approx([100 * x for x in iou])
    assert found.iou_per_class[3] is None  # neither there nor predicted: counts for nothing
    assert found.iou == pytest.approx(100 * numpy.mean(iou))
    assert set(keep) == set(several.names)
    for sample in several.samples:
        assert torch.equal(keep[sample.name], by_colour(sample.image[None] / 255)[0].byte())
    again = score_labels(keep, several)
    assert again.accuracy == pytest.approx(found.accuracy)
    assert again.iou == pytest.approx(found.iou)


def test_torchmetrics_in_training_agree(several):
    from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

    accuracy = MulticlassAccuracy(3, average="micro", ignore_index=IGNORE)
    iou = MulticlassJaccardIndex(3, average="macro", ignore_index=IGNORE)
    for sample in several.samples:
        labels = by_colour(sample.image[None] / 255)
        accuracy.update(labels, sample.labels[None].long())
        iou.update(labels, sample.labels[None].long())
    found = score(by_colour, several, 3)
    assert 100 * float(accuracy.compute()) == pytest.approx(found.accuracy, rel=1e-5)
    assert 100 * float(iou.compute()) == pytest.approx(found.iou, rel=1e-5)


def test_batches_hold_one_size_and_every_image_once(several):
    batches = list(same_size(several, 2))
    assert sorted(s.name for batch in batches for s in batch) == sorted(several.names)
    for batch in batches:
        assert len({s.labels.shape for s in batch}) == 1
    assert max(map(len, batches)) == 2


def of_rows(*rows: list[int]) -> torch.Tensor:
    return torch.tensor([rows])


def test_perfect_and_useless():
    assert Score.of(of_rows([3, 0], [0, 4], [0, 0])).iou == 100
    useless = Score(0.0, 0.0, (0.0, 0.0), 1, 0.0, 0.0, 0.0)
    assert Score.of(of_rows([0, 3], [4, 0], [0, 0])) == useless


def test_four_ways_to_average():
    """Two images: one all right, with 2 pixels of unknown truth called class 0; one half right."""
    two = torch.tensor([[[6, 0], [0, 2], [2, 0]], [[1, 1], [0, 0], [0, 0]]])
    found = Score.of(two)
    assert found.accuracy == pytest.approx(90.0)
    assert found.iou == pytest.approx(100 * (7 / 8 + 2 / 3) / 2)
    assert found.iou_of_images == pytest.approx(100 * (1 + (1 / 2 + 0) / 2) / 2)
    assert found.iou_of_present == pytest.approx(100 * (1 + 1 / 2) / 2)  # class 1 is not there
    assert found.iou_with_unknown == pytest.approx(100 * (7 / 10 + 2 / 3) / 2)


def test_no_labelled_pixel():
    with pytest.raises(InputError, match="no labelled pixel"):
        Score.of(torch.zeros(4, 4, 3))


def test_a_model(study, straight):
    keep = {}
    found = evaluate(straight[1], study.data, 3, keep=keep)
    one = study.data[2]
    with torch.no_grad():
        labels = straight[1](one.image[None] / 255).argmax(1)[0]
    assert torch.equal(keep[one.name], labels.byte())
    assert found.images == len(study.data)
    assert not straight[1].training


def test_mixed_precision_reaches_the_network(study, straight):
    from legato.studies.segment.data import collate

    seen = []
    handle = straight[1].network.fourth.register_forward_hook(
        lambda module, inputs, output: seen.append(output.dtype)
    )
    batch = collate([study.data[0]])
    try:
        for precision in ("32", "bf16-mixed"):
            assert milliseconds(predictor(straight[1], "cpu", precision), [batch], "cpu") > 0
    finally:
        handle.remove()
    assert seen == [torch.float32] * 2 + [torch.bfloat16] * 2
