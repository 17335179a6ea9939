"""The paper's settings: in our units, complete, and refused by name where unknown."""

from __future__ import annotations

import pytest

import likewise as lw
from likewise.errors import ConfigError
from likewise.images.presets import PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_configuration(name: str) -> None:
    config = lw.images.preset(name)
    assert config.backbone in name.replace("cub200-", "").replace("cars196-", "").replace("sop-", "")
    assert config.heads == ("disc", "shared", "intra", "dance")
    assert config.dim == 512
    assert config.tau == 0.01


def test_decorrelation_is_in_our_units() -> None:
    """The paper's 1500, 300 and 100 are 0.092, 0.018 and 0.006 in units of D² c at D = 128."""
    names = ("cub200-resnet50", "cub200-inception-bn", "cars196-resnet50")
    assert [round(lw.images.preset(n).rho, 3) for n in names] == [0.092, 0.018, 0.006]


def test_rates_drop_where_the_paper_says() -> None:
    config = lw.images.preset("cub200-resnet50", steps=3500)
    assert [config.rate(s) for s in (0, 549, 550, 3499)] == [1.0, 1.0, 0.2, 0.2]


def test_unknown() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'cub200-resnet50'\?"):
        lw.images.preset("cub-resnet50")
