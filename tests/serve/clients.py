"""Runs clients that others wrote against `kiln serve`: webuiapi and openai, from PyPI.

Run: python3 tests/serve/clients.py target/release/kiln
"""

import base64
import io
import sys
import tempfile
import threading
import time

from served import Server, install

PACKAGES = ["webuiapi==0.9.17", "openai>=2,<4", "pillow"]
CONTROL = "models/emoji-controlnet-edges"
ADAPTERS = "models/emoji-ip-adapter"
UPSCALERS = "tests/fixtures/upscale"
SIZE = 64


def webui(port):
    import webuiapi
    from PIL import Image

    api = webuiapi.WebUIApi(host="127.0.0.1", port=port, sampler="Euler a", steps=4)
    common = dict(width=SIZE, height=SIZE, seed=5, cfg_scale=3)
    made = api.txt2img(prompt="a red apple", n_iter=2, **common)
    assert [image.size for image in made.images] == [(SIZE, SIZE)] * 2, made.images
    assert made.info["all_seeds"] == [5, 6], made.info
    assert made.images[0].info["parameters"] == made.info["infotexts"][0]

    again = api.img2img(images=[made.image], prompt="a red apple", denoising_strength=0.5, **common)
    assert again.image.size == (SIZE, SIZE)
    both = api.img2img(images=[made.images[0], made.images[1]], prompt="a red apple", denoising_strength=0.5, **common)
    assert len(both.images) == 2 and both.info["all_seeds"] == [5, 6], both.info
    assert both.images[0].tobytes() == again.image.tobytes()
    tagged = api.txt2img(prompt="a red apple<lora:nope:1>", **common)
    assert tagged.image.tobytes() == made.images[0].tobytes() and "nope" in tagged.info["comments"], tagged.info
    mask = Image.new("RGB", (SIZE, SIZE), "black")
    mask.paste("white", (0, 0, SIZE, SIZE // 3))
    painted = api.img2img(images=[made.image], mask_image=mask, mask_blur=2, inpainting_fill=1, inpaint_full_res=False,
                          prompt="a green pear", **common)
    below = (0, SIZE * 3 // 4, SIZE, SIZE)
    assert painted.image.crop(below).tobytes() == made.image.convert("RGB").crop(below).tobytes()

    larger = api.extra_single_image(image=made.image, upscaler_1="Lanczos", upscaling_resize=2)
    assert larger.image.size == (2 * SIZE, 2 * SIZE)
    network = api.extra_single_image(image=made.image, upscaler_1="compact_x4", upscaling_resize=4)
    assert network.image.size == (4 * SIZE, 4 * SIZE)
    several = api.extra_batch_images(images=[made.image, made.image], upscaler_1="compact_x2", upscaling_resize=2)
    assert [image.size for image in several.images] == [(2 * SIZE, 2 * SIZE)] * 2
    assert "Steps: 4" in api.png_info(made.images[0]).info

    for upscaler in [webuiapi.HiResUpscaler.Latent, "compact_x2"]:
        hires = api.txt2img(prompt="a red apple", enable_hr=True, hr_scale=1.5, hr_upscaler=upscaler, denoising_strength=0.6,
                            hr_second_pass_steps=3, **common)
        assert hires.image.size == (SIZE * 3 // 2, SIZE * 3 // 2) and hires.info["width"] == SIZE * 3 // 2, hires.info
        assert "Hires upscale: 1.5" in hires.info["infotexts"][0], hires.info

    assert api.controlnet_version() >= 1
    assert api.controlnet_model_list() == ["emoji-controlnet-edges", "emoji-ip-adapter"], api.controlnet_model_list()
    assert "canny" in api.controlnet_module_list()
    detected = api.controlnet_detect(images=[made.image], module="canny", processor_res=SIZE, threshold_a=50, threshold_b=100)
    assert len(detected.images) == 1, detected
    unit = webuiapi.ControlNetUnit(image=made.image, module="canny", model="emoji-controlnet-edges", weight=0.8, processor_res=SIZE, threshold_a=50, threshold_b=100)
    # The client keeps scripts from one call to the next unless they are given.
    guided = api.txt2img(prompt="a red apple", controlnet_units=[unit], alwayson_scripts={}, **common)
    assert len(guided.images) == 2, "the result, and what the preprocessor made"
    assert guided.images[0].tobytes() != made.images[0].tobytes()
    assert "ControlNet 0" in guided.info["infotexts"][0], guided.info
    prompted = webuiapi.ControlNetUnit(image=made.image, module="ip-adapter_clip_sd15", model="emoji-ip-adapter")
    shown, blank = [api.txt2img(prompt="", controlnet_units=units, alwayson_scripts={}, **common) for units in ([prompted], [])]
    assert len(shown.images) == 1 and shown.image.tobytes() != blank.image.tobytes()
    both = api.img2img(images=[made.image], prompt="a red apple", controlnet_units=[unit], denoising_strength=0.5,
                       alwayson_scripts={}, **common)
    assert both.image.size == (SIZE, SIZE)

    assert api.get_options()["sd_model_checkpoint"] == "emoji"
    api.set_options({"CLIP_stop_at_last_layers": 1})
    for name in ("get_samplers", "get_schedulers", "get_sd_models", "get_upscalers", "get_loras", "get_cmd_flags",
                 "get_memory", "get_embeddings", "get_sd_vae", "get_face_restorers", "get_hypernetworks"):
        if hasattr(api, name):
            getattr(api, name)()
    assert api.get_progress()["progress"] == 0.0
    result = []
    thread = threading.Thread(target=lambda: result.append(api.txt2img(prompt="a boat", steps=1000 - 1, alwayson_scripts={}, **common)))
    thread.start()
    while thread.is_alive() and api.get_progress()["state"]["sampling_step"] < 2:
        time.sleep(0.05)
    api.interrupt()
    thread.join()
    assert len(result[0].images) == 1, result[0].json
    api.util_wait_for_ready()
    print("webuiapi: passed")


def openai(port):
    import openai as client_library
    from PIL import Image

    client = client_library.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
    assert [model.id for model in client.models.list()] == ["emoji", "apples"]
    for name in ("gpt-image-1", "dall-e-3", "apples"):
        named = client.images.generate(model=name, prompt="a red apple", size=f"{SIZE}x{SIZE}", extra_body={"steps": 2})
        assert len(named.data) == 1
    size = f"{SIZE}x{SIZE}"
    extra = {"num_inference_steps": 4, "seed": 5}
    made = client.images.generate(prompt="a red apple", n=2, size=size, extra_body=extra)
    images = [Image.open(io.BytesIO(base64.b64decode(image.b64_json))) for image in made.data]
    assert [image.size for image in images] == [(SIZE, SIZE)] * 2
    events = list(client.images.generate(prompt="a red apple", size=size, stream=True, partial_images=2, extra_body={"steps": 20}))
    assert events[-1].type == "image_generation.completed", events
    assert all(event.type == "image_generation.partial_image" for event in events[:-1])
    assert [event.partial_image_index for event in events[:-1]] == [0, 1]
    last = Image.open(io.BytesIO(base64.b64decode(events[-1].b64_json)))
    assert last.size == (SIZE, SIZE) and "parameters" in last.info
    linked = client.images.generate(prompt="a red apple", size=size, response_format="url", extra_body=extra)
    assert linked.data[0].url.startswith("http://127.0.0.1")
    image = images[0].convert("RGBA")
    image.paste((0, 0, 0, 0), (0, 0, SIZE, SIZE // 2))
    file = io.BytesIO()
    image.save(file, "PNG")
    edited = client.images.edit(image=("image.png", file.getvalue(), "image/png"), prompt="a pear", extra_body=extra)
    assert len(edited.data) == 1
    streamed = list(client.images.edit(image=("image.png", file.getvalue(), "image/png"), prompt="a pear", stream=True, extra_body=extra))
    assert streamed[-1].type == "image_edit.completed", streamed
    varied = client.images.create_variation(image=("image.png", file.getvalue(), "image/png"), n=2, size=size, extra_body=extra)
    assert len(varied.data) == 2 and varied.data[0].b64_json != varied.data[1].b64_json
    try:
        client.images.generate(prompt="a", size="big")
        raise AssertionError("a wrong size was taken")
    except client_library.BadRequestError as error:
        assert error.param == "size", error.body
    print("openai: passed")


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        if not install(folder, PACKAGES):
            return
        folders = ["--control-dir", CONTROL, "--upscaler-dir", UPSCALERS, "--ip-adapters-dir", ADAPTERS]
        server = Server(program, *folders, "--model-alias", "apples=emoji")
        try:
            webui(server.port)
            openai(server.port)
            server.stop()
        finally:
            server.kill()


main(sys.argv[1])
