/** What the page computes with, and what the tests compare with the Python layer. */

export { Energy } from "./energy.ts";
export { exactInfluence, finish, newtonInfluence } from "./influence.ts";
export { Equilibrium, Network, type EquilibriumData, type NetworkData } from "./network.ts";
export { makePotential } from "./potentials.ts";
export { descend } from "./solvers.ts";
export { vector } from "./vectors.ts";
