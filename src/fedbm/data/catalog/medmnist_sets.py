"""MedMNIST's 2-D sets with one label per image. Their files contain only numbers; the class names are here.

Data is recognised as one of these by its file name, not by its classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedbm.data.catalog.entry import IMAGENET_MEAN, IMAGENET_STD, Entry
from fedbm.data.catalog.paper_sets import HAM10000, OCT_C8, PBC

_CITATION = "Yang et al., MedMNIST v2: a large-scale lightweight benchmark, Scientific Data 10, 2023"


def _origin(name: str) -> str:
    return f"{name}.npz of MedMNIST, or {name}_64.npz, {name}_128.npz or {name}_224.npz for larger images"


def _variant(entry: Entry, name: str, title: str) -> Entry:
    """Return an entry for the same images, with the same classes, concepts and settings."""
    return replace(entry, name=name, title=title, citation=_CITATION, origin=_origin(name), by_classes=False)


def _set(
    name: str,
    title: str,
    classes: Mapping[str, str],
    modality: str,
    *,
    grey: bool = False,
    hflip: bool = True,
    vflip: bool = True,
) -> Entry:
    return Entry(
        name=name,
        title=title,
        classes=classes,
        modality=modality,
        licence="CC BY 4.0",
        citation=_CITATION,
        origin=_origin(name),
        channels=1 if grey else 3,
        size=28,
        mean=(0.5,) if grey else IMAGENET_MEAN,
        std=(0.5,) if grey else IMAGENET_STD,
        hflip=hflip,
        vflip=vflip,
        by_classes=False,
    )


_PATH = _set(
    "pathmnist",
    "PathMNIST: tissues of colorectal cancer",
    {
        "adipose": "adipose tissue",
        "background": "empty background without tissue",
        "debris": "necrotic debris",
        "lymphocytes": "aggregate of lymphocytes",
        "mucus": "mucus",
        "smooth-muscle": "smooth muscle",
        "normal-mucosa": "normal colon mucosa",
        "stroma": "cancer-associated stroma",
        "adenocarcinoma": "colorectal adenocarcinoma epithelium",
    },
    "histopathology",
)

_OCT = _set(
    "octmnist",
    "OCTMNIST: retinal optical coherence tomography",
    {name: OCT_C8.classes[name] for name in ("CNV", "DME", "DRUSEN", "NORMAL")},
    OCT_C8.modality,
    grey=True,
)

_PNEUMONIA = _set(
    "pneumoniamnist",
    "PneumoniaMNIST: chest X-rays of children",
    {"normal": "clear and healthy lungs", "pneumonia": "pneumonia with lung consolidation"},
    "chest X-ray",
    grey=True,
    hflip=False,  # the heart is on the left
    vflip=False,
)

_RETINA = _set(
    "retinamnist",
    "RetinaMNIST: grades of diabetic retinopathy",
    {
        "none": "healthy retina without diabetic retinopathy",
        "mild": "mild nonproliferative diabetic retinopathy with microaneurysms only",
        "moderate": "moderate nonproliferative diabetic retinopathy",
        "severe": "severe nonproliferative diabetic retinopathy with extensive hemorrhages",
        "proliferative": "proliferative diabetic retinopathy with neovascularization",
    },
    "fundus photography",
)

_BREAST = _set(
    "breastmnist",
    "BreastMNIST: ultrasound of the breast",
    {"malignant": "malignant breast tumor", "normal-or-benign": "normal breast or benign breast lesion"},
    "ultrasound",
    grey=True,
    vflip=False,  # the skin is on top
)

_TISSUE = _set(
    "tissuemnist",
    "TissueMNIST: cells of the kidney cortex",
    {
        "collecting-duct": "collecting duct or connecting tubule cell",
        "distal-tubule": "distal convoluted tubule cell",
        "glomerular-endothelium": "glomerular endothelial cell",
        "interstitial-endothelium": "interstitial endothelial cell",
        "leukocyte": "leukocyte",
        "podocyte": "podocyte",
        "proximal-tubule": "proximal tubule segment cell",
        "thick-ascending-limb": "thick ascending limb cell",
    },
    "microscopy",
    grey=True,
)

# Language models hardly distinguish left from right; the Latin names differ more.
_ORGANS = {
    "bladder": "urinary bladder",
    "femur-left": "left femur (os femoris sinistrum)",
    "femur-right": "right femur (os femoris dextrum)",
    "heart": "heart",
    "kidney-left": "left kidney (ren sinister)",
    "kidney-right": "right kidney (ren dexter)",
    "liver": "liver",
    "lung-left": "left lung (pulmo sinister)",
    "lung-right": "right lung (pulmo dexter)",
    "pancreas": "pancreas",
    "spleen": "spleen",
}


def _organs(letter: str, view: str) -> Entry:
    name, title = f"organ{letter.lower()}mnist", f"Organ{letter}MNIST: organs in CT, {view} slices"
    # No flips: a mirrored left kidney looks like a right one.
    return _set(name, title, _ORGANS, "abdominal CT", grey=True, hflip=False, vflip=False)


ENTRIES = (
    _variant(HAM10000, "dermamnist", "DermaMNIST: HAM10000 with its published split"),
    _variant(PBC, "bloodmnist", "BloodMNIST: PBC with its published split"),
    _OCT,
    _PATH,
    _PNEUMONIA,
    _RETINA,
    _BREAST,
    _TISSUE,
    _organs("A", "axial"),
    _organs("C", "coronal"),
    _organs("S", "sagittal"),
)
