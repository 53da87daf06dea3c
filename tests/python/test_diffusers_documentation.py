"""The scripts of diffusers' documentation run on `kiln.diffusers`, and make the same images where diffusers is installed."""

import importlib.util

import pytest

pytest.importorskip("numpy")
pytest.importorskip("PIL.Image")

from documentation import SCRIPTS, of_kiln, run

HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_the_documentation_runs(name):
    images = run(of_kiln(SCRIPTS[name], HAS_TORCH))
    assert images and all(image.std() > 1.0 for image in images)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_the_documentation_makes_diffusers_images(name):
    pytest.importorskip("torch", reason="PyTorch is not installed, with which the images are compared")
    pytest.importorskip("diffusers", reason="diffusers is not installed, with which the images are compared")
    expected, found = run(SCRIPTS[name]), run(of_kiln(SCRIPTS[name]))
    assert [image.shape for image in found] == [image.shape for image in expected]
    # Levels of 255; other noise, another sampler or another strength of guidance is off by tens.
    off = [float(abs(a - b).mean()) for a, b in zip(found, expected, strict=True)]
    assert max(off) < 0.5, off
