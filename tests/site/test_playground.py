"""The playground of the site: its mathematics against NumPy, its picture in a browser."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[2] / "docs"
STATIC = DOCS / "_static"
POINTS = [{"x": -1.0, "y": 0.3}, {"x": 0.2, "y": -0.5}, {"x": 1.0, "y": 0.8}]
GRID = [-2.0, 0.0, 0.5, 2.0]

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
needs_browser = pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed")


def in_node(expression):
    """The value of a JavaScript expression, in which ``model`` is the playground's model."""
    module = json.dumps(str(STATIC / "playground_model.js"))
    code = f"const model = require({module}); console.log(JSON.stringify({expression}))"
    return json.loads(subprocess.run(["node", "-e", code], capture_output=True, text=True, check=True).stdout)


def slow_prediction(feature_sets, output_variances):
    """Bayesian linear regression in weight space, with a Gamma prior of the noise precision; members by evidence."""
    y = np.array([p["y"] for p in POINTS])
    members = []
    for phi, phi_new in feature_sets:
        for g in output_variances:
            A = np.eye(phi.shape[1]) / g + phi.T @ phi
            m = np.linalg.solve(A, phi.T @ y)
            shape, rate = 2 + len(y) / 2, 0.02 + 0.5 * (y @ y - m @ A @ m)
            evidence = -0.5 * np.linalg.slogdet(g * A)[1] - shape * np.log(rate)
            noise = rate / (shape - 1)
            ignorance = noise * np.einsum("nd,nd->n", phi_new, np.linalg.solve(A, phi_new.T).T)
            members.append((evidence, phi_new @ m, noise, ignorance))
    evidence, means, noises, ignorances = (np.array(part) for part in zip(*members, strict=True))
    weight = np.exp(evidence - evidence.max())
    weight /= weight.sum()
    mean = weight @ means
    return mean, weight @ noises, weight @ (ignorances + (means - mean) ** 2)


@needs_node
def test_its_predictions_are_those_of_bayesian_linear_regression():
    xs = [p["x"] for p in POINTS]
    features = f"layers.map((l) => [{xs}.map((x) => model.features(l, x)), {GRID}.map((x) => model.features(l, x))])"
    found = in_node(
        f"((layers) => ({{ features: {features}, g: model.OUTPUT_VARIANCES, "
        f"p: model.predict(layers, {json.dumps(POINTS)}, {GRID}) }}))(model.drawHiddenLayers())"
    )
    sets = [(np.array(phi), np.array(phi_new)) for phi, phi_new in found["features"]]
    mean, noise, ignorance = slow_prediction(sets, found["g"])
    np.testing.assert_allclose(found["p"]["mean"], mean, rtol=1e-6)
    np.testing.assert_allclose(found["p"]["noise"], noise, rtol=1e-6)
    np.testing.assert_allclose(found["p"]["ignorance"], ignorance, rtol=1e-6)


@needs_node
def test_a_gap_and_the_outside_are_less_known_than_points():
    points = [{"x": x, "y": np.sin(2.5 * x)} for x in (-2, -1.6, -1.2, 1.2, 1.6, 2)]
    p = in_node(f"model.predict(model.drawHiddenLayers(), {json.dumps(points)}, [-1.6, 0, 4])")
    at_point, gap, outside = np.sqrt(p["ignorance"])
    assert gap > 3 * at_point
    assert outside > 3 * at_point


CLICKS = """
const svg = document.querySelector("svg");
const said = () => document.querySelector(".said").textContent;
const say = (name) => { log.push(`${name}: ${said()} ${document.querySelectorAll("circle").length}`); };
const at = (fx, fy) => {
  const { left, top, width, height } = svg.getBoundingClientRect();
  return { clientX: left + fx * width, clientY: top + fy * height, bubbles: true, pointerId: 1 };
};
const log = [];
say("start");
svg.dispatchEvent(new PointerEvent("pointerdown", at(0.5, 0.5)));
svg.dispatchEvent(new PointerEvent("pointerup", at(0.5, 0.5)));
say("added");
const added = svg.querySelector("circle:last-of-type"), before = added.getAttribute("cx");
added.dispatchEvent(new PointerEvent("pointerdown", at(0.5, 0.5)));
svg.dispatchEvent(new PointerEvent("pointermove", at(0.6, 0.3)));
svg.dispatchEvent(new PointerEvent("pointerup", at(0.6, 0.3)));
say(added.getAttribute("cx") > before ? "dragged" : "stayed");
const y = Number(added.getAttribute("cy"));
added.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowUp", bubbles: true }));
say(Number(added.getAttribute("cy")) < y ? "moved by key" : "stayed");
added.dispatchEvent(new KeyboardEvent("keydown", { key: "Delete", bubbles: true }));
say("removed");
const select = document.querySelector("select");
select.value = "nothing";
select.dispatchEvent(new Event("change"));
say("emptied");
document.body.dataset.log = JSON.stringify(log);
"""


@needs_browser
def test_points_are_added_dragged_moved_by_keys_and_removed_in_a_browser(tmp_path):
    widget = re.search(
        r"^```\{raw\} html\n(.*?)<script", (DOCS / "playground.md").read_text(encoding="utf-8"), re.M | re.S
    )
    assert widget is not None
    scripts = "".join(
        f"<script>{(STATIC / name).read_text()}</script>" for name in ("playground_model.js", "playground.js")
    )
    clicks = f"<script>document.addEventListener('DOMContentLoaded', () => {{ {CLICKS} }});</script>"
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><body style='width:800px'>{widget[1]}{scripts}{clicks}</body>", encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    command = ["chromium", *options, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    logged = re.search(r'data-log="([^"]*)"', dom)
    assert logged is not None, dom[-2000:]
    log = json.loads(logged[1].replace("&quot;", '"'))
    assert [line.partition(":")[0] for line in log] == [
        "start",
        "added",
        "dragged",
        "moved by key",
        "removed",
        "emptied",
    ]
    assert [int(line.rpartition(" ")[2]) for line in log] == [12, 13, 13, 13, 12, 0]
    middle = [float(re.search(r"in the middle ±([\d.]+)", line)[1]) for line in log]
    assert middle[1] < middle[0] / 2  # a point in the gap closes it
    assert middle[4] == middle[0]
