"""The page in Debian's Chromium, without a window: what it draws, and what it never does. Skipped where there is no
selenium (`pip install selenium`), chromium or chromedriver.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

from homenode.engine.messages import RequestRow
from tests.server.conftest import Running, Start
from tests.server.fakes import ScriptedClient
from tests.server.written_markdown import DRAWN, HOSTILE
from tests.waiting import wait_until

webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium")
DRAW = """
const [source, done] = arguments;
import(new URL('markdown.js', document.querySelector('script[type=module]').src)).then(({ Drawing }) => {
  const element = document.createElement('div');
  document.body.append(element);
  const drawing = new Drawing(element);
  for (let at = 1; at <= source.length; at += Math.max(7, source.length >> 7)) drawing.draw(source.slice(0, at));
  drawing.draw(source);
  const fresh = document.createElement('div');
  new Drawing(fresh).draw(source);
  const all = [...element.querySelectorAll('*')];
  const runs = ({ name }) => name.startsWith('on') || name === 'style';
  done({ names: all.map((each) => each.localName), text: element.textContent,
    same: fresh.innerHTML === element.innerHTML,
    links: all.filter((each) => each.href).map((each) => each.getAttribute('href')),
    handlers: all.filter((each) => [...each.attributes].some(runs)).length });
  element.remove();
}, (error) => done({ error: String(error) }));
"""


OPTIONS = """
const done = arguments[0];
import(new URL('dom.js', document.querySelector('script[type=module]').src)).then(({ setOptions }) => {
  const list = document.createElement('select');
  const set = (...words) => setOptions(list, words.map((word) => word.split('=')));
  set('a=A', 'b=B', 'c=C');
  const [, b, c] = list.options;
  list.value = 'b';
  set('c=C', 'd=D', 'b=New');
  const kept = list.options[2] === b && list.options[0] === c;
  done({ kept, chosen: list.value, texts: [...list.options].map((each) => each.textContent) });
}, (error) => done({ error: String(error) }));
"""


ROWS = """
return [...document.querySelectorAll('[data-request]')].map((each) => [each.dataset.state, each.innerText])
"""


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    from selenium.webdriver.chrome.service import Service

    found = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in found:
        pytest.skip("no chromium, or no chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(found[0])
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--lang=en"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    made = webdriver.Chrome(options=options, service=Service(str(found[1])))
    made.set_script_timeout(30)
    yield made
    made.quit()


@pytest.fixture(scope="module")
def shown(start: Start) -> Running:
    client = ScriptedClient()
    client.rows = [RequestRow(7, 100, 60, 0, 32, 1.5, None, 0), RequestRow(8, 20, 0, 0, 0, 0.25, "slots", 1)]
    return start(client)


def draw(driver: Any, server: Running, source: str) -> dict[str, Any]:
    if not driver.current_url.startswith(server.url):
        driver.get(f"{server.url}/")
    drawn: dict[str, Any] = driver.execute_async_script(DRAW, source)
    assert "error" not in drawn, drawn
    return drawn


@pytest.mark.parametrize(("source", "names", "text"), DRAWN)
def test_markdown_is_drawn(driver: Any, shown: Running, source: str, names: list[str], text: str) -> None:
    drawn = draw(driver, shown, source)
    assert (drawn["names"], drawn["text"]) == (names, text)


@pytest.mark.parametrize("source", HOSTILE)
def test_nothing_that_a_model_writes_is_run_or_fetched(driver: Any, shown: Running, source: str) -> None:
    began = time.monotonic()
    drawn = draw(driver, shown, source)
    assert not {"script", "img", "iframe", "object", "embed", "link", "svg", "form", "style"} & set(drawn["names"])
    assert drawn["handlers"] == 0 and all(
        link.startswith(("https://", "http://", "mailto:")) for link in drawn["links"]
    )
    assert drawn["same"], "drawn piece by piece it differs from drawn at once"
    assert not driver.execute_script("return window.pwned")
    assert time.monotonic() - began < 20


def test_a_list_that_is_told_anew_keeps_what_somebody_has_opened_or_chosen(driver: Any, shown: Running) -> None:
    driver.get(f"{shown.url}/")
    found = driver.execute_async_script(OPTIONS)
    assert found == {"kept": True, "chosen": "b", "texts": ["C", "D", "New"]}


def test_a_chat_is_answered_and_the_machine_is_shown_without_a_complaint(driver: Any, shown: Running) -> None:
    driver.get_log("browser"), driver.get_log("performance")
    driver.get(f"{shown.url}/#chat")
    driver.refresh()
    fields = lambda: driver.find_elements("css selector", "#message")  # noqa: E731
    box = wait_until(lambda: [each for each in fields() if each.is_displayed()])[0]
    wait_until(lambda: driver.find_element("css selector", "#model").get_attribute("value"))
    box.send_keys("Tell me.\ue007")
    wait_until(lambda: driver.execute_script("return document.querySelector('.figures')?.textContent"))
    assert driver.execute_script("return document.querySelector('[data-role=assistant]').innerText.length") > 0
    driver.get(f"{shown.url}/#machine")
    rows = wait_until(lambda: driver.execute_script(ROWS))
    assert [state for state, _ in rows] == ["running", "waiting"] and "--max-num-seqs" in rows[1][1]
    assert driver.execute_script("return document.querySelectorAll('[data-cpu]').length") > 0
    assert not driver.execute_script("return document.querySelectorAll('[data-state=stray]').length")
    asked = [json.loads(each["message"])["message"] for each in driver.get_log("performance")]
    urls = [each["params"]["request"]["url"] for each in asked if each["method"] == "Network.requestWillBeSent"]
    assert urls and all(url.startswith((shown.url, "data:", "blob:", "about:")) for url in urls)
    assert not [each["message"] for each in driver.get_log("browser") if each["level"] == "SEVERE"]
