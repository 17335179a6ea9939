"""The training loop: optimiser with groups, schedule, clipping, averaged weights, resume to the same bits, torchrun.

A level hands in a `Problem`; the loop knows nothing of pictures. Nothing random is kept between steps: every draw is a
function of the seed and the step's number, so that a run that was killed resumes as if it had not been.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from likewise.errors import FileError, LikewiseError
from likewise.store import checkpoint
from likewise.store.run import Run, differing, progress
from likewise.train.distributed import ProcessGroup
from likewise.train.options import LoopOptions

STATE = "state.safetensors"
"""The file of a run directory from which training resumes."""


class Problem(Protocol):
    """What is trained: a network, the parameters of its loss, and the loss of a step.

    Gradients of `network` are summed over processes; those of `objective` are whole in each.
    """

    @property
    def network(self) -> nn.Module:
        """What learns, and what is averaged."""

    @property
    def objective(self) -> nn.Module:
        """The loss with its parameters."""

    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups of the optimiser, each with its `lr`."""

    def loss(self, step: int) -> tuple[Tensor, Mapping[str, Any]]:
        """The loss of a step, and figures worth noting."""

    def after(self, step: int) -> None:
        """What follows the step: a momentum network, a queue."""

    def extra(self) -> Mapping[str, nn.Module]:
        """Further modules whose state belongs to the run."""

    def evaluate(self) -> Mapping[str, float]:
        """Figures of the network as it stands; `score` among them, larger is better."""


@dataclass
class Fitted:
    """How a training went: the step it came to, its evaluations, and the best of them."""

    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    best: float = -math.inf
    best_step: int = -1
    since: int = 0

    def see(self, step: int, figures: Mapping[str, float]) -> bool:
        """Note an evaluation; whether it is the best so far."""
        self.history.append({"step": step, **figures})
        if "score" not in figures:  # then nothing can be better, and patience has nothing to go by
            return False
        if not float(figures["score"]) > self.best:  # nor is what is no number
            self.since += 1
            return False
        self.best, self.best_step, self.since = float(figures["score"]), step, 0
        return True

    @property
    def figures(self) -> dict[str, float]:
        """The figures of the best evaluation, or of the last where none is best."""
        rows = [h for h in self.history if h["step"] == self.best_step] or self.history[-1:]
        return {k: v for k, v in rows[0].items() if k not in ("step", "score")} if rows else {}


def create_run(
    out: str | os.PathLike[str] | None, config: dict[str, Any], *, seed: int, resume: bool, processes: ProcessGroup
) -> Run | None:
    """The run directory, which the first process makes and the others open; None where nothing is kept."""
    if out is None:
        return None
    if processes.first:
        Run.create(Path(out), config, seed=seed, resume=resume)
    processes.barrier()
    return Run.create(Path(out), config, seed=seed, resume=True)


class Loop:
    """One training, step by step; `run` goes to its end."""

    def __init__(
        self,
        problem: Problem,
        settings: LoopOptions,
        *,
        run: Run | None = None,
        resume: bool = False,
        processes: ProcessGroup | None = None,
        keep_best: Callable[[], None] | None = None,
    ) -> None:
        self.problem, self.settings, self.out = problem, settings, run
        self.processes = processes or ProcessGroup.current()
        self.keep_best = keep_best
        groups = [{**g, "rate": g["lr"], "weight_decay": g.get("weight_decay", 0.0)} for g in problem.groups()]
        self.optimiser = torch.optim.AdamW(groups, lr=0.0, foreach=True)
        self.average = averaged(problem.network) if settings.ema else None
        self.fitted = Fitted()
        self._saved = time.monotonic()
        if resume and run is not None:
            logged = self._restore(run.path / STATE) if (run.path / STATE).exists() else 0
            if self.processes.first and isinstance(logged, int):
                run.rewind(logged)

    def run(self) -> Fitted:
        """Step until the end, or until the score has not risen for `patience` evaluations."""
        s, fitted = self.settings, self.fitted
        with progress(s.steps, "training", show=self.processes.first, done=fitted.step) as advance:
            while fitted.step < s.steps and not (s.patience and fitted.since >= s.patience):
                self._step(fitted.step)
                fitted.step += 1
                advance()
                if fitted.step == s.steps or (s.evaluate_every and fitted.step % s.evaluate_every == 0):
                    self._evaluate()
                if time.monotonic() - self._saved >= s.save_every:
                    self.save()
        self.save()
        return fitted

    def _step(self, step: int) -> None:
        problem, s = self.problem, self.settings
        began = time.perf_counter()
        problem.network.train()
        for group in self.optimiser.param_groups:
            group["lr"] = group["rate"] * s.rate(step)
        loss, figures = problem.loss(step)
        if not math.isfinite(loss.item()):
            raise LikewiseError(
                f"step {step}: the loss is {loss.item()}; lower the learning rates, or clip the gradient (clip=1)"
            )
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        self.processes.sum_gradients(problem.network.parameters())
        if s.clip:
            nn.utils.clip_grad_norm_(problem.network.parameters(), s.clip)
        self.optimiser.step()
        problem.after(step)
        if self.average is not None:
            average_into(self.average, problem.network, min(s.ema, (step + 1) / (step + 10)))
        plain = {k: v.item() if isinstance(v, Tensor) else v for k, v in figures.items()}
        self._log(step, loss=loss.item(), seconds=time.perf_counter() - began, **plain)

    def _log(self, step: int, **figures: Any) -> None:
        if self.out is not None and self.processes.first:
            self.out.log(step, **figures)

    def _evaluate(self) -> None:
        began = time.perf_counter()
        with self.weights():
            self.problem.network.eval()
            figures = dict(self.problem.evaluate())
            better = self.fitted.see(self.fitted.step, figures)
            if better and self.keep_best is not None and self.processes.first:
                self.keep_best()
        self._log(self.fitted.step, evaluation_seconds=time.perf_counter() - began, **figures)

    @contextlib.contextmanager
    def weights(self) -> Iterator[None]:
        """Within it the network has its averaged weights, where there are any."""
        if self.average is None:
            yield
            return
        kept = averaged(self.problem.network)
        self.problem.network.load_state_dict(self.average)
        try:
            yield
        finally:
            self.problem.network.load_state_dict(kept)

    # ------------------------------------------------------------------------------------------------------ state

    def save(self) -> None:
        """Write all that the next step depends on, in one file that is whole or absent."""
        self._saved = time.monotonic()
        if self.out is None or not self.processes.first:
            return
        arrays = {key: value.detach().cpu().numpy() for key, value in self._tensors().items()}
        best = None if math.isinf(self.fitted.best) else self.fitted.best  # JSON has no infinity
        header = {**dataclasses.asdict(self.fitted), "best": best, "config": self.out.config}
        header["logged"] = self.out.logged()
        checkpoint.write(self.out.path / STATE, arrays, header)

    def _tensors(self) -> dict[str, Tensor]:
        """Every tensor of the state by name: modules, the optimiser's moments, averaged weights."""
        state = {f"{n}/{k}": v for n, m in self._modules().items() for k, v in m.state_dict().items()}
        for i, moments in self.optimiser.state_dict()["state"].items():
            state |= {f"optimiser/{i}/{name}": torch.as_tensor(value) for name, value in moments.items()}
        return state | {f"average/{k}": v for k, v in (self.average or {}).items()}

    def _modules(self) -> dict[str, nn.Module]:
        p = self.problem
        return {"network": p.network, "objective": p.objective, **{f"extra-{k}": m for k, m in p.extra().items()}}

    def _restore(self, path: Path) -> Any:
        """Take up a state; what was logged until it was saved."""
        arrays, header = checkpoint.read(path)
        difference = differing(header.get("config", {}), self.out.config if self.out else {})
        if difference:
            raise FileError(f"{path} is of another configuration ({difference}); use another folder")
        try:
            self._put_state({k: torch.from_numpy(np.array(v)) for k, v in arrays.items()})
            best = -math.inf if header["best"] is None else float(header["best"])
            self.fitted = Fitted(header["step"], header["history"], best, header["best_step"], header["since"])
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise FileError(f"{path} does not fit this training: {' '.join(str(error).split())[:200]}") from None
        return header.get("logged")

    def _put_state(self, arrays: dict[str, Tensor]) -> None:
        for name, module in self._modules().items():
            module.load_state_dict(_under(arrays, f"{name}/"))
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in _under(arrays, "optimiser/").items():
            i, _, name = key.partition("/")
            moments.setdefault(int(i), {})[name] = value
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": moments, "param_groups": groups})
        if self.average is not None:
            self.average = {k: v.to(self.average[k]) for k, v in _under(arrays, "average/").items()}


def averaged(network: nn.Module) -> dict[str, Tensor]:
    """A copy of a network's parameters and buffers, to be averaged into."""
    return {k: v.detach().clone() for k, v in network.state_dict().items()}


@torch.no_grad()
def average_into(average: dict[str, Tensor], network: nn.Module, decay: float) -> None:
    """a ← decay a + (1 − decay) θ, for parameters and floating buffers; whole numbers are copied."""
    now = network.state_dict()
    floating = [k for k, v in now.items() if v.is_floating_point()]
    torch._foreach_lerp_([average[k] for k in floating], [now[k] for k in floating], 1.0 - decay)
    for key in now.keys() - set(floating):
        average[key].copy_(now[key])


def _under(arrays: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
