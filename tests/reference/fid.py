"""Values of FID by pytorch-fid: features, distances, and statistics in numpy's format.

    pip install pytorch-fid==0.3.0 scipy==1.17.1 torchvision
    python tests/reference/fid.py

Writes `tests/fixtures/compare/fid.json` and `fid_*.npz`. The network has the whole structure and weights of `patterns.py`, and the
images are also from there.
"""

import json

import numpy as np
import torch
import torchvision
from pytorch_fid import fid_score, inception

from common import FIXTURES
from patterns import hashed, image, noisy, random_weights

FOLDER = FIXTURES / "compare"
# Width and height of each image, and the amplitude of its noise, in two sets.
SETS = (
    ((64, 48, 0), (97, 80, 30), (299, 299, 60), (400, 320, 90), (40, 700, 120), (128, 128, 50)),
    ((64, 48, 90), (97, 80, 120), (120, 90, 10), (320, 400, 70)),
)


def network():
    """pytorch-fid's network with random weights, without its download."""
    inception.load_state_dict_from_url = lambda url, progress: {}
    load = torch.nn.Module.load_state_dict
    torch.nn.Module.load_state_dict = lambda self, state: None
    model = inception.InceptionV3([3])
    names = inception.fid_inception_v3()
    torch.nn.Module.load_state_dict = load
    state = {
        key: torch.zeros((), dtype=torch.int64) if "num_batches" in key else random_weights(key, tuple(value.shape))
        for key, value in names.state_dict().items()
    }
    names.load_state_dict(state)
    # The blocks of the extractor are those of the network, one after the other.
    ours = {key: value for key, value in names.state_dict().items() if not key.startswith("fc.")}
    assert [value.shape for value in ours.values()] == [value.shape for value in model.state_dict().values()]
    model.load_state_dict(dict(zip(model.state_dict(), ours.values(), strict=True)))
    return model.eval()


def features(model, case):
    """The features of an image."""
    width, height, amplitude = case
    pixels = torchvision.transforms.ToTensor()(noisy(image(width, height), amplitude))
    with torch.no_grad():
        return model(pixels[None])[0].squeeze().numpy().astype(np.float64)


def numbers(seed, rows, columns):
    """Random numbers from -0.5 to 0.5."""
    unit = hashed(np.arange(rows * columns, dtype=np.uint32) + np.uint32(seed)) >> np.uint32(8)
    return (unit.astype(np.float64) / 2**24 - 0.5).reshape(rows, columns)


def statistics(activations):
    """Mean and covariance as pytorch-fid computes them."""
    return np.mean(activations, axis=0), np.cov(activations, rowvar=False)


def distances():
    """Distances of sets of random features: more samples than features, fewer, and of features that depend on each other."""
    for columns, rows in ((16, (60, 80)), (40, (300, 25)), (64, (20, 12)), (256, (600, 700))):
        sets = []
        for seed, count in enumerate(rows):
            mixed = numbers(1000 * seed, count, columns) @ numbers(77, columns, columns) + numbers(5, 1, columns) * seed
            sets.append(statistics(mixed))
        (m1, s1), (m2, s2) = sets
        value = fid_score.calculate_frechet_distance(m1, s1, m2, s2)
        roots = np.sqrt(np.maximum(np.linalg.eigvals(s1 @ s2).real, 0)).sum()
        exact = (m1 - m2) @ (m1 - m2) + np.trace(s1) + np.trace(s2) - 2 * roots
        print(columns, rows, value, exact)
        yield {"features": columns, "images": list(rows), "value": float(value), "by_eigenvalues": float(exact)}


def archives():
    """Statistics of eight features in the forms that numpy writes."""
    mean, covariance = statistics(numbers(9, 30, 8) + 1.0)
    np.savez(FOLDER / "fid_f64.npz", mu=mean, sigma=covariance)
    np.savez_compressed(FOLDER / "fid_compressed.npz", mu=mean, sigma=np.asfortranarray(covariance))
    np.savez_compressed(FOLDER / "fid_f32.npz", mu=mean.astype(np.float32), sigma=covariance.astype(np.float32))
    np.savez(FOLDER / "fid_other.npz", mean=mean, sigma=covariance.astype(np.int64))
    return {"mu": mean.tolist(), "sigma": covariance.tolist()}


def main():
    """Write the values."""
    model = network()
    of_sets = [np.stack([features(model, case) for case in cases]) for cases in SETS]
    (m1, s1), (m2, s2) = [statistics(activations) for activations in of_sets]
    print("features", of_sets[0].mean(), of_sets[0].std(axis=0).mean(), of_sets[0].max())
    roots = np.sqrt(np.maximum(np.linalg.eigvalsh(half(s1) @ s2 @ half(s1)), 0)).sum()
    exact = (m1 - m2) @ (m1 - m2) + np.trace(s1) + np.trace(s2) - 2 * roots
    value = fid_score.calculate_frechet_distance(m1, s1, m2, s2)
    print("fid", value, exact)
    values = {
        "sets": SETS,
        # Every 16th feature of the first images.
        "features": [[round(float(x), 6) for x in row[::16]] for row in of_sets[0]],
        "value": float(value),
        "by_eigenvalues": float(exact),
        "distances": list(distances()),
        "archive": archives(),
    }
    (FOLDER / "fid.json").write_text(json.dumps(values) + "\n")


def half(covariance):
    """The root of a covariance."""
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T


main()
