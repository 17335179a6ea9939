"""The paper's recipe by name: what it sets is a valid configuration, and what the paper says is in it."""

from __future__ import annotations

import pytest

from likewise.errors import ConfigError
from likewise.papers.life.rivals import PRESETS, preset, settings
from likewise.pixels.training import Config
from likewise.train.options import list_options


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid_and_name_options_that_exist(name: str) -> None:
    assert set(settings(name)) <= {k.name for k in list_options(Config)}
    made = preset(name)
    assert {k: getattr(made, k) for k in settings(name)} == settings(name)


def test_the_papers_recipe_has_its_three_losses_and_no_change_of_light() -> None:
    life = preset("life")
    assert life.network == "large"
    assert (life.sed, life.bit, life.cycle, life.contrast) == (1.0, 1.0, 1.0, 0.0)
    assert (life.cycle_mode, life.one_way, life.light, life.night) == ("adaptive", False, 0.0, 0.0)
    assert (life.alpha, life.beta) == (Config().alpha, Config().beta)
    assert {life.stage(step) for step in (0, life.total - 1)} == {"joint"}


def test_changes_win_and_other_names_are_refused() -> None:
    assert preset("life", cycle=0.5).cycle == 0.5
    with pytest.raises(ConfigError, match="did you mean 'life'"):
        settings("lfe")
    settings("life")["sed"] = 9
    assert PRESETS["life"]["sed"] == 1.0
