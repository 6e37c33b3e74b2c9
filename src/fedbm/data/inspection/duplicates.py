"""Pictures that a data set holds more than once, pixel for pixel or nearly so.

    hash(x) = signs of the 8×8 lowest cosine frequencies of a 16×16 grey thumbnail, against their median (64 bits)
    x, y are near twins  ⇔  Hamming(hash x, hash y) ≤ 6  and  the thumbnails' correlation ≥ 0.98

Re-encoded, resized or brightened copies, and those shifted by a hundredth, are found; turned and mirrored ones are not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

# Of HAM10000's 118 pairs within both limits, 117 show one lesion; the hash alone would name 1,570 pairs.
MOST_BITS = 6
LEAST_CORRELATION = 0.98
MOST_PAIRS = 100_000  # of close hashes in one band: thousands of frames of one film would make hundreds of millions
MOST_COMPARED = 100_000_000  # hashes in one band, a few seconds' worth; HAM10000 takes half a million

_SIDE = 16  # of a thumbnail; no data set has smaller images
_CHUNK = 128  # images in memory at a time

Images = NDArray[np.uint8]  # [n, H, W, C]
Pairs = NDArray[np.int64]  # [m, 2] sample numbers


def find_exact_duplicates(images: Images, split: NDArray[np.uint8]) -> Pairs:
    """(first, copy) for every picture met again; *first* is on the earliest side: train, then val, then test."""
    first_of: dict[bytes, int] = {}
    pairs = []
    for sample in np.argsort(split, kind="stable").tolist():
        pixels = hashlib.blake2b(np.ascontiguousarray(images[sample]).data, digest_size=16).digest()
        first = first_of.setdefault(pixels, sample)
        if first != sample:
            pairs.append((first, sample))
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def find_near_duplicates(images: Images, split: NDArray[np.uint8], copies: NDArray[np.int64]) -> tuple[Pairs, bool]:
    """(first, twin) for every two pictures that look alike; *copies*, known to be exact, are left out.

    And whether these are all: with very many that look alike, only some of them are compared with each other.
    """
    thumbnails = _thumbnails(images)
    contrast = thumbnails.std(axis=(1, 2))
    flat = (thumbnails - thumbnails.mean(axis=(1, 2), keepdims=True)).reshape(len(images), -1)
    unit = flat / np.maximum(contrast * _SIDE, 1e-6)[:, None]
    usable = contrast > 0.5  # grey levels: a picture of nothing looks like any other
    usable[copies] = False
    samples = np.flatnonzero(usable)
    samples = samples[np.argsort(split[samples], kind="stable")]
    close, are_all = close_hashes(_hashes(thumbnails[samples]), MOST_BITS)
    pairs = samples[close]
    alike = np.concatenate(
        [(unit[some[:, 0]] * unit[some[:, 1]]).sum(axis=1) for some in _in_chunks(pairs)] or [np.zeros(0)]
    )
    return pairs[alike >= LEAST_CORRELATION], are_all


def close_hashes(hashes: NDArray[np.uint64], most: int, most_pairs: int = MOST_PAIRS) -> tuple[Pairs, bool]:
    """All i < j with Hamming(hashes i, hashes j) ≤ *most*, without comparing all with all; and whether these are all.

    Cut into most + 1 bands, two such hashes agree in one band at least. So in each band only equal ones are compared:
    sorted by the band, those that are 1, 2, 3 … places apart, until none that far apart is equal, or until the band has
    given *most_pairs* or cost too much: then small groups of equal ones are through, and only large ones are cut.
    """
    edges = [64 * band // (most + 1) for band in range(most + 2)]
    masks = [np.uint64((1 << high) - (1 << low)) for low, high in pairwise(edges)]
    found, are_all = [], True
    for number, mask in enumerate(masks):
        order = np.argsort(hashes & mask, kind="stable")
        ordered = hashes[order]
        left, apart, given, compared = np.arange(len(hashes)), 1, 0, 0
        while len(left):
            left = left[left + apart < len(hashes)]
            left = left[(ordered[left] ^ ordered[left + apart]) & mask == 0]
            if len(left) and (given >= most_pairs or compared >= MOST_COMPARED):
                are_all = False
                break
            differ = ordered[left] ^ ordered[left + apart]
            close = _bits(differ) <= most
            given, compared = given + int(close.sum()), compared + len(left)
            for earlier in masks[:number]:  # where an earlier band agreed, the pair is known
                close &= differ & earlier != 0
            found.append(np.sort([order[left[close]], order[left[close] + apart]], axis=0))
            apart += 1
    pairs = np.concatenate([np.zeros((2, 0), dtype=np.int64), *found], axis=1)
    return pairs[:, np.lexsort((pairs[1], pairs[0]))].T, are_all


def _thumbnails(images: Images) -> NDArray[np.float32]:
    """[n, 16, 16]: means of grey over a grid of nearly equal cells: weights · image · weightsᵀ."""
    count, height, width, channels = images.shape
    down, across = _cells(height), np.repeat(_cells(width), channels, axis=1) / channels
    made = np.empty((count, _SIDE, _SIDE), dtype=np.float32)
    for start in range(0, count, _CHUNK):
        rows = images[start : start + _CHUNK].reshape(-1, height, width * channels).astype(np.float32)
        made[start : start + _CHUNK] = down @ rows @ across.T
    return made


def _cells(size: int) -> NDArray[np.float32]:
    """[16, size]: row i averages the pixels of cell i."""
    belongs = np.arange(size) * _SIDE // size == np.arange(_SIDE)[:, None]
    return np.asarray(belongs / belongs.sum(axis=1, keepdims=True), dtype=np.float32)


def _hashes(thumbnails: NDArray[np.float32]) -> NDArray[np.uint64]:
    frequency, place = np.arange(8)[:, None], np.arange(_SIDE)
    cosines = np.cos(np.pi * frequency * (2 * place + 1) / (2 * _SIDE)).astype(np.float32)
    coefficients = (cosines @ thumbnails @ cosines.T).reshape(len(thumbnails), 64)
    coefficients[:, 0] = -np.inf  # the mean: brightness is no trait
    bits = coefficients > np.median(coefficients[:, 1:], axis=1, keepdims=True)
    return np.packbits(bits, axis=1).view(np.uint64).ravel()


def _bits(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """How many bits of each word are set, by adding neighbours in ever wider fields."""
    for shift, mask in ((1, 0x5555555555555555), (2, 0x3333333333333333), (4, 0x0F0F0F0F0F0F0F0F)):
        words = (words & np.uint64(mask)) + ((words >> np.uint64(shift)) & np.uint64(mask))
    return np.asarray(words.view(np.uint8).reshape(-1, 8).sum(axis=1, dtype=np.int64))


def _in_chunks(pairs: Pairs) -> Iterator[Pairs]:
    for start in range(0, len(pairs), 1 << 16):
        yield pairs[start : start + (1 << 16)]
