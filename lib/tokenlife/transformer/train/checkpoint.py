"""Checkpoints: all that a run needs to go on as if it had never stopped.

A checkpoint is written beside its place and then moved there in one operation of the file system:
whoever reads it finds the old one or the new one, never a half. It holds tensors and plain values
only, so loading it runs no code.
"""

import zipfile
from pathlib import Path

import torch

from tokenlife.errors import TokenlifeError
from tokenlife.files import atomic_write

FORMAT = "tokenlife training checkpoint 1"


class CheckpointError(TokenlifeError, ValueError):
    """A checkpoint that cannot be written, read, or continued from."""


def save_checkpoint(path: str | Path, state: dict) -> None:
    """Write a state so that ``path`` holds either what it held before or all of the new state.

    Raises
    ------
    CheckpointError
        If the folder cannot be written; nothing is left there then.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_checkpoint(f"{folder}/last.pt", {"step": 3})
    ...     load_checkpoint(f"{folder}/last.pt")["step"], os.listdir(folder)
    (3, ['last.pt'])
    """
    with atomic_write(path, CheckpointError) as file:
        try:
            torch.save({"format": FORMAT, **state}, file)
        except RuntimeError as error:
            # torch closes its archive on the way out, and that fails too: show what came first.
            cause = error.__context__
            raise (cause if isinstance(cause, KeyboardInterrupt | OSError) else error) from None


def load_checkpoint(path: str | Path, device: torch.device | str = "cpu") -> dict:
    """Read a state that :func:`save_checkpoint` wrote.

    Parameters
    ----------
    path
        The file.
    device
        Where its tensors go.

    Raises
    ------
    CheckpointError
        If there is no such file, or it is no whole checkpoint.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if damaged := archive.testzip():  # torch does not look at the checksums
                raise zipfile.BadZipFile(damaged)
        state = torch.load(path, map_location=device, weights_only=True)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # what damage does to a pickle can raise anything
        raise CheckpointError(
            f"{path} is no whole checkpoint: cut short, damaged, or of something else"
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is no checkpoint of this library; it lacks {FORMAT!r}")
    return state
