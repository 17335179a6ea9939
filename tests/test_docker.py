"""The Dockerfile, read as Docker reads it: known instructions, files that are there, our torch, nobody's root."""

from __future__ import annotations

import fnmatch
import json
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
KNOWN = {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "VOLUME", "USER", "ENTRYPOINT", "CMD"}
"""The instructions that ours needs; ADD, which fetches and unpacks, is none of them."""


def instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction and what follows it, continued lines joined; comments may stand between them."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\s*\n", " ", "\n".join(lines))
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())
    ]


def defects(text: str) -> list[str]:
    """What is wrong with a Dockerfile of this repository."""
    steps, wrong = instructions(text), list[str]()
    wrong += [f"{word}: not an instruction that is known here" for word, _ in steps if word not in KNOWN]
    if steps[0] != ("FROM", "python:3.11-slim"):
        wrong.append("begins with another image")
    for word, rest in steps:
        if word == "COPY":
            wrong += [f"COPY {name}: not in the repository" for name in rest.split()[:-1] if not (ROOT / name).exists()]
            wrong += [f"COPY {name}: ignored" for name in rest.split()[:-1] if not sent(name)]
        if word in ("ENTRYPOINT", "CMD", "VOLUME") and not all(isinstance(v, str) for v in json.loads(rest)):
            wrong.append(f"{word}: not a list of words")
    users = [rest for word, rest in steps if word == "USER"]
    if not users or users[-1] in ("root", "0") or f"useradd --create-home --uid 1000 {users[-1]}" not in text:
        wrong.append("runs as root, or as somebody that there is not")
    if dict(steps).get("ENTRYPOINT") != '["likewise"]':
        wrong.append("does not begin likewise")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    torch = next(d for d in project["dependencies"] if d.startswith("torch"))
    if f'whl/cpu "{torch}"' not in text:
        wrong.append(f"torch: not {torch} from the index of CPU builds")
    asked = re.findall(r"\.\[([\w,]+)\]", text)
    wrong += [
        f"extra {e}: there is none" for e in ",".join(asked).split(",") if e not in project["optional-dependencies"]
    ]
    return wrong


def sent(name: str) -> bool:
    """Whether .dockerignore lets a file through: the last rule that fits counts."""
    answer = True
    for rule in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if rule and not rule.startswith("#") and fnmatch.fnmatch(name, rule.removeprefix("!")):
            answer = rule.startswith("!")
    return answer


def test_the_dockerfile_is_well_formed() -> None:
    assert defects(DOCKERFILE) == []
    assert not sent(".git")
    assert not sent("docs")


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("WORKDIR /src", "WORKDR /src"),
        ("COPY src", "COPY sources"),
        ("COPY src", "COPY docs"),
        ("USER likewise", "USER root"),
        ("USER likewise", ""),
        ('["likewise"]', '["bash"]'),
        (",<2.14", ""),
        ("heic,raw", "heic,jpeg"),
        ("python:3.11-slim", "python"),
    ],
)
def test_a_mistake_in_it_is_found(was: str, now: str) -> None:
    assert DOCKERFILE.count(was) == 1
    assert defects(DOCKERFILE.replace(was, now)) != []
