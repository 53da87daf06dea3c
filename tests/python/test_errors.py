"""Errors name the field that is at fault."""

import math

import pytest
from conftest import FAST, MODEL

import kiln


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"stepz": 3}, "stepz", "did you mean steps"),
        ({"steps": 0}, "steps", "expected a number from 1 to 1000"),
        ({"steps": "many"}, "steps", "is not a whole number"),
        ({"steps": [1]}, "steps", "is not a whole number"),
        ({"cfg_scale": math.nan}, "cfg_scale", "expected a finite number"),
        ({"cfg_scale": 1e9}, "cfg_scale", "expected a number from 0 to 1000"),
        ({"sampler": "eulr"}, "sampler", "did you mean euler"),
        ({"width": 63}, "width", "expected"),
        ({"init": "a.png"}, "init", "img2img"),
        ({"mask": "a.png"}, "mask", "`init` too"),
        ({"model": "b"}, "model", "an engine has one model"),
        ({"output": "b.png"}, "output", "saved by the caller"),
        ({"negative_prompt": object()}, "negative_prompt", "is a object"),
        ({"controls": [{"net": "a", "image": 3}]}, "controls", "expected a path"),
    ],
)
def test_a_request_that_cannot_be_names_its_field(engine, options, field, message):
    with pytest.raises(kiln.RequestError, match=message) as raised:
        engine.txt2img("a", **options)
    assert raised.value.field == field
    assert isinstance(raised.value, ValueError) and isinstance(raised.value, kiln.Error)


def test_an_engine_that_cannot_be_names_its_option(tmp_path):
    with pytest.raises(kiln.RequestError, match="unknown option `devise`") as raised:
        kiln.Engine(MODEL, devise="cpu")
    assert raised.value.field == "devise"
    with pytest.raises(kiln.RequestError, match='`memory` is "small", expected auto, full') as raised:
        kiln.Engine(MODEL, memory="small")
    assert raised.value.field == "memory"
    with pytest.raises(kiln.RequestError, match="`threads` is 0"):
        kiln.Engine(MODEL, threads=0)
    with pytest.raises(kiln.FileError, match="not found"):
        kiln.Engine(tmp_path / "no-model")
    with pytest.raises(kiln.OutOfMemoryError):
        kiln.Engine(MODEL, vram_budget="1K").txt2img("a", **FAST)


def test_files_are_named(engine, tmp_path):
    with pytest.raises(kiln.FileError, match="a.png: not found"):
        engine.img2img("a", tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes(b"no image")
    with pytest.raises(kiln.FileError, match="a.png"):
        engine.img2img("a", tmp_path / "a.png")
    with pytest.raises(kiln.RequestError, match="expected a name that ends in .png"):
        engine.txt2img("a", **FAST)[0].save(tmp_path / "a.bmp")
    with pytest.raises(kiln.RequestError, match="`jobs` is empty"):
        engine.batch([], tmp_path)
    with pytest.raises(kiln.RequestError, match="jobs:1: stepz|unknown field `stepz`"):
        engine.batch([{"prompt": "a", "stepz": 3}], tmp_path)
    with pytest.raises(kiln.RequestError, match="`sharp` is given"):
        engine.batch(["a"], tmp_path, sharp="1/2")


def test_the_options_are_documented():
    tables = kiln.options()
    for row in tables["request"]:
        if row["name"] not in ("prompt", "init"):
            assert f"    {row['name']}: {row['type']}\n" in kiln.Engine.txt2img.__doc__
    for row in tables["engine"]:
        assert f"    {row['name']}: {row['type']}\n" in kiln.Engine.__doc__
