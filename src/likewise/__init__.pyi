from likewise import distributions as distributions
from likewise import images as images
from likewise import pixels as pixels
from likewise import search as search
from likewise import sets as sets
from likewise.compare import compare as compare
from likewise.errors import ConfigError as ConfigError
from likewise.errors import ConvergenceWarning as ConvergenceWarning
from likewise.errors import FileError as FileError
from likewise.errors import InputError as InputError
from likewise.errors import LikewiseError as LikewiseError
from likewise.errors import MissingExtra as MissingExtra
from likewise.errors import NotFittedError as NotFittedError
from likewise.errors import ShapeError as ShapeError
from likewise.media import read as read
from likewise.store.checkpoint import load as load
from likewise.store.checkpoint import save as save
from likewise.types import Comparison as Comparison
from likewise.types import Signature as Signature

__version__: str
