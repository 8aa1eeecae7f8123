// Networks with one input whose hidden layers stay at draws of their prior and whose output layer and noise are integrated
// out. A member is a draw of hidden layers with a prior scale of the output weights; its weight is its evidence.
"use strict";

const UNITS = 60;
const SCALES = [0.7, 1.5, 3, 6, 10]; // standard deviations of the input weights: smooth to rough functions
const OUTPUT_VARIANCES = [1, 10, 100, 1000]; // of the output weights, in units of the noise variance
const NOISE_SHAPE = 2; // Gamma prior of the noise precision: its variance is about NOISE_RATE
const NOISE_RATE = 0.02;

function random(seed) {
  // mulberry32: the same draws on every visit
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

function normals(next, n) {
  return Array.from({ length: n }, () => Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next()));
}

const ACTIVATIONS = { tanh: Math.tanh, relu: (a) => Math.max(a, 0) };

function drawHiddenLayers(seed = 1) {
  const next = random(seed);
  const layers = [];
  for (const scale of SCALES)
    for (const activation of Object.keys(ACTIVATIONS))
      layers.push({ activation, weight: normals(next, UNITS).map((w) => w * scale), bias: normals(next, UNITS).map((b) => b * scale) });
  return layers;
}

function features(layer, x) {
  const act = ACTIVATIONS[layer.activation];
  const hidden = layer.weight.map((w, j) => act(w * x + layer.bias[j]) / Math.sqrt(UNITS));
  return [...hidden, x, 1];
}

const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);

function cholesky(matrix) {
  const n = matrix.length;
  const L = matrix.map(() => new Float64Array(n));
  for (let i = 0; i < n; i++)
    for (let j = 0; j <= i; j++) {
      let sum = matrix[i][j];
      for (let k = 0; k < j; k++) sum -= L[i][k] * L[j][k];
      L[i][j] = i === j ? Math.sqrt(sum) : sum / L[j][j];
    }
  return L;
}

function solveLower(L, b) {
  const x = new Float64Array(b.length);
  for (let i = 0; i < b.length; i++) {
    let sum = b[i];
    for (let k = 0; k < i; k++) sum -= L[i][k] * x[k];
    x[i] = sum / L[i][i];
  }
  return x;
}

function logGamma(z) {
  // Stirling's series, after shifting z to where it is exact to double precision
  let shift = 0;
  for (; z < 10; z++) shift -= Math.log(z);
  const i = 1 / (z * z);
  return shift + (z - 0.5) * Math.log(z) - z + 0.5 * Math.log(2 * Math.PI) + (1 / 12 - i * (1 / 360 - i * (1 / 1260 - i / 1680))) / z;
}

// Mean, noise variance and ignorance (variance of the function) on a grid, given points [{x, y}].
function predict(layers, points, grid) {
  const n = points.length;
  const shape = NOISE_SHAPE + n / 2;
  const members = [];
  for (const layer of layers) {
    const phi = points.map((p) => features(layer, p.x));
    const phiGrid = grid.map((x) => features(layer, x));
    const gram = phi.map((a) => phi.map((b) => dot(a, b)));
    const cross = phiGrid.map((a) => phi.map((b) => dot(a, b)));
    const own = phiGrid.map((a) => dot(a, a));
    for (const g of OUTPUT_VARIANCES) {
      const L = cholesky(gram.map((row, i) => row.map((k, j) => g * k + (i === j ? 1 : 0))));
      const z = solveLower(L, points.map((p) => p.y));
      const rate = NOISE_RATE + 0.5 * dot(z, z);
      let evidence = logGamma(shape) - shape * Math.log(rate);
      for (let i = 0; i < n; i++) evidence -= Math.log(L[i][i]);
      const noise = rate / (shape - 1);
      const mean = [], variance = [];
      cross.forEach((k, i) => {
        const c = solveLower(L, k);
        mean.push(g * dot(c, z));
        variance.push(noise * Math.max(g * own[i] - g * g * dot(c, c), 0));
      });
      members.push({ evidence, noise, mean, variance });
    }
  }
  const top = Math.max(...members.map((m) => m.evidence));
  const raw = members.map((m) => Math.exp(m.evidence - top));
  const total = raw.reduce((a, b) => a + b);
  const weights = raw.map((w) => w / total);
  const average = (of) => members.reduce((sum, m, k) => sum + weights[k] * of(m), 0);
  const mean = grid.map((_, i) => average((m) => m.mean[i]));
  return {
    mean,
    noise: average((m) => m.noise),
    ignorance: grid.map((_, i) => average((m) => m.variance[i] + (m.mean[i] - mean[i]) ** 2)),
    weights,
  };
}

if (typeof module !== "undefined") module.exports = { drawHiddenLayers, features, predict, SCALES, OUTPUT_VARIANCES };
