"""The same load on any server with the route `/sdapi/v1/txt2img`: Kiln, `serve_diffusers.py`, sd.cpp's `sd-server`. Each client sends
its next request when the last one is answered. Prints images a second, and latencies, as JSON.

Run: python benches/peers/serve_load.py --address http://127.0.0.1:7860 --clients 16 --seconds 60
"""

import argparse
import http.client
import json
import random
import threading
import time
import urllib.parse


def client(number: int, options: argparse.Namespace, end: float, latencies: list) -> None:
    address, draw = urllib.parse.urlparse(options.address), random.Random(number)
    while time.monotonic() < end:
        body = {"prompt": "a red apple", "negative_prompt": "", "seed": draw.randrange(1 << 30), "steps": draw.choice(options.steps),
                "cfg_scale": 7.0, "width": options.size, "height": options.size, "sampler_name": options.sampler}
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=600)
        start = time.monotonic()
        connection.request("POST", "/sdapi/v1/txt2img", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        assert answer.status == 200 and json.loads(content)["images"], (answer.status, content[:300])
        latencies.append((body["steps"], time.monotonic() - start))


def main(options: argparse.Namespace) -> None:
    latencies: list = []
    begin = time.monotonic()
    threads = [threading.Thread(target=client, args=(i, options, begin + options.seconds, latencies)) for i in range(options.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - begin

    def part(values: list, p: float) -> float:
        values = sorted(values)
        return round(values[min(len(values) - 1, int(p * len(values)))], 3)

    result = {"address": options.address, "clients": options.clients, "seconds": round(took, 1), "images": len(latencies),
              "images_per_second": round(len(latencies) / took, 3)}
    for steps in [None, *options.steps]:
        values = [latency for made, latency in latencies if steps in (None, made)]
        if values:
            name = "all" if steps is None else f"{steps} steps"
            result[name] = {"p50": part(values, 0.5), "p99": part(values, 0.99)}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default="http://127.0.0.1:7860")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--steps", type=int, nargs="+", default=[4, 20])
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--sampler", default="Euler a")
    main(parser.parse_args())
