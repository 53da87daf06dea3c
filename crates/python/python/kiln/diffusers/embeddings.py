"""Textual inversion: words of a prompt with vectors of their own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.diffusers.arguments import known, without_harmless
from kiln.errors import FileError, RequestError

if TYPE_CHECKING:
    from kiln.diffusers.base import Pipeline

#: The extensions of files of embeddings.
_ENDINGS = (".safetensors", ".pt", ".bin")
#: Names of files that a folder of the Hugging Face Hub has.
_USUAL = ("learned_embeds.safetensors", "learned_embeds.bin")


class TextualInversions:
    """The methods of a pipeline for textual inversion."""

    #: The files by their words.
    _embeddings: dict[str, str]

    def load_textual_inversion(
        self: Pipeline,  # type: ignore[misc]
        pretrained_model_name_or_path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        token: str | Sequence[str] | None = None,
        *,
        weight_name: str | None = None,
        subfolder: str | None = None,
        **arguments: Any,
    ) -> None:
        """Adds embeddings: a file, or a folder with one. `token` is the word that prompts have, by default the file's name or
        the word in the file."""
        known("load_textual_inversion", without_harmless(arguments), ("local_files_only",))
        self._change("load_textual_inversion")
        given = pretrained_model_name_or_path
        files = [given] if isinstance(given, (str, os.PathLike)) else list(given)
        words = [token] * len(files) if token is None or isinstance(token, str) else list(token)
        if len(words) != len(files) or (len(files) > 1 and isinstance(token, str)):
            raise RequestError(f"`token` has {len(words)} words, expected {len(files)}, one for each file", "token")
        added = dict(self._embeddings)
        for file, word in zip(files, words, strict=True):
            path = _file(file, subfolder, weight_name)
            added[word or path.stem] = str(path)
        self._set_embeddings(added)

    def unload_textual_inversion(self: Pipeline, tokens: str | Sequence[str] | None = None, **arguments: Any) -> None:  # type: ignore[misc]
        """Takes embeddings away: those of these words, or all."""
        known("unload_textual_inversion", {name: value for name, value in arguments.items() if value is not None}, ())
        self._change("unload_textual_inversion")
        words = list(self._embeddings) if tokens is None else [tokens] if isinstance(tokens, str) else list(tokens)
        for word in words:
            if word not in self._embeddings:
                raise RequestError(f"`tokens` has {word!r}, expected of {', '.join(self._embeddings) or 'none'}", "tokens")
        self._set_embeddings({word: path for word, path in self._embeddings.items() if word not in words})

    def _set_embeddings(self: Pipeline, embeddings: dict[str, str]) -> None:  # type: ignore[misc]
        """Has the model read these files by their words."""
        self._keep(_embeddings=embeddings)
        folder = None
        if embeddings:
            # The folder lives as long as the model's options name it.
            folder = Folder()
            for word, path in embeddings.items():
                if "/" in word or "\\" in word or word in (".", ".."):
                    raise RequestError(f"`token` is {word!r}, expected a word without / and \\", "token")
                shutil.copyfile(path, os.path.join(folder, word + Path(path).suffix))
        self._model.set("embeddings_dir", folder)


class Folder(os.PathLike[str]):
    """A temporary folder that is removed with its last user."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kiln-embeddings-")

    def __fspath__(self) -> str:
        return self._folder.name


def _file(given: str | os.PathLike[str], subfolder: str | None, weight_name: str | None) -> Path:
    path = Path(given, *(part for part in (subfolder, weight_name) if part))
    if path.is_dir():
        usual = [path / name for name in _USUAL if (path / name).is_file()]
        found = usual or sorted(file for file in path.iterdir() if file.suffix in _ENDINGS)
        if not found:
            raise FileError(f"{path} has no embedding, expected a file that ends in {', '.join(_ENDINGS)}")
        path = found[0]
    if not path.is_file():
        raise FileError(f"{path}: not found; expected a file, or a folder with one: download an embedding of the Hub before")
    if path.suffix not in _ENDINGS:
        raise FileError(f"{path} ends in {path.suffix!r}, expected {', '.join(_ENDINGS)}")
    return path
