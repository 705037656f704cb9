"""Users' own images and masks."""

import numpy
import pytest
from PIL import Image

from legato.studies.segment.data import IGNORE, DataError, ImageFolder, read_mask

MASK = numpy.array([[0, 1, 2], [2, 255, 0]], numpy.uint8)


@pytest.fixture
def folders(tmp_path):
    images, masks = tmp_path / "images", tmp_path / "masks"
    for name in ("b", "a", "deep/er/c"):
        for folder in (images, masks):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (3, 2), (10, 20, 30)).save(images / f"{name}.jpg")
        Image.fromarray(MASK).save(masks / f"{name}.png")
    return images, masks


def test_images_and_masks_of_the_same_name(folders):
    data = ImageFolder(*folders)
    assert data.names == ["a", "b", "deep/er/c"]
    assert data.class_names == ("class 0", "class 1", "class 2")
    assert len(set(data.palette)) == 3
    for image, labels, _ in data:
        assert image.shape == (3, 2, 3)
        assert labels.tolist() == MASK.tolist()


def test_names_of_the_classes(folders):
    data = ImageFolder(str(folders[0]), str(folders[1]), ["sky", "ground", "thing", "rest"])
    assert data.class_names == ("sky", "ground", "thing", "rest")
    assert len(data.palette) == 4


def test_what_is_not_an_image_is_not_looked_at(folders):
    (folders[0] / "notes.txt").write_text("hello")
    (folders[0] / "._a.jpg").write_text("finder")
    (folders[1] / "spare.png").write_bytes((folders[1] / "a.png").read_bytes())
    assert len(ImageFolder(*folders)) == 3


@pytest.mark.parametrize("mode", ["L", "P", "I;16"])
def test_masks_with_one_channel(tmp_path, mode):
    if mode == "P":
        mask = Image.frombytes("P", (3, 2), MASK.tobytes())
        mask.putpalette([200, 100, 50] * 256)
    else:
        mask = Image.fromarray(MASK.astype(numpy.uint16 if mode == "I;16" else numpy.uint8))
    mask.save(tmp_path / "mask.png")
    assert read_mask(tmp_path / "mask.png").tolist() == MASK.tolist()


def test_masks_with_two_values(tmp_path):
    Image.fromarray(MASK == 1).save(tmp_path / "mask.png")
    assert read_mask(tmp_path / "mask.png").tolist() == (MASK == 1).astype(int).tolist()


@pytest.mark.parametrize(
    ("image", "name", "message"),
    [
        (Image.new("RGB", (3, 2)), "mask.png", "colours instead of labels"),
        (Image.new("LA", (3, 2)), "mask.png", "colours instead of labels"),
        (Image.new("L", (3, 2)), "mask.jpg", "is a JPEG"),
        (Image.fromarray(numpy.full((2, 3), 256, numpy.uint16)), "mask.png", "from 256 to 256"),
        (Image.fromarray(numpy.full((2, 3), -1, numpy.int32)), "mask.tiff", "from -1 to -1"),
    ],
)
def test_masks_that_hold_no_labels(tmp_path, image, name, message):
    image.save(tmp_path / name)
    with pytest.raises(DataError, match=message):
        read_mask(tmp_path / name)


def change(folders, mask, name="b"):
    Image.fromarray(mask).save(folders[1] / f"{name}.png")


def test_an_image_without_a_mask(folders):
    (folders[1] / "b.png").unlink()
    with pytest.raises(DataError, match=r"1 of 3 images .* no mask .*: b\. "):
        ImageFolder(*folders)


def test_a_mask_of_another_size(folders):
    change(folders, MASK.T.copy())
    with pytest.raises(DataError, match="b is 3 × 2 pixels and its labels are 2 × 3"):
        ImageFolder(*folders)


def test_an_image_without_a_labelled_pixel(folders):
    change(folders, numpy.full_like(MASK, IGNORE))
    with pytest.raises(DataError, match="b has no labelled pixel"):
        ImageFolder(*folders)


def test_a_label_beyond_the_classes(folders):
    with pytest.raises(DataError, match=r"a\.png holds the label 2, and there are 2 classes: x, y"):
        ImageFolder(*folders, ["x", "y"])


@pytest.mark.parametrize("names", [[], ["one"], [f"many {i}" for i in range(256)]])
def test_too_few_or_too_many_classes(folders, names):
    with pytest.raises(DataError, match="2 to 255 classes"):
        ImageFolder(*folders, names)


def test_foreground_written_as_255(folders):
    for name in ("a", "b", "deep/er/c"):
        change(folders, numpy.where(MASK > 0, 255, 0).astype(numpy.uint8), name)
    with pytest.raises(DataError, match="save it as 1"):
        ImageFolder(*folders)


def test_grey_levels_in_place_of_labels(folders):
    change(folders, numpy.full_like(MASK, 128))
    with pytest.raises(DataError, match=r"up to 128, but none is .*look like grey levels"):
        ImageFolder(*folders)
    names = [f"level {index}" for index in range(129)]
    assert ImageFolder(*folders, names).class_names == tuple(names)


def test_two_classes_of_one_name(folders):
    with pytest.raises(DataError, match="the same name: a, a, c"):
        ImageFolder(*folders, ["a", "a", "c"])


def test_two_images_of_one_name(folders):
    Image.new("RGB", (3, 2)).save(folders[0] / "a.png")
    with pytest.raises(DataError, match="same name up to the suffix"):
        ImageFolder(*folders)


def test_a_damaged_image(folders):
    (folders[0] / "b.jpg").write_bytes((folders[0] / "b.jpg").read_bytes()[:300])
    with pytest.raises(DataError, match=r"b\.jpg"):
        ImageFolder(*folders)


def test_folders_that_are_missing_or_empty(folders, tmp_path):
    with pytest.raises(DataError, match="There is no folder"):
        ImageFolder(tmp_path / "none", folders[1])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no image files"):
        ImageFolder(folders[0], tmp_path / "empty")
