"""Labelled images for the segmentation study: where they come from, and how they are batched."""

from legato._support.extras import needs_extra

with needs_extra("legato.studies.segment.data", "studies"):
    from legato.console.files import DataError, DataWarning
    from legato.console.pictures import read_image
    from legato.studies.segment.data.augment import Augment, Augmented
    from legato.studies.segment.data.cache import cache_folder
    from legato.studies.segment.data.datasets import (
        IGNORE,
        Batch,
        Dataset,
        InMemory,
        Sample,
        Subset,
        collate,
    )
    from legato.studies.segment.data.download import download
    from legato.studies.segment.data.image_folder import ImageFolder, read_mask
    from legato.studies.segment.data.scenes import SyntheticScenes
    from legato.studies.segment.data.splits import Split, split
    from legato.studies.segment.data.stanford import StanfordBackground, verify_stanford

__all__ = [
    "IGNORE",
    "Augment",
    "Augmented",
    "Batch",
    "DataError",
    "DataWarning",
    "Dataset",
    "ImageFolder",
    "InMemory",
    "Sample",
    "Split",
    "StanfordBackground",
    "Subset",
    "SyntheticScenes",
    "cache_folder",
    "collate",
    "download",
    "read_image",
    "read_mask",
    "split",
    "verify_stanford",
]
