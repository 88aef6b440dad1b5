"""The views of one run in a real browser, over runs with histograms, findings and several ranks."""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import luff.numpy
import numpy as np
import pytest
from luff.config import Collection, SaveConfig

from tests.browser import Browser
from tests.browser import executable as browser_executable

from .conftest import AXE, LIMIT_S, WATCH, Server, barriers, executable, numbers

FORMULA = '=cmd|"/c calc"!A1'
STEPS = 80
#: Keeps what the page gives to the browser as a file.
SAVED = """
window.saved = [];
const make = URL.createObjectURL;
URL.createObjectURL = (blob) => {
  const reader = new FileReader();
  reader.onload = () => saved.push([blob.type, reader.result.split(",")[1]]);
  reader.readAsDataURL(blob);
  return make(blob);
};
"""
_RANK = """
import os, sys, time
import numpy as np, luff.numpy

rank = int(os.environ["RANK"])
weights = {"net.0.weight": np.ones((2, 2), np.float32), "net.1.weight": np.ones((2, 2), np.float32)}
with luff.numpy.attach(weights, run=sys.argv[1]) as hook:
    for number in range(40):
        with hook.step() as step:
            for array in weights.values():
                array *= 0.99
            if rank == 1 and number >= 30:
                weights["net.1.weight"] *= 1.5
            step.loss(1.0 / (number + 1))
            time.sleep(0.06 if rank == 2 else 0.002)
"""


def record(path: Path) -> dict[str, np.ndarray]:
    """Makes a run with histograms, values and a fault; returns values of the first weight by step."""
    random = np.random.default_rng(0)
    weights = {
        f"h.{i}.{part}.weight": random.normal(size=(8, 8)).astype(np.float32)
        for i in range(3)
        for part in ("q", "k")
    }
    weights[FORMULA] = np.ones(4, np.float32)
    looked_at = Collection(
        "looked_at",
        include=r"^h\.0\.q\.weight$",
        forms=["summary", "histogram"],
        save_config=SaveConfig(save_interval=5),
    )
    kept = {}
    with luff.numpy.attach(weights, run=path, collections=[looked_at]) as hook:
        for number in range(STEPS):
            with hook.step() as step:  # reads the weights
                kept[number] = weights["h.0.q.weight"].copy()
                gradients = {
                    name: random.normal(size=array.shape).astype(np.float32)
                    for name, array in weights.items()
                }
                if number >= 60:
                    gradients["h.1.q.weight"][0, 0] = np.nan
                for name, array in weights.items():
                    array -= 0.01 * np.nan_to_num(gradients[name])
                step.gradients(gradients)
                step.loss(float("nan") if number >= 62 else 2.0 / (number + 1))
    found = subprocess.run(
        [executable(), "check", str(path), "--json"], capture_output=True, text=True, check=False
    )
    (path / "rules" / "luff").mkdir(parents=True, exist_ok=True)
    (path / "rules" / "luff" / "findings.jsonl").write_text(found.stdout)
    return kept


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("views")


@pytest.fixture(scope="module")
def kept(root: Path) -> dict[str, np.ndarray]:
    return record(root / "rich")


@pytest.fixture(scope="module")
def server(
    root: Path, kept: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    (root / "rank.py").write_text(_RANK)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(root / "rank.py"), str(root / "ranks")],
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "3"},
        )
        for rank in range(3)
    ]
    assert [rank.wait(timeout=LIMIT_S) for rank in ranks] == [0, 0, 0]
    started = Server(tmp_path_factory.mktemp("home"), root)
    yield started
    started.end()


@pytest.fixture(scope="module")
def browser(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser_executable()
    server.require_page()
    with contextlib.closing(Browser(tmp_path_factory.mktemp("profile"))) as opened:
        opened.before_each_page(WATCH + SAVED)
        opened.open(server.link)
        opened.until("document.querySelectorAll('tbody tr').length === 2")
        yield opened


@pytest.fixture(scope="module")
def ids(server: Server) -> dict[str, str]:
    return {run["place"]: run["id"] for run in server.get("/api/v1/runs")["runs"]}


@pytest.fixture
def rich(browser: Browser, ids: dict[str, str]) -> Iterator[str]:
    yield ids["rich"]
    assert browser.evaluate("window.problems") == []


def go(browser: Browser, run: str, values: str) -> None:
    browser.evaluate(f"location.hash = '#/run/{run}?{values}'")


def says(browser: Browser, *texts: str) -> None:
    for text in texts:
        browser.until(f"(document.body?.innerText ?? '').includes({json.dumps(text)})")


def tensor_of(server: Server, run: str, name: str) -> int:
    found = server.get(f"/api/v1/runs/{run}/tensors")["tensors"]
    return int(next(t["id"] for t in found if t["name"] == name))


def click(browser: Browser, name: str) -> None:
    found = (
        "[...document.querySelectorAll('main button')]"
        f".find(b => b.textContent.trim() === {json.dumps(name)} && !b.disabled)"
    )
    browser.until(f"{found} !== undefined")
    browser.evaluate(f"{found}.click()")


def picture(browser: Browser, name: str) -> None:
    if shots := os.environ.get("LUFF_SCREENSHOTS"):
        time.sleep(0.6)
        browser.screenshot(Path(shots) / f"{name}.png")


def test_tensors_are_found_ordered_and_described(browser: Browser, server: Server, rich: str) -> None:
    go(browser, rich, "view=tensors&step=70")
    says(browser, "h.1.q.weight", "■")
    picture(browser, "tensors")
    go(browser, rich, "view=tensors&step=70&order=worst&role=gradient")
    browser.until(
        "document.querySelector('[role=treeitem]')?.innerText.includes('gradient/h.1.q.weight') === true"
    )
    go(browser, rich, "view=tensors&step=70&name=" + quote(r"h\.0\.[qk]\.weight$") + "&role=weight")
    says(browser, "2 of 15 tensors")
    browser.evaluate("document.querySelector('[role=tree]').focus()")
    for key in ("End", "Enter"):
        browser.press(key)
    browser.until("document.querySelector('aside h2')?.innerText.startsWith('h.0.') === true")
    says(browser, "float32", "[8, 8]")
    go(browser, rich, f"view=tensors&step=70&t={tensor_of(server, rich, 'h.0.q.weight')}")
    browser.until("document.querySelector('aside svg[role=img]') !== null")
    picture(browser, "tensor")


def test_what_was_not_recorded_shows_a_configuration_that_records_it(
    browser: Browser, server: Server, rich: str, tmp_path: Path
) -> None:
    go(browser, rich, f"view=tensors&step=70&t={tensor_of(server, rich, 'h.1.k.weight')}")
    says(browser, "The histogram at step 70 of h.1.k.weight was not recorded")
    lines = browser.evaluate("document.querySelector('aside pre').textContent")
    (tmp_path / "luff.toml").write_text(str(lines))
    (tmp_path / "job.py").write_text(
        "import luff.numpy, numpy as np\n"
        "with luff.numpy.attach({'h.1.k.weight': np.ones(8, np.float32)}) as hook:\n"
        "    for _ in range(21):\n        with hook.step() as step: step.loss(1.0)\n"
    )
    job = [sys.executable, str(tmp_path / "job.py")]
    command = [executable(), "run", "--config", str(tmp_path / "luff.toml"), "--run", str(tmp_path / "run")]
    subprocess.run([*command, "--", *job], check=True, capture_output=True)
    with luff.open_trial(tmp_path / "run") as trial:
        assert trial.tensor("h.1.k.weight").histogram(20, "TRAIN") is not None


def test_histograms_hold_what_was_recorded(
    browser: Browser, server: Server, rich: str, kept: dict[str, np.ndarray]
) -> None:
    tensor = tensor_of(server, rich, "h.0.q.weight")
    got = numbers(server.ask("GET", f"/api/v1/runs/{rich}/histograms?tensor={tensor}").body)
    assert list(got["step"]) == list(range(0, STEPS, 5))
    assert got["counts"].shape == (STEPS // 5, 128)
    assert np.allclose(got["counts"].sum(axis=1), 64)
    middle = list(got["levels"]).index(0.5)
    for row, step in enumerate(got["step"]):
        values = kept[int(step)]
        assert got["quantiles"][row, 0] <= values.min()
        assert got["quantiles"][row, -1] >= values.max()
        assert abs(got["quantiles"][row, middle] - np.median(values)) < 0.2
    go(browser, rich, f"view=histograms&t={tensor}&step=40")
    says(browser, "At step 40: half of the elements lie between", "Against step 0 it differs by")
    browser.until("document.querySelectorAll('path.ridge').length === 16")
    picture(browser, "histograms")
    go(browser, rich, f"view=histograms&t={tensor}&step=40&scale=log&against=40")
    says(browser, "Against step 40 it differs by 0 bits")


def test_findings_have_a_time_line_and_their_rule_s_page(browser: Browser, rich: str) -> None:
    go(browser, rich, "view=findings")
    says(browser, "When, and what follows from what", "the first NonFinite at step 60", "About NonFinite")
    browser.until("document.querySelector('article details pre') !== null")
    assert "NaN" in browser.evaluate("document.querySelector('article details pre').textContent")
    picture(browser, "findings")
    browser.evaluate("document.querySelector('section ul button').click()")
    browser.until("location.hash.includes('step=60')")


def test_ranks_name_who_is_slow_and_where_weights_part(
    browser: Browser, server: Server, ids: dict[str, str]
) -> None:
    got = numbers(server.ask("GET", f"/api/v1/runs/{ids['ranks']}/ranks").body)
    assert got["duration_s"].shape == (3, 40)
    assert np.median(got["duration_s"][2]) > 1.5 * np.median(got["duration_s"][0])
    distance = got["parameters.distance"]
    assert np.all(distance[:, :31] < 1e-9)  # a step reads the weights when it begins
    assert abs(distance[1, 31] - 0.5) < 1e-6
    go(browser, ids["ranks"], "view=ranks")
    says(browser, "Slow: rank 2,", "Weights part: at step 31 rank 1", "norm of net.1.weight is 50 % apart")
    picture(browser, "ranks")
    go(browser, ids["ranks"], "view=ranks&measure=parameters")
    says(browser, "100 % and more")
    assert browser.evaluate("window.problems") == []


def test_the_model_is_a_tree_of_boxes(browser: Browser, rich: str) -> None:
    go(browser, rich, "view=model&step=70&role=gradient")
    says(browser, "not finite, gradient/h.1.q.weight")
    picture(browser, "model")
    browser.evaluate("document.querySelector('button[aria-expanded=true]').click()")
    browser.until("location.hash.includes('open=h.0')")
    says(browser, "▸ h ▲")


def test_downloads_are_exact_and_no_cell_is_a_formula(
    browser: Browser, server: Server, rich: str, kept: dict[str, np.ndarray]
) -> None:
    tensors = [tensor_of(server, rich, "h.0.q.weight"), tensor_of(server, rich, FORMULA)]
    go(browser, rich, f"view=data&t={','.join(map(str, tensors))}&stat=l2")
    for name in ("CSV", "JSON", "safetensors"):
        click(browser, name)
        browser.until("saved.length > 0")
        kind, content = browser.evaluate("saved.pop()")
        body = base64.b64decode(content)
        if name == "CSV":
            rows = list(csv.reader(io.StringIO(body.decode(), newline="")))
            assert kind == "text/csv"
            assert rows[0] == ["step", "h.0.q.weight (l2)", f"'{FORMULA} (l2)"]
            assert len(rows) == STEPS + 1
            assert abs(float(rows[8][1]) - np.linalg.norm(kept[7].astype(np.float64))) < 1e-9
            says(browser, "80 rows of 2 tensors")
        elif name == "JSON":
            assert json.loads(body)[7]["step"] == 7
        else:
            assert numbers(body)[f"{tensors[0]}.mean"].shape == (STEPS,)
    go(browser, rich, "view=curves")
    click(browser, "PNG")
    browser.until("saved.length > 0")
    kind, content = browser.evaluate("saved.pop()")
    assert kind == "image/png"
    assert base64.b64decode(content).startswith(b"\x89PNG")


def test_downloads_need_no_mouse(browser: Browser, rich: str) -> None:
    go(browser, rich, "view=data&t=0")
    says(browser, "every value, without buckets")
    browser.tab_to("e.type === 'checkbox' && !e.checked")
    browser.press(" ")
    says(browser, "2 tensors")
    browser.tab_to("e.textContent.trim() === 'CSV'")
    browser.press("Enter")
    browser.until("saved.length > 0")
    assert base64.b64decode(browser.evaluate("saved.pop()")[1]).startswith(b"step,")


def test_the_legend_has_the_colours_of_the_map_in_both_themes(browser: Browser, rich: str) -> None:
    go(browser, rich, "view=heat")
    painted = """(() => {
      const at = [...document.querySelectorAll('.legend span')].find(one => one.textContent === 'not finite');
      const wanted = getComputedStyle(at.querySelector('.swatch')).backgroundColor.match(/\\d+/g).slice(0, 3).join();
      const canvas = document.querySelector('.map canvas');
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      let found = 0;
      for (let i = 0; i < data.length; i += 4) found += `${data[i]},${data[i + 1]},${data[i + 2]}` === wanted;
      return found > 1000 ? wanted : '';
    })()"""
    browser.until("document.querySelector('.map canvas')?.height > 20")
    colours = set()
    for _ in range(2):
        colours.add(browser.until(painted))
        browser.press("d")
    assert len(colours) == 2


def test_the_profile_says_where_the_time_went(browser: Browser, ids: dict[str, str]) -> None:
    go(browser, ids["ranks"], "view=profile")
    says(browser, "Where the time went", "A TRAIN step takes", "Longest pauses")
    browser.until("document.querySelectorAll('svg.busy rect').length > 100")
    picture(browser, "profile")


def test_the_palette_leads_everywhere_by_keyboard(browser: Browser, rich: str) -> None:
    go(browser, rich, "view=heat&step=10")
    browser.until("document.querySelector('.map canvas') !== null")

    def command(typed: str) -> None:
        browser.evaluate(
            "dispatchEvent(new KeyboardEvent('keydown', { key: 'k', ctrlKey: true, cancelable: true }))"
        )
        browser.until("document.activeElement?.getAttribute('role') === 'combobox'")
        for letter in typed:
            browser.press(letter)
        browser.until("document.querySelector('[role=option][aria-selected=true]') !== null")
        browser.press("Enter")
        browser.until("document.querySelector('dialog') === null")

    command("h1kw")
    browser.until("document.querySelector('aside h2')?.innerText.endsWith('h.1.k.weight') === true")
    command("step 33")
    browser.until("location.hash.includes('step=33')")
    command("Profile")
    browser.until("location.hash.includes('view=profile')")
    browser.press("4")
    browser.until("location.hash.includes('stat=std')")


def test_the_address_keeps_what_it_does_not_know_and_says_so(browser: Browser, rich: str) -> None:
    go(browser, rich, "view=curves&flavour=vanilla")
    says(browser, "also says flavour=vanilla")
    links = browser.evaluate("[...document.querySelectorAll('nav a')].map(a => a.hash)")
    assert all("flavour=vanilla" in link for link in links)
    go(browser, rich, "view=sideways")
    says(browser, "There is no view “sideways”")


def test_curves_go_by_wall_time_too(browser: Browser, rich: str) -> None:
    go(browser, rich, "view=curves&x=wall")
    says(browser, "every value")
    browser.evaluate("document.querySelector('figure details summary').click()")
    says(browser, "time since the first step")
    browser.until("document.querySelectorAll('figure tbody tr').length === 80")


def test_a_file_holds_the_views_too(
    browser: Browser, root: Path, server: Server, ids: dict[str, str], tmp_path: Path
) -> None:
    for name in ("rich", "ranks"):
        command = [executable(), "report", str(root / name), "-o", str(tmp_path / f"{name}.html")]
        subprocess.run(command, check=True, capture_output=True)
    tensor = tensor_of(server, ids["rich"], "h.0.q.weight")
    expected = [
        ("rich", f"view=tensors&t={tensor}&step=60", "float32"),
        ("rich", f"view=histograms&t={tensor}&step=40", "At step 40: half of the elements"),
        ("rich", f"view=histograms&t={tensor}&step=40&scale=log", "At step 40: half of the elements"),
        ("rich", f"view=histograms&t={tensor + 1}", "This file holds no histograms of this tensor"),
        ("rich", "view=findings", "About NonFinite"),
        ("rich", "view=curves&x=wall", "every value"),
        ("ranks", "view=ranks", "Slow: rank 2,"),
        ("ranks", "view=profile", "Longest pauses"),
    ]
    opened = ""
    for name, view, text in expected:
        if name != opened:
            browser.open("about:blank")
            browser.open(f"{(tmp_path / name).as_uri()}.html")
            browser.until("document.querySelector('main h1') !== null")
            opened = name
        browser.evaluate(f"location.hash = '#/?{view}'")
        says(browser, text)
    assert browser.evaluate("window.problems") == []
    browser.open("about:blank")
    browser.open(server.base)
    browser.until("document.querySelectorAll('tbody tr').length === 2")


def test_new_views_are_accessible_in_both_themes_and_narrow(
    browser: Browser, server: Server, ids: dict[str, str]
) -> None:
    if not AXE.exists():
        pytest.skip("no axe-core; npm ci in web/")
    tensor = tensor_of(server, ids["rich"], "h.0.q.weight")
    views = [
        ("rich", f"tensors&t={tensor}&step=75", "elements"), ("rich", f"histograms&t={tensor}", "Ridges"),
        ("rich", "findings", "About NonFinite"), ("rich", "model", "recorded tensors"),
        ("ranks", "ranks", "Rank by step"), ("ranks", "profile", "Longest pauses"), ("rich", "data", "Documents"),
    ]  # fmt: skip
    for run, view, text in views:
        go(browser, ids[run], f"view={view}")
        says(browser, text)
        for theme in ("light", "dark"):
            browser.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
            time.sleep(0.2)
            assert barriers(browser) == [], f"{theme} {view}"
            picture(browser, f"{view.split('&')[0]}-{theme}")
        browser.resize(320, 800)
        try:
            browser.until("document.documentElement.scrollWidth <= 320")
            browser.until(
                "[...document.querySelectorAll('main svg text')].every(t => t.getBoundingClientRect().height > 9)"
            )
            picture(browser, f"{view.split('&')[0]}-narrow")
        finally:
            browser.resize(1400, 1000)
