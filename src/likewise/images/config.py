"""What can be set of a training of an embedder: one declaration an option; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from likewise.errors import ConfigError
from likewise.train.options import LoopOptions, option

TASKS = ["disc", "shared", "intra", "dance", "none"]
"""What a head can be trained on.

disc, shared, intra: triplets of one class and another, of three classes, and of one class; dance: two views of an image
against others; none: a head without a loss. `losses.register_task` adds to them.
"""


@dataclass(frozen=True)
class Config(LoopOptions):
    """The recipe of `lw.images.train`; its defaults are for one CPU and photos.

    Every field is a keyword argument, an option of `likewise images train`, and described on the page of the level.

    Raises
    ------
    ConfigError
        If a value is out of range, or `dim` cannot be shared evenly by the heads.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.images.Config(tasks="disc", dim=64, steps=100).heads
    ('disc',)
    >>> lw.images.Config(dim=510)
    Traceback (most recent call last):
        ...
    likewise.errors.ConfigError: dim: 510 cannot be shared evenly by 4 heads (disc,shared,intra,dance)
    """

    backbone: str = option("efficientnet-lite0", "efficientnet-lite0, resnet50, inception-bn or convnet")
    weights: str = option(
        "", "file with the backbone's state dict; none: efficientnet-lite0 has its own, others random ones"
    )
    size: int = option(128, "side of the images in pixels", low=16)
    shortest: int = option(144, "shortest side of a whole image of which `size` is the centre", low=16)
    dim: int = option(512, "dimensions of an embedding, shared evenly by the heads", low=2)
    tasks: str = option(
        "disc,shared,intra,dance", "a task for each head; these are DiVA's, disc alone is the margin baseline"
    )
    alpha_shared: float = option(0.03, "weight of the task shared", low=0)
    alpha_intra: float = option(0.03, "weight of the task intra", low=0)
    alpha_sample: float = option(0.03, "weight of the sample-specific task (dance and its rivals)", low=0)
    shared: Literal["full", "random"] = option("full", "triplets of `shared`: by distance, or with permuted labels")
    rho: float = option(0.0, "weight of decorrelation, in units of D² c", low=0)
    decorrelate: Literal["disc", "all"] = option("disc", "which heads: the first with all others, or all pairs")
    tau: float = option(0.1, "temperature of the sample-specific task", above=0)
    learn_tau: bool = option(False, "learn the temperature")
    scale: Literal["one", "count"] = option("one", "what the weights of negatives sum to: 1, or their number")
    queue: int = option(2048, "rows in the queue of the sample-specific task", low=1)
    momentum: float = option(0.99, "how slowly the momentum network follows", low=0, high=1)
    beta: float = option(1.2, "start of the boundary of the margin loss", above=0)
    gamma: float = option(0.2, "margin", above=0)
    start: Literal["pca", "random"] = option(
        "pca", "heads from the principal axes of the backbone's features, or at random"
    )
    frozen: int = option(0, "first parts of the backbone that stay as they are", low=0)
    views: int = option(5, "crops of an image whose frozen part is kept; 0: computed each time", low=0)
    norm: Literal["folded", "frozen", "trained"] = option(
        "folded", "normalisations: frozen and inside the convolutions, frozen, or trained"
    )
    chunk: int = option(20, "images in one pass of the network; no effect on the result", low=1)
    classes: int = option(20, "classes in a batch", low=2)
    per_class: int = option(4, "images of each class in a batch", low=2)
    smallest: float = option(0.25, "smallest share of an image's area that a random crop takes", above=0, high=1)
    flip: bool = option(True, "mirror half of the training images")
    epochs: float = option(20.0, "passes through the images, where steps is 0", above=0)
    lr: float = option(1e-4, "learning rate of the backbone", low=0)
    head_lr: float = option(2e-4, "learning rate of the heads", low=0)
    beta_lr: float = option(5e-4, "learning rate of the boundaries β", low=0)
    psi_lr: float = option(1e-3, "learning rate of the decorrelating networks and of classifiers", low=0)
    validation: float = option(0.2, "share of the classes kept for validation; 0: none", low=0, high=0.9)
    keep: Literal["best", "last"] = option("best", "weights that are given back: best on validation, or the last")
    mirror: bool = option(True, "embed an image and its mirror image, if flip: twice the time, more is found")
    workers: int = option(2, "threads that decode images", low=1)
    seed: int = option(0, "seed of every draw", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        heads = self.heads
        if self.dim % len(heads):
            raise ConfigError(f"dim: {self.dim} cannot be shared evenly by {len(heads)} heads ({self.tasks})")
        if self.shortest < self.size:
            raise ConfigError(f"shortest: expected ≥ size, {self.size}, got {self.shortest}")
        if "intra" in heads and self.per_class < 3:
            raise ConfigError(f"per_class: the task intra needs three images of a class, got {self.per_class}")

    @property
    def heads(self) -> tuple[str, ...]:
        """The tasks, one a head."""
        heads = tuple(t.strip() for t in self.tasks.split(",") if t.strip())
        for task in heads:
            if task not in TASKS:
                raise ConfigError(f"tasks: expected {', '.join(TASKS)}, separated by commas; got {task!r}")
        if not heads:
            raise ConfigError("tasks: expected at least one task, got none")
        return heads

    @property
    def mirrored(self) -> bool:
        """Whether mirror images are embedded, too: not where training images are never mirrored (characters)."""
        return self.mirror and self.flip

    def alpha(self, task: str) -> float:
        """The weight of a task's loss."""
        if task in ("disc", "none"):
            return float(task == "disc")
        return {"shared": self.alpha_shared, "intra": self.alpha_intra}.get(task, self.alpha_sample)
