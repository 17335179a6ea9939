"""RAFT against a straightforward implementation on random weights in the published layouts; sizes, paths, refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from likewise.errors import FileError, InputError, ShapeError
from likewise.papers.life import layouts
from likewise.pixels import raft as raft_update
from likewise.pixels.geometry import resize_flow
from likewise.pixels.raft import RAFT, SIZES, Frame, InstanceNorm, Size
from likewise.pixels.raft.correlation import Correlation
from likewise.store import checkpoint
from pixels import raft_oracle as oracle

State = dict[str, torch.Tensor]


def weights(size: str, dtype: torch.dtype = torch.float64) -> State:
    """Random weights whose flow stays within the image, as a trained network's does."""
    state = oracle.random_state(size, dtype=dtype)
    state["update_block.flow_head.conv2.weight"] *= 0.1
    return state


def pictures(h: int = 128, w: int = 136, b: int = 1, seed: int = 3, dtype: torch.dtype = torch.float64):
    g = torch.Generator().manual_seed(seed)
    return torch.rand(2, b, 3, h, w, generator=g, dtype=dtype).unbind()


def official(state: State) -> State:
    return {f"module.{k}": v for k, v in state.items()}


LAYOUTS = {"official": official, "bare": dict, "torchvision": oracle.torchvision_state}


@pytest.fixture(scope="module")
def small() -> RAFT:
    return RAFT.from_official(weights("small", torch.float32))


@pytest.fixture(scope="module")
def tiny() -> RAFT:
    return RAFT("tiny")


# --------------------------------------------------------------------------------------------- the published networks


@pytest.mark.parametrize(("size", "count"), [("small", 990_162), ("large", 5_257_536)])
def test_it_has_as_many_weights_as_published(size: str, count: int) -> None:
    assert sum(p.numel() for p in RAFT(size).parameters()) == count


@pytest.mark.parametrize(("size", "iters"), [("small", 2), pytest.param("large", 2, marks=pytest.mark.slow)])
def test_published_weights_give_the_flow_of_the_oracle(size: str, iters: int) -> None:
    state = weights(size)
    a, b = pictures(128, 128)
    model = RAFT.from_official(official(state))
    with torch.no_grad():
        want = oracle.flows(state, a, b, iters)
        result = model(a, b, iters)
    assert len(result) == iters
    assert 1 < float(want[-1].abs().max()) < 100
    for mine, theirs in zip(result, want, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", ["small", "large"])
def test_every_layout_is_read_key_by_key(size: str, layout: str, tmp_path: Path) -> None:
    state = weights(size)
    file = tmp_path / "raft.pth"
    torch.save(LAYOUTS[layout](state), file)
    model = RAFT.from_official(file)
    assert model.size == SIZES[size]
    assert size in repr(model)
    kept = model.state_dict()
    assert all(torch.equal(v, state[k]) for k, v in kept.items())
    assert len(kept) == len([k for k in state if not k.count("norm3")])


@pytest.mark.parametrize("size", ["small", pytest.param("large", marks=pytest.mark.slow)])
def test_in_single_precision_it_is_equal_to_1e_4(size: str) -> None:
    state = weights(size, torch.float32)
    a, b = pictures(dtype=torch.float32)
    model = RAFT.from_official(official(state))
    with torch.no_grad():
        want = oracle.flows(state, a, b, 12)[-1]
    for kind in ("all", "demand"):
        torch.testing.assert_close(model.flow(a[0], b[0], 12, correlation=kind), want[0], atol=1e-4, rtol=0)


def test_every_gradient_is_the_oracle_s() -> None:
    state = weights("small")
    a, b = pictures(128, 128)
    leaves = {k: v.clone().requires_grad_() for k, v in state.items()}
    loss = sum(f.square().mean() for f in oracle.flows(leaves, a, b, 2))
    want = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    for kind in ("all", "demand"):
        model = RAFT.from_official(state)
        sum(f.square().mean() for f in model(a, b, 2, correlation=kind)).backward()
        for key, p in model.named_parameters():
            close = 1e-8 * float(want[key].abs().max()) + 1e-12
            torch.testing.assert_close(p.grad, want[key], atol=close, rtol=1e-6)


def test_a_guess_carries_no_gradient_into_the_next_iteration() -> None:
    """d of flow 2 through the step of iteration 1 is cut, as in the original: a shift of every step by a constant
    moves each iteration's flow by its own step only."""
    model = RAFT("tiny").double()
    a, b = pictures(64, 64)
    bias = model.update_block.flow_head.conv2.bias
    flows = model(a, b, 3)
    (slope,) = torch.autograd.grad(flows[2].sum(), bias)
    assert slope.tolist() == pytest.approx([64 * 64 * 8 * 0.5] * 2), "8 × one step, halved with the enlarged image"


def test_odd_sizes_are_padded_on_both_sides_by_the_border() -> None:
    state = weights("small")
    a, b = pictures(131, 138)
    model = RAFT.from_official(state)
    padded = [torch.nn.functional.pad(x, (3, 3, 2, 3), mode="replicate") for x in (a, b)]
    with torch.no_grad():
        want = oracle.flows(state, *padded, 2)[-1][:, 2:-3, 3:-3]
        torch.testing.assert_close(model(a, b, 2)[-1], want, atol=1e-9, rtol=0)


def test_both_is_each_way_by_itself(small: RAFT) -> None:
    a, b = (x[0] for x in pictures(130, 150, dtype=torch.float32))
    there, back = small.both(a, b, 3)
    torch.testing.assert_close(there, small.flow(a, b, 3), atol=1e-4, rtol=0)
    torch.testing.assert_close(back, small.flow(b, a, 3), atol=1e-4, rtol=0)


# ---------------------------------------------------------------------------------------- the authors' weights, a photo


def rubber_whale(data: Path) -> float:
    """The AEPE of the authors' RAFT-small in pixels, after 32 iterations, as they evaluate on Sintel."""
    weights, frames = data / "weights" / "raft-small.pth", data / "middlebury" / "RubberWhale"
    if not weights.is_file() or not frames.is_dir():
        pytest.skip("LIKEWISE_DATA has no weights/raft-small.pth or no middlebury/RubberWhale")
    pair = layouts.middlebury(frames)[0].load(None)
    flow = RAFT.from_official(weights).flow(pair.a, pair.b, 32).numpy()
    return float(np.linalg.norm(flow - pair.flow.vectors, axis=-1)[pair.flow.valid].mean())


AEPE = 0.3293
"""0.330, 0.320, 0.323 and 0.329 px after 8, 12, 24 and 32 iterations."""


def test_the_authors_small_network_errs_by_a_third_of_a_pixel_on_rubber_whale(data: Path) -> None:
    assert rubber_whale(data) == pytest.approx(AEPE, abs=5e-4)


def lookup_untransposed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Correlation.lookup

    def lookup(self: Correlation, points: torch.Tensor) -> torch.Tensor:
        planes, side = original(self, points), 2 * self.radius + 1
        b, _, h, w = planes.shape
        return planes.view(b, self.levels, side, side, h, w).transpose(2, 3).reshape(planes.shape)

    monkeypatch.setattr(Correlation, "lookup", lookup)


def images_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Frame.enter
    monkeypatch.setattr(Frame, "enter", lambda self, image: original(self, (image + 1) / 2))


def features_by_layer_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InstanceNorm, "forward", lambda self, x: torch.nn.functional.layer_norm(x, x.shape[1:]))


@pytest.mark.parametrize("wrong", [lookup_untransposed, images_as_they_are, features_by_layer_norm])
def test_another_convention_shows_in_that_figure(data: Path, monkeypatch: pytest.MonkeyPatch, wrong) -> None:
    """92, 0.328 and 128 px: the instance normalisation hides most of how images are scaled."""
    wrong(monkeypatch)
    assert abs(rubber_whale(data) - AEPE) > 1e-3


# ------------------------------------------------------------------------------------------------------- its own parts


@given(st.integers(1, 3), st.integers(1, 20), st.integers(2, 9), st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=30)
def test_the_normalisation_is_torch_s(b: int, c: int, h: int, w: int, seed: int) -> None:
    x = 5 + torch.randn(b, c, h, w, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    torch.testing.assert_close(InstanceNorm()(x), torch.nn.functional.instance_norm(x), atol=1e-6, rtol=1e-6)


def test_the_normalisation_keeps_its_digits_far_from_zero() -> None:
    g = torch.Generator().manual_seed(0)
    x = (1000 + torch.randn(1, 8, 32, 32, generator=g)).contiguous(memory_format=torch.channels_last)
    want = torch.nn.functional.instance_norm(x.double()).float()
    torch.testing.assert_close(InstanceNorm()(x), want, atol=1e-3, rtol=0)


def test_convex_enlargement_by_hand() -> None:
    """All weight on the cell itself repeats it 8 × 8; the logit's first index is the neighbour, row by row."""
    flow = torch.arange(12.0).view(1, 2, 2, 3)
    logits = torch.zeros(1, 9, 64, 2, 3)
    logits[:, 4] = 100
    result = raft_update.convex(flow, logits.view(1, 576, 2, 3))
    torch.testing.assert_close(result, 8 * flow.repeat_interleave(8, 2).repeat_interleave(8, 3))
    logits = torch.zeros(1, 9, 8, 8, 2, 3)
    logits[:, 5, 0, 7] = 100  # the pixel at the top right of every cell is its right neighbour's
    result = raft_update.convex(flow, logits.view(1, 576, 2, 3))
    assert result[0, 0, 0, 7].item() == pytest.approx(8 * 1.0)
    assert result[0, 0, 8, 23].item() == pytest.approx(0.0), "nothing beyond the border"


def test_the_update_is_differentiable() -> None:
    block = raft_update.Update(
        9, hidden=3, context=2, seen=(4,), moved=(3, 2), motion=3, head=4, separable=True
    ).double()
    g = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, c, 2, 3, generator=g, dtype=torch.float64).requires_grad_() for c in (3, 2, 9, 2)]

    def run(h: torch.Tensor, context: torch.Tensor, planes: torch.Tensor, flow: torch.Tensor) -> torch.Tensor:
        return torch.cat(block(h, block.gates(context), planes, flow), dim=1)

    assert torch.autograd.gradcheck(run, inputs)


def test_the_enlargement_is_differentiable() -> None:
    g = torch.Generator().manual_seed(0)
    flow, logits = (torch.randn(1, c, 2, 2, generator=g, dtype=torch.float64).requires_grad_() for c in (2, 576))
    assert torch.autograd.gradcheck(raft_update.convex, (flow, logits), fast_mode=True)


@given(st.integers(64, 300), st.integers(64, 300))
def test_a_constant_flow_survives_the_way_in_and_out(h: int, w: int) -> None:
    frame = Frame(h, w)
    left, right, top, bottom = frame.padding
    high, wide = frame.size[0] + top + bottom, frame.size[1] + left + right
    assert min(frame.size) >= 128
    assert high % 8 == wide % 8 == 0
    assert 0 <= right - left <= 1
    assert 0 <= bottom - top <= 1
    x, y = 3.0 * frame.size[1] / w, -5.0 * frame.size[0] / h
    padded = torch.tensor([x, y]).view(1, 2, 1, 1).expand(1, 2, high, wide)
    torch.testing.assert_close(frame.leave(padded), torch.tensor([3.0, -5.0]).expand(1, h, w, 2), atol=1e-4, rtol=0)


def test_another_size_of_b_is_met_with_its_own_pixels(small: RAFT) -> None:
    a, b = (x[0] for x in pictures(128, 192, dtype=torch.float32))
    a = a[:, :, :128]
    fitted = torch.nn.functional.interpolate(b[None], (128, 128), mode="bilinear", antialias=True)[0]
    result = small.flow(a, b, 2)
    assert result.shape == (128, 128, 2)
    want = resize_flow(small.flow(a, fitted, 2), (128, 128), ((128, 128), (128, 192)))
    torch.testing.assert_close(result, want, atol=1e-4, rtol=0)
    there, back = small.both(a, b, 2)
    torch.testing.assert_close(there, result, atol=1e-4, rtol=0)
    assert back.shape == (128, 192, 2)
    torch.testing.assert_close(
        back, resize_flow(small.flow(fitted, a, 2), (128, 192), ((128, 128), (128, 128))), atol=1e-4, rtol=0
    )


# ------------------------------------------------------------------------------------------------ weights of all kinds


@pytest.mark.parametrize("size", SIZES)
def test_every_size_runs_and_trains(size: str) -> None:
    model = RAFT(size)
    a, b = pictures(64, 72, dtype=torch.float32)
    model(a, b, 1)[-1].mean().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
    assert model.flow(a[0], b[0], 1).shape == (64, 72, 2)


def test_new_weights_are_a_function_of_the_seed() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, same, other = (RAFT("tiny", seed=s).state_dict() for s in (4, 4, 5))
    assert torch.equal(torch.get_rng_state(), before), "the global generator is left as it was"
    assert all(torch.equal(v, same[k]) for k, v in one.items())
    assert not any(torch.equal(v, other[k]) for k, v in one.items() if v.ndim > 1)


@pytest.mark.parametrize(
    "size", ["tiny", "large", Size((8, 8, 16, 24), 32, 16, 8, 2, (16, 12), (8, 8), 14, 16, mask=16)]
)
def test_saved_and_loaded_it_gives_the_same(size: str | Size, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(checkpoint._CLASSES, "pixels.RAFT", "likewise.pixels.raft:RAFT")
    model = RAFT(size, seed=3)
    a, b = (x[0] for x in pictures(64, 64, dtype=torch.float32))
    checkpoint.save(model, tmp_path / "raft.safetensors")
    loaded = checkpoint.load(tmp_path / "raft.safetensors")
    assert loaded.size == model.size
    assert torch.equal(loaded.flow(a, b, 2), model.flow(a, b, 2))


def test_flow_leaves_the_mode_alone_and_uses_no_batch_statistics() -> None:
    model = RAFT("large").train()
    a, b = (x[0] for x in pictures(64, 64, dtype=torch.float32))
    kept = {k: v.clone() for k, v in model.state_dict().items()}
    result = model.flow(a, b, 1)
    assert model.training
    assert all(torch.equal(v, kept[k]) for k, v in model.state_dict().items())
    torch.testing.assert_close(result, model.eval().flow(a, b, 1))


def test_duplicates_counters_and_prefixes_may_be_there_or_not() -> None:
    state = weights("large", torch.float32)
    full = RAFT.from_official(state).state_dict()
    fewer = {k: v for k, v in state.items() if "downsample.1" not in k and "num_batches" not in k}
    assert all(
        torch.equal(v, full[k]) for k, v in RAFT.from_official(fewer).state_dict().items() if "num_batches" not in k
    )
    fewer = {k: v for k, v in state.items() if "norm3" not in k}
    assert all(torch.equal(v, full[k]) for k, v in RAFT.from_official(fewer).state_dict().items())


def two_names_that_differ() -> State:
    state = weights("large", torch.float32)
    return state | {"cnet.layer2.0.norm3.weight": state["cnet.layer2.0.norm3.weight"] + 1}


def broken(change) -> State:
    state = official(weights("small", torch.float32))
    change(state)
    return state


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (two_names_that_differ(), r"layer2\.0\.norm3\.weight and .*downsample\.1\.weight are one module"),
        (broken(lambda s: s.pop("module.fnet.conv1.bias")), r"small: 1 keys differ, the first is fnet.conv1.bias"),
        (broken(lambda s: s.update({"module.extra": torch.zeros(1)})), r"1 keys differ, the first is extra"),
        (
            broken(lambda s: s.update({"module.cnet.conv2.bias": torch.zeros(7)})),
            r"1 keys differ, the first is cnet\.conv2\.bias",
        ),
        (broken(lambda s: s.update({"module.cnet.conv2.bias": "x"})), r"a str at module\.cnet\.conv2\.bias"),
        ({"fc.weight": torch.zeros(3, 3)}, r"not RAFT's: .* got fc\.weight"),
        ({}, "got nothing"),
    ],
)
def test_weights_that_do_not_fit_are_named(state: State, message: str) -> None:
    with pytest.raises((FileError, InputError), match=message):
        RAFT.from_official(state)


# ------------------------------------------------------------------------------------------------------------ refusals


def test_a_blank_picture_gives_finite_flow(tiny: RAFT) -> None:
    blank = torch.zeros(3, 64, 64)
    assert torch.isfinite(tiny.flow(blank, blank)).all()


IMAGE = torch.rand(3, 64, 64)
REFUSALS = [
    (lambda m: m.flow(IMAGE, torch.rand(3, 64, 63)), ShapeError, "b: expected at least 64 × 64 px, got 64 × 63"),
    (lambda m: m.flow(IMAGE[:1], IMAGE), ShapeError, r"a: expected an image \(3, h, w\), got shape \(1, 64, 64\)"),
    (lambda m: m.flow(IMAGE, torch.rand(4, 64, 64)), ShapeError, "b: .*drop the alpha channel"),
    (lambda m: m.flow(IMAGE[0], IMAGE), ShapeError, "a: expected an image"),
    (lambda m: m.flow(IMAGE[:, :0], IMAGE), ShapeError, "a: expected at least 64 × 64 px, got 0 × 64"),
    (lambda m: m.flow(IMAGE, IMAGE, iters=0), InputError, "iters: expected a whole number ≥ 1, got 0"),
    (lambda m: m.flow(IMAGE, IMAGE, correlation="some"), InputError, "kind: expected"),
    (lambda m: m.flow(IMAGE, 255 * IMAGE), InputError, r"b: expected numbers in \[0, 1\], got .* to 2\d\d"),
    (lambda m: m.flow((255 * IMAGE).byte(), IMAGE), InputError, "divide by 255"),
    (lambda m: m.flow(IMAGE * float("nan"), IMAGE), InputError, "a: expected numbers"),
    (lambda m: RAFT("huge"), InputError, "size: expected one of tiny, light, small, large"),
    (lambda m: m(IMAGE[None], torch.rand(1, 3, 64, 72)), ShapeError, r"a, b: expected images of one size.*flow\(\)"),
    (lambda m: m(IMAGE, IMAGE), ShapeError, r"a: expected \(b, 3, h, w\)"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS)
def test_refusals(tiny: RAFT, call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(tiny)
