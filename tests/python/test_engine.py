"""Engines make what the command `kiln` makes, and say what they do."""

import asyncio
import gc
import json
import os
import signal
import threading
import time

import pytest
from conftest import FAST, MODEL, ROOT

import kiln


def test_images_have_the_bits_of_the_command(engine, command, tmp_path):
    request = {"seed": 7, "steps": 4, "sampler": "dpmpp_2m", "cfg_scale": 5.5, "batch_size": 2, "negative_prompt": "blue"}
    flags = [word for name, value in request.items() for word in ("--" + name.replace("_", "-"), value)]
    images = engine.txt2img("a red apple", **request)
    assert [image.seed for image in images] == [7, 8]
    command("txt2img", "a red apple", "-m", MODEL, *flags, "-o", tmp_path / "{index}.png")
    written = sorted(tmp_path.glob("*.png"))
    assert [path.read_bytes() for path in written] == [image.png() for image in images]


def test_a_family_of_one_module_has_the_bits_of_the_command(command, tmp_path):
    model = ROOT / "tests" / "fixtures" / "models" / "tiny-dit"
    flags = ["--width", 64, "--height", 48, "--steps", 2, "--seed", 3]
    with kiln.Engine(model) as engine:
        image = engine.txt2img("a fox", width=64, height=48, steps=2, seed=3)[0]
    command("txt2img", "a fox", "-m", model, *flags, "-o", tmp_path / "fox.png")
    assert image.png() == (tmp_path / "fox.png").read_bytes()


def test_an_image_to_begin_with_has_the_bits_of_the_command(engine, command, tmp_path):
    begin = engine.txt2img("a cat face", seed=1, **FAST)[0]
    begin.save(tmp_path / "begin.png")
    command("img2img", "a dog", "-m", MODEL, "-i", tmp_path / "begin.png", "--strength", 0.5, "--seed", 3, "--steps", 4,
            "-o", tmp_path / "dog.png")
    options = {"strength": 0.5, "seed": 3, "steps": 4}
    from_file = engine.img2img("a dog", tmp_path / "begin.png", **options)[0]
    assert from_file.png() == (tmp_path / "dog.png").read_bytes()
    from_memory = engine.img2img("a dog", begin, **options)[0]
    assert bytes(memoryview(from_memory.elements)) == bytes(memoryview(from_file.elements))


def test_a_set_is_that_of_the_command_and_is_continued(engine, command, tmp_path):
    jobs = [{"prompt": name, "seed": i, **FAST} for i, name in enumerate(["a red apple", "a rocket", "a cat face"])]
    file = tmp_path / "jobs.jsonl"
    file.write_text("".join(json.dumps(job) + "\n" for job in jobs))
    command("batch", file, "-m", MODEL, "-o", tmp_path / "theirs")
    heard = []
    report = engine.batch(jobs, tmp_path / "ours", on_event=heard.append)
    assert (report["made"], report["known"], report["failed"]) == (3, 0, 0)
    assert sorted(event["number"] for event in heard) == [1, 2, 3]
    for theirs in (tmp_path / "theirs").glob("*.png"):
        assert (tmp_path / "ours" / theirs.name).read_bytes() == theirs.read_bytes()
    assert engine.batch(file, tmp_path / "ours")["known"] == 3
    grid = engine.batch(None, tmp_path / "grid", set={"prompt": "pizza", **FAST}, grid={"seed": "1..2"})
    assert grid["made"] == 2 and (tmp_path / "grid" / "contact-sheet.png").exists()


def test_a_set_that_is_stopped_goes_on_later(engine, tmp_path):
    jobs = [{"prompt": "a red apple", "seed": i, "steps": 8} for i in range(4)]
    with pytest.raises(kiln.Stopped):
        engine.batch(jobs, tmp_path, batch_size=1, on_event=lambda event: False)
    there = len(list(tmp_path.glob("*.png")))
    assert 1 <= there < 4
    report = engine.batch(jobs, tmp_path)
    assert (report["known"], report["made"]) == (there, 4 - there)


def test_steps_and_previews_are_heard_and_may_stop(engine):
    steps, previews = [], []
    engine.txt2img("a rocket", seed=1, **FAST, on_step=lambda *step: steps.append(step),
                   on_preview=lambda index, step, image: previews.append((index, step, image.shape)))
    assert steps == [(1, 3), (2, 3), (3, 3)]
    assert previews == [(0, 1, (8, 8, 3))]
    options = {**FAST, "batch_count": 3, "seed": 5}
    with pytest.raises(kiln.Stopped) as stopped:
        engine.txt2img("a rocket", **options, on_step=lambda done, all: done < 5)
    whole = engine.txt2img("a rocket", **options)
    assert [image.png() for image in stopped.value.images] == [whole[0].png()]
    with pytest.raises(ZeroDivisionError):
        engine.txt2img("a rocket", **FAST, on_step=lambda done, all: 1 / 0)
    assert engine.txt2img("a rocket", **options)[2].png() == whole[2].png(), "the engine works afterwards"


def test_a_callback_cannot_use_its_engine(engine):
    with pytest.raises(kiln.Error, match="a callback cannot make another one"):
        engine.txt2img("a", **FAST, on_step=lambda done, all: engine.txt2img("b"))


def test_an_interrupt_ends_a_call(engine):
    # Programs that a shell started in the background ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(done, all):
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        engine.txt2img("a rocket", **FAST, on_step=interrupt)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        engine.txt2img("a rocket", steps=500)


def test_threads_take_turns_and_engines_run_at_once(engine):
    expected = {seed: engine.txt2img("a rocket", seed=seed, **FAST)[0].png() for seed in range(4)}
    found = {}
    with kiln.Engine(MODEL, threads=1) as other:
        def make(seed):
            found[seed] = (engine if seed % 2 else other).txt2img("a rocket", seed=seed % 4, **FAST)[0].png()

        threads = [threading.Thread(target=make, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {seed: expected[seed % 4] for seed in range(8)} == found


def test_other_threads_run_during_a_call(engine):
    counted, done = [0], threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    engine.txt2img("a rocket", steps=10)
    done.set()
    thread.join()
    assert counted[0] > 20


def test_calls_are_awaited_and_canceled(engine):
    async def both():
        first, second = await asyncio.gather(*(engine.atxt2img("a rocket", seed=seed, **FAST) for seed in (1, 2)))
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        hear = lambda done, all: loop.call_soon_threadsafe(begun.set)
        task = asyncio.create_task(engine.atxt2img("a rocket", steps=500, on_step=hear))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return first[0], second[0], await engine.aupscale(first[0], 2)

    first, second, larger = asyncio.run(both())
    assert first.png() == engine.txt2img("a rocket", seed=1, **FAST)[0].png() != second.png()
    assert larger.shape == (128, 128, 3)


def test_plans_and_timesteps_are_known_before(engine):
    plan = engine.plan("a rocket", width=64, height=64, batch_size=2)
    assert (plan["width"], plan["batch_size"], plan["model"]) == (64, 2, "emoji")
    assert plan["chosen"]["mode"] == "full" and plan["chosen"]["peak"] > 1 << 20
    assert engine.timesteps(steps=5) == [801.0, 601.0, 401.0, 201.0, 1.0]
    assert engine.defaults["width"] == 256 and engine.name == "emoji"


def test_an_upscaled_image_has_the_pixels_of_the_command(engine, command, tmp_path):
    import numpy
    import PIL.Image

    engine.txt2img("a rocket", seed=1, **FAST)[0].save(tmp_path / "a.png")
    command("upscale", tmp_path / "a.png", "--upscaler", "lanczos", "--scale", 1.5, "-o", tmp_path / "b.png")
    larger = engine.upscale(tmp_path / "a.png", 1.5)
    assert larger.latents is None and larger.settings == {}
    assert (larger.numpy() == numpy.asarray(PIL.Image.open(tmp_path / "b.png"))).all()


def test_modes_change_no_bit(engine):
    expected = engine.txt2img("a rocket", seed=1, **FAST)[0].png()
    with kiln.Engine(MODEL, memory="lowvram", threads=1, vram_budget="128M") as small:
        assert bytes(memoryview(small.txt2img("a rocket", seed=1, **FAST)[0].elements)) == bytes(
            memoryview(engine.txt2img("a rocket", seed=1, **FAST)[0].elements)
        )
    assert expected


def resident():
    """Bytes of this process's memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc")
def test_memory_goes_with_an_engine_and_does_not_grow():
    gc.collect()
    with kiln.Engine(MODEL) as engine:
        make = lambda: engine.txt2img("a rocket", seed=1, steps=1, width=64, height=64)
        for _ in range(20):
            make()
        before = resident()
        for _ in range(int(os.environ.get("KILN_CALLS", "200"))):
            make()
        assert resident() - before < 4 << 20
        weights = 8 << 20
        loaded = resident()
    assert loaded - resident() > weights
    with pytest.raises(kiln.Error, match="the engine is closed"):
        engine.txt2img("a")
    engine.close()
    dropped = kiln.Engine(MODEL)
    loaded = resident()
    del dropped
    gc.collect()
    assert loaded - resident() > weights
