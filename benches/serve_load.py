#!/usr/bin/env python3
"""Measures a server under load: clients that each ask for the next image when they have the last one.

    kiln serve -m MODEL &
    benches/serve_load.py http://127.0.0.1:7860 --clients 16 --seconds 12

It asks by AUTOMATIC1111's `POST /sdapi/v1/txt2img`, which other servers answer, too (`peers/serve_diffusers.py`, sd.cpp's `sd-server`),
and prints images a second and the latencies p50 and p99 of the requests that ended within the time. With several numbers of steps each
request has one of them by chance. Each client is a process with one connection, so that the clients do not wait
for each other. Requests that ended before warm the server up. Needs the standard library alone.
"""

import argparse
import http.client
import json
import multiprocessing
import random
import time
import urllib.parse


def client(number: int, options: argparse.Namespace, begin: float, results) -> None:
    url, draw = urllib.parse.urlsplit(options.url), random.Random(number)
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=600)
    end = begin + options.seconds
    times, request = [], 0
    while time.time() < end:
        request += 1
        body = {"prompt": f"{options.prompt} {number}", "seed": number * 100_000 + request, "steps": draw.choice(options.steps)}
        body |= {name: size for name, size in [("width", options.width), ("height", options.height)] if size}
        body |= {"sampler_name": options.sampler} if options.sampler else {}
        start = time.time()
        connection.request("POST", "/sdapi/v1/txt2img", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200 or b'"images"' not in content:
            return results.put(f"client {number}: status {answer.status}: {content[:300]!r}")
        times.append((body["steps"], start, time.time()))
    results.put([(steps, done - start) for steps, start, done in times if begin <= done <= end])


def percentile(sorted_values: list, part: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(part * len(sorted_values)))]


def latencies(answers: list) -> str:
    seconds = sorted(seconds for _, seconds in answers)
    return f"p50 {percentile(seconds, 0.5):.3f} s, p99 {percentile(seconds, 0.99):.3f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url", help="the server, such as http://127.0.0.1:7860")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=12.0, help="how long is measured")
    parser.add_argument("--warm", type=float, default=4.0, help="seconds before that")
    parser.add_argument("--prompt", default="a red apple on a table")
    parser.add_argument("--steps", type=int, nargs="+", default=[20])
    parser.add_argument("--sampler", help="the server's own by default")
    parser.add_argument("--width", type=int, help="the model's own by default")
    parser.add_argument("--height", type=int, help="the model's own by default")
    options = parser.parse_args()
    results = multiprocessing.Queue()
    begin = time.time() + options.warm
    arguments = [(number, options, begin, results) for number in range(options.clients)]
    clients = [multiprocessing.Process(target=client, args=one, daemon=True) for one in arguments]
    for one in clients:
        one.start()
    answers = []
    for _ in clients:
        result = results.get(timeout=options.warm + options.seconds + 600)
        if isinstance(result, str):
            raise SystemExit(result)
        answers += result
    if not answers:
        raise SystemExit("no request ended within the time; measure for longer")
    rate = len(answers) / options.seconds
    print(f"{options.clients} clients: {rate:.2f} images/s, {latencies(answers)} ({len(answers)} requests)")
    for number in options.steps if len(options.steps) > 1 else []:
        some = [answer for answer in answers if answer[0] == number]
        print(f"  {number} steps: " + (latencies(some) if some else "no request"))


if __name__ == "__main__":
    main()
