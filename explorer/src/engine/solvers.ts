/** The inner optimisers, step by step as in the layer. */

import type { Energy } from "./energy.ts";
import { distance, largest, norm, type Vector, zeros } from "./vectors.ts";

export type SolverData =
  | { kind: "gradient-descent"; learning_rate: number }
  | { kind: "nesterov"; learning_rate: number; momentum: number }
  | {
      kind: "bounded-nesterov";
      learning_rate: number;
      momentum: number;
      max_step: number | null;
      curvature_safe: boolean;
    };

export interface Budget {
  num_steps: number;
  /** Stop where no component of the gradient exceeds this; null to take every step. */
  stop_at: number | null;
}

export interface Descent {
  /** y before the first step and after each. */
  readonly path: Vector[];
  readonly y: Vector;
}

interface State {
  y: Vector;
  point: Vector;
  velocity: Vector;
  gradient: Vector;
  lastPoint: Vector | null;
  curvature: number;
}

/** Search for the minimum of the energy. This is the only loop. */
export function descend(energy: Energy, solver: SolverData, start: Vector, budget: Budget): Descent {
  const zero = zeros(start.length);
  const path = [start];
  let state: State = {
    y: start, point: start, velocity: zero, gradient: zero, lastPoint: null, curvature: 0,
  };
  for (let step = 0; step < budget.num_steps; step++) {
    const gradient = energy.gradient(state.point);
    if (budget.stop_at !== null && largest(gradient) <= budget.stop_at) {
      path.push(state.point);
      return { path, y: state.point };
    }
    state = takeStep(solver, state, gradient);
    path.push(state.y);
  }
  return { path, y: state.y };
}

function takeStep(solver: SolverData, state: State, gradient: Vector): State {
  const rate = solver.learning_rate;
  if (solver.kind === "gradient-descent") {
    const y = state.y.map((value, i) => value - rate * gradient[i]);
    return { ...state, y, point: y, gradient };
  }
  const momentum = solver.momentum;
  let scaled = gradient;
  let curvature = 0;
  if (solver.kind === "bounded-nesterov" && solver.curvature_safe) {
    curvature = Math.max(state.curvature, secant(state, gradient));
    const divisor = Math.max(1, rate * curvature);
    scaled = gradient.map((value) => value / divisor);
  }
  let velocity = state.velocity.map((value, i) => momentum * value - rate * scaled[i]);
  if (solver.kind === "bounded-nesterov") velocity = cut(velocity, solver.max_step);
  const y = state.y.map((value, i) => value + velocity[i]);
  const point = y.map((value, i) => value + momentum * velocity[i]);
  return { y, point, velocity, gradient, lastPoint: state.point, curvature };
}

const CLOSEST = Math.sqrt(Number.EPSILON);

/** The curvature between the last two points; 0 where they are so close that the difference of the
 * gradients may be rounding. */
function secant(state: State, gradient: Vector): number {
  if (state.lastPoint === null) return 0;
  const moved = distance(state.point, state.lastPoint);
  return moved > CLOSEST * norm(state.point) ? distance(gradient, state.gradient) / moved : 0;
}

/** Shorten a longer vector to this length. */
function cut(a: Vector, longest: number | null): Vector {
  if (longest === null) return a;
  const factor = longest / Math.max(norm(a), longest);
  return a.map((value) => factor * value);
}
