// Bundles the sources into one page, src/equipool/explore/page.html, or the file that is named.
//
//     node build.mjs [FILE]

import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { join } from "node:path";
import { build } from "esbuild";

const here = fileURLToPath(new URL(".", import.meta.url));
const read = (path) => readFileSync(join(here, path), "utf8");

/** What the page is made of; tests/explore/test_page.py computes the same. */
function hashOfSources() {
  const sources = readdirSync(join(here, "src"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath ?? entry.path, entry.name).slice(here.length));
  const hash = createHash("sha256");
  const files = [...sources, "build.mjs", "networks.json", "package-lock.json"];
  for (const path of files.map((path) => path.replaceAll("\\", "/")).sort()) hash.update(`${path}\n${read(path)}\n`);
  return hash.digest("hex");
}

/** What the page needs of the networks' record. */
function pageData() {
  const tasks = JSON.parse(read("networks.json")).tasks.map(({ answer, channels, networks }) => {
    const shown = Object.entries(networks).map(([method, { network, rmse, parameters }]) => [method, { network, rmse, parameters }]);
    return { answer, channels, networks: Object.fromEntries(shown) };
  });
  return JSON.stringify({ kind: "sets", tasks });
}

async function bundle(entry) {
  const options = { bundle: true, minify: true, write: false, format: "iife", target: "es2022", charset: "utf8" };
  const result = await build({ ...options, entryPoints: [join(here, entry)], legalComments: "none" });
  return result.outputFiles[0].text.trim().replaceAll("</script", "<\\/script");
}

const parts = {
  sources: hashOfSources(),
  style: (await build({ entryPoints: [join(here, "src/page/style.css")], minify: true, write: false })).outputFiles[0].text.trim(),
  data: pageData(),
  script: await bundle("src/main.ts"),
};
const page = read("src/page/page.html").replace(/\{\{(\w+)\}\}/g, (_, name) => parts[name]);
const out = process.argv[2] ?? join(here, "../src/equipool/explore/page.html");
writeFileSync(out, page);
console.log(`${out}: ${Math.round(page.length / 1000)} kB`);
