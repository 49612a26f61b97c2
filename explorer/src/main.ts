/** The page: reads its data, and starts the explorer that fits it. */

import * as engine from "./engine/index.ts";
import { byId } from "./page/dom.ts";
import { watchTheme } from "./page/theme.ts";
import type { TaskData } from "./poolings.ts";
import { SetsExplorer } from "./sets/explorer.ts";

export type PageData = { kind: "sets"; tasks: TaskData[] };

declare global {
  // For tests, which compare the engine with the Python layer.
  var equipool: { engine: typeof engine; explorer?: SetsExplorer };
}

globalThis.equipool = { engine };
if (typeof document !== "undefined") {
  const data = JSON.parse(byId("equipool-data").textContent ?? "") as PageData;
  const explorer = new SetsExplorer(data.tasks);
  globalThis.equipool.explorer = explorer;
  watchTheme(byId<HTMLButtonElement>("theme"), () => explorer.recolour());
}
