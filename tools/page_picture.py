"""Take the pictures of the page that the documentation shows: `make page-picture`.

    python tools/page_picture.py [FOLDER]     default: docs/pictures

The page is the real one, of a server of this clone with the built-in model; the machine that it shows is made up, as
few developers sit at one with several sockets: a host in one line, and figures drawn from a fixed seed. Needs selenium
(`pip install selenium`) and Debian's packages chromium and chromium-driver.
"""

from __future__ import annotations

import base64
import json
import math
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from homenode.host.discovery.read import read_host
from homenode.host.topology.machine_map import machine_map
from homenode.testing.hosts.synthetic import synthetic

ROOT = Path(__file__).resolve().parent.parent
HOST = "2s/4n/48c/smt2"
GIB = 1 << 30
SIZE = (1360, 900)
QUESTION = "What is NUMA?"


def made_up_overview(now: float) -> dict[str, Any]:
    """What a server on such a machine would tell of itself."""
    draw = random.Random(7)
    host = read_host(synthetic(HOST), accelerators=False)
    cores = sorted(host.cores)
    cpus = [cpu for at, cpu in enumerate(cores) if at % 12 < 11]  # a core of each node is for the loop and the front
    weights = [
        {"use": "weights", "node": node, "present": int(9.9 * GIB), "local": int(9.9 * GIB)} for node in range(4)
    ]
    kv = [
        {"use": "kv", "node": node, "present": int((5 + node % 2) * GIB), "local": int((5 + node % 2) * GIB)}
        for node in range(4)
    ]
    running = [_row(draw, number, "running", "") for number in range(41, 47)]
    why = "another request computes the same beginning just now: this one will take it from the cache"
    waiting = [_row(draw, number, "waiting", why) for number in (47, 48)]
    model = {
        "name": "qwen3-32b", "names": ["qwen3-32b"], "state": "ok", "why": "", "generates": True,
        "max_model_len": 40960, "max_num_seqs": 64, "blocks": 8192, "block_size": 32,
        "details": {
            "architecture": "qwen3", "weight_bytes": 40 * GIB, "kv_dtype": "bf16", "numa": "shard",
            "cpus": cpus, "threads": len(cpus), "level": "avx512bf16", "backend": "native",
        },
        "gauges": {"running": 6, "waiting": 2, "kv_usage": 0.37},
        "counters": {
            "prefix_queries": 912_480, "prefix_hits": 610_336, "preemptions": 0, "prompt_tokens": 912_480,
            "generation_tokens": 288_114, "drafted_tokens": 0, "accepted_tokens": 0, "handed_tokens": 0,
            "steps": 61_002,
        },
        "waiting_for": {"prefix": 2}, "memory": [*weights, *kv],
        "lost_cpu": {cpu: round(draw.random() * 0.004, 3) for cpu in cpus}, "stages": [], "engines": [],
        "requests": [*running, *waiting], "left_out": 0, "sampling_defaults": {},
    }  # fmt: skip
    threads = [{"cpu": cpu, "engine": 4711, "state": "home", "elsewhere": []} for cpu in cpus]
    machine = {"fingerprint": "made-up", "threads": threads, "throttled": None, "findings": [], "known": True}
    drawn = {**machine_map(host), "model": "2 sockets, 4 NUMA nodes, 48 cores"}
    for node in (node for socket in drawn["sockets"] for node in socket["nodes"]):
        node["memory"] = 64 * GIB
    return {
        "kind": "server", "version": "0.2.0", "at": now, "started": int(now) - 7200, "ask_again_s": 3600,
        "models": [model], "machine": machine, "strategies": ["fair", "numa-bind"],
        "hour": list(_hour(draw, now)), "host": drawn,
    }  # fmt: skip


def _row(draw: random.Random, number: int, state: str, why: str) -> dict[str, Any]:
    prompt, runs = draw.randrange(200, 6000), state == "running"
    return {
        "id": str(number), "state": state, "why": why, "prompt": prompt, "computed": prompt if runs else 0,
        "generated": draw.randrange(10, 900) if runs else 0, "cached": prompt * 2 // 3 if runs else 0,
        "age_s": draw.random() * 30 if runs else draw.random(), "preemptions": 0,
    }  # fmt: skip


def _hour(draw: random.Random, now: float) -> Iterator[dict[str, Any]]:
    for at in range(240):
        wave = 0.6 + 0.4 * math.sin(at / 23) + draw.random() * 0.15
        yield {
            "at": now - 15 * (240 - at), "queue": [0.002 * wave, 0.03 * wave], "first_token": [0.35 * wave, 1.1 * wave],
            "between_tokens": [0.05 + 0.008 * wave, 0.066 + 0.012 * wave], "prompt_tokens": 420 * wave,
            "generated_tokens": 92 * wave, "running": round(7 * wave), "waiting": round(2 * wave),
            "kv_usage": 0.4 * wave,
        }  # fmt: skip


@contextmanager
def server() -> Iterator[str]:
    """The address of a server of the built-in model on a free port."""
    command = [sys.executable, "-m", "homenode.cli.main", "serve", "--port", "0"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "ready http" in line:
                yield line.split("ready ")[1].split()[0]
                return
        raise SystemExit("the server did not start")
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def browser() -> Iterator[Any]:
    """The system's Chromium, without a window."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    found = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in found:
        raise SystemExit("chromium and chromedriver are wanted: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(found[0])
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--lang=en"):
        options.add_argument(word)
    driver = webdriver.Chrome(options=options, service=Service(str(found[1])))
    try:
        yield driver
    finally:
        driver.quit()


def take_pictures(driver: Any, url: str, folder: Path) -> None:
    """The machine as it looks by day, and the chat by night."""
    told = json.dumps(made_up_overview(time.time()))
    script = f"""{{
        const real = window.fetch, told = {json.dumps(told)}, type = {{'Content-Type': 'application/json'}};
        const ours = (address) => location.hash === '#machine' && String(address).includes('/overview');
        window.fetch = (address, ...rest) => ours(address)
          ? Promise.resolve(new Response(told, {{headers: type}})) : real(address, ...rest);
    }}"""
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
    size = {"width": SIZE[0], "height": SIZE[1], "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    _show(driver, "light")
    driver.get(f"{url}/#machine")
    driver.refresh()
    _wait(driver, "return document.querySelectorAll('[data-cpu]').length > 2")
    _save(driver, folder / "page-machine.png")
    _show(driver, "dark")
    driver.get(f"{url}/#chat")
    _ask(driver)
    _save(driver, folder / "page-chat.png")


def _show(driver: Any, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def _ask(driver: Any) -> None:
    _wait(driver, "return document.querySelector('#model').value")
    driver.find_element("css selector", ".new").click()
    box = driver.find_element("css selector", "#message")
    box.send_keys(QUESTION + "\ue007")
    _wait(driver, "return document.querySelectorAll('.figures').length && !document.querySelector('[aria-busy=true]')")


def _wait(driver: Any, script: str) -> None:
    for _ in range(200):
        if driver.execute_script(script):
            time.sleep(0.4)
            return
        time.sleep(0.1)
    raise SystemExit(f"the page did not come so far: {script}")


def _save(driver: Any, file: Path) -> None:
    picture = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    file.write_bytes(base64.b64decode(picture["data"]))
    print(file)


def main(arguments: list[str]) -> None:
    """Take all pictures."""
    folder = Path(arguments[0]) if arguments else ROOT / "docs" / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    with server() as url, browser() as driver:
        take_pictures(driver, url, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
