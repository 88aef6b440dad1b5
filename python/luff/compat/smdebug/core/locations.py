"""Paths of a trial's files."""

from __future__ import annotations

import os
import re

from luff.compat.smdebug.exceptions import IndexReaderException

__all__ = [
    "IndexFileLocationUtils",
    "TensorFileLocation",
    "deserialize_tf_device",
    "get_path_to_collections",
    "get_worker_name_from_collection_file",
    "parse_step_from_file",
    "parse_worker_name_from_file",
    "serialize_tf_device",
]

STEPS_PER_FOLDER = 1000
_INDEX_NAME = re.compile(r"^(\d+)_(.+)\.(json|csv)$")
_COLLECTIONS_NAME = re.compile(r"^(.+)_collections\.(json|ts)$")


def serialize_tf_device(device: str) -> str:
    """Converts the name of a TensorFlow device to a part of a file name."""
    return device.replace("/", "_").replace(":", "-")


def deserialize_tf_device(name: str) -> str:
    """Converts such a part of a file name back to the device."""
    return name.replace("_", "/").replace("-", ":")


def get_path_to_collections(directory: str) -> str:
    """Returns the folder of the collections files."""
    return os.path.join(directory, "collections", f"{0:09d}")


def parse_worker_name_from_file(filename: str) -> str:
    """Returns the worker of an index file.

    Raises
    ------
    IndexReaderException
        If it is not the name of an index file.
    """
    match = _INDEX_NAME.match(os.path.basename(filename))
    if match is None:
        raise IndexReaderException(
            f"found a file that is none of the index, expected <step>_<worker>.json: {filename}"
        )
    worker = match.group(2)
    return deserialize_tf_device(worker) if worker.startswith("_") else worker


def parse_step_from_file(filename: str) -> int:
    """Returns the global step of an index file."""
    match = _INDEX_NAME.match(os.path.basename(filename))
    if match is None:
        raise IndexReaderException(
            f"found a file that is none of the index, expected <step>_<worker>.json: {filename}"
        )
    return int(match.group(1))


def get_worker_name_from_collection_file(filename: str) -> str:
    """Returns the worker of a collections file."""
    match = _COLLECTIONS_NAME.match(os.path.basename(filename))
    if match is None:
        raise IndexReaderException(
            f"found a file that is none of the collections, expected <worker>_collections.json: {filename}"
        )
    worker = match.group(1)
    return deserialize_tf_device(worker) if worker.startswith("_") else worker


def _in_file_name(worker: str) -> str:
    return serialize_tf_device(worker) if "/" in worker else worker


class TensorFileLocation:
    """The event file of a step and worker."""

    def __init__(self, step_num: int, worker_name: str) -> None:
        self.step_num = int(step_num)
        self.worker_name = worker_name

    def relative(self) -> str:
        """Returns the path relative to the trial."""
        step = f"{self.step_num:012d}"
        return f"events/{step}/{step}_{_in_file_name(self.worker_name)}.tfevents"

    def get_file_location(self, trial_dir: str) -> str:
        """Returns the path of the file."""
        return os.path.join(trial_dir, self.relative())


class IndexFileLocationUtils:
    """Paths of index files."""

    @staticmethod
    def get_index_path(trial_dir: str) -> str:
        """Returns the folder of the index."""
        return os.path.join(trial_dir, "index")

    @staticmethod
    def get_index_key_for_step(trial_dir: str, step: int, worker_name: str) -> str:
        """Returns the path of the index file of a step and worker."""
        folder = f"{step // STEPS_PER_FOLDER:09d}"
        return os.path.join(trial_dir, "index", folder, f"{step:012d}_{_in_file_name(worker_name)}.json")

    @staticmethod
    def get_prefix_from_index_file(index_file: str) -> str:
        """Returns the trial that an index file belongs to."""
        return index_file.rsplit("/index/", 1)[0]
