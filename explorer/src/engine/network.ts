/** Whole networks for one set: encoder, pooling, head. */

import { Energy, type Scaling } from "./energy.ts";
import { makePotential, type Potential, type PotentialData } from "./potentials.ts";
import type { NormData } from "./resnet.ts";
import { type Budget, descend, type Descent, type SolverData } from "./solvers.ts";
import { type Affine, type AffineData, affine, apply, type Vector, vector, zeros } from "./vectors.ts";

export type ModuleData =
  | ({ kind: "linear" } & AffineData)
  | ({ kind: "layer-norm" } & NormData)
  | { kind: "relu" | "tanh" | "gelu" | "silu" }
  /** (x - mean) / scale. */
  | { kind: "standardise"; mean: number[]; scale: number[] };

export interface EquilibriumData {
  kind: "equilibrium";
  potential: PotentialData;
  /** The weight w of the regulariser w |y|^2. */
  regularizer: number;
  scaling: Scaling;
  solver: SolverData;
  start: number[];
  budget: Budget;
}

export type PoolingData =
  | EquilibriumData
  | { kind: "sum"; scale: number; linear: AffineData | null }
  | { kind: "mean" | "max"; linear: AffineData | null }
  | { kind: "attention"; query: number[][]; keys: AffineData; values: AffineData }
  | { kind: "gated-attention"; content: AffineData; gate: AffineData; score: AffineData; linear: AffineData | null };

export interface NetworkData {
  encoder: ModuleData[];
  aggregation: PoolingData;
  head: ModuleData[];
}

type Map = (x: Vector) => Vector;
type Pool = (elements: readonly Vector[]) => Vector;

/** The layer, for one set at a time. */
export class Equilibrium {
  readonly potential: Potential;
  readonly start: Vector;

  constructor(readonly data: EquilibriumData) {
    this.potential = makePotential(data.potential);
    this.start = vector(data.start);
  }

  energy(elements: readonly Vector[]): Energy {
    return new Energy(this.potential, this.data.regularizer, this.data.scaling, elements);
  }

  solve(elements: readonly Vector[]): Descent {
    return descend(this.energy(elements), this.data.solver, this.start, this.data.budget);
  }
}

/** `head(pool(encoder(x)))` of one set. */
export class Network {
  readonly encode: Map;
  readonly decode: Map;
  /** The layer, if the network pools by one. */
  readonly equilibrium: Equilibrium | null;
  private readonly pool: Pool;

  constructor(data: NetworkData) {
    this.encode = sequence(data.encoder);
    this.decode = sequence(data.head);
    const layer = data.aggregation.kind === "equilibrium" ? new Equilibrium(data.aggregation) : null;
    this.equilibrium = layer;
    this.pool =
      data.aggregation.kind === "equilibrium"
        ? (elements) => layer!.solve(elements).y
        : makePool(data.aggregation);
  }

  /** The pooled vector of elements that are encoded already. */
  poolEncoded(elements: readonly Vector[]): Vector {
    return this.pool(elements);
  }

  predict(elements: readonly Vector[]): Vector {
    return this.decode(this.pool(elements.map(this.encode)));
  }
}

function sequence(data: ModuleData[]): Map {
  const maps = data.map(makeMap);
  return (x) => maps.reduce((z, map) => map(z), x);
}

function linear(data: AffineData): Map {
  const map = affine(data);
  return (x) => applied(map, x);
}

function applied(map: Affine, x: Vector): Vector {
  const out = zeros(map.outputs);
  apply(map, x, out);
  return out;
}

function makeMap(data: ModuleData): Map {
  switch (data.kind) {
    case "linear":
      return linear(data);
    case "layer-norm":
      return (x) => normalised(x, data);
    case "relu":
      return (x) => x.map((value) => Math.max(0, value));
    case "tanh":
      return (x) => x.map(Math.tanh);
    case "gelu":
      return (x) => x.map((value) => 0.5 * value * (1 + erf(value * Math.SQRT1_2)));
    case "silu":
      return (x) => x.map((value) => value / (1 + Math.exp(-value)));
    case "standardise":
      return (x) => x.map((value, i) => (value - data.mean[i]) / data.scale[i]);
  }
}

function normalised(x: Vector, { weight, bias, eps }: NormData): Vector {
  const mean = x.reduce((sum, value) => sum + value, 0) / x.length;
  const variance = x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.length;
  const inverse = 1 / Math.sqrt(variance + eps);
  return x.map((value, i) => (value - mean) * inverse * weight[i] + bias[i]);
}

/** The error function: its series near 0, else Lentz's continued fraction of the complement. */
export function erf(x: number): number {
  const size = Math.abs(x);
  if (size > 6) return Math.sign(x);
  if (size < 2) {
    let sum = size;
    for (let n = 1, term = size; Math.abs(term) > 1e-17 * sum; n++) {
      term *= (-size * size) / n;
      sum += term / (2 * n + 1);
    }
    return Math.sign(x) * (2 / Math.sqrt(Math.PI)) * sum;
  }
  let fraction = 0;
  for (let n = 60; n > 0; n--) fraction = n / 2 / (size + fraction);
  const complement = Math.exp(-size * size) / (Math.sqrt(Math.PI) * (size + fraction));
  return Math.sign(x) * (1 - complement);
}

function makePool(data: Exclude<PoolingData, EquilibriumData>): Pool {
  if (data.kind === "attention") return attention(data.query, linear(data.keys), linear(data.values));
  const after: Map = data.linear === null ? (x) => x : linear(data.linear);
  if (data.kind === "gated-attention") {
    const mean = gatedMean(linear(data.content), linear(data.gate), linear(data.score));
    return (elements) => after(mean(elements));
  }
  return (elements) => after(reduced(data, elements));
}

function reduced(data: { kind: "sum" | "mean" | "max"; scale?: number }, elements: readonly Vector[]): Vector {
  const out = zeros(elements[0].length);
  if (data.kind === "max") out.fill(-Infinity);
  for (const x of elements) {
    for (let i = 0; i < out.length; i++) out[i] = data.kind === "max" ? Math.max(out[i], x[i]) : out[i] + x[i];
  }
  const factor = data.kind === "mean" ? 1 / elements.length : data.kind === "sum" ? data.scale! : 1;
  return out.map((value) => factor * value);
}

/** A learned query for each head; the heads' outputs are concatenated. */
function attention(query: number[][], keys: Map, values: Map): Pool {
  const size = query[0].length;
  return (elements) => {
    const out = zeros(query.length * size);
    const allKeys = elements.map(keys);
    const allValues = elements.map(values);
    query.forEach((q, head) => {
      const scores = allKeys.map((key) => dotFrom(key, head * size, q) / Math.sqrt(size));
      softmax(scores).forEach((weight, i) => {
        for (let k = 0; k < size; k++) out[head * size + k] += weight * allValues[i][head * size + k];
      });
    });
    return out;
  };
}

/** The mean of the elements, weighted by softmax of score(tanh(content) * sigmoid(gate)). */
function gatedMean(content: Map, gate: Map, score: Map): Pool {
  return (elements) => {
    const scores = elements.map((x) => {
      const open = gate(x);
      return score(content(x).map((value, k) => Math.tanh(value) / (1 + Math.exp(-open[k]))))[0];
    });
    const out = zeros(elements[0].length);
    softmax(scores).forEach((weight, i) => {
      for (let k = 0; k < out.length; k++) out[k] += weight * elements[i][k];
    });
    return out;
  };
}

export function softmax(scores: readonly number[]): number[] {
  const most = Math.max(...scores);
  const weights = scores.map((score) => Math.exp(score - most));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map((weight) => weight / total);
}

function dotFrom(a: Vector, first: number, b: number[]): number {
  return b.reduce((sum, value, k) => sum + value * a[first + k], 0);
}
