"""How unusual a distance is: by hand, against a naive loop, and in worlds where it is known what is unrelated."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import PurePosixPath

import numpy as np
import pytest

from likewise.sets import compare, scale, signature
from likewise.sets.scale import ALBUMS, FLOOR, LEAST, PAIRS, Scale, among, ratio, shipped
from likewise.types import Signature

SHIPPED = scale.read(scale.WEIGHTS.read_text(encoding="utf-8"))


def test_a_ratio_is_in_units_of_the_mean_spread_by_hand_and_by_loop() -> None:
    p, q = Signature([[0.0], [1.0]]), Signature([[0.0], [2.0]])  # two points apart: spreads 1 and 4
    assert ratio(5.0, p, q) == ratio(5.0, q, p) == pytest.approx(5.0 / 2.5)
    rng = np.random.default_rng(0)
    s = Signature(rng.normal(size=(5, 3)), rng.uniform(size=5))
    apart = [(i, j) for i in range(5) for j in range(5) if i != j]
    mass = [s.weights[i] * s.weights[j] for i, j in apart]
    spread = np.average([((s.points[i] - s.points[j]) ** 2).sum() for i, j in apart], weights=mass)
    assert ratio(1.0, s, s) == pytest.approx(1.0 / spread)


def test_photos_of_one_burst_do_not_make_all_else_far() -> None:
    burst = Signature([[0.0, 0.0], [0.0, 1e-6]])
    assert ratio(0.1, burst, burst) == pytest.approx(0.1 / FLOOR)


def test_at_what_is_kept_the_percentile_is_its_level_whichever_album_is_first() -> None:
    table, levels, sizes = SHIPPED["quantiles"], SHIPPED["levels"], SHIPPED["sizes"]
    assert table.shape == (len(sizes), len(sizes), len(levels))
    for i, j in ((0, 0), (1, 3), (3, 1), (len(sizes) - 1, 2)):
        said = [shipped(value, (sizes[i], sizes[j])).percentile for value in table[i, j]]
        assert said == pytest.approx(levels, abs=0.02)


def test_a_nearer_pair_never_has_a_larger_percentile_and_sizes_are_between_their_neighbours() -> None:
    values = np.linspace(0.0, 3.0, 61)
    for sizes in ((2, 2), (3, 7), (8, 100), (150, 5000)):
        said = [shipped(float(v), sizes).percentile or 0.0 for v in values]
        assert all(one <= two for one, two in pairwise(said))
        assert said == [shipped(float(v), sizes[::-1]).percentile for v in values]
        assert said[0] == SHIPPED["levels"][0]
        assert said[-1] > 50
    at = [shipped(0.6, (n, n)).percentile or 0.0 for n in (8, 11, 16)]
    assert min(at[0], at[2]) < at[1] < max(at[0], at[2])
    assert shipped(0.5, (5000, 128)) == shipped(0.5, (128, 128))


def test_a_sentence_says_near_only_where_it_is_rare() -> None:
    near, far = shipped(0.1, (8, 8)), shipped(2.0, (8, 8))
    assert near.sentence == "nearer than 99 % of unrelated albums of this size"
    assert far.sentence == "as far apart as unrelated albums are"
    assert "pairs of places, birds and objects" in str(near)
    assert str(Scale(reason="a single photo is no album")) == "no scale: a single photo is no album"
    assert "; few albums)" in str(shipped(0.1, (8, 8), "few albums"))


def test_a_scale_is_json_and_back() -> None:
    for one in (shipped(0.7, (4, 9)), Scale(reason="none"), Scale(None, 4.1, "4.1 times as far apart", "halves")):
        assert Scale(**json.loads(json.dumps(one.to_dict()))) == one


def test_a_percentile_counts_the_pair_itself_so_that_few_pairs_never_say_too_much() -> None:
    others = [1.0, 2.0, 3.0, 4.0]
    assert [among(v, others, "4 pairs").percentile for v in (0.5, 1.0, 2.5, 9.0)] == [20.0, 40.0, 60.0, 100.0]


def world(rng: np.random.Generator, count: int, m: int) -> list[Signature]:
    """Albums about places of their own, as varied as one another."""
    return [signature(rng.normal(rng.normal(size=6), 0.7, size=(m, 6)), k=8) for _ in range(count)]


def test_unrelated_albums_have_uniform_percentiles_and_the_same_place_a_small_one() -> None:
    rng, said = np.random.default_rng(0), list[float]()
    for _ in range(4):
        known = world(rng, ALBUMS, 5)
        others = [ratio(compare(known[i], known[j]).distance, known[i], known[j]) for i, j in scale.pairs(ALBUMS)]
        fresh = zip(world(rng, 80, 5), world(rng, 80, 5), strict=True)
        said += [among(ratio(compare(p, q).distance, p, q), others, "").percentile or 0.0 for p, q in fresh]
    for level in (10, 25, 50, 75):
        assert np.mean(np.array(said) <= level) == pytest.approx(level / 100, abs=0.08)
    same = list[float]()
    for place in rng.normal(size=(20, 6)):
        p, q = (signature(rng.normal(place, 0.7, size=(5, 6))) for _ in range(2))
        same.append(among(ratio(compare(p, q).distance, p, q), others, "").percentile or 100)
    assert np.median(same) < 3


# ── albums of the user's own ──────────────────────────────────────────────────────────────────────────────────────


def test_folders_are_albums_save_those_of_the_two() -> None:
    names = [f"trip{i}/{j}.jpg" for i in range(LEAST + 2) for j in range(4 + i)]
    made, what = scale.albums(names, 4, 3, leave_out={"trip0/0.jpg", "trip1/2.jpg"})
    assert what == "folders"
    assert len(made) == LEAST
    for one, two in made:
        assert (len(one), len(two)) == (4, 3)
        folders = {PurePosixPath(name).parent for name in (*one, *two)}
        assert len(folders) == 1
        assert folders.isdisjoint({PurePosixPath("trip0"), PurePosixPath("trip1")})
    assert scale.albums(names, 4, 3, leave_out=set()) == scale.albums(names, 4, 3, leave_out=set())
    assert scale.albums(names, 4, 3, leave_out=set()) != scale.albums(names, 4, 3, leave_out=set(), seed=1)


def test_one_folder_is_cut_into_runs_that_are_not_neighbours() -> None:
    names = [f"{i:04d}.jpg" for i in range(5 * 2 * (LEAST + 1))]
    made, what = scale.albums(names, 5, 5, leave_out={"0002.jpg"})
    assert what == "runs of 5 photos"
    starts = sorted(int(one[0][:4]) for one, _ in made)
    assert len(starts) == LEAST
    assert min(np.diff(starts)) >= 10
    assert starts[0] == 10


def test_too_few_albums_are_none_and_say_so() -> None:
    made, why = scale.albums([f"{i}/{j}.jpg" for i in range(4) for j in range(9)], 9, 2, leave_out={"0/1.jpg"})
    assert not made
    assert why == f"only 3 other folders of the index hold 9 photos, {LEAST} are needed"


def test_pairs_are_of_two_albums_each_once() -> None:
    some = scale.pairs(ALBUMS)
    assert len(some) == len(set(some)) == PAIRS
    assert all(i != j for i, j in some)
    assert len(scale.pairs(3)) == 6
    assert scale.pairs(ALBUMS, 1) != some
