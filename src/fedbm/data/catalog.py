"""What is known of each data set: its classes by name, what a clinician calls them, how its images are read.

Concept text belongs to a class name, never to a position: a source lists its own classes, and an entry
applies only where that list is equal to its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase, ascii_uppercase

from fedbm.errors import FedBMError, did_you_mean, listed

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Entry:
    """One data set. Prompts are built from *modality* and the concept texts; *recommends* holds the
    configuration values used where the user gives none."""

    name: str
    title: str
    classes: Mapping[str, str]  # class name → concept text, in label order
    modality: str
    licence: str
    citation: str
    origin: str
    channels: int = 3
    size: int = 128
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    hflip: bool = True
    vflip: bool = True
    recommends: Mapping[str, int | float | str] = field(default_factory=dict)


_DIGIT_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# Word and figure together stand further apart in language space than either alone.
_DIGITS = {str(value): f"the number {word} ({value})" for value, word in enumerate(_DIGIT_WORDS)}

# Uncased language models read "A" and "a" alike, so the case is spelt out.
_CHARACTERS = (
    _DIGITS
    | {letter: f"uppercase letter {letter} (capital)" for letter in ascii_uppercase}
    | {letter: f"lowercase letter {letter} (small)" for letter in ascii_lowercase}
)

_ENTRIES = (
    Entry(
        name="digits",
        title="Handwritten digits (UCI, as shipped with scikit-learn)",
        classes=_DIGITS,
        modality="handwriting",
        channels=1,
        size=32,
        mean=(0.5,),
        std=(0.5,),
        hflip=False,
        vflip=False,
        licence="CC BY 4.0",
        citation="Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI repository, 1998",
        origin="built into scikit-learn, nothing to download",
        recommends={"width": 16, "generator_width": 32},  # small pictures; a laptop without a GPU should do
    ),
    Entry(
        name="ham10000",
        title="HAM10000: pigmented skin lesions",
        classes={
            "akiec": "actinic keratosis or intraepithelial carcinoma",
            "bcc": "basal cell carcinoma",
            "bkl": "benign keratosis-like lesion",
            "df": "dermatofibroma",
            "mel": "melanoma",
            "nv": "melanocytic nevus",
            "vasc": "vascular skin lesion",
        },
        modality="dermatoscopy",
        licence="CC BY-NC 4.0",
        citation="Tschandl, Rosendahl and Kittler, The HAM10000 dataset, Scientific Data 5, 2018",
        origin="the HAM10000 images of the Harvard Dataverse or the ISIC archive, one folder per diagnosis",
        recommends={"clients": 10, "epochs": 1, "rounds": 200},
    ),
    Entry(
        name="pbc",
        title="PBC: peripheral blood cells",
        classes={
            "basophil": "basophil",
            "eosinophil": "eosinophil",
            "erythroblast": "erythroblast",
            "ig": "immature granulocyte",
            "lymphocyte": "lymphocyte",
            "monocyte": "monocyte",
            "neutrophil": "neutrophil",
            "platelet": "platelet",
        },
        modality="microscopy",
        licence="CC BY 4.0",
        citation="Acevedo et al., A dataset of microscopic peripheral blood cell images, Data in Brief, 2020",
        origin="the PBC images of the Hospital Clínic of Barcelona on Mendeley Data, one folder per cell",
        recommends={"clients": 12, "epochs": 10, "rounds": 50},
    ),
    Entry(
        name="kvasir",
        title="Kvasir: findings of the digestive tract",
        classes={
            "dyed-lifted-polyps": "dyed and lifted polyp",
            "dyed-resection-margins": "dyed resection margin",
            "esophagitis": "esophagitis",
            "normal-cecum": "normal cecum",
            "normal-pylorus": "normal pylorus",
            "normal-z-line": "normal z-line",
            "polyps": "polyp",
            "ulcerative-colitis": "ulcerative colitis",
        },
        modality="endoscopy",
        licence="research and education only",
        citation="Pogorelov et al., Kvasir: a multi-class image dataset, ACM Multimedia Systems, 2017",
        origin="the Kvasir data set (version 2: 8,000 images) of Simula, one folder per finding",
        recommends={"clients": 10, "epochs": 2, "rounds": 200, "pseudo_batch": 32, "temperature": 12.5},
    ),
    Entry(
        name="oct-c8",
        title="OCT-C8: retinal optical coherence tomography",
        classes={
            "AMD": "age-related macular degeneration",
            "CNV": "choroidal neovascularization",
            "CSR": "central serous retinopathy",
            "DME": "diabetic macular edema",
            "DR": "diabetic retinopathy",
            "DRUSEN": "drusen",
            "MH": "macular hole",
            "NORMAL": "normal retina",
        },
        modality="OCT",
        licence="as stated on its Kaggle page",
        citation="Naren, Retinal OCT Image Classification - C8, Kaggle, 2021",
        origin="the Retinal OCT C8 data set of Kaggle, folders train, val and test with one folder per class",
        recommends={"clients": 12, "epochs": 2, "rounds": 200, "pseudo_batch": 16, "temperature": 17.5},
    ),
    Entry(
        name="femnist",
        title="FEMNIST: handwritten characters by writer",
        classes=_CHARACTERS,
        modality="handwriting",
        channels=1,
        size=28,
        mean=(0.5,),
        std=(0.5,),
        hflip=False,
        vflip=False,
        licence="public domain (NIST Special Database 19)",
        citation="Caldas et al., LEAF: a benchmark for federated settings, 2018",
        origin="the FEMNIST images of LEAF, one folder per character",
        recommends={"epochs": 5, "rounds": 200, "ratio": 0.1},
    ),
)

CATALOG: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def find(name: str) -> Entry:
    if name not in CATALOG:
        near = did_you_mean(name.lower(), CATALOG)
        raise FedBMError(
            f'no data set is called "{name}"{near}; the catalogue holds {listed(CATALOG)}, '
            "and data of your own is given as the path of its folder or file"
        )
    return CATALOG[name]


def entry_for_classes(classes: Sequence[str]) -> Entry | None:
    """The entry whose classes are *classes* in the same label order, or None."""
    return next((entry for entry in CATALOG.values() if list(entry.classes) == list(classes)), None)
