"""The data sets of the paper, and the digits, which need no download."""

from __future__ import annotations

from dataclasses import replace
from string import ascii_lowercase, ascii_uppercase

from fedbm.data.catalog.entry import Entry

_DIGIT_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# Word and figure together differ more in language space than either alone.
_DIGITS = {str(value): f"the number {word} ({value})" for value, word in enumerate(_DIGIT_WORDS)}

# Uncased language models read "A" and "a" as the same, so the case is spelt out.
_CHARACTERS = (
    _DIGITS
    | {letter: f"uppercase letter {letter} (capital)" for letter in ascii_uppercase}
    | {letter: f"lowercase letter {letter} (small)" for letter in ascii_lowercase}
)

DIGITS = Entry(
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
    by_classes=False,
    licence="CC BY 4.0",
    citation="Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI repository, 1998",
    origin="built into scikit-learn, nothing to download",
    recommends={"width": 16, "generator_width": 32},  # small enough for a laptop without a GPU
)

HAM10000 = Entry(
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
    origin="the HAM10000 images and HAM10000_metadata.csv of the Harvard Dataverse, in one folder",
    recommends={"clients": 10, "epochs": 1, "rounds": 200},
)

PBC = Entry(
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
)

KVASIR = Entry(
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
    recommends={
        "clients": 10,
        "epochs": 2,
        "rounds": 200,
        "pseudo_batch": 32,
        "temperature": {0.05: 12.5, 0.1: 7.5},
        "lambda_dis": {0.05: 1.0, 0.1: 0.1},
    },
)

OCT_C8 = Entry(
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
    recommends={
        "clients": 12,
        "epochs": 2,
        "rounds": 200,
        "pseudo_batch": 16,
        "temperature": {0.05: 17.5, 0.1: 12.5},
    },
)

FEMNIST = Entry(
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
    by_classes=False,
    licence="public domain (NIST Special Database 19)",
    citation="Caldas et al., LEAF: a benchmark for federated settings, 2018",
    origin="the FEMNIST json files that LEAF's script makes, in folders train and test",
    recommends={"partition": "column", "partition_column": "writer", "epochs": 5, "rounds": 200, "participation": 0.1},
)

# A substitute for FEMNIST: the same 62 classes, each written once by every writer.
CHARS74K = replace(
    FEMNIST,
    name="chars74k",
    title="Chars74K: handwritten characters by writer",
    licence="research use",
    citation="de Campos, Babu and Varma, Character Recognition in Natural Images, VISAPP, 2009",
    origin="the handwritten English characters of Chars74K as one .npz of images, labels, classes and writer",
)

ENTRIES = (DIGITS, HAM10000, PBC, KVASIR, OCT_C8, FEMNIST, CHARS74K)
