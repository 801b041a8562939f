#!/usr/bin/env node
// Smallest MCP server: one tool that reports what the process sees and may do.
const fs = require("node:fs");
const answer = (id, result) => process.stdout.write(JSON.stringify({ jsonrpc: "2.0", id, result }) + "\n");
const attempt = (action) => {
  try {
    action();
    return "done";
  } catch (error) {
    return error.code || String(error);
  }
};
const look = (path) => ({
  argv: process.argv.slice(2),
  env: process.env,
  own: attempt(() => fs.appendFileSync(__filename, "//")),
  beside: attempt(() => fs.writeFileSync(__dirname + "/new", "")),
  reads: path ? attempt(() => fs.readFileSync(path)) : null,
});
require("node:readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return;
  if (method === "initialize") {
    answer(id, {
      protocolVersion: "2025-06-18",
      capabilities: { tools: {} },
      serverInfo: { name: "tiny", version: "1.0.0" },
    });
  } else if (method === "tools/list") {
    answer(id, { tools: [{ name: "look", inputSchema: { type: "object" }, annotations: { readOnlyHint: true } }] });
  } else if (method === "tools/call") {
    answer(id, { content: [{ type: "text", text: JSON.stringify(look(params.arguments.path)) }] });
  } else {
    const error = { code: -32601, message: "no such method" };
    process.stdout.write(JSON.stringify({ jsonrpc: "2.0", id, error }) + "\n");
  }
});
