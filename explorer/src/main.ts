/** The page: reads its data, and starts the explorer that fits it. */

import * as engine from "./engine/index.ts";
import { allInfluences, Bag, type ModelData } from "./model/bag.ts";
import { ModelExplorer } from "./model/explorer.ts";
import { byId } from "./page/dom.ts";
import { watchTheme } from "./page/theme.ts";
import type { TaskData } from "./poolings.ts";
import { SetsExplorer } from "./sets/explorer.ts";

type PageData = { kind: "sets"; tasks: TaskData[] } | ModelData;

declare global {
  // For tests, which compare with the Python library.
  var equipool: {
    engine: typeof engine;
    Bag: typeof Bag;
    allInfluences: typeof allInfluences;
    explorer?: SetsExplorer | ModelExplorer;
  };
}

globalThis.equipool = { engine, Bag, allInfluences };
if (typeof document !== "undefined") {
  document.documentElement.classList.toggle("embed", self !== top);
  const data = JSON.parse(byId("equipool-data").textContent ?? "") as PageData;
  const explorer = data.kind === "sets" ? new SetsExplorer(data.tasks) : new ModelExplorer(data);
  globalThis.equipool.explorer = explorer;
  watchTheme(byId<HTMLButtonElement>("theme"), () => explorer.recolour());
}
