"""A server as people write it with FastAPI and diffusers: one pipeline, one lock, a request at a time. It answers
`/sdapi/v1/txt2img` as far as `../serve_load.py` asks.

Run: pip install fastapi uvicorn; python benches/peers/serve_diffusers.py --model models/emoji --port 7861
"""

import argparse
import base64
import io
import threading

import torch
import uvicorn
from diffusers import EulerAncestralDiscreteScheduler, StableDiffusionPipeline
from fastapi import FastAPI
from pydantic import BaseModel

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Request(BaseModel):
    prompt: str = ""
    negative_prompt: str = ""
    seed: int = 0
    steps: int = 20
    cfg_scale: float = 7.0
    width: int = 512
    height: int = 512


def main(options: argparse.Namespace) -> None:
    pipeline = StableDiffusionPipeline.from_pretrained(
        options.model, torch_dtype=DTYPES[options.dtype], safety_checker=None, feature_extractor=None, requires_safety_checker=False
    ).to(options.device)
    pipeline.scheduler = EulerAncestralDiscreteScheduler.from_config(pipeline.scheduler.config)
    pipeline.unet.to(memory_format=torch.channels_last)
    pipeline.set_progress_bar_config(disable=True)
    lock, app = threading.Lock(), FastAPI()

    @app.post("/sdapi/v1/txt2img")
    def txt2img(request: Request) -> dict:
        with lock, torch.inference_mode():
            image = pipeline(
                request.prompt, negative_prompt=request.negative_prompt, width=request.width, height=request.height,
                num_inference_steps=request.steps, guidance_scale=request.cfg_scale,
                generator=torch.Generator().manual_seed(request.seed),
            ).images[0]
        file = io.BytesIO()
        image.save(file, "PNG")
        return {"images": [base64.b64encode(file.getvalue()).decode()]}

    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="models/emoji")
    parser.add_argument("--port", type=int, default=7861)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    main(parser.parse_args())
