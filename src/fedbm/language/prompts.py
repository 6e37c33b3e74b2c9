"""Prompts = six sentence frames × what the picture is called.

    media = image, photo, <modality> image, <modality> photo   (and OCT scan for OCT)

So 24 prompts for a concept, 30 for OCT. All classes of a data set share one grid: prompt m of one class
differs from prompt m of another in the concept alone, and a class's spread is the spread of wording.
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


def prompts(concept: str, modality: str) -> tuple[str, ...]:
    """Every frame with every medium, frame by frame.

    >>> prompts("melanoma", "dermatoscopy")[:3]
    ('image of melanoma', 'photo of melanoma', 'dermatoscopy image of melanoma')
    """
    concept, modality = concept.strip(), modality.strip()
    if not concept:
        raise FedBMError("a concept text is empty; say in a few words what the class shows")
    if not modality:
        raise FedBMError('the modality is empty; name how the images were taken, such as "endoscopy"')
    media = ["image", "photo", f"{modality} image", f"{modality} photo"]
    if modality.upper() == "OCT":
        media.append(f"{modality} scan")
    return tuple(frame.format(media=medium, c=concept) for frame in FRAMES for medium in media)


def choose(count: int, share: float, seed: int) -> tuple[int, ...]:
    """The sorted indices of a seeded *share* of *count* prompts, at least two of them.

    Under one seed a smaller share lies inside every larger one, so that shares differ in number alone.
    """
    if count < 2:
        raise FedBMError(f"a share needs at least 2 prompts to choose from, but there are {count}")
    if not 0 < share <= 1:
        raise FedBMError(f"the share of prompts is {share:g}; give a fraction above 0 up to 1, such as 0.25")
    kept = max(2, math.floor(share * count + 0.5))
    order = numpy_rng(seed, "prompts").permutation(count)
    return tuple(sorted(int(index) for index in order[:kept]))
