// Runs the engine of a built page on cases from stdin: node run_engine.mjs PAGE < cases.json
//
// It reads the script out of the page, so it tests what readers get and needs no npm packages.

import { readFileSync } from "node:fs";
import { runInThisContext } from "node:vm";

const page = readFileSync(process.argv[2], "utf8");
runInThisContext(page.slice(page.lastIndexOf("<script>") + "<script>".length, page.lastIndexOf("</script>")));
const { Equilibrium, Network, exactInfluence, finish, newtonInfluence, vector } = globalThis.equipool.engine;

const { Bag, allInfluences } = globalThis.equipool;

const plain = (influences) => influences.map((influence) => influence && [...influence]);

const methods = {
  solve({ layer, x, y }) {
    const equilibrium = new Equilibrium(layer);
    const elements = x.map(vector);
    const energy = equilibrium.energy(elements);
    const descent = equilibrium.solve(elements);
    const at = vector(y);
    return { y: [...descent.y], steps: descent.path.length - 1, energy: energy.value(at), gradient: [...energy.gradient(at)] };
  },
  predict({ network, x }) {
    return [...new Network(network).predict(x.map(vector))];
  },
  influence({ layer, x }) {
    const equilibrium = new Equilibrium(layer);
    const elements = x.map(vector);
    const energy = equilibrium.energy(elements);
    const { y } = equilibrium.solve(elements);
    const { start, data } = equilibrium;
    return {
      newton: plain(finish(newtonInfluence(energy, y, start))),
      exact: plain(finish(exactInfluence(energy, data.solver, start, data.budget, y))),
    };
  },
  bag({ data, active, exact }) {
    const bag = new Bag(data);
    return { ...bag.predict(active), influences: allInfluences(bag, active, exact) };
  },
};

const cases = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(cases.map(({ method, ...rest }) => methods[method](rest))));
