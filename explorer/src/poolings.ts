/** The poolings that the page offers: known potentials and trained networks. */

import * as answers from "./answers.ts";
import type { Scaling } from "./engine/energy.ts";
import { Network, type NetworkData } from "./engine/network.ts";
import { makePotential, type Potential, type PotentialData } from "./engine/potentials.ts";
import type { SolverData } from "./engine/solvers.ts";

export interface Parameter {
  readonly label: string;
  readonly min: number;
  readonly max: number;
  readonly step: number;
  readonly value: number;
}

export interface Rival {
  readonly name: "sum" | "attention";
  readonly network: Network;
  readonly rmse: number;
}

export interface Pooling {
  readonly key: string;
  readonly label: string;
  readonly about: string;
  readonly answerName: string;
  readonly scaling: Scaling;
  readonly regularizer: number;
  readonly solver: SolverData;
  readonly numSteps: number;
  readonly parameter: Parameter | null;
  /** Whether y may lie outside the elements' range. */
  readonly unbounded: boolean;
  readonly trained: { rmse: number; rivals: Rival[] } | null;
  potential(parameter: number): Potential;
  answer(parameter: number): answers.Answer;
}

export type Method = "equilibrium" | "sum" | "attention";

/** The networks of one task, as `train_networks.py` writes them. */
export interface TaskData {
  answer: string;
  channels: 1 | 2;
  networks: Record<Method, { network: NetworkData; rmse: number; parameters: number }>;
}

const SMOOTH: SolverData = { kind: "nesterov", learning_rate: 0.12, momentum: 0.5 };
const KINKED: SolverData = { kind: "gradient-descent", learning_rate: 0.15 };

interface Known {
  key: string;
  label: string;
  about: string;
  answerName?: string;
  potential: (parameter: number) => PotentialData;
  answer: (parameter: number) => answers.Answer;
  parameter?: Parameter;
  regularizer?: number;
  scaling?: Scaling;
  solver?: SolverData;
  numSteps?: number;
  unbounded?: boolean;
}

function known(given: Known): Pooling {
  return {
    answerName: `true ${given.label.toLowerCase()}`,
    scaling: "mean",
    regularizer: 0,
    solver: SMOOTH,
    numSteps: 20,
    parameter: null,
    unbounded: false,
    trained: null,
    ...given,
    potential: (parameter) => makePotential(given.potential(parameter)),
  };
}

const MEAN = known({
  key: "mean",
  label: "Mean",
  about: "Each element pulls with its squared distance. The energy is lowest at the mean, which follows every outlier.",
  potential: () => ({ kind: "mean" }),
  answer: () => answers.mean,
});

const HUBER = known({
  key: "huber",
  label: "Huber",
  about: "Squared distance nearby, plain distance beyond δ: a mean on which an outlier pulls with bounded force.",
  answerName: "true Huber mean",
  parameter: { label: "δ", min: 0.05, max: 2, step: 0.05, value: 0.4 },
  potential: (delta) => ({ kind: "huber", delta }),
  answer: answers.huber,
  solver: { kind: "nesterov", learning_rate: 0.5, momentum: 0.5 },
});

const SUM = known({
  key: "sum",
  label: "Sum",
  about: "Each element tilts the energy, and the regulariser |y|²/2 holds it. Double the elements and the answer doubles.",
  potential: () => ({ kind: "sum" }),
  answer: () => answers.sum,
  regularizer: 0.5,
  scaling: "sum",
  solver: { kind: "nesterov", learning_rate: 0.3, momentum: 0.3 },
  unbounded: true,
});

const NUMBERS: Pooling[] = [
  MEAN,
  known({
    key: "median",
    label: "Median",
    about: "Each element pulls with its plain distance, however far it is. An outlier counts as much as any other element.",
    potential: () => ({ kind: "median" }),
    answer: () => answers.median,
    solver: KINKED,
    numSteps: 40,
  }),
  known({
    key: "quantile",
    label: "Quantile",
    about: "Elements above pull with weight τ, elements below with 1 − τ.",
    parameter: { label: "τ", min: 0.05, max: 0.95, step: 0.05, value: 0.8 },
    potential: (tau) => ({ kind: "quantile", tau }),
    answer: answers.quantile,
    solver: KINKED,
    numSteps: 60,
  }),
  HUBER,
  known({
    key: "maximum",
    label: "Maximum",
    about: "Only elements above y pull. Everything beyond the largest is a minimum: the search stops at the first it meets, so move the start.",
    potential: () => ({ kind: "max" }),
    answer: () => answers.maximum,
    solver: { ...KINKED, learning_rate: 0.25 },
    numSteps: 80,
  }),
  SUM,
];

const PLANE: Pooling[] = [
  MEAN,
  known({
    key: "geometric-median",
    label: "Geometric median",
    about: "Each point pulls with its plain distance: the place from which the way to all points is shortest.",
    potential: () => ({ kind: "distance" }),
    answer: () => answers.geometricMedian,
    solver: KINKED,
    numSteps: 40,
  }),
  known({
    key: "median",
    label: "Median",
    about: "The median of each coordinate: every point pulls along both axes with constant force.",
    answerName: "true median of each coordinate",
    potential: () => ({ kind: "median" }),
    answer: () => answers.median,
    solver: KINKED,
    numSteps: 40,
  }),
  HUBER,
  SUM,
];

const LEARNED: Record<string, { label: string; answerName: string; answer: answers.Answer }> = {
  median: { label: "Median", answerName: "true median", answer: answers.median },
  maximum: { label: "Maximum", answerName: "true maximum", answer: answers.maximum },
  "geometric-median": {
    label: "Geometric median", answerName: "true geometric median", answer: answers.geometricMedian,
  },
  "enclosing-centre": {
    label: "Centre of the smallest circle", answerName: "true centre", answer: answers.enclosingCentre,
  },
};

function learned(task: TaskData): Pooling {
  const { label, answerName, answer } = LEARNED[task.answer];
  const { equilibrium, sum, attention } = task.networks;
  const layer = equilibrium.network.aggregation;
  if (layer.kind !== "equilibrium") throw new Error(`${task.answer}: expected an equilibrium`);
  const size = task.channels === 1 ? "one number" : "two numbers";
  return {
    key: `learned-${task.answer}`,
    label,
    about:
      `A network of ${equilibrium.parameters.toLocaleString("en")} weights learned this potential from examples. ` +
      `Sum and attention were trained beside it. Each encodes a set in ${size}.`,
    answerName,
    scaling: layer.scaling,
    regularizer: layer.regularizer,
    solver: layer.solver,
    numSteps: 20,
    parameter: null,
    unbounded: false,
    trained: {
      rmse: equilibrium.rmse,
      rivals: [
        { name: "sum", network: new Network(sum.network), rmse: sum.rmse },
        { name: "attention", network: new Network(attention.network), rmse: attention.rmse },
      ],
    },
    potential: () => makePotential(layer.potential),
    answer: () => answer,
  };
}

/** All poolings of numbers (1) and of points in the plane (2). */
export function allPoolings(tasks: TaskData[]): Record<1 | 2, Pooling[]> {
  const of = (channels: number): Pooling[] => tasks.filter((task) => task.channels === channels).map(learned);
  return { 1: [...NUMBERS, ...of(1)], 2: [...PLANE, ...of(2)] };
}
