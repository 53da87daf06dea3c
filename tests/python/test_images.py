"""Images and latents are shared with NumPy, PIL and DLPack."""

import gc

import pytest
from conftest import FAST

import kiln

numpy = pytest.importorskip("numpy")
pil = pytest.importorskip("PIL.Image")


@pytest.fixture
def image(engine):
    return engine.txt2img("a red apple", seed=1, **FAST)[0]


def address(array):
    return array.__array_interface__["data"][0]


def test_views_share_the_memory(image):
    array = image.numpy()
    assert array.shape == (64, 64, 3) == image.shape and array.dtype == numpy.uint8
    assert address(numpy.from_dlpack(image)) == address(array) == address(numpy.asarray(image))
    assert address(numpy.array(image)) != address(array)
    latents = image.latents.numpy()
    assert latents.shape == (1, 4, 8, 8) and latents.dtype == numpy.float32 and numpy.isfinite(latents).all()
    assert address(numpy.from_dlpack(image.latents)) == address(latents)
    view = memoryview(image.elements)
    assert (view.shape, view.strides, view.format, view.readonly) == ((64, 64, 3), (192, 3, 1), "B", False)
    array[0, 0] = (1, 2, 3)
    assert view[0, 0, 0] == 1 and image.pil().getpixel((0, 0)) == (1, 2, 3)
    assert pil.fromarray(image.numpy()).tobytes() == image.pil().tobytes()


def test_the_memory_outlives_the_image(engine):
    array = numpy.from_dlpack(engine.txt2img("a red apple", seed=1, **FAST)[0])
    capsule = engine.txt2img("a red apple", seed=1, **FAST)[0].__dlpack__()
    gc.collect()
    assert (array == engine.txt2img("a red apple", seed=1, **FAST)[0].numpy()).all()
    del capsule  # no consumer took it


def test_capsules_have_what_a_consumer_asks_for(image):
    assert '"dltensor"' in repr(image.__dlpack__())
    assert '"dltensor_versioned"' in repr(image.__dlpack__(max_version=(1, 0)))
    assert image.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError):
        image.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ValueError, match="`stream` is given"):
        image.__dlpack__(stream=1)
    copy = numpy.from_dlpack(image, copy=True)
    assert address(copy) != address(image.numpy()) and (copy == image.numpy()).all()
    latents = numpy.from_dlpack(image.latents, copy=True)
    assert (latents == image.latents.numpy()).all()


def test_files_have_the_format_of_their_name(image, tmp_path):
    for name, format in (("a.jpg", "JPEG"), ("b.jpeg", "JPEG"), ("c.webp", "WEBP"), ("d.PNG", "PNG")):
        image.save(tmp_path / name)
        found = pil.open(tmp_path / name)
        assert (found.format, found.size) == (format, (64, 64))
        off = abs(numpy.asarray(found.convert("RGB"), numpy.float32) - image.numpy()).mean()
        assert off < (16 if format == "JPEG" else 1e-6)
    assert "a red apple" in str(kiln.inspect(tmp_path / "c.webp"))
    image.save(tmp_path / "e.jpg", quality=10)
    assert (tmp_path / "e.jpg").stat().st_size < (tmp_path / "a.jpg").stat().st_size
    for arguments, field in [((tmp_path / "a.bmp",), "path"), ((tmp_path / "a.jpg", 0), "quality")]:
        with pytest.raises(kiln.RequestError) as raised:
            image.save(*arguments)
        assert raised.value.field == field


def test_images_of_every_kind_begin_the_same_image(engine, image, tmp_path):
    image.save(tmp_path / "a.png")
    array = image.numpy()
    make = lambda init: engine.img2img("a dog", init, strength=0.5, seed=3, steps=4)[0].numpy()
    expected = make(tmp_path / "a.png")
    kinds = [str(tmp_path / "a.png"), image, image.pil(), array, array / 255.0, numpy.asfortranarray(array)]
    for kind in kinds:
        assert (make(kind) == expected).all(), type(kind)
    gray = array[:, :, 0]
    assert (make(gray) == make(pil.fromarray(gray))).all()
    mask = numpy.zeros((64, 64), dtype=bool)
    mask[:32] = True
    kept = engine.img2img("a dog", image, mask=mask, seed=3, steps=4)[0].numpy()
    assert (kept[40:] == array[40:]).all() and (kept[:24] != array[:24]).any()


@pytest.mark.parametrize(
    ("init", "message"),
    [
        (numpy.zeros((4, 4, 2), numpy.uint8), "expected .h, w., or .h, w, c. with 1, 3 or 4 channels"),
        (numpy.zeros((4, 4), numpy.int32), "array of int32, expected uint8"),
        (numpy.full((4, 4), 2.0), "outside of 0 to 1"),
        (3, "is a int, expected a path"),
        (None, "`init` is None"),
    ],
)
def test_what_is_no_image_is_refused(engine, init, message):
    with pytest.raises(kiln.RequestError, match=message) as raised:
        engine.img2img("a", init)
    assert raised.value.field == "init"


def test_files_have_the_settings(engine, image, tmp_path):
    path = tmp_path / "a.png"
    path.write_text("an older file")
    image.save(path)
    assert path.read_bytes() == image.png() == image._repr_png_()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.png"]
    report = kiln.inspect(path)
    assert report["kiln"]["request"]["seed"] == 1 == image.settings["request"]["seed"]
    assert image.parameters.startswith("a red apple\nSteps: 3, ")
    assert (numpy.asarray(pil.open(path)) == image.numpy()).all()
    assert kiln.inspect(engine.path)["what"] == "folder"
