/** What the reader has chosen, and what follows from it. */

import { Energy } from "../engine/energy.ts";
import { finish, type Influences, newtonInfluence } from "../engine/influence.ts";
import { type Descent, descend, type SolverData } from "../engine/solvers.ts";
import { largest, type Vector, vector, zeros } from "../engine/vectors.ts";
import type { Pooling } from "../poolings.ts";
import type { Potential } from "../engine/potentials.ts";

export const LIMIT = 2; // coordinates of elements are between -LIMIT and LIMIT
export const MOST_ELEMENTS = 128;

export interface State {
  readonly dimension: 1 | 2;
  /** Never changed in place: an element that moves is a new vector. */
  readonly elements: readonly Vector[];
  readonly start: Vector;
  readonly pooling: Pooling;
  readonly parameter: number;
  readonly potential: Potential;
  readonly solver: SolverData;
  readonly numSteps: number;
  readonly selected: number | null;
}

export interface Scene {
  readonly state: State;
  readonly energy: Energy;
  readonly descent: Descent;
  readonly y: Vector;
  /** The largest component of the gradient at y. */
  readonly residual: number;
  readonly answer: Vector;
  readonly rivals: { readonly name: "sum" | "attention"; readonly y: Vector; readonly rmse: number }[];
  /** By one Newton step, for each element. */
  readonly newton: Influences;
}

const NUMBERS = [[-1.5], [-0.9], [-0.55], [-0.3], [0.15], [1.75]];
const POINTS = [[-1.25, -0.55], [-0.9, 0.2], [-0.45, -0.8], [-0.2, 0.35], [0.3, -0.3], [1.55, 1.3]];

export function firstElements(dimension: 1 | 2): Vector[] {
  return (dimension === 1 ? NUMBERS : POINTS).map(vector);
}

export function firstStart(dimension: 1 | 2): Vector {
  return dimension === 1 ? vector([-1.9]) : vector([-1.6, 1.4]);
}

/** The state with another pooling and its own settings. */
export function withPooling(state: Omit<State, "pooling" | "parameter" | "potential" | "solver" | "numSteps">, pooling: Pooling): State {
  const parameter = pooling.parameter?.value ?? 0;
  const { solver, numSteps } = pooling;
  return { ...state, pooling, parameter, potential: pooling.potential(parameter), solver, numSteps };
}

/** Solve, and measure what each element contributes. */
export function computeScene(state: State): Scene {
  const { elements, pooling, solver, start, numSteps } = state;
  const energy = new Energy(state.potential, pooling.regularizer, pooling.scaling, elements);
  const descent = descend(energy, solver, start, { num_steps: numSteps, stop_at: null });
  const y = descent.y;
  return {
    state,
    energy,
    descent,
    y,
    residual: largest(energy.gradient(y)),
    answer: pooling.answer(state.parameter)(elements),
    rivals: (pooling.trained?.rivals ?? []).map(({ name, network, rmse }) => ({
      name, rmse, y: network.predict(elements),
    })),
    newton: finish(newtonInfluence(energy, y, start)),
  };
}

export function randomElement(dimension: 1 | 2): Vector {
  return zeros(dimension).map(() => LIMIT * (1.8 * Math.random() - 0.9));
}

export function clamp(x: Vector): Vector {
  return x.map((value) => Math.min(LIMIT, Math.max(-LIMIT, value)));
}
