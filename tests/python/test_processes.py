"""Engines and images in other processes: after a fork, and pickled."""

import copy
import os
import pickle
import signal
import time

import pytest
from conftest import FAST, MODEL

import kiln

numpy = pytest.importorskip("numpy")


def in_child(work, seconds=120):
    """What `work` returns in a forked process, as text; a process that hangs is ended and fails the test."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = work()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    end = time.monotonic() + seconds
    while time.monotonic() < end and os.waitpid(child, os.WNOHANG)[0] == 0:
        time.sleep(0.02)
    else:
        if time.monotonic() >= end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the forked process hangs")
    with os.fdopen(read, "rb") as file:
        return file.read().decode()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_engine_of_the_parent_is_an_error_in_a_forked_process(engine):
    expected = engine.txt2img("a red apple", seed=1, **FAST)[0].numpy()
    for work in (lambda: engine.txt2img("a", **FAST), lambda: engine.plan("a"), lambda: engine.upscale(expected)):
        assert "Error: the engine was loaded before this process was forked" in in_child(lambda work=work: str(work()))
    assert in_child(lambda: str(engine.close())) == "None"

    def own():
        with kiln.Engine(MODEL) as other:
            return str((other.txt2img("a red apple", seed=1, **FAST)[0].numpy() == expected).all())

    assert in_child(own) == "True"
    assert (engine.txt2img("a red apple", seed=1, **FAST)[0].numpy() == expected).all(), "the parent's goes on"


def test_images_are_pickled(engine):
    images = engine.txt2img("a red apple", seed=1, batch_size=2, **FAST)
    for again in (pickle.loads(pickle.dumps(images)), copy.deepcopy(images)):
        assert type(again) is kiln.ImageList and len(again) == 2
        for image, found in zip(images, again, strict=True):
            assert found.png() == image.png() and (found.seed, found.index) == (image.seed, image.index)
            assert found.settings == image.settings and (found.numpy() == image.numpy()).all()
            assert (found.latents.numpy() == image.latents.numpy()).all()
    array = pickle.loads(pickle.dumps(images[0].latents))
    assert array.dtype == "float32" and (array.numpy() == images[0].latents.numpy()).all()
    large = engine.upscale(images[0])
    assert (pickle.loads(pickle.dumps(large)).numpy() == large.numpy()).all()
    with pytest.raises(ValueError, match="expected those of the shape"):
        kiln._kiln.elements(b"abc", [2, 2], "uint8")
    with pytest.raises(ValueError, match="expected those of the shape"):
        kiln._kiln.elements(b"abc", [2**62, 2**62], "float32")


def test_a_list_of_images_is_shown_in_a_notebook(engine):
    images = engine.txt2img("a red apple", seed=4, batch_size=2, **FAST)
    html = images._repr_html_()
    assert html.count("<img") == 2 and 'alt="seed 4"' in html and 'alt="seed 5"' in html
    assert type(images[:1]) is kiln.ImageList and images[:1]._repr_html_().count("<img") == 1
