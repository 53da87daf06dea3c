"""What a script sets and imports is used by `kiln.diffusers`, or is an error with its name."""

import json

import pytest
from conftest import MODEL, ROOT

import kiln
import kiln.diffusers
from kiln.diffusers import utils

numpy = pytest.importorskip("numpy")
pil = pytest.importorskip("PIL.Image")

TAESD = ROOT / "tests" / "fixtures" / "taesd" / "default"
LORA = next((MODEL.parent / "emoji-lcm-lora").glob("*.safetensors"))


@pytest.fixture
def pipe():
    pipe = kiln.diffusers.StableDiffusionPipeline.from_pretrained(MODEL)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def make(pipe, prompt="a rocket", **arguments):
    arguments = {"generator": kiln.diffusers.Generator().manual_seed(1), **arguments}
    return numpy.asarray(pipe(prompt, num_inference_steps=2, width=64, height=64, **arguments).images[0])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("text_encoder", object()),
        ("tokenizer", None),
        ("vae", object()),
        ("unet", "a/b"),
        ("safety_checker", object()),
        ("_clip_skip", 2),
        ("_guidance_rescale", 0.5),
        ("_guidance_scale", "7"),
        ("_guidance_scale", float("nan")),
        ("scheduler", object()),
        ("anything", 1),
        ("controlnet", object()),
        ("adapter", 1),
        ("_model", None),
        ("_loras", {}),
        ("_pag_layers", "mid"),
        ("guidance_scale", 3.0),
    ],
)
def test_an_attribute_that_would_not_be_used_is_an_error(pipe, name, value):
    with pytest.raises(kiln.RequestError) as raised:
        setattr(pipe, name, value)
    assert raised.value.field == name and f"`{name}`" in str(raised.value)


def test_parts_of_parts_that_would_not_be_used_are_errors(pipe):
    for set, field in [
        (lambda: pipe.scheduler.config.update(beta_end=1.0), "beta_end"),
        (lambda: setattr(pipe.scheduler.config, "beta_end", 1.0), "beta_end"),
        (lambda: pipe.scheduler.config.__setitem__("beta_end", 1.0), "beta_end"),
        (lambda: setattr(pipe.scheduler, "beta_end", 1.0), "beta_end"),
        (lambda: setattr(pipe.vae, "decoder", 1), "decoder"),
    ]:
        with pytest.raises(kiln.RequestError) as raised:
            set()
        assert raised.value.field == field
    pipe.safety_checker = None


def test_a_type_that_is_not_the_pipelines_is_an_error(pipe):
    nets = kiln.diffusers
    pipe.vae.to("cpu").to(dtype="f32").float().eval()
    pipe.vae = nets.AutoencoderKL.from_pretrained(MODEL, subfolder="vae", torch_dtype="float32")
    half = {"subfolder": "vae", "torch_dtype": "float16"}
    for set in [
        pipe.vae.half,
        lambda: pipe.unet.to("cpu", "f16"),
        lambda: setattr(pipe, "vae", nets.AutoencoderKL.from_pretrained(MODEL, **half)),
        lambda: setattr(pipe, "vae", nets.AutoencoderTiny.from_pretrained(TAESD).half()),
        lambda: nets.StableDiffusionPipeline.from_pretrained(MODEL, vae=nets.AutoencoderKL.from_pretrained(MODEL, **half)),
        lambda: nets.StableDiffusionControlNetPipeline.from_pipe(
            pipe, controlnet=nets.ControlNetModel.from_pretrained(MODEL, torch_dtype="bfloat16")
        ),
    ]:
        with pytest.raises(kiln.RequestError, match=r"`torch_dtype` of .* is b?f16, expected f32: networks have the type"):
            set()
    both = nets.StableDiffusionPipeline.from_pretrained(
        MODEL, torch_dtype="float16", vae=nets.AutoencoderKL.from_pretrained(MODEL, **half)
    )
    both.vae.half()


@pytest.mark.parametrize("name", ["components", "config", "text_encoder", "tokenizer", "tokenizer_2"])
def test_an_attribute_that_is_missing_is_an_error_with_its_reason(pipe, name):
    with pytest.raises(kiln.RequestError, match=f"StableDiffusionPipeline has no `{name}`: ") as raised:
        getattr(pipe, name)
    assert raised.value.field == name and not hasattr(pipe, name)
    with pytest.raises(AttributeError, match="no attribute 'something'"):
        pipe.something


def test_an_autoencoder_that_is_set_decodes(pipe):
    plain = make(pipe)
    pipe.vae = kiln.diffusers.AutoencoderKL.from_pretrained(MODEL, subfolder="vae", torch_dtype="float32")
    assert (make(pipe) == plain).all()
    small = kiln.diffusers.StableDiffusionPipeline.from_pipe(pipe)
    small.vae = kiln.diffusers.AutoencoderTiny.from_pretrained(TAESD)
    assert (make(small) != plain).any()
    assert (make(pipe) == plain).all(), "another pipeline keeps its own"
    small.vae = pipe.vae
    assert (make(small) == plain).all()
    opened = kiln.diffusers.StableDiffusionPipeline.from_pretrained(MODEL, vae=pipe.vae, unet=pipe.unet)
    opened.vae.enable_tiling()
    opened.vae.enable_slicing()
    assert (make(opened) == plain).all()
    assert opened.vae.config.latent_channels == 4 and opened.unet.config.in_channels == 4
    with pytest.raises(kiln.RequestError, match="`use_tiling` of"):
        opened.vae.use_tiling = True


def test_names_that_are_missing_say_so():
    with pytest.raises(ImportError, match="kiln.diffusers has no StableDiffusionInstructPix2PixPipeline: Kiln has no models"):
        from kiln.diffusers import StableDiffusionInstructPix2PixPipeline  # noqa: F401
    with pytest.raises(kiln.Error, match="no FluxFillPipeline: of pipelines for FLUX.1, Kiln has those for text"):
        from kiln.diffusers import FluxFillPipeline  # noqa: F401
    with pytest.raises(ImportError, match="DPMSolverSinglestepScheduler"):
        from kiln.diffusers import DPMSolverSinglestepScheduler  # noqa: F401
    assert not hasattr(kiln.diffusers, "something")


def test_arguments_that_ask_for_nothing_are_accepted():
    nothing = {
        "low_cpu_mem_usage": True, "cache_dir": None, "token": None, "force_download": False, "image_encoder": None,
        "add_watermarker": False, "custom_pipeline": None, "requires_safety_checker": False, "safety_checker": None,
    }
    kiln.diffusers.StableDiffusionPipeline.from_pretrained(MODEL, **nothing)
    for name, value in [("cache_dir", "x"), ("token", "hf_x"), ("force_download", True), ("add_watermarker", True)]:
        with pytest.raises(kiln.RequestError) as raised:
            kiln.diffusers.StableDiffusionPipeline.from_pretrained(MODEL, **{**nothing, name: value})
        assert raised.value.field == name
    config = kiln.diffusers.EulerDiscreteScheduler.from_pretrained(MODEL, subfolder="scheduler").config
    plain = {"thresholding": False, "euler_at_final": False, "use_lu_lambdas": False, "final_sigmas_type": "zero"}
    assert kiln.diffusers.DPMSolverMultistepScheduler.from_config(config, **plain).fields() == {"sampler": "dpmpp_2m"}
    with pytest.raises(kiln.RequestError, match="`thresholding` of DPMSolverMultistepScheduler"):
        kiln.diffusers.DPMSolverMultistepScheduler.from_config(config, thresholding=True)


def test_a_refused_array_is_not_printed(pipe):
    with pytest.raises(kiln.RequestError, match=r"`prompt_embeds` is a ndarray \(1, 77, 768\), expected None") as raised:
        pipe("a", prompt_embeds=numpy.zeros((1, 77, 768)))
    assert len(str(raised.value)) < 120
    with pytest.raises(kiln.RequestError, match="`output_type` is a list of 900"):
        pipe("a", output_type=["x"] * 900)


def test_given_noise_is_the_generators(pipe):
    noise = numpy.array(kiln.diffusers.Generator().manual_seed(1).normals(4 * 8 * 8)).reshape(1, 4, 8, 8)
    assert (make(pipe, generator=None, latents=noise) == make(pipe)).all()
    sized = pipe("a rocket", num_inference_steps=2, latents=noise).images[0]
    assert (numpy.asarray(sized) == make(pipe)).all(), "the image has the size of the latents"
    with pytest.raises(kiln.RequestError, match="`height` is 64, expected 128, as `latents` has it"):
        make(pipe, latents=numpy.zeros((1, 4, 16, 8)))
    with pytest.raises(kiln.RequestError, match="`latents` has 2 images, expected 1"):
        make(pipe, latents=numpy.concatenate([noise, noise]))


def test_outputs_have_names(pipe):
    output = pipe("a rocket", num_inference_steps=2, width=64, height=64)
    assert output["images"] is output.images is output[0] and output["nsfw_content_detected"] is None
    assert dict(output.items()).keys() == {"images", "nsfw_content_detected"} and len(output.to_tuple()) == 2
    assert str(pipe.dtype).removeprefix("torch.") == "float32"
    half = kiln.diffusers.StableDiffusionPipeline.from_pipe(pipe, torch_dtype="bfloat16")
    assert str(half.dtype).removeprefix("torch.") == "bfloat16" and str(pipe.dtype).endswith("float32")


def test_a_callback_sees_and_changes_a_call(pipe):
    seen = []

    def look(pipe, step, timestep, kwargs):
        seen.append((step, pipe.num_timesteps, pipe.guidance_scale, numpy.asarray(kwargs["latents"]).shape, timestep.item()))
        return kwargs

    plain = make(pipe)
    assert (make(pipe, callback_on_step_end=look) == plain).all()
    steps = [one[0] for one in seen]
    assert steps == list(range(seen[0][1])) and {one[2:4] for one in seen} == {(7.5, (1, 4, 8, 8))}
    timesteps = [one[4] for one in seen]
    assert timesteps == sorted(timesteps, reverse=True)

    def change(pipe, step, timestep, kwargs):
        return {"latents": numpy.asarray(kwargs["latents"]) * 0.5}

    def in_place(pipe, step, timestep, kwargs):
        kwargs["latents"] *= 0.5
        return kwargs

    changed = make(pipe, callback_on_step_end=change)
    assert (changed != plain).any() and (make(pipe, callback_on_step_end=in_place) == changed).all()


def test_guidance_changes_between_steps(pipe):
    def weaker(pipe, step, timestep, kwargs):
        pipe._guidance_scale = 1.0

    plain, off = make(pipe), make(pipe, guidance_scale=1.0)
    changed = make(pipe, callback_on_step_end=weaker)
    assert (changed != plain).any() and (changed != off).any()

    def stronger(pipe, step, timestep, kwargs):
        pipe._guidance_scale = 5.0

    with pytest.raises(kiln.RequestError, match="`cfg_scale` is 5, expected 1: the images began without guidance"):
        make(pipe, guidance_scale=1.0, callback_on_step_end=stronger)


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (lambda pipe, *_: {"latents": numpy.zeros((1, 4, 4, 4))}, "`latents` has the shape"),
        (lambda pipe, *_: {"latents": "x"}, "`latents` is 'x'"),
        (lambda pipe, *_: {"prompt_embeds": 1}, "changes 'prompt_embeds' to 1"),
        (lambda pipe, *_: 5, "returned 5, expected a dict"),
        (lambda pipe, *_: pipe.set_ip_adapter_scale(0.0), "`set_ip_adapter_scale` cannot be changed by a callback"),
        (lambda pipe, *_: setattr(pipe, "_num_timesteps", 3), "`_num_timesteps` of"),
    ],
)
def test_what_a_callback_cannot_change_is_an_error(pipe, end, message):
    with pytest.raises(kiln.RequestError, match=message):
        make(pipe, callback_on_step_end=end)
    make(pipe)


def test_tensors_of_a_callback_have_names(pipe):
    with pytest.raises(kiln.RequestError, match="`callback_on_step_end_tensor_inputs` has 'noise_pred'"):
        make(pipe, callback_on_step_end=print, callback_on_step_end_tensor_inputs=["noise_pred"])
    caught = []

    def look(pipe, step, timestep, kwargs):
        with pytest.raises(kiln.RequestError, match="does not hand out its values"):
            kwargs["prompt_embeds"].mean()
        caught.append(len(kwargs["prompt_embeds"]))
        return kwargs

    make(pipe, callback_on_step_end=look, callback_on_step_end_tensor_inputs=["prompt_embeds"])
    assert set(caught) == {2}


def test_loras_are_fused_named_and_given(pipe):
    pipe.load_lora_weights(LORA.parent, weight_name=LORA.name, adapter_name="a")
    assert pipe.get_list_adapters() == {"unet": ["a"]}
    loaded = make(pipe)
    pipe.fuse_lora(adapter_names=["a"])
    assert (make(pipe, cross_attention_kwargs={"scale": 0.0}) == loaded).all(), "a scale does not act on what is fused"
    with pytest.raises(kiln.RequestError, match="'a', which is fused"):
        pipe.set_adapters("a", 0.5)
    pipe.unload_lora_weights()
    assert pipe.get_list_adapters() == {} and (make(pipe) == loaded).all()
    other = kiln.diffusers.StableDiffusionPipeline.from_pretrained(MODEL)
    other.set_progress_bar_config(disable=True)
    with open(LORA, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    kinds = {"F32": numpy.float32, "F16": numpy.float16}
    weights = {
        name: numpy.frombuffer(data[slice(*one["data_offsets"])], kinds[one["dtype"]]).reshape(one["shape"])
        for name, one in header.items()
        if name != "__metadata__"
    }
    other.load_lora_weights(weights, adapter_name="dict")
    assert (make(other) == loaded).all()
    with pytest.raises(kiln.RequestError, match="'dict', which is loaded already"):
        other.load_lora_weights(LORA, adapter_name="dict")
    other.delete_adapters("dict")
    other.load_lora_weights(LORA, adapter_name="text", prefix="text_encoder")
    assert (make(other) != loaded).any()


def test_a_word_gets_its_embedding(pipe, tmp_path):
    from kiln.diffusers.weight_files import write

    config = json.loads((MODEL / "text_encoder" / "config.json").read_text())
    values = numpy.random.default_rng(1).normal(size=(2, config["hidden_size"])).astype(numpy.float32)
    write(str(tmp_path / "learned_embeds.safetensors"), {"emb_params": values})
    plain = make(pipe, "a style-x apple")
    pipe.load_textual_inversion(tmp_path, token="style-x")
    assert (make(pipe, "a style-x apple") != plain).any()
    pipe.unload_textual_inversion("style-x")
    assert (make(pipe, "a style-x apple") == plain).all()
    with pytest.raises(kiln.FileError, match="not found"):
        pipe.load_textual_inversion("sd-concepts-library/cat-toy")


def test_images_are_loaded_and_put_together(tmp_path, monkeypatch):
    pil.new("L", (8, 4), 7).save(tmp_path / "a.png")
    image = utils.load_image(str(tmp_path / "a.png"))
    assert image.mode == "RGB" and utils.load_image(image, lambda one: one.convert("L")).mode == "L"
    assert utils.make_image_grid([image] * 6, rows=2, cols=3).size == (24, 8)
    with pytest.raises(kiln.RequestError, match="`images` has 1 images, expected 2 x 2"):
        utils.make_image_grid([image], rows=2, cols=2)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(kiln.FileError, match="HF_HUB_OFFLINE is set"):
        utils.load_image("https://example.com/a.png")
    with pytest.raises(kiln.FileError, match="nothing.png"):
        utils.load_image(str(tmp_path / "nothing.png"))
    with pytest.raises(kiln.RequestError, match="`image` is 5"):
        utils.load_image(5)
    assert utils.export_to_gif([image, image], tmp_path / "a.gif").endswith("a.gif")
    assert pil.open(tmp_path / "a.gif").format == "GIF"


def test_a_progress_bar_counts_the_steps_of_a_call(pipe, capsys):
    pytest.importorskip("tqdm")
    pipe.set_progress_bar_config(desc="steps of a test")
    pipe(["a", "b"], num_inference_steps=2, width=64, height=64)
    err = capsys.readouterr().err
    assert "steps of a test" in err and "100%" in err
    pipe.set_progress_bar_config(disable=True)
    make(pipe)
    assert capsys.readouterr().err == ""


def test_adapters_of_every_kind_are_checked(pipe):
    nets = kiln.diffusers
    union = nets.ControlNetUnionModel.from_pretrained(MODEL)
    with pytest.raises(kiln.RequestError, match="expected a ControlNetModel of kiln.diffusers"):
        nets.StableDiffusionControlNetPipeline.from_pipe(pipe, controlnet=union)
    edges = pil.new("RGB", (64, 64), "white")
    several = nets.StableDiffusionXLControlNetUnionPipeline.from_pipe(pipe, controlnet=union)
    with pytest.raises(kiln.RequestError, match="`control_mode` is 9"):
        several("a", control_image=[edges], control_mode=[9])
    with pytest.raises(kiln.RequestError, match="`adapter` is a ControlNetUnionModel, expected a T2IAdapter"):
        nets.StableDiffusionAdapterPipeline.from_pipe(pipe, adapter=union)
    with pytest.raises(kiln.RequestError, match="`pag_applied_layers` has 'x'"):
        nets.AutoPipelineForText2Image.from_pretrained(MODEL, enable_pag=True, pag_applied_layers=["x"])
    guided = nets.AutoPipelineForText2Image.from_pretrained(MODEL, enable_pag=True, pag_applied_layers=["mid"])
    guided.set_progress_bar_config(disable=True)
    assert type(guided) is nets.StableDiffusionPAGPipeline
    assert (make(guided, pag_scale=3.0) != make(pipe)).any() and (make(guided, pag_scale=0.0) == make(pipe)).all()
