"""Runs clients that others wrote against `kiln serve`: webuiapi and openai, from PyPI.

Run: python3 tests/serve/clients.py target/release/kiln
"""

import base64
import io
import signal
import subprocess
import sys
import tempfile
import threading
import time

PACKAGES = ["webuiapi==0.9.17", "openai>=2,<4", "pillow"]
SIZE = 64


def install(folder):
    """Installs the packages; False where PyPI is not reached."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, *PACKAGES]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        print("skipped: the packages cannot be installed:", result.stderr.strip().splitlines()[-1:])
    return result.returncode == 0


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
    mask = Image.new("RGB", (SIZE, SIZE), "black")
    mask.paste("white", (0, 0, SIZE, SIZE // 3))
    painted = api.img2img(images=[made.image], mask_image=mask, mask_blur=2, inpainting_fill=1, inpaint_full_res=False,
                          prompt="a green pear", **common)
    below = (0, SIZE * 3 // 4, SIZE, SIZE)
    assert painted.image.crop(below).tobytes() == made.image.convert("RGB").crop(below).tobytes()

    larger = api.extra_single_image(image=made.image, upscaler_1="Lanczos", upscaling_resize=2)
    assert larger.image.size == (2 * SIZE, 2 * SIZE)
    assert "Steps: 4" in api.png_info(made.images[0]).info

    assert api.get_options()["sd_model_checkpoint"] == "emoji"
    api.set_options({"CLIP_stop_at_last_layers": 1})
    for name in ("get_samplers", "get_schedulers", "get_sd_models", "get_upscalers", "get_loras", "get_cmd_flags",
                 "get_memory", "get_embeddings", "get_sd_vae", "get_face_restorers", "get_hypernetworks"):
        if hasattr(api, name):
            getattr(api, name)()
    assert api.get_progress()["progress"] == 0.0
    result = []
    thread = threading.Thread(target=lambda: result.append(api.txt2img(prompt="a boat", steps=1000 - 1, **{**common})))
    thread.start()
    while api.get_progress()["state"]["sampling_step"] < 2:
        time.sleep(0.05)
    api.interrupt()
    thread.join()
    assert len(result[0].images) == 1
    api.util_wait_for_ready()
    print("webuiapi: passed")


def openai(port):
    import openai as client_library
    from PIL import Image

    client = client_library.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
    assert [model.id for model in client.models.list()] == ["emoji"]
    size = f"{SIZE}x{SIZE}"
    extra = {"num_inference_steps": 4, "seed": 5}
    made = client.images.generate(prompt="a red apple", n=2, size=size, extra_body=extra)
    images = [Image.open(io.BytesIO(base64.b64decode(image.b64_json))) for image in made.data]
    assert [image.size for image in images] == [(SIZE, SIZE)] * 2
    events = list(client.images.generate(prompt="a red apple", size=size, stream=True, partial_images=2, extra_body={"steps": 20}))
    assert events[-1].type == "image_generation.completed", events
    assert all(event.type == "image_generation.partial_image" for event in events[:-1])
    image = images[0].convert("RGBA")
    image.paste((0, 0, 0, 0), (0, 0, SIZE, SIZE // 2))
    file = io.BytesIO()
    image.save(file, "PNG")
    edited = client.images.edit(image=("image.png", file.getvalue(), "image/png"), prompt="a pear", extra_body=extra)
    assert len(edited.data) == 1
    try:
        client.images.generate(prompt="a", size="big")
        raise AssertionError("a wrong size was taken")
    except client_library.BadRequestError as error:
        assert error.param == "size", error.body
    print("openai: passed")


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        if not install(folder):
            return
        sys.path.insert(0, folder)
        server = subprocess.Popen([program, "serve", "-m", "models/emoji", "--listen", "127.0.0.1:0"],
                                  stdout=subprocess.PIPE, text=True)
        try:
            port = int(server.stdout.readline().strip().rsplit(":", 1)[1])
            webui(port)
            openai(port)
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=60) == 0


main(sys.argv[1])
