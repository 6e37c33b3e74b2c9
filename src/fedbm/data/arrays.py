"""Make a data set from arrays, or from a PyTorch data set, without files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbm.data.cache import checksum
from fedbm.data.dataset import Dataset, check_image_shape, make_dataset
from fedbm.data.decode import Decoded, decode_image, decode_images, describe_enlarging, round_up_size
from fedbm.data.readers.sample_index import SampleIndex, encode_labels, text_array
from fedbm.data.splits import choose_split, parse_split
from fedbm.errors import FedBMError, did_you_mean


def from_arrays(
    images: ArrayLike,
    labels: ArrayLike,
    classes: Sequence[str] | None = None,
    *,
    split: ArrayLike | None = None,
    name: str = "arrays",
    columns: Mapping[str, Sequence[object]] | None = None,
    concepts: Mapping[str, str] | None = None,
    size: int | None = None,
    channels: int | None = None,
    split_seed: int = 0,
) -> Dataset:
    """Make a data set from images and labels in memory.

    Args:
        images: [n,H,W], [n,H,W,C] or [n,C,H,W] with 1 or 3 channels: uint8, or floating-point numbers from 0 to 1,
            which are multiplied by 255 and rounded.
        labels: the class number of each image from 0 up, or its class name.
        classes: class names in label order. Default: the names in *labels*, or the numbers as text.
        split: 0, 1, 2 or "train", "val", "test" for each image. Default: 7:1:2, and by a column such as patient.
        name: name of the data set.
        columns: further values of each image by column, such as site or patient.
        concepts: class name → concept text, instead of the class name.
        size: height and width. Default: the longer side of *images*, rounded up to a multiple of 4 from 16 up.
        channels: 1 for grey or 3 for colour. Default: those of *images*.
        split_seed: seed of the split.

    Returns:
        The data set, as from `fedbm.load()`. It uses the memory of *images* if they need no change.

    Raises:
        FedBMError: if an array has a wrong shape, type, length or value.

    Example:
        >>> import fedbm, numpy
        >>> fedbm.from_arrays(numpy.zeros((20, 28, 28), numpy.uint8), ["cyst", "polyp"] * 10)
        Dataset(arrays: 20 images of (1, 28, 28), 2 classes, train 14, val 2, test 4)
    """
    check_image_shape(size, channels)
    pixels = to_pixels(images, "images")
    count, height, width, depth = pixels.shape
    names, numbers = _read_labels(labels, classes, count)
    codes = None if split is None else parse_split(_to_array(split, "split", count).tolist(), "split")
    texts = {key: text_array(_to_array(values, key, count).tolist()) for key, values in (columns or {}).items()}
    side, ids = size or round_up_size(max(height, width)), [f"image {i}" for i in range(count)]
    squeezed = pixels if depth == 3 else pixels[..., 0]
    index = SampleIndex(names, numbers, codes, ids, lambda: enumerate(squeezed), texts)
    chosen, notes = choose_split(index, "auto", None, split_seed, name)
    made = Decoded(pixels, index)
    if (height, width, depth) != (side, side, channels or depth):
        made = decode_images(index, side, channels or depth)
    index = replace(made.index, split=chosen, notes=made.index.notes + notes)
    found = checksum(names, made.images, numbers, chosen)
    return make_dataset(name, Decoded(made.images, index, found), concepts or {})


def from_torch(
    dataset: Any,
    classes: Sequence[str] | None = None,
    *,
    size: int | None = None,
    channels: int | None = None,
    **more: Any,
) -> Dataset:
    """Make a data set from a map-style PyTorch data set of (image, label). Every item is read once.

    Images are PIL images, tensors or arrays: uint8, or floating-point numbers from 0 to 1, [C,H,W], [H,W,C] or [H,W].
    Remove random augmentation and normalisation from the transforms first. To join several data sets, use
    `torch.utils.data.ConcatDataset` and give their *split*.

    Args:
        dataset: an object with `len(dataset)` and `dataset[i]`.
        classes: class names in label order. Default: `dataset.classes` if there is one.
        size: height and width. Default: the longer side of the first image, rounded up as in `from_arrays()`.
        channels: 1 for grey or 3 for colour. Default: those of the first image.
        more: other arguments of `from_arrays()`: split, name, columns, concepts, split_seed.

    Returns:
        The data set, as from `fedbm.load()`.

    Raises:
        FedBMError: if an item is not an image with one label, or as in `from_arrays()`.

    Example:
        >>> import fedbm, torch
        >>> items = torch.utils.data.TensorDataset(torch.zeros(20, 1, 28, 28), torch.arange(20) % 2)
        >>> fedbm.from_torch(items, classes=["cyst", "polyp"])
        Dataset(torch: 20 images of (1, 28, 28), 2 classes, train 14, val 2, test 4)
    """
    check_image_shape(size, channels)
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") and len(dataset)):
        raise FedBMError(f"the {type(dataset).__name__} has no items: use a map-style data set of (image, label)")
    images: list[NDArray[np.uint8]] = []
    labels, largest, depth = [], 0, channels
    for i in range(len(dataset)):
        item = dataset[i]
        if not isinstance(item, tuple | list) or len(item) < 2 or np.asarray(item[1]).size != 1:
            raise FedBMError(f"item {i} of the data set is not (image, label) with one label: return such pairs")
        pixels = _image_pixels(item[0], f"image {i}")
        side, largest = max(pixels.shape[:2]), max(largest, *pixels.shape[:2])
        size, depth = size or round_up_size(side), depth or pixels.shape[2]
        if not channels and pixels.shape[2] != depth:
            raise FedBMError(f"image {i} has {pixels.shape[2]} channels, but image 0 has {depth}: give channels=1")
        images.append(decode_image(pixels if pixels.shape[2] == 3 else pixels[..., 0], size, depth))
        labels.append(np.asarray(item[1]).item())
    names = getattr(dataset, "classes", None) if classes is None else classes
    made = from_arrays(np.stack(images), labels, names, **{"name": "torch", **more})
    return replace(made, notes=(*made.notes, *describe_enlarging(largest, made.shape[1])))


def _image_pixels(image: Any, what: str) -> NDArray[np.uint8]:
    """Return a PIL image, tensor or array as [H,W,C]."""
    if hasattr(image, "convert") and not image.mode.startswith(("I", "F")):  # 16-bit modes are refused below
        image = image.convert("L" if image.mode in "1L" else "RGB")
    return np.asarray(to_pixels(_to_array(image, what)[None], what)[0])


def to_pixels(given: ArrayLike, what: str) -> NDArray[np.uint8]:
    """Return images as uint8 [n,H,W,C]; see `from_arrays()` for what may be given."""
    images = _to_array(given, what)
    shape = images.shape
    if images.ndim == 3:
        images = images[..., None]
    elif images.ndim == 4 and shape[3] not in (1, 3):
        images = np.moveaxis(images, 1, 3)
    if images.ndim != 4 or images.shape[3] not in (1, 3) or 0 in shape:
        raise FedBMError(
            f"{what} has the shape {list(shape)}: use [n, height, width], or that with 1 or 3 channels as second or "
            "last axis"
        )
    is_scaled = np.issubdtype(images.dtype, np.floating) and images.min() >= 0 and images.max() <= 1
    if images.dtype != np.uint8 and not is_scaled:
        raise FedBMError(
            f"{what} has {images.dtype} values: use uint8 from 0 to 255, or floating-point numbers from 0 to 1 without "
            "NaN; undo a normalisation"
        )
    scaled = images if images.dtype == np.uint8 else np.rint(images * 255).astype(np.uint8)
    return np.require(scaled, requirements=("C", "W"))


def _read_labels(given: Any, classes: Sequence[str] | None, count: int) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return class names and the class number of each image."""
    labels = _to_array(given, "labels", count).tolist()
    if classes is None and all(isinstance(label, str) for label in labels):
        return encode_labels(labels)
    if classes is None:
        largest = max((label for label in labels if isinstance(label, int)), default=-1)
        if largest >= count:  # names of so many classes may not fit into memory
            raise FedBMError(f"labels contain {largest}, but there are {count} images: number the classes from 0 up")
        classes = [str(number) for number in range(largest + 1)]
    names = tuple(map(str, classes))
    if len(set(names)) < len(names):
        raise FedBMError(f"classes are {', '.join(names)}: give every class a name of its own")
    number_of = {key: k for k, name in enumerate(names) for key in (k, name)}
    numbers = [number_of.get(label, -1) for label in labels]
    if -1 in numbers:
        wrong = labels[first := numbers.index(-1)]
        raise FedBMError(
            f"the label of image {first} is {wrong}{did_you_mean(str(wrong), names)}, but it must be 0 to "
            f"{max(len(names) - 1, 0)} or a name in classes"
        )
    return names, np.array(numbers, dtype=np.int64)


def _to_array(values: Any, what: str, count: int | None = None) -> NDArray[Any]:
    """Return *values* as an array; with *count*, as one value for each image."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # unequal lengths, or a tensor on a GPU or with gradients
        raise FedBMError(f"{what} cannot be read as one array: {error}") from error
    if count is not None and array.shape not in ((count,), (count, 1)):
        raise FedBMError(f"the shape of {what} is {list(array.shape)}, but {count} images need one value each")
    return array if count is None else array.ravel()
