"""PyTorch in the same process: tensors are shared, and neither disturbs the other."""

import pytest
from conftest import FAST

import kiln

torch = pytest.importorskip("torch")


def test_tensors_share_the_memory(engine):
    image = engine.txt2img("a red apple", seed=1, **FAST)[0]
    tensor = image.torch()
    assert tensor.shape == (64, 64, 3) and tensor.dtype == torch.uint8
    assert tensor.data_ptr() == image.numpy().ctypes.data
    latents = torch.from_dlpack(image.latents)
    assert latents.shape == (1, 4, 8, 8) and latents.dtype == torch.float32
    tensor[0, 0] = torch.tensor([1, 2, 3], dtype=torch.uint8)
    assert image.numpy()[0, 0].tolist() == [1, 2, 3]


def test_tensors_begin_images(engine):
    image = engine.txt2img("a red apple", seed=1, **FAST)[0]
    make = lambda init: engine.img2img("a dog", init, strength=0.5, seed=3, steps=4)[0].numpy()
    expected = make(image)
    tensor = image.torch()
    for init in (tensor, tensor.permute(2, 0, 1), tensor.float() / 255, tensor.double().requires_grad_(False) / 255):
        assert (make(init) == expected).all()


def test_both_compute_in_turns(engine):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 3, 3))
    input = torch.rand(1, 3, 128, 128)
    threads = torch.get_num_threads()
    ours = engine.txt2img("a rocket", seed=1, **FAST)[0].png()
    with torch.no_grad():
        theirs = network(input)
        for _ in range(5):
            assert engine.txt2img("a rocket", seed=1, **FAST)[0].png() == ours
            assert torch.equal(network(input), theirs)
    assert torch.get_num_threads() == threads
    state = torch.get_rng_state()
    engine.txt2img("a rocket", **FAST)
    assert torch.equal(torch.get_rng_state(), state)


def test_both_compute_at_once(engine):
    from concurrent.futures import ThreadPoolExecutor

    a, b = torch.rand(512, 512), torch.rand(512, 512)
    product = a @ b
    ours = engine.txt2img("a rocket", seed=1, steps=10)[0].png()
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(engine.txt2img, "a rocket", seed=1, steps=10)
        while not made.done():
            assert torch.equal(a @ b, product)
        assert made.result()[0].png() == ours
