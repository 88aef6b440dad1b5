import { svelte } from "@sveltejs/vite-plugin-svelte";
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

const hash = (text: string) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;

/** Writes report.html: the same page as one file, in which `luff report` puts a run (docs/spec/report.md). */
function report(): Plugin {
  return {
    name: "report",
    apply: "build",
    closeBundle() {
      const page = readFileSync("dist/index.html", "utf8");
      const asset = (pattern: RegExp) => readFileSync(join("dist", pattern.exec(page)![1]!), "utf8");
      // In a script, nothing may look like its end or like another one's begin. It is plain text, so that the file may pass through any tool.
      const script = asset(/<script [^>]*src="([^"]+)"/)
        .replaceAll("</script", "<\\/script")
        .replaceAll("<!--", "<\\!--")
        .replace(/[^\t\n\r -~]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
      const style = asset(/<link rel="stylesheet" [^>]*href="([^"]+)"/);
      if (/<\/?script|<!--/i.test(script) || /<\//.test(style)) throw new Error("the page cannot be one file: it holds markup that would end it");
      const icon = `data:image/svg+xml;base64,${readFileSync("dist/icon.svg").toString("base64")}`;
      const policy =
        `default-src 'none'; script-src ${hash(script)}; style-src ${hash(style)}; img-src data:; base-uri 'none'; form-action 'none'; ` +
        "require-trusted-types-for 'script'; trusted-types svelte-trusted-html";
      writeFileSync(
        "dist/report.html",
        `<!doctype html>
<!-- A report of Luff (Apache-2.0). Its page contains Svelte (Copyright Svelte Contributors) and uPlot (Copyright Leon Sorokin), both under the MIT licence. -->
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>Luff</title>
<link rel="icon" href="${icon}" type="image/svg+xml">
<style>${style}</style>
</head>
<body>
<div id="app"></div>
<noscript>This report needs JavaScript; \`luff show\` and \`luff explain\` say the same in a terminal.</noscript>
<!--luff-archive-->
<script type="module">${script}</script>
</body>
</html>
`,
      );
    },
  };
}

/** Replaces every file of the result by its compressed form, which the server sends as it is. */
function compressed(): Plugin {
  return {
    name: "compressed",
    apply: "build",
    closeBundle() {
      for (const entry of readdirSync("dist", { recursive: true, withFileTypes: true })) {
        if (!entry.isFile() || entry.name.endsWith(".gz")) continue;
        const path = join(entry.parentPath, entry.name);
        writeFileSync(`${path}.gz`, gzipSync(readFileSync(path), { level: 9 }));
        rmSync(path);
      }
    },
  };
}

export default defineConfig({
  plugins: [svelte(), report(), compressed()],
  base: "./",
  build: { assetsInlineLimit: 0, modulePreload: false, target: "es2023" },
  test: { include: ["src/**/*.test.ts"] },
});
