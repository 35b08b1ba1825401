"""Reading ``data/``: named models, hardware, published tables, and the running job.

No number of a machine or a model stands in the library's code. It stands in ``data/`` beside its
source, and this module is the only reader. Where the data lies: the ``data`` folder of the
checkout, or the folder named by the environment variable ``TOKENLIFE_DATA``.
"""

import json
import os
import tomllib
from functools import cache
from pathlib import Path

import pandas as pd

from tokenlife.errors import TokenlifeError


class CatalogError(TokenlifeError, KeyError):
    """A name that the catalogue does not hold, or a file that it cannot read."""

    def __str__(self) -> str:  # KeyError would show the message in quotes
        return self.args[0]


def data_dir() -> Path:
    """Return the folder that holds the book's data.

    Raises
    ------
    CatalogError
        If there is no such folder: the library was installed away from its checkout.

    Examples
    --------
    >>> (data_dir() / "running.toml").exists()
    True
    """
    named = os.environ.get("TOKENLIFE_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "data"
    if not folder.is_dir():
        raise CatalogError(
            f"no data folder at {folder}; set TOKENLIFE_DATA to the 'data' folder of a checkout"
        )
    return folder


def model_names() -> list[str]:
    """List the named models.

    Examples
    --------
    >>> "gpt2" in model_names()
    True
    """
    return sorted(path.stem for path in (data_dir() / "models").glob("*.json"))


def read_model(name_or_path: str | Path) -> dict:
    """Read a model's ``config.json``: a name of :func:`model_names`, or a path to such a file.

    Returns
    -------
    dict
        The keys as Hugging Face writes them. Named models carry ``_source`` too.

    Raises
    ------
    CatalogError
        If the name is unknown, or the file is no JSON object.

    Examples
    --------
    >>> read_model("gpt2")["n_embd"]
    768
    >>> read_model("gpt9")
    Traceback (most recent call last):
        ...
    tokenlife.catalog.CatalogError: no model 'gpt9'; give a path to a config.json, or one of: ...
    """
    path = data_dir() / "models" / f"{name_or_path}.json"
    try:
        path = path if path.is_file() else Path(name_or_path)
        found = path.is_file()
    except (OSError, ValueError):  # too long for a file's name, or holding a NUL
        found = False
    if not found:
        known = ", ".join(model_names())
        raise CatalogError(
            f"no model {str(name_or_path)!r:.80}; give a path to a config.json, or one of: {known}"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CatalogError(f"{path} is not a readable config.json: {error}") from error
    if not isinstance(config, dict):
        raise CatalogError(f"{path} is not a config.json: it holds no JSON object")
    return config


@cache
def _toml(relative: str) -> dict:
    path = data_dir() / relative
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CatalogError(f"cannot read {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(f"{path} is not valid TOML: {error}") from error


def family_defaults(family: str) -> dict:
    """Return what a ``config.json`` of this family may leave out, from ``data/families.toml``.

    Examples
    --------
    >>> family_defaults("llama")["tie_word_embeddings"], family_defaults("llm9")
    (False, {})
    """
    return dict(_toml("families.toml").get(family, {}))


def read_link(name: str) -> dict:
    """Read a link of ``data/hardware/links.toml``: ``rate_bps``, ``transport`` and ``source``.

    Examples
    --------
    >>> read_link("1000base-t")["rate_bps"]
    1000000000
    """
    links = _toml("hardware/links.toml")
    if name not in links:
        raise CatalogError(f"no link {name!r}; known: {', '.join(sorted(links))}")
    return dict(links[name])


def vocabulary_recipes() -> dict[str, dict]:
    """Return how each known vocabulary is read, from ``data/vocabularies/vocabularies.toml``.

    Examples
    --------
    >>> vocabulary_recipes()["gpt2"]["n_vocab"]
    50257
    """
    return dict(_toml("vocabularies/vocabularies.toml"))


def read_accelerator(name: str) -> dict:
    """Read an accelerator of ``data/hardware/accelerators.toml``.

    Returns
    -------
    dict
        ``title``; ``peak_flops``: FLOP/s of dense matrix products by type; and, where the source
        has them, ``memory_bytes``, ``memory_Bps``, ``power_w``, ``scale_up_Bps`` (one direction, to
        the rest of the node) with ``switch_adds``; ``source``.

    Raises
    ------
    CatalogError
        If there is none of this name.

    Examples
    --------
    >>> read_accelerator("h100-sxm")["peak_flops"]["bfloat16"] / 1e12
    989.0
    """
    known = _toml("hardware/accelerators.toml")
    if name not in known:
        raise CatalogError(f"no accelerator {name!r}; known: {', '.join(sorted(known))}")
    return {**known[name], "peak_flops": dict(known[name]["peak_flops"])}


def accelerator_names() -> list[str]:
    """List the accelerators, in the order of their file.

    Examples
    --------
    >>> "a100-sxm" in accelerator_names()
    True
    """
    return list(_toml("hardware/accelerators.toml"))


def read_wan() -> dict:
    """Read light, glass, routes and places: ``data/hardware/wan.toml``."""
    return dict(_toml("hardware/wan.toml"))


def read_calibration() -> dict:
    """Read what ``tokenlife.jobs.step`` was fitted to: ``data/hardware/calibration.toml``."""
    return dict(_toml("hardware/calibration.toml"))


def read_reference(name: str) -> pd.DataFrame:
    """Read a published table of ``data/reference/``; every table has a ``source`` column.

    Raises
    ------
    CatalogError
        If there is no such table.
    """
    path = data_dir() / "reference" / f"{name}.csv"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.csv")))
        raise CatalogError(f"no reference table {name!r}; known: {known or 'none'}")
    return pd.read_csv(path)


def record_names() -> list[str]:
    """List the recorded measurements of ``data/results/``."""
    return sorted(path.stem for path in (data_dir() / "results").glob("*.json"))


def read_record(name: str) -> dict:
    """Read a recorded measurement: ``date``, ``machine``, ``code`` and ``values``.

    Raises
    ------
    CatalogError
        If there is no such record, or it is damaged.

    Examples
    --------
    >>> read_record("a run that never was")
    Traceback (most recent call last):
        ...
    tokenlife.catalog.CatalogError: no record 'a run that never was'; known: ...
    """
    path = data_dir() / "results" / f"{name}.json"
    if not path.is_file():
        raise CatalogError(f"no record {name!r}; known: {', '.join(record_names()) or 'none'}")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CatalogError(f"{path} is no readable record: {error}") from error


def running() -> dict:
    """Return the running sentence and the running jobs of the book.

    Returns
    -------
    dict
        ``sentence``; ``small`` and ``big``: model, vocabulary and layout of each job.

    Examples
    --------
    >>> running()["small"]["dp"]
    2
    """
    return dict(_toml("running.toml"))
