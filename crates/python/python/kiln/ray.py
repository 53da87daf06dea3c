"""Kiln on a Ray cluster: image sets by Ray Data, and a server by Ray Serve. docs/scale.md says when to use which.

    import ray
    from kiln.ray import KilnActor

    jobs = ray.data.read_parquet("jobs.parquet")
    made = jobs.map_batches(
        KilnActor, fn_constructor_kwargs={"model": "models/emoji", "output": "images"}, concurrency=2, num_cpus=4, batch_size=16
    )
    print(made.to_pandas().status.value_counts())
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ray

from kiln.engine import Engine
from kiln.errors import FileError, RequestError
from kiln.image import StrPath
from kiln.reports import inspect

__all__ = ["KilnActor", "app"]


def __getattr__(name: str) -> Any:
    """`app`, for `serve run kiln.ray:app`. Ray Serve is imported where it is used."""
    if name == "app":
        from kiln import _ray_serve

        return _ray_serve.app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


#: The folder of the journals in the folder of the images.
JOURNALS = "journals"
#: Columns that say which image a row is, and are no fields of a request.
_OWN = ("id",)


class KilnActor:
    """Makes an image of each row of a Ray data set, for `Dataset.map_batches`.

    The columns are the fields of a request, as in a file of `kiln batch`; those that are null are left out. A row without a
    seed gets one from its content. Two equal rows are one image, unless a column `id` distinguishes them.

    With a folder `output`, which all machines share, each image is a file there: of the name in the column `output`, or of the
    row's key. Files are written as wholes, and recorded in a journal of each actor. Rows that are recorded are not made again,
    so that a set whose machines fail is completed by the retries of Ray, or by running it again. Without `output` the files are
    in the column `png`, for `write_parquet` and `write_webdataset`.

    The result has the columns `__key__`, `file`, `seed`, `status` (made, known or failed) and `error`.
    """

    def __init__(self, model: StrPath | None = None, output: StrPath | None = None, **options: Any) -> None:
        assigned = ray.get_runtime_context().get_assigned_resources()
        if "device" not in options:
            options["device"] = "cuda" if assigned.get("GPU", 0) else "cpu"
        if "threads" not in options and assigned.get("CPU", 0) >= 1:
            options["threads"] = math.floor(assigned["CPU"])
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._folder = None if output is None else Path(output)
        if self._folder is None:
            self._scratch = Path(tempfile.gettempdir(), f"kiln-{self._name}")
        else:
            self._scratch = self._folder / f".{self._name}"  # where files can be renamed into their places
            (self._folder / JOURNALS).mkdir(parents=True, exist_ok=True)
            _remove_orphans(self._folder)
        self._engine = Engine(model, **options)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        rows = [_Row(fields, self._folder is not None) for fields in _rows(batch)]
        known = self._known({row.key for row in rows}) if self._folder is not None else {}
        results: dict[str, dict[str, Any]] = {}
        missing: dict[str, _Row] = {}
        for row in rows:
            if row.key in known or row.key in missing:
                continue
            if self._folder is not None and _is_made(self._folder / row.file, row):
                self._record(row)  # the actor that made it was killed before it wrote the line
                known[row.key] = row.file
            else:
                missing[row.key] = row
        if missing:
            results = self._make(list(missing.values()))
        columns: dict[str, list[Any]] = {"__key__": [], "file": [], "seed": [], "status": [], "error": []}
        if self._folder is None:
            columns["png"] = []
        for row in rows:
            result = {"status": "known", "error": "", "png": b"", **results.get(row.key, {})}
            result.update(__key__=row.key, file=row.file, seed=row.request["seed"])
            for name, values in columns.items():
                values.append(result[name])
        return columns

    def _known(self, keys: set[str]) -> dict[str, str]:
        """Of these keys those that a journal has, with their files, where these are still there."""
        known: dict[str, str] = {}
        folder = self._folder
        assert folder is not None
        for path in (folder / JOURNALS).glob("*.jsonl"):
            with open(path, encoding="utf-8") as lines:
                for line in lines:
                    if not line.endswith("\n"):
                        break  # a line that is being written
                    record = json.loads(line)
                    if record["key"] in keys and (folder / record["file"]).is_file():
                        known[record["key"]] = record["file"]
        return known

    def _record(self, row: _Row) -> None:
        assert self._folder is not None
        line = json.dumps({"key": row.key, "file": row.file, "seed": row.request["seed"]}) + "\n"
        with open(self._folder / JOURNALS / f"{self._name}.jsonl", "a", encoding="utf-8") as journal:
            journal.write(line)
            journal.flush()
            os.fsync(journal.fileno())

    def _make(self, rows: list[_Row]) -> dict[str, dict[str, Any]]:
        """Makes rows as an image set in a folder of its own, from which the files go to their places."""
        results: dict[str, dict[str, Any]] = {}
        shutil.rmtree(self._scratch, ignore_errors=True)
        jobs = [{**row.request, "output": f"{i}.png"} for i, row in enumerate(rows)]

        def hear(event: dict[str, Any]) -> None:
            row = rows[event["number"] - 1]
            if event["event"] == "failed":
                results[row.key] = {"status": "failed", "error": event["error"]}
                return
            results[row.key] = {"status": "made"}
            made = Path(event["file"])
            if self._folder is None:
                results[row.key]["png"] = made.read_bytes()
            else:
                final = self._folder / row.file
                final.parent.mkdir(parents=True, exist_ok=True)
                os.replace(made, final)
                self._record(row)

        try:
            self._engine.batch(jobs, self._scratch, on_event=hear)
        except RequestError:
            # A row that cannot be refuses the whole set: each is told its own reason.
            for i, row in enumerate(rows):
                if row.key not in results:
                    try:
                        shutil.rmtree(self._scratch, ignore_errors=True)
                        self._engine.batch([jobs[i]], self._scratch, on_event=lambda event, i=i: hear({**event, "number": i + 1}))
                    except RequestError as error:
                        results[row.key] = {"status": "failed", "error": str(error)}
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)
        return results


def _remove_orphans(folder: Path) -> None:
    """Removes the folders of actors of this machine that were killed."""
    host = socket.gethostname()
    for left in folder.glob(f".{host}-*-*"):
        pid = left.name.rsplit("-", 2)[1]
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            shutil.rmtree(left, ignore_errors=True)
        except (ValueError, PermissionError):
            pass


class _Row:
    """One image of a data set."""

    def __init__(self, fields: dict[str, Any], has_folder: bool) -> None:
        name = fields.pop("output", None)
        content = json.dumps(fields, sort_keys=True, ensure_ascii=False)
        digest = hashlib.sha256(content.encode()).hexdigest()
        self.request = {name: value for name, value in fields.items() if name not in _OWN}
        self.request.setdefault("seed", int(digest[-8:], 16))
        if int(self.request["seed"]) < 0:
            self.request["seed"] = int(digest[-8:], 16)
        #: The same content under another name is another image.
        self.key = hashlib.sha256(f"{name or ''}\n{content}".encode()).hexdigest()[:16]
        self.file = str(name) if name is not None else f"{self.key}.png"
        parts = Path(self.file).parts
        if has_folder and (Path(self.file).is_absolute() or ".." in parts or not self.file.endswith(".png") or parts[0] == JOURNALS):
            raise RequestError(f"`output` is {self.file!r}, expected a name in the folder that ends in .png", "output")
        for count in ("batch_count", "batch_size"):
            if int(self.request.get(count, 1)) != 1:
                raise RequestError(f"`{count}` is {self.request[count]}, expected 1: a row is one image", count)


def _rows(batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of a batch, without what is null, with plain values."""
    names = list(batch)
    for values in zip(*(batch[name] for name in names), strict=True):
        row = {}
        for name, value in zip(names, values, strict=True):
            if hasattr(value, "tolist"):
                value = value.tolist()
            if value is not None and value == value:  # NaN stands for null in columns of numbers
                is_whole = isinstance(value, float) and value.is_integer() and name not in ("cfg_scale", "strength")
                row[name] = int(value) if is_whole else value
        yield row


def _is_made(path: Path, row: _Row) -> bool:
    """Whether a file is the row's image, by its settings.

    Raises `FileError` for another file, which is left as it is.
    """
    if not path.exists():
        return False
    try:
        settings = (inspect(path).get("kiln") or {}).get("request", {})
    except FileError:
        settings = {}
    if settings.get("prompt") == row.request.get("prompt") and settings.get("seed") == int(row.request["seed"]):
        return True
    raise FileError(f"{path}: exists, and is not an image of this set; choose another folder or name")
