"""Data sets by name, folders and shards of images, shards of tokens, the embedded sample, and the order of batches."""

from arcvq.data.augment import Augmentation
from arcvq.data.batches import batch_count, batch_indices, batches
from arcvq.data.files import read_image, write_png
from arcvq.data.folder import FolderImages
from arcvq.data.images import Images, InMemoryImages, first_images, hold_out
from arcvq.data.load import data_names, data_root, load_images, load_readable_images
from arcvq.data.pixels import to_uint8, to_unit
from arcvq.data.shard_writer import ShardOptions, write_shards
from arcvq.data.shards import ShardImages
from arcvq.data.source import ImageSource, Source, TensorSource, load_sources
from arcvq.data.tokens import TokenShards

__all__ = [
    "Augmentation",
    "FolderImages",
    "ImageSource",
    "Images",
    "InMemoryImages",
    "ShardImages",
    "ShardOptions",
    "Source",
    "TensorSource",
    "TokenShards",
    "batch_count",
    "batch_indices",
    "batches",
    "data_names",
    "data_root",
    "first_images",
    "hold_out",
    "load_images",
    "load_readable_images",
    "load_sources",
    "read_image",
    "to_uint8",
    "to_unit",
    "write_png",
    "write_shards",
]
