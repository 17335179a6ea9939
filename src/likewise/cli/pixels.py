"""`likewise pixels`: where did this point go? Align, match, train, evaluate, reconstruct, localise, render, follow."""

from __future__ import annotations

import click

from likewise.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "compare": ("likewise.cli.pixels_compare:compare", "Align two photos: where did every pixel go?"),
        "match": ("likewise.cli.pixels_match:match", "Match the features of two photos, guided by their flow."),
        "train": ("likewise.cli.pixels_train:train", "Train a network on a folder of photos (LIFE)."),
        "evaluate": ("likewise.cli.pixels_evaluate:evaluate", "How good is the flow where the truth is known?"),
        "sfm": ("likewise.cli.pixels_sfm:sfm", "From a folder of photos to pairs with fundamental matrices."),
        "localize": ("likewise.cli.pixels_localize:localize", "Where was this photo taken, in a map of photos?"),
        "render": ("likewise.cli.pixels_render:render", "Write rendered pairs with exact flow, occlusion and F."),
        "video": ("likewise.cli.pixels_video:video", "The flow of each frame of a video to the next."),
    },
)
def pixels() -> None:
    """Where did this point go? Without --model, the network that comes with likewise."""
