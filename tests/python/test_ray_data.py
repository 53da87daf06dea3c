"""Sets of images on a Ray cluster: two workers, one of which is killed."""

import json
import os
import signal
import threading
import time

import pytest
from conftest import MODEL

pytest.importorskip("ray.data")
pyarrow = pytest.importorskip("pyarrow")
import pyarrow.parquet  # noqa: E402
import ray  # noqa: E402

from kiln.ray import KilnActor  # noqa: E402

COUNT = int(os.environ.get("KILN_IMAGES", "200"))


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def jobs(count):
    names = ["a red apple", "a rocket", "a cat face", "a sunflower"]
    return [
        {"prompt": names[i % 4], "seed": i, "steps": 4, "width": 64, "height": 64, "output": f"{i % 10}/{i}.png"}
        for i in range(count)
    ]


def actors(dataset, workers=2, **options):
    return dataset.map_batches(
        KilnActor, fn_constructor_kwargs={"model": str(MODEL), **options}, batch_size=8, concurrency=workers, num_cpus=1
    )


def test_a_set_is_complete_though_a_worker_is_killed(cluster, command, tmp_path):
    rows = jobs(COUNT)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "jobs.parquet", row_group_size=16)
    (tmp_path / "jobs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command("batch", tmp_path / "jobs.jsonl", "-m", MODEL, "-o", tmp_path / "theirs")
    ours = tmp_path / "ours"
    killed = []

    def kill():
        while sum(1 for _ in ours.glob("*/*.png")) < COUNT // 4:
            time.sleep(0.01)
        pid = int(next(ours.glob("journals/*.jsonl")).stem.rsplit("-", 2)[1])
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    dataset = ray.data.read_parquet(str(tmp_path / "jobs.parquet")).repartition(COUNT // 8)
    made = actors(dataset, output=str(ours)).to_pandas()
    assert killed and len(made) == COUNT
    assert set(made.status) <= {"made", "known"} and made.file.nunique() == COUNT
    files = {str(path.relative_to(ours)): path.read_bytes() for path in ours.glob("*/*.png")}
    expected = {row["output"]: (tmp_path / "theirs" / row["output"]).read_bytes() for row in rows}
    assert files.keys() == expected.keys() and files == expected
    records = [json.loads(line)["file"] for path in ours.glob("journals/*.jsonl") for line in path.read_text().splitlines()]
    assert set(records) == set(files)
    again = actors(dataset, output=str(ours)).to_pandas()
    assert set(again.status) == {"known"}
    assert not list(ours.glob(".*")), "what the killed worker left is removed"


def test_rows_without_a_folder_carry_their_files(cluster):
    rows = [{"prompt": "a rocket", "steps": 2, "width": 64, "height": 64, "id": i} for i in range(3)]
    made = actors(ray.data.from_items([*rows, rows[0]]), workers=1).to_pandas()
    assert made.__key__.nunique() == 3 and made.seed.nunique() == 3
    assert all(png.startswith(b"\x89PNG") for png in made.png)


def test_a_row_that_cannot_be_is_reported_and_the_others_are_made(cluster, tmp_path):
    rows = [{"prompt": "a rocket", "steps": steps, "width": 64, "height": 64, "seed": 1} for steps in (2, 0, 3)]
    made = actors(ray.data.from_items(rows), workers=1, output=str(tmp_path)).to_pandas()
    assert list(made.status) == ["made", "failed", "made"]
    assert "`steps` is 0" in made.error[1] and len(list(tmp_path.glob("*.png"))) == 2
