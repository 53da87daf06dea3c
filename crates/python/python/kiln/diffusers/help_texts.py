"""Texts of `help()` for calls: the keywords with what `keywords.py` says of them."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterable
from pathlib import Path


@functools.cache
def _classes() -> dict[str, tuple[list[str], list[tuple[str, str]]]]:
    """The bases, and the names and texts of the fields, of each class of keywords."""
    try:
        tree = ast.parse(Path(__file__).with_name("keywords.py").read_text(encoding="utf-8"))
    except OSError:
        return {}  # a module without its sources has shorter texts
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            pairs = zip(node.body, node.body[1:])
            fields = [
                (one.target.id, text.value.value)
                for one, text in pairs
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
                if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
            ]
            found[node.name] = ([base.id for base in node.bases if isinstance(base, ast.Name)], fields)
    return found


def _fields(name: str) -> list[tuple[str, str]]:
    bases, own = _classes().get(name, ([], []))
    return [field for base in bases for field in _fields(base)] + own


def document(pipelines: Iterable[type]) -> None:
    """Adds the keywords to the texts of the calls of these classes."""
    for pipeline in pipelines:
        call = pipeline.__dict__.get("__call__")
        if call is None:
            continue
        annotation = str(inspect.get_annotations(call).get("arguments", ""))
        name = annotation.removeprefix("Unpack[").removesuffix("]")
        lines = "".join(f"    {field}: {text}\n" for field, text in dict(_fields(name)).items())
        call.__doc__ = f"{call.__doc__}\n\n    Keywords:\n\n{lines}"
