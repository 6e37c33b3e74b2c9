"""Find duplicate and nearly equal images.

    hash(x) = signs of the 8×8 lowest cosine frequencies of a 16×16 grey thumbnail, against their median (64 bits)
    x, y are near duplicates  ⇔  Hamming(hash x, hash y) ≤ 6  and  the thumbnails' correlation ≥ 0.98

Copies that were re-encoded, resized, brightened or shifted by 1 % are found. Rotated and mirrored copies are not.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

# In HAM10000 118 pairs are within both limits, and 117 of them show the same lesion. The hash alone finds 1,570 pairs.
MAX_BITS = 6
MIN_CORRELATION = 0.98
ROUNDING = 1e-4  # of single precision, and more
MAX_PAIRS = 200_000  # thousands of frames of one video would give hundreds of millions

_SIDE = 16  # of a thumbnail; no data set has smaller images
_CHUNK = 128  # images in memory at a time
_BITS_OF_BYTE = np.array([byte.bit_count() for byte in range(256)], dtype=np.uint8)

Images = NDArray[np.uint8]  # [n, H, W, C]
Pairs = NDArray[np.int64]  # [m, 2] sample numbers


def find_exact_duplicates(images: Images, split: NDArray[np.uint8]) -> Pairs:
    """Return (first, copy) for every repeated image. Training samples come first, then val, then test."""
    first_of: dict[bytes, int] = {}
    pairs = []
    for sample in np.argsort(split, kind="stable").tolist():
        pixels = hashlib.blake2b(np.ascontiguousarray(images[sample]).data, digest_size=16).digest()
        first = first_of.setdefault(pixels, sample)
        if first != sample:
            pairs.append((first, sample))
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def find_near_duplicates(images: Images, split: NDArray[np.uint8], copies: NDArray[np.int64]) -> tuple[Pairs, bool]:
    """Return all pairs of images that look the same, without the exact *copies*, and whether the search was complete.

    Every image is compared with every other, first by the averages of 2×2 cells: with the length of the rest of the
    thumbnail as a further number, their product is never below the correlation. The search stops after MAX_PAIRS pairs.
    """
    thumbnails = _make_thumbnails(images)
    contrast = thumbnails.std(axis=(1, 2))
    usable = contrast > 0.5  # grey levels: blank images all look the same
    usable[copies] = False
    samples = np.flatnonzero(usable)
    samples = samples[np.argsort(split[samples], kind="stable")]
    thumbnails, hashes = thumbnails[samples], _compute_hashes(thumbnails[samples])
    flat = (thumbnails - thumbnails.mean(axis=(1, 2), keepdims=True)).reshape(len(samples), _SIDE * _SIDE)
    unit = flat / (contrast[samples] * _SIDE)[:, None]
    coarse = unit.reshape(-1, 8, 2, 8, 2).sum(axis=(2, 4)).reshape(-1, 64) / 2
    rest = np.sqrt(np.maximum(1 - (coarse**2).sum(axis=1, keepdims=True), 0))
    bound = np.concatenate([coarse, rest], axis=1)
    found, room = [np.zeros((0, 2), dtype=np.int64)], MAX_PAIRS
    for start in range(0, len(samples), _CHUNK):
        highest = bound[start : start + _CHUNK] @ bound[start:].T
        pairs = start + np.stack(np.divmod(np.flatnonzero(highest >= MIN_CORRELATION - ROUNDING), highest.shape[1]))
        first, second = pairs[:, pairs[0] < pairs[1]]
        differ = hashes[first] ^ hashes[second]
        close = _BITS_OF_BYTE[differ.view(np.uint8)].reshape(-1, 8).sum(axis=1) <= MAX_BITS
        first, second = first[close][:room], second[close][:room]
        same = (unit[first] * unit[second]).sum(axis=1) >= MIN_CORRELATION
        found.append(np.stack([samples[first[same]], samples[second[same]]], axis=1))
        room -= len(first)
        if not room:
            break
    return np.concatenate(found), room > 0


def _make_thumbnails(images: Images) -> NDArray[np.float32]:
    """Return grey thumbnails [n, 16, 16]: averages over a grid of cells, weights · image · weightsᵀ."""
    count, height, width, channels = images.shape
    down, across = _cell_weights(height), np.repeat(_cell_weights(width), channels, axis=1) / channels
    thumbnails = np.empty((count, _SIDE, _SIDE), dtype=np.float32)
    for start in range(0, count, _CHUNK):
        rows = images[start : start + _CHUNK].reshape(-1, height, width * channels).astype(np.float32)
        thumbnails[start : start + _CHUNK] = down @ rows @ across.T
    return thumbnails


def _cell_weights(size: int) -> NDArray[np.float32]:
    """Return weights [16, size]: row i averages the pixels of cell i."""
    belongs = np.arange(size) * _SIDE // size == np.arange(_SIDE)[:, None]
    return np.asarray(belongs / belongs.sum(axis=1, keepdims=True), dtype=np.float32)


def _compute_hashes(thumbnails: NDArray[np.float32]) -> NDArray[np.uint64]:
    from scipy.fft import dctn

    coefficients = dctn(thumbnails, axes=(1, 2))[:, :8, :8].reshape(len(thumbnails), 64)
    coefficients[:, 0] = -np.inf  # the mean: ignore brightness
    bits = coefficients > np.median(coefficients[:, 1:], axis=1, keepdims=True)
    return np.packbits(bits, axis=1).view(np.uint64).ravel()
