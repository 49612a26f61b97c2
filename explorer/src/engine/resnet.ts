/** The paper's potential: a small residual network with squared outputs. */

import type { Potential } from "./potentials.ts";
import { type Affine, type AffineData, addTransposed, affine, apply, type Vector, vector, zeros } from "./vectors.ts";

export interface NormData {
  weight: number[];
  bias: number[];
  eps: number;
}

export interface ResNetData {
  kind: "resnet";
  reduction: "mean" | "sum";
  /** The last block has no normalisation; a skip of null is the identity. */
  blocks: { linear: AffineData; norm: NormData | null; skip: AffineData | null }[];
}

interface Norm {
  readonly weight: Vector;
  readonly bias: Vector;
  readonly eps: number;
}

interface Block {
  readonly linear: Affine;
  readonly norm: Norm | null;
  readonly skip: Affine | null;
  // What the backward pass reads again.
  readonly input: Vector;
  readonly scaled: Vector;
  readonly active: Vector;
  readonly skipped: Vector;
  readonly byActive: Vector;
  readonly byInput: Vector;
  inverse: number;
}

/**
 * F(x, y) = mean of z_L^2, z_0 = [x; y], z_l = S_l z_(l-1) + tanh(LN(W_l z_(l-1) + b_l)), where the
 * last layer has neither normalisation nor tanh.
 */
export class ResNetPotential implements Potential {
  readonly kinked = false;
  private readonly blocks: Block[];
  private readonly output: Vector;
  private readonly scale: number;

  constructor(data: ResNetData) {
    this.blocks = data.blocks.map(({ linear, norm, skip }) => {
      const map = affine(linear);
      return {
        linear: map,
        norm: norm && { weight: vector(norm.weight), bias: vector(norm.bias), eps: norm.eps },
        skip: skip && affine(skip),
        input: zeros(map.inputs),
        scaled: zeros(map.outputs),
        active: zeros(map.outputs),
        skipped: zeros(map.outputs),
        byActive: zeros(map.outputs),
        byInput: zeros(map.inputs),
        inverse: 0,
      };
    });
    const outputs = this.blocks[this.blocks.length - 1].linear.outputs;
    this.output = zeros(outputs);
    this.scale = data.reduction === "mean" ? 1 / outputs : 1;
  }

  value(x: Vector, y: Vector): number {
    this.forward(x, y);
    let sum = 0;
    for (const value of this.output) sum += value * value;
    return sum * this.scale;
  }

  addGradient(x: Vector, y: Vector, weight: number, out: Vector): void {
    this.forward(x, y);
    let byOutput = this.output.map((value) => 2 * this.scale * weight * value);
    for (let i = this.blocks.length - 1; i >= 0; i--) {
      byOutput = backward(this.blocks[i], byOutput, i === 0 ? x.length : 0);
    }
    for (let k = 0; k < out.length; k++) out[k] += byOutput[x.length + k];
  }

  private forward(x: Vector, y: Vector): void {
    const first = this.blocks[0].input;
    first.set(x);
    first.set(y, x.length);
    for (let i = 0; i < this.blocks.length; i++) {
      const next = this.blocks[i + 1];
      forward(this.blocks[i], next === undefined ? this.output : next.input);
    }
  }
}

/** out = S z + tanh(LN(W z + b)). */
function forward(block: Block, out: Vector): void {
  const { linear, norm, skip, input, active, skipped } = block;
  apply(linear, input, active);
  if (norm !== null) normalise(block, norm);
  if (skip !== null) apply(skip, input, skipped);
  const around = skip === null ? input : skipped;
  for (let j = 0; j < active.length; j++) out[j] = around[j] + active[j];
}

function normalise(block: Block, { weight, bias, eps }: Norm): void {
  const { active, scaled } = block;
  const size = active.length;
  let mean = 0;
  for (let j = 0; j < size; j++) mean += active[j];
  mean /= size;
  let variance = 0;
  for (let j = 0; j < size; j++) variance += (active[j] - mean) ** 2;
  block.inverse = 1 / Math.sqrt(variance / size + eps);
  for (let j = 0; j < size; j++) {
    scaled[j] = (active[j] - mean) * block.inverse;
    active[j] = Math.tanh(scaled[j] * weight[j] + bias[j]);
  }
}

/** The derivative by a block's input from that by its output; columns before `first` stay 0. */
function backward(block: Block, byOutput: Vector, first: number): Vector {
  const { linear, norm, skip, byActive, byInput } = block;
  if (skip === null) byInput.set(byOutput);
  else addTransposed(skip, byOutput, byInput.fill(0), first);
  byActive.set(byOutput);
  if (norm !== null) normaliseBackward(block, norm);
  addTransposed(linear, byActive, byInput, first);
  return byInput;
}

function normaliseBackward(block: Block, { weight }: Norm): void {
  const { active, scaled, byActive, inverse } = block;
  const size = active.length;
  let mean = 0;
  let along = 0;
  for (let j = 0; j < size; j++) {
    byActive[j] *= (1 - active[j] * active[j]) * weight[j];
    mean += byActive[j];
    along += byActive[j] * scaled[j];
  }
  mean /= size;
  along /= size;
  for (let j = 0; j < size; j++) byActive[j] = inverse * (byActive[j] - mean - scaled[j] * along);
}
