/** A fitted estimator on one bag, some of whose elements may be switched off. */

import { finish, newtonInfluence } from "../engine/influence.ts";
import { Network, type NetworkData, softmax } from "../engine/network.ts";
import { type Vector, vector, zeros } from "../engine/vectors.ts";

const EXACT_UP_TO = 60; // elements

export type OutputData =
  /** One logit, of the second class. */
  | { kind: "binary"; names: string[] }
  /** A logit for each class. */
  | { kind: "classes"; names: string[] }
  /** A logit for each column, by itself. */
  | { kind: "columns"; names: string[] }
  | { kind: "numbers"; names: string[]; mean: number[]; scale: number[] };

/** What `equipool explore` writes. */
export interface ModelData {
  kind: "model";
  title: string;
  networks: NetworkData[];
  scaling: { mean: number[]; scale: number[]; clip: number | null };
  output: OutputData;
  features: string[];
  elements: number[][];
  /** Of the elements. */
  names: string[];
  /** Two coordinates for each element, and the share of the variance that each has. */
  components: number[][];
  explained: number[];
}

/** One number for each name of the output. */
export interface Prediction {
  /** Probabilities or numbers. */
  readonly values: number[];
  /** Logits or numbers: elements contribute to these, as probabilities saturate. */
  readonly scores: number[];
}

export class Bag {
  private readonly networks: Network[];
  /** The elements as each network encodes them. */
  private readonly encoded: Vector[][];

  constructor(readonly data: ModelData) {
    const { mean, scale, clip } = data.scaling;
    const limit = clip ?? Infinity;
    const clipped = (value: number) => Math.min(Math.max(value, -limit), limit);
    const scaled = data.elements.map((x) => vector(x.map((value, k) => clipped((value - mean[k]) / scale[k]))));
    this.networks = data.networks.map((network) => new Network(network));
    this.encoded = this.networks.map((network) => scaled.map(network.encode));
  }

  predict(active: readonly boolean[]): Prediction {
    const outputs = this.networks.map((network, n) => network.decode(network.poolEncoded(this.kept(n, active))));
    const scores = this.scores(outputs);
    return { scores, values: this.values(scores) };
  }

  /** Whether predicting without each element takes no longer than a moment. */
  isSmall(active: readonly boolean[]): boolean {
    return active.filter(Boolean).length <= EXACT_UP_TO;
  }

  /**
   * For each active element the scores minus the scores without it, so that an element which supports a score
   * has a positive number; null for elements that are off.
   * Exact, or by one Newton step of each equilibrium.
   */
  *influence(active: readonly boolean[], exact = this.isSmall(active)): Generator<void, (number[] | null)[]> {
    const positions = active.flatMap((on, i) => (on ? [i] : []));
    const found: (number[] | null)[] = active.map(() => null);
    if (positions.length < 2) return found;
    const whole = this.predict(active).scores;
    const without: Vector[][] = [];
    for (let n = 0; n < this.networks.length; n++) without.push(yield* this.outputsWithout(n, active, exact));
    positions.forEach((position, i) => {
      const scores = this.scores(without.map((outputs) => outputs[i]));
      found[position] = scores.map((score, k) => whole[k] - score);
    });
    return found;
  }

  /** One network's outputs without each active element. */
  private *outputsWithout(n: number, active: readonly boolean[], exact: boolean): Generator<void, Vector[]> {
    const network = this.networks[n];
    const elements = this.kept(n, active);
    const layer = exact ? null : network.equilibrium;
    const y = network.poolEncoded(elements);
    const changes = layer === null ? [] : yield* newtonInfluence(layer.energy(elements), y, layer.start);
    const outputs: Vector[] = [];
    for (let i = 0; i < elements.length; i++) {
      const change = changes[i] ?? null; // null where there is no Newton step
      const pooled = change === null ? network.poolEncoded(elements.filter((_, j) => j !== i)) : y.map((value, k) => value - change[k]);
      outputs.push(network.decode(pooled));
      yield;
    }
    return outputs;
  }

  private kept(n: number, active: readonly boolean[]): Vector[] {
    return this.encoded[n].filter((_, i) => active[i]);
  }

  /** The networks' mean outputs, one for each name of the output. */
  private scores(outputs: Vector[]): number[] {
    const mean = zeros(outputs[0].length);
    for (const output of outputs) output.forEach((value, k) => { mean[k] += value / outputs.length; });
    const { output } = this.data;
    if (output.kind === "binary") return [-mean[0], mean[0]];
    if (output.kind === "numbers") return [...mean].map((value, k) => value * output.scale[k] + output.mean[k]);
    return [...mean];
  }

  private values(scores: number[]): number[] {
    const { kind } = this.data.output;
    if (kind === "numbers") return scores;
    return kind === "classes" ? softmax(scores) : scores.map(sigmoid);
  }
}

function sigmoid(x: number): number {
  return 1 / (1 + Math.exp(-x));
}

/** All influences at once, for tests. */
export function allInfluences(bag: Bag, active: readonly boolean[], exact?: boolean): (number[] | null)[] {
  return finish(bag.influence(active, exact));
}
