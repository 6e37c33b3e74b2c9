"""Prompts: six sentence frames × the names of the medium.

    media = image, photo, <modality> image, <modality> photo   (and OCT scan for OCT)

This gives 24 prompts per concept, 30 for OCT. Prompt m of two classes differs only in the concept, so the variance
within a class is the variance of the wording.
"""

from __future__ import annotations

import math

from fedbm.errors import FedBMError
from fedbm.utils.seeds import numpy_rng

FRAMES = (
    "{media} of {c}",
    "this is {media} of {c}",
    "{c} presented in {media}",
    "the {media} shows {c}",
    "the {media} shows the presence of {c}",
    "the presence of {c} in {media}",
)


def make_prompts(concept: str, modality: str) -> tuple[str, ...]:
    """Return every frame with every medium, frame by frame.

    >>> make_prompts("melanoma", "dermatoscopy")[:3]
    ('image of melanoma', 'photo of melanoma', 'dermatoscopy image of melanoma')
    """
    concept, modality = concept.strip(), modality.strip()
    if not concept:
        raise FedBMError("a concept text is empty; describe in a few words what the class shows")
    if not modality:
        raise FedBMError('the modality is empty; name how the images were taken, such as "endoscopy"')
    media = ["image", "photo", f"{modality} image", f"{modality} photo"]
    if modality.upper() == "OCT":
        media.append(f"{modality} scan")
    return tuple(frame.format(media=medium, c=concept) for frame in FRAMES for medium in media)


def choose_prompts(count: int, fraction: float, seed: int) -> tuple[int, ...]:
    """Return the sorted indices of a random *fraction* of *count* prompts, at least two.

    With the same seed a smaller fraction is a subset of every larger one.
    """
    kept = max(2, math.floor(fraction * count + 0.5))
    order = numpy_rng(seed, "prompts").permutation(count)
    return tuple(sorted(int(index) for index in order[:kept]))
