"""A user's program that lies outside of Python's path, for workers to find."""

from __future__ import annotations

from pathlib import Path

PROGRAM = """
import torch
from likewise.distributions import Generator, Normal

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([[1.0, 0.5, 0.2], [0.0, 2.0, 0.3]]))

    def forward(self, z):
        return torch.tanh(z @ self.weight) + z[:, :1] ** 3

def make():
    return Generator(Net(), Normal(2), name="mine")
"""


def program(folder: Path, name: str) -> Path:
    """The program as a file in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(PROGRAM)
    return folder / f"{name}.py"
