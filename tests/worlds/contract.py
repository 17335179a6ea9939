"""The contract of a level: what each level's comparison must do. A level's test class inherits it."""

from __future__ import annotations

import json

import pytest

import likewise as lw


class ContractOfALevel:
    """Override `pair` (two different things), `compare` (in the form where x is nearest to x) and `wrong`."""

    def pair(self):
        raise NotImplementedError

    def compare(self, x, y):
        raise NotImplementedError

    def wrong(self):
        """(a call with a bad argument, the name that the error must contain) …"""
        raise NotImplementedError

    def test_a_thing_is_nearest_to_itself(self):
        x, y = self.pair()
        assert self.compare(x, x).distance < self.compare(x, y).distance
        assert self.compare(y, y).distance < self.compare(y, x).distance

    def test_it_prints_in_one_line_with_its_distance(self):
        result = self.compare(*self.pair())
        assert "\n" not in repr(result)
        assert "distance=" in repr(result)

    def test_it_is_a_comparison_with_picture_and_json(self, tmp_path):
        result = self.compare(*self.pair())
        assert isinstance(result, lw.Comparison)
        result.plot(tmp_path / "picture.png")
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
        assert json.loads(result.to_json(tmp_path / "a.json")) == json.loads((tmp_path / "a.json").read_text())
        assert json.loads(result.to_json())["distance"] == result.distance

    def test_the_same_twice_gives_the_same_bytes(self):
        assert self.compare(*self.pair()).to_json() == self.compare(*self.pair()).to_json()

    def test_wrong_arguments_are_named(self):
        for call, name in self.wrong():
            with pytest.raises(lw.InputError, match=name):
                call()
