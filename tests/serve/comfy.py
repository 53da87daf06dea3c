"""Plays ComfyUI's clients against `kiln serve`: the protocol of its public example for web sockets, and the calls of Open WebUI and
SillyTavern.

Run: python3 tests/serve/comfy.py target/release/kiln
"""

import copy
import json
import struct
import sys
import tempfile
import time
import urllib.parse
import uuid

from served import Server, install

PACKAGES = ["websocket-client==1.9.2", "pillow"]
CONTROL = "models/emoji-controlnet-edges"
ADAPTERS = "models/emoji-ip-adapter"
SIZE = 64

GRAPH = {
    "3": {
        "class_type": "KSampler",
        "inputs": {
            "cfg": 4, "denoise": 1, "latent_image": ["5", 0], "model": ["4", 0], "negative": ["7", 0], "positive": ["6", 0],
            "sampler_name": "euler", "scheduler": "normal", "seed": 8566257, "steps": 12,
        },
    },
    "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "emoji.safetensors"}},
    "5": {"class_type": "EmptyLatentImage", "inputs": {"batch_size": 1, "height": SIZE, "width": SIZE}},
    "6": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["4", 1], "text": "a red apple"}},
    "7": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["4", 1], "text": "bad hands"}},
    "8": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["4", 2]}},
    "9": {"class_type": "SaveImage", "inputs": {"filename_prefix": "ComfyUI", "images": ["8", 0]}},
}


def post(server, path, body, headers=()):
    status, _, answer = server.request("POST", path, body, headers)
    return status, json.loads(answer or b"null")


def get(server, path):
    return json.loads(server.get(path))


def view(server, image):
    """The pixels of an image of a history."""
    import io

    from PIL import Image

    query = urllib.parse.urlencode({key: image[key] for key in ("filename", "subfolder", "type")})
    return Image.open(io.BytesIO(server.get(f"/view?{query}"))).convert("RGB")


def example(server):
    """`websockets_api_example.py` of that program."""
    import websocket

    client_id = str(uuid.uuid4())
    socket = websocket.WebSocket()
    socket.connect(f"ws://127.0.0.1:{server.port}/ws?clientId={client_id}", timeout=120)
    prompt_id = str(uuid.uuid4())
    status, answer = post(server, "/prompt", {"prompt": GRAPH, "client_id": client_id, "prompt_id": prompt_id})
    assert (status, answer["prompt_id"], answer["node_errors"]) == (200, prompt_id, {}), answer
    kinds, nodes, previews = [], [], 0
    while True:
        out = socket.recv()
        if isinstance(out, bytes):
            assert struct.unpack(">II", out[:8]) == (1, 2) and out[8:12] == b"\x89PNG", out[:12]
            previews += 1
            continue
        message = json.loads(out)
        kinds.append(message["type"])
        if message["type"] == "executing":
            data = message["data"]
            if data["node"] is None and data["prompt_id"] == prompt_id:
                break
            nodes.append(data["node"])
    history = get(server, f"/history/{prompt_id}")[prompt_id]
    images = [view(server, image) for output in history["outputs"].values() for image in output["images"]]
    assert [image.size for image in images] == [(SIZE, SIZE)], history
    for kind in ("status", "execution_start", "execution_cached", "progress", "executed", "execution_success"):
        assert kind in kinds, kinds
    assert nodes[-1] == "9" and "3" in nodes and previews > 0, (nodes, previews)
    socket.close()
    return images[0]


def like(server, image):
    """The image of `kiln txt2img --like` of an image with this graph is the one that the graph makes."""
    import os
    import subprocess

    from PIL import Image, PngImagePlugin

    with tempfile.TemporaryDirectory() as folder:
        source, result = os.path.join(folder, "graph.png"), os.path.join(folder, "again.png")
        texts = PngImagePlugin.PngInfo()
        texts.add_text("prompt", json.dumps(GRAPH))
        Image.new("RGB", (SIZE, SIZE)).save(source, pnginfo=texts)
        command = [sys.argv[1], "txt2img", "--like", source, "-m", "models/emoji", "-o", result]
        subprocess.run(command, check=True, capture_output=True)
        assert Image.open(result).convert("RGB").tobytes() == image.tobytes()


def open_webui(server):
    """`utils/images/comfyui.py` of Open WebUI: a key that may be empty, nodes patched by their ids, an image sent first."""
    import io

    import websocket
    from PIL import Image

    headers = {"Authorization": "Bearer "}
    names = get(server, "/object_info")["CheckpointLoaderSimple"]["input"]["required"]["ckpt_name"][0]
    assert names == ["emoji", "apples"], names
    sample = io.BytesIO()
    Image.new("RGB", (SIZE, SIZE), (200, 30, 30)).save(sample, "PNG")
    boundary = "kiln"
    fields = [("image", "input.png", sample.getvalue()), ("type", None, b"input"), ("overwrite", None, b"true")]
    body = b""
    for name, file, value in fields:
        name = f'name="{name}"' + (f'; filename="{file}"' if file else "")
        body += f"--{boundary}\r\nContent-Disposition: form-data; {name}\r\n\r\n".encode() + value + b"\r\n"
    body += f"--{boundary}--\r\n".encode()
    kind = {"content-type": f"multipart/form-data; boundary={boundary}", **headers}
    status, answer = post(server, "/api/upload/image", body, kind)
    assert (status, answer["name"]) == (200, "input.png"), answer
    graph = copy.deepcopy(GRAPH)
    graph["4"]["inputs"]["ckpt_name"] = names[1]
    graph["10"] = {"class_type": "LoadImage", "inputs": {"image": answer["name"]}}
    graph["5"] = {"class_type": "VAEEncode", "inputs": {"pixels": ["10", 0], "vae": ["4", 2]}}
    graph["3"]["inputs"].update(seed=42, denoise=0.7)
    client_id = "open-webui"
    socket = websocket.WebSocket()
    socket.connect(f"ws://127.0.0.1:{server.port}/ws?clientId={client_id}", header=headers, timeout=120)
    status, answer = post(server, "/prompt", {"prompt": graph, "client_id": client_id}, headers)
    assert status == 200, answer
    while True:
        out = socket.recv()
        if isinstance(out, str):
            message = json.loads(out)
            if message["type"] == "executing" and message["data"]["node"] is None:
                if message["data"]["prompt_id"] == answer["prompt_id"]:
                    break
    socket.close()
    history = get(server, f"/history/{answer['prompt_id']}")[answer["prompt_id"]]
    assert view(server, history["outputs"]["9"]["images"][0]).size == (SIZE, SIZE), history


def silly_tavern(server):
    """SillyTavern's routes and its default workflow, whose places for values are texts."""
    assert get(server, "/system_stats")["system"]["comfyui_version"]
    info = get(server, "/object_info")
    required = {name: info[name]["input"]["required"] for name in ("KSampler", "CheckpointLoaderSimple", "UNETLoader", "VAELoader")}
    sampler = required["KSampler"]["sampler_name"][0][0]
    scheduler = required["KSampler"]["scheduler"][0][0]
    assert required["VAELoader"]["vae_name"][0] and required["UNETLoader"]["unet_name"][0]
    workflow = json.dumps(GRAPH)
    places = {
        '"a red apple"': '"%prompt%"', '"bad hands"': '"%negative_prompt%"', '"seed": 8566257': '"seed": "%seed%"',
        '"steps": 12': '"steps": "%steps%"', '"emoji.safetensors"': '"%model%"', '"euler"': '"%sampler%"', '"normal"': '"%scheduler%"',
        '"cfg": 4': '"cfg": "%scale%"', f'"width": {SIZE}': '"width": "%width%"', f'"height": {SIZE}': '"height": "%height%"',
    }
    for value, place in places.items():
        assert value in workflow, value
        workflow = workflow.replace(value, place)
    values = {
        "prompt": "a (sunflower:1.2)", "negative_prompt": "", "seed": 2**53 - 1, "steps": 6, "model": "emoji", "sampler": sampler,
        "scheduler": scheduler, "scale": 3.5, "width": SIZE, "height": SIZE,
    }
    for name, value in values.items():
        workflow = workflow.replace(f'"%{name}%"', json.dumps(value))
    status, answer = post(server, "/prompt", {"prompt": json.loads(workflow)})
    assert status == 200, answer
    prompt_id = answer["prompt_id"]
    for _ in range(1200):
        history = get(server, "/history")
        if prompt_id in history:
            break
        time.sleep(0.1)
    item = history[prompt_id]
    assert item["status"]["status_str"] == "success", item
    image = next(output["images"][0] for output in item["outputs"].values() if output.get("images"))
    assert view(server, image).size == (SIZE, SIZE)
    # Its client hangs up: the prompt that runs is ended.
    long = copy.deepcopy(GRAPH)
    long["3"]["inputs"]["steps"] = 900
    _, answer = post(server, "/prompt", {"prompt": long})
    while not get(server, "/queue")["queue_running"]:
        time.sleep(0.02)
    server.request("POST", "/interrupt", b"")
    while answer["prompt_id"] not in get(server, "/history"):
        time.sleep(0.02)
    assert get(server, "/history")[answer["prompt_id"]]["status"]["status_str"] == "error"


def send_image(server, name, sample):
    """Sends an image as clients do."""
    import io

    file = io.BytesIO()
    sample.save(file, "PNG")
    head = f'--k\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n\r\n'.encode()
    body = head + file.getvalue() + b"\r\n--k--\r\n"
    status, answer = post(server, "/upload/image", body, {"content-type": "multipart/form-data; boundary=k"})
    assert (status, answer["name"]) == (200, name), answer


def made(server, graph):
    """The image that a graph saves."""
    status, answer = post(server, "/prompt", {"prompt": graph})
    assert status == 200, answer
    while answer["prompt_id"] not in get(server, "/history"):
        time.sleep(0.02)
    output = get(server, f"/history/{answer['prompt_id']}")[answer["prompt_id"]]["outputs"]["9"]
    return view(server, output["images"][0])


def image_prompts(server):
    """An image as a prompt, in the size of another image, and two images next to each other."""
    from PIL import Image

    send_image(server, "red.png", Image.new("RGB", (96, 48), (200, 30, 30)))
    names = get(server, "/models/ipadapter")
    assert names == ["emoji-ip-adapter.safetensors"] and "image_encoder" in get(server, "/models/clip_vision"), names
    graph = copy.deepcopy(GRAPH)
    graph["20"] = {"class_type": "LoadImage", "inputs": {"image": "red.png"}}
    graph["21"] = {"class_type": "IPAdapterModelLoader", "inputs": {"ipadapter_file": names[0]}}
    graph["22"] = {"class_type": "CLIPVisionLoader", "inputs": {"clip_name": "image_encoder"}}
    graph["23"] = {
        "class_type": "IPAdapterAdvanced",
        "inputs": {
            "model": ["4", 0], "ipadapter": ["21", 0], "image": ["20", 0], "clip_vision": ["22", 0], "weight": 1, "weight_type": "linear",
            "combine_embeds": "concat", "start_at": 0, "end_at": 1, "embeds_scaling": "V only",
        },
    }
    graph["3"]["inputs"]["model"] = ["23", 0]
    prompted = made(server, graph)
    graph["24"] = {"class_type": "GetImageSize", "inputs": {"image": ["20", 0]}}
    graph["5"]["inputs"].update(width=["24", 1], height=["24", 1])
    graph["25"] = {
        "class_type": "ImageStitch",
        "inputs": {
            "image1": ["8", 0], "image2": ["20", 0], "direction": "right", "match_image_size": True, "spacing_width": 4, "spacing_color": "blue",
        },
    }
    graph["9"]["inputs"]["images"] = ["25", 0]
    stitched = made(server, graph)
    assert stitched.size == (48 + 4 + 96, 48) and stitched.getpixel((49, 20)) == (0, 0, 255), stitched.size
    assert stitched.getpixel((100, 20)) == (200, 30, 30)
    return prompted


def control(server):
    """A control network over edges of a sample, and what is refused with its node."""
    from PIL import Image, ImageDraw

    sample = Image.new("RGB", (SIZE, SIZE))
    ImageDraw.Draw(sample).ellipse((8, 8, 56, 56), outline="white", width=2)
    send_image(server, "edges.png", sample)
    graph = copy.deepcopy(GRAPH)
    graph["10"] = {"class_type": "LoadImage", "inputs": {"image": "edges.png"}}
    graph["11"] = {"class_type": "ControlNetLoader", "inputs": {"control_net_name": "emoji-controlnet-edges"}}
    graph["12"] = {
        "class_type": "ControlNetApplyAdvanced",
        "inputs": {
            "positive": ["6", 0], "negative": ["7", 0], "control_net": ["11", 0], "image": ["10", 0], "strength": 0.9,
            "start_percent": 0.0, "end_percent": 1.0,
        },
    }
    graph["3"]["inputs"].update(positive=["12", 0], negative=["12", 1])
    guided = made(server, graph)
    parts = copy.deepcopy(GRAPH)
    parts["10"] = {"class_type": "CLIPTextEncode", "inputs": {"text": "a green pear", "clip": ["4", 1]}}
    area = {"conditioning": ["10", 0], "x": 0.5, "y": 0.0, "width": 0.5, "height": 1.0, "strength": 1.0}
    parts["11"] = {"class_type": "ConditioningSetAreaPercentage", "inputs": area}
    parts["12"] = {"class_type": "ConditioningCombine", "inputs": {"conditioning_1": ["6", 0], "conditioning_2": ["11", 0]}}
    parts["3"]["inputs"]["positive"] = ["12", 0]
    assert made(server, parts) != made(server, GRAPH), "a second text has an area"
    for changes, node, kind in [
        ({"12": {"class_type": "ConditioningConcat", "inputs": {}}}, "12", "missing_node_type"),
        ({"5": {"class_type": "EmptyLatentImage", "inputs": {"width": SIZE - 4, "height": SIZE, "batch_size": 1}}}, "5", "custom_validation_failed"),
        ({"10": {"class_type": "LoadImage", "inputs": {"image": "../../etc/passwd"}}}, "10", "value_not_in_list"),
    ]:
        status, answer = post(server, "/prompt", {"prompt": {**graph, **changes}})
        assert status == 400 and answer["node_errors"][node]["errors"][0]["type"] == kind, answer
    return guided


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        if not install(folder, PACKAGES):
            return
        server = Server(program, "--control-dir", CONTROL, "--ip-adapters-dir", ADAPTERS, "--model-alias", "apples=emoji")
        try:
            image = example(server)
            like(server, image)
            print("the example for web sockets: passed")
            open_webui(server)
            print("Open WebUI's calls: passed")
            silly_tavern(server)
            print("SillyTavern's calls: passed")
            assert control(server).tobytes() != image.tobytes()
            print("control networks: passed")
            assert image_prompts(server).tobytes() != image.tobytes()
            print("image prompts: passed")
            server.stop()
        finally:
            server.kill()


main(sys.argv[1])
