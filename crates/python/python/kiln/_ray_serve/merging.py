"""One answer of the answers of all replicas."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S.*)")


def merged_jobs(lists: list[bytes], more: list[dict[str, Any]]) -> bytes:
    """Answers of `/v1/jobs` and more jobs as one list: the newest job first."""
    jobs: list[dict[str, Any]] = [job for content in lists for job in json.loads(content)["jobs"]]
    known = {job["id"] for job in jobs}
    jobs += [job for job in more if job["id"] not in known]
    return json.dumps({"jobs": sorted(jobs, key=lambda job: job["created"], reverse=True)}).encode()


def merged_metrics(texts: Mapping[str, str]) -> str:
    """Texts of OpenMetrics, by their replicas, as one. Each sample gets the label `replica`, and each family is one block, as the
    format has it."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for replica, text in sorted(texts.items()):
        samples: list[str] = []
        for line in text.splitlines():
            if line == "# EOF":
                break
            if line.startswith("#"):
                heads, samples = families.setdefault(line.split(" ")[2], ([], []))
                if line not in heads:
                    heads.append(line)
            elif sample := _SAMPLE.fullmatch(line):
                name, labels, value = sample.groups()
                more = f",{labels}" if labels else ""
                samples.append(f'{name}{{replica="{replica}"{more}}} {value}')
    lines = [line for heads, samples in families.values() for line in (*heads, *samples)]
    return "\n".join([*lines, "# EOF", ""])
