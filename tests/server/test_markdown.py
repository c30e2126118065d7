"""The page's renderer of Markdown and formulas, run by node over elements that are only kept: no browser is needed."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT
from tests.server.written_markdown import DRAWN, FORBIDDEN, HOSTILE, LINKS

STATIC = ROOT / "src/homenode/server/page/static"
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="no node")

# A document whose elements have names, attributes and children, and whose texts are texts.
HARNESS = """
class Element {
  constructor(name) { Object.assign(this, { localName: name, attributes: [], childNodes: [], dataset: {} }); }
  setAttribute(name, value) { this.attributes.push([name, value]); }
  addEventListener() {}
  append(...all) {
    for (const each of all) {
      if (each instanceof Element) each.parent = this;
      this.childNodes.push(each);
    }
  }
  remove() { this.parent.childNodes.splice(this.parent.childNodes.indexOf(this), 1); }
  hasChildNodes() { return this.childNodes.length > 0; }
  get children() { return this.childNodes.filter((each) => each instanceof Element); }
  get lastElementChild() { return this.children.at(-1); }
  get textContent() {
    return this.childNodes.map((each) => (each instanceof Element ? each.textContent : String(each))).join('');
  }
  all() { return this.children.flatMap((each) => [each, ...each.all()]); }
  tree() {
    const inside = this.childNodes.map((each) => (each instanceof Element ? each.tree() : each));
    return [this.localName, this.attributes, inside];
  }
}
globalThis.document = { createElement: (name) => new Element(name), createElementNS: (_, name) => new Element(name) };
const { Drawing } = await import('./markdown.js');
const sources = JSON.parse(await new Promise((done) => {
  let text = '';
  process.stdin.on('data', (part) => (text += part)).on('end', () => done(text));
}));
const out = sources.map((source) => {
  const began = performance.now();
  const [whole, grown] = [new Element('div'), new Element('div')];
  new Drawing(whole).draw(source);
  const took = performance.now() - began;
  const drawing = new Drawing(grown);
  const step = Math.max(3, Math.ceil(source.length / 12));
  for (let at = 1; at <= source.length; at += step) drawing.draw(source.slice(0, at));
  drawing.draw(source);
  const all = whole.all();
  return { names: all.map((each) => each.localName), text: whole.textContent, took,
    same: JSON.stringify(whole.tree()) === JSON.stringify(grown.tree()),
    links: all.flatMap((each) => each.attributes.filter(([name]) => name === 'href').map(([, value]) => value)),
    odd: all.flatMap((each) => each.attributes.filter(([name]) => /^(on|style$|src)/.test(name))) };
});
console.log(JSON.stringify(out));
"""


@cache
def drawn(folder: Path) -> dict[str, dict[str, Any]]:
    """What is drawn of each source, by one run of node."""
    for file in STATIC.glob("*.js"):
        shutil.copy(file, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "harness.js").write_text(HARNESS)
    sources = [*(source for source, _, _ in DRAWN), *HOSTILE]
    run = subprocess.run(
        ["node", "harness.js"], cwd=folder, input=json.dumps(sources), capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return dict(zip(sources, json.loads(run.stdout), strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node")


@pytest.mark.parametrize(("source", "names", "text"), DRAWN)
def test_markdown_is_drawn(folder: Path, source: str, names: list[str], text: str) -> None:
    one = drawn(folder)[source]
    assert (one["names"], one["text"]) == (names, text) and one["same"]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_nothing_that_a_model_writes_becomes_more_than_text(folder: Path, number: int) -> None:
    one = drawn(folder)[HOSTILE[number]]
    assert not FORBIDDEN & set(one["names"]) and not one["odd"]
    assert all(link.startswith(LINKS) for link in one["links"])
    assert one["same"], "drawn piece by piece it differs from drawn at once"
    assert one["took"] < 1000, f"{one['took']:.0f} ms for {len(HOSTILE[number])} characters"
