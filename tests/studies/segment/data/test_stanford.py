"""Stanford Background from archive and folder, and everything that can be wrong with it."""

import io
import tarfile

import numpy
import pytest
import torch

from legato.studies.segment.data import IGNORE, DataError, DataWarning, StanfordBackground

pytestmark = pytest.mark.filterwarnings("ignore:.*the original data set has 715")


def same(first, second):
    return first.names == second.names and all(
        torch.equal(a.image, b.image) and torch.equal(a.labels, b.labels)
        for a, b in zip(first, second, strict=True)
    )


def test_archive_folder_and_inner_folder_give_the_same(stanford):
    archive = StanfordBackground(stanford.archive(), cache=False)
    folder = stanford.folder()
    assert same(archive, StanfordBackground(folder, cache=False))
    assert same(archive, StanfordBackground(str(folder / "iccv09Data"), cache=False))


@pytest.mark.parametrize(("classes", "count"), [("surfaces", 3), ("regions", 8)])
def test_samples_hold_what_the_files_say(stanford, classes, count):
    files = stanford.contents()
    data = StanfordBackground(stanford.archive(files), classes)
    assert len(data) == 4
    assert len(data.class_names) == len(data.palette) == count
    for image, labels, name in data:
        text = files[f"labels/{name}.{classes}.txt"].decode()
        written = numpy.array(
            [[int(entry) for entry in line.split()] for line in text.splitlines()]
        )
        assert numpy.array_equal(labels.numpy(), numpy.where(written < 0, IGNORE, written))
        assert image.shape == (3, *labels.shape)
        assert image.dtype == labels.dtype == torch.uint8
        assert set(labels.unique().tolist()) <= {*range(count), IGNORE}


def test_unknown_classes_are_refused(stanford):
    with pytest.raises(DataError, match="'surfaces', 'regions'"):
        StanfordBackground(stanford.archive(), "layers")


def test_only_the_labels_that_are_asked_for_are_needed(stanford):
    files = {name: data for name, data in stanford.contents().items() if "regions" not in name}
    assert len(StanfordBackground(stanford.archive(files), "surfaces")) == 4


def test_a_part_of_the_data_set_is_used_and_said(stanford):
    with pytest.warns(DataWarning, match="holds 4 images; the original data set has 715"):
        StanfordBackground(stanford.archive())


def test_a_missing_path_says_how_to_get_it(tmp_path):
    with pytest.raises(DataError, match="legato segment download"):
        StanfordBackground(tmp_path / "iccv09Data.tar.gz")


def test_another_folder(tmp_path):
    with pytest.raises(DataError, match="has the folders images and labels"):
        StanfordBackground(tmp_path)


@pytest.mark.parametrize("share", [0, 0.05, 0.5, 0.9, 0.999])
def test_a_truncated_archive(stanford, share):
    path = stanford.archive(stanford.contents(30))
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(DataError, match=r"truncated, damaged or not a \.tar\.gz"):
        StanfordBackground(path)


def test_a_damaged_archive(stanford):
    path = stanford.archive(stanford.contents(30))
    data = bytearray(path.read_bytes())
    data[-5] ^= 255  # within the checksum
    path.write_bytes(data)
    with pytest.raises(DataError, match="damaged"):
        StanfordBackground(path)


def test_an_archive_of_something_else(stanford):
    with pytest.raises(DataError, match="holds no images of Stanford Background"):
        StanfordBackground(stanford.archive({"README": b"hello"}))


def test_labels_of_another_size(stanford):
    files = stanford.contents()
    files["labels/0000101.surfaces.txt"] = b"0 1 2\n0 1 2\n"
    with pytest.raises(DataError, match="0000101 is 9 × 6 pixels and its labels are 3 × 2"):
        StanfordBackground(stanford.archive(files))


def test_a_label_out_of_range(stanford):
    files = stanford.contents()
    files["labels/0000101.surfaces.txt"] = files["labels/0000101.regions.txt"].replace(b"2", b"5")
    with pytest.raises(DataError, match=r"labels/0000101\.surfaces\.txt holds the label"):
        StanfordBackground(stanford.archive(files))


def test_an_image_without_a_labelled_pixel(stanford):
    files = stanford.contents()
    files["labels/0000101.surfaces.txt"] = stanford.label_text(numpy.full((6, 9), -1))
    with pytest.raises(DataError, match="0000101 has no labelled pixel"):
        StanfordBackground(stanford.archive(files))


def test_an_image_without_labels(stanford):
    files = stanford.contents()
    del files["labels/0000101.surfaces.txt"]
    path = stanford.archive(files)
    with pytest.raises(DataError, match=r"1 of 4 images .* no labels/ID\.surfaces\.txt: 0000101"):
        StanfordBackground(path)
    assert len(StanfordBackground(path, "regions")) == 4


def test_an_unreadable_image(stanford):
    files = stanford.contents()
    files["images/0000101.jpg"] = files["images/0000101.jpg"][:-60]
    with pytest.raises(DataError, match=r"images/0000101\.jpg is truncated"):
        StanfordBackground(stanford.archive(files))


def test_an_image_that_occurs_twice(stanford):
    files = stanford.contents()
    files["copy/images/0000101.jpg"] = files["images/0000101.jpg"]
    with pytest.raises(DataError, match="image file of 0000101 twice"):
        StanfordBackground(stanford.archive(files))


def test_a_member_that_claims_too_much(stanford, tmp_path):
    member = tarfile.TarInfo("iccv09Data/images/1.jpg")
    member.size = 1 << 40
    (tmp_path / "bomb.tar").write_bytes(member.tobuf())
    with pytest.raises(DataError, match="claims 1099511627776 bytes"):
        StanfordBackground(tmp_path / "bomb.tar")


def test_members_cannot_reach_beyond_the_archive(stanford, tmp_path):
    """Nothing is extracted, links are not followed, and hidden files are not images."""
    files = stanford.contents(2)
    path = tmp_path / "evil.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, data in {**files, "images/._0000100.jpg": b"finder"}.items():
            member = tarfile.TarInfo("../../" + name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("images/secret.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    before = sorted(tmp_path.rglob("*"))
    data = StanfordBackground(path, cache=False)
    assert data.names == ["0000100", "0000101"]
    assert sorted(tmp_path.rglob("*")) == before
