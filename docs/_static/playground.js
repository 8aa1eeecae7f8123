// The picture of the playground: points that can be dragged, added and removed, and the bands that follow them.
"use strict";

(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const WIDTH = 760, HEIGHT = 400, LIMIT = { x: 2.5, y: 2.5 };
  const GRID = Array.from({ length: 141 }, (_, i) => -LIMIT.x + (2 * LIMIT.x * i) / 140);
  const EXAMPLES = {
    gap: [-2, -1.8, -1.6, -1.45, -1.3, -1.1, 1.1, 1.25, 1.4, 1.6, 1.75, 2].map((x) => ({ x, y: Math.sin(2.5 * x) + x / 2 })),
    line: [-1.5, -1.1, -0.6, -0.2, 0.3, 0.7, 1.2].map((x, i) => ({ x, y: 0.8 * x + (i % 2 ? 0.12 : -0.12) })),
    step: [-1.8, -1.4, -1, -0.6, -0.2, 0.2, 0.6, 1, 1.4, 1.8].map((x) => ({ x, y: x < 0 ? -1 : 1 })),
    noise: [-1.9, -1.6, -1.2, -0.9, -0.5, -0.1, 0.2, 0.6, 1, 1.3, 1.7].map((x, i) => ({ x, y: [0.9, -0.7, 0.4, -1, 0.8, -0.3, 0.6, -0.9, 1, -0.5, 0.2][i] })),
    nothing: [],
  };
  const toPage = (p) => [((p.x + LIMIT.x) / (2 * LIMIT.x)) * WIDTH, ((LIMIT.y - p.y) / (2 * LIMIT.y)) * HEIGHT];
  const clip = (value, limit) => Math.max(-limit, Math.min(limit, value));

  function make(name, attributes, parent) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent.appendChild(element);
    return element;
  }

  function start(root) {
    const layers = drawHiddenLayers();
    let points = structuredClone(EXAMPLES.gap), selected = null, dragged = false;
    const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": "Points and the bands of the model" }, root.querySelector(".picture"));
    const band = make("path", { class: "band" }, svg), doubt = make("path", { class: "doubt" }, svg), line = make("path", { class: "mean" }, svg);
    const marks = make("g", {}, svg);
    const said = root.querySelector(".said"), remove = root.querySelector("[data-do=remove]");

    function outline(prediction, variance) {
      const edge = (sign) => GRID.map((x, i) => toPage({ x, y: prediction.mean[i] + sign * 2 * Math.sqrt(variance(i)) }).map((v) => v.toFixed(1)));
      return `M${[...edge(1), ...edge(-1).reverse()].map((p) => p.join(",")).join("L")}Z`;
    }

    function draw() {
      const p = predict(layers, points, GRID);
      band.setAttribute("d", outline(p, (i) => p.ignorance[i] + p.noise));
      doubt.setAttribute("d", outline(p, (i) => p.ignorance[i]));
      line.setAttribute("d", `M${GRID.map((x, i) => toPage({ x, y: p.mean[i] }).map((v) => v.toFixed(1)).join(",")).join("L")}`);
      points.forEach((point, k) => {
        const mark = marks.children[k] ?? make("circle", { r: 9, tabindex: 0, role: "button" }, marks);
        const [cx, cy] = toPage(point);
        mark.setAttribute("cx", cx);
        mark.setAttribute("cy", cy);
        mark.setAttribute("class", k === selected ? "selected" : "");
        mark.setAttribute("aria-label", `Point at x ${point.x.toFixed(2)}, y ${point.y.toFixed(2)}. Arrow keys move it, Delete removes it.`);
      });
      while (marks.children.length > points.length) marks.lastChild.remove();
      remove.disabled = selected === null;
      const middle = Math.sqrt(p.ignorance[70]), far = Math.sqrt(p.ignorance[140]);
      said.textContent = `${points.length} points. Noise ±${Math.sqrt(p.noise).toFixed(2)}. Ignorance in the middle ±${middle.toFixed(2)}, at the right edge ±${far.toFixed(2)}.`;
    }

    function place(event) {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * 2 * LIMIT.x - LIMIT.x;
      const y = LIMIT.y - ((event.clientY - box.top) / box.height) * 2 * LIMIT.y;
      return { x: clip(x, LIMIT.x), y: clip(y, LIMIT.y) };
    }

    function removeSelected() {
      if (selected === null) return;
      points.splice(selected, 1);
      selected = points.length ? Math.min(selected, points.length - 1) : null;
      draw();
      if (selected !== null) marks.children[selected].focus();
    }

    svg.addEventListener("pointerdown", (event) => {
      const k = [...marks.children].indexOf(event.target);
      if (k < 0) points.push(place(event));
      selected = k < 0 ? points.length - 1 : k;
      dragged = true;
      try { svg.setPointerCapture(event.pointerId); } catch { /* a pointer that is gone already */ }
      draw();
      marks.children[selected].focus({ preventScroll: true });
      event.preventDefault();
    });
    svg.addEventListener("pointermove", (event) => {
      if (!dragged) return;
      points[selected] = place(event);
      draw();
    });
    for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, () => { dragged = false; });
    svg.addEventListener("dblclick", (event) => { if ([...marks.children].includes(event.target)) removeSelected(); });
    svg.addEventListener("focusin", (event) => {
      const k = [...marks.children].indexOf(event.target);
      if (k >= 0 && k !== selected) { selected = k; draw(); }
    });
    svg.addEventListener("keydown", (event) => {
      const step = event.shiftKey ? 0.25 : 0.05;
      const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
      if (selected === null) return;
      if (event.key in moves) {
        const [dx, dy] = moves[event.key];
        points[selected] = { x: clip(points[selected].x + dx, LIMIT.x), y: clip(points[selected].y + dy, LIMIT.y) };
        draw();
      } else if (event.key === "Delete" || event.key === "Backspace") removeSelected();
      else return;
      event.preventDefault();
    });
    root.querySelector("[data-do=add]").addEventListener("click", () => {
      points.push({ x: 0, y: 0 });
      selected = points.length - 1;
      draw();
      marks.children[selected].focus();
    });
    remove.addEventListener("click", removeSelected);
    root.querySelector("[data-do=example]").addEventListener("change", (event) => {
      points = structuredClone(EXAMPLES[event.target.value]);
      selected = null;
      draw();
    });
    draw();
  }

  document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".playground").forEach(start));
})();
