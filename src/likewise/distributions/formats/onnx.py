"""A generator in an ONNX file, run by onnxruntime: a black box, whose volumes come from finite differences."""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from likewise.errors import FileError, InputError, MissingExtra

MOST_BYTES = 2 << 30
"""A file longer than this is refused before it is read; ONNX itself holds no more in one file."""

_KINDS = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}


class OnnxNetwork:
    """z (n, dim), and class numbers or one-hot rows where the file has a second input, to images in [0, 1].

    `black` and `white` are what the file gives for 0 and 1. The file's bytes travel with the object, so that worker
    processes open sessions of their own.
    """

    def __init__(self, path: str | Path, *, dim: int | None = None, labels: int | None = None, black: float = -1.0,
                 white: float = 1.0) -> None:  # fmt: skip
        if not black < white:
            raise InputError(f"black, white: expected black < white, got {black} and {white}")
        self._data = _bytes(Path(path))
        self.path, self.black, self.white = str(path), black, white
        self.digest = hashlib.sha256(self._data + repr((black, white, labels)).encode()).hexdigest()
        self._session: Any = None
        self.dim, self.labels = self._sizes(dim, labels)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}

    @property
    def session(self) -> Any:
        """The session, opened when first asked for."""
        if self._session is None:
            self._session = _opened(self._data, self.path)
        return self._session

    def _sizes(self, dim: int | None, labels: int | None) -> tuple[int, int | None]:
        """The size of a latent and the number of classes, as far as the file tells them."""
        inputs = self.session.get_inputs()
        if len(inputs) > 2:
            raise FileError(f"{self.path}: has {len(inputs)} inputs; a generator takes z, or z and a class")
        known = inputs[0].shape[1] if len(inputs[0].shape) > 1 else None
        if not isinstance(known, int) and dim is None:
            raise InputError(f"dim: {self.path} does not say how long a latent is; give dim=")
        if isinstance(known, int) and dim not in (None, known):
            raise InputError(f"dim: the latents of {self.path} have {known} numbers, got dim={dim}")
        if len(inputs) == 2 and labels is None:
            wide = inputs[1].shape[1] if len(inputs[1].shape) > 1 else None
            if not isinstance(wide, int) or wide < 2:
                raise InputError(f"labels: {self.path} takes a class; give the number of classes, labels=")
            labels = wide
        if len(inputs) == 1 and labels is not None:
            raise InputError(f"labels: {self.path} takes no class; leave labels away")
        return known if isinstance(known, int) else int(dim or 0), labels

    def __call__(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        """Images in [0, 1], on the device of z, without a derivative."""
        rows, classes = _plain(z), None if y is None else _plain(y)
        size = self.session.get_inputs()[0].shape[0]
        step = size if isinstance(size, int) else len(rows)
        parts = [self._run(rows[i : i + step], classes, i, step) for i in range(0, len(rows), step)]
        x = (np.concatenate(parts).astype(np.float64) - self.black) / (self.white - self.black)
        return torch.from_numpy(x.clip(0.0, 1.0)).to(z)

    def _run(self, rows: np.ndarray[Any, Any], classes: np.ndarray[Any, Any] | None, start: int, step: int) -> Any:
        """One batch; a file with a fixed batch gets its last rows repeated to that size."""
        n = len(rows)
        short = np.minimum(np.arange(step), n - 1)
        first, *second = self.session.get_inputs()
        feed = {first.name: _fed(rows[short], first, self.path)}
        for given in second:
            labels = (np.zeros(n, np.int64) if classes is None else classes[start : start + n])[short]
            whole = len(given.shape) < 2
            feed[given.name] = _fed(labels if whole else np.eye(self.labels or 1)[labels], given, self.path)
        try:
            return self.session.run([self.session.get_outputs()[0].name], feed)[0][:n]
        except Exception as error:  # onnxruntime raises classes of its own, which it does not export
            raise InputError(f"net: {self.path} cannot be run on {n} latents: {str(error)[:200]}") from None


def _plain(x: Tensor) -> np.ndarray[Any, Any]:
    """A tensor's numbers; a tensor that carries a derivative is refused, so that none is lost silently."""
    if torch._C._functorch.is_functorch_wrapped_tensor(x) or x.requires_grad:
        raise NotImplementedError("an ONNX file has no derivative; use finite differences, method='fd'")
    primal = torch.autograd.forward_ad.unpack_dual(x)  # type: ignore[no-untyped-call]
    if primal.tangent is not None:
        raise NotImplementedError("an ONNX file has no derivative; use finite differences, method='fd'")
    return x.detach().cpu().numpy()


def _fed(rows: np.ndarray[Any, Any], given: Any, path: str) -> np.ndarray[Any, Any]:
    """Rows in the type and with the axes of an input: (n, dim), (n, dim, 1, 1) …"""
    if given.type not in _KINDS:
        raise FileError(f"{path}: input {given.name} is a {given.type}; expected numbers")
    shaped = rows.reshape(*rows.shape, *(1,) * (len(given.shape) - rows.ndim))
    return np.ascontiguousarray(shaped, dtype=_KINDS[given.type])


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        raise FileError(f"{path}: no such file")
    if path.stat().st_size > MOST_BYTES:
        raise FileError(f"{path}: longer than {MOST_BYTES:,} bytes")
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from None


def _opened(data: bytes, path: str) -> Any:
    try:
        onnxruntime: Any = importlib.import_module("onnxruntime")
    except ImportError:
        raise MissingExtra("onnxruntime", "onnx") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        # From bytes, not from the path: a file then cannot make the runtime open others beside it.
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # a damaged file can raise anything
        raise FileError(f"{path}: not an ONNX file that can be run: {str(error)[:200]}") from None
    if not session.get_inputs():
        raise FileError(f"{path}: has no input; a generator takes z, or z and a class")
    return session
