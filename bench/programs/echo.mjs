// An MCP server on stdio with one tool that does nothing, as fast as node can: the far end of the gateway section.
import { createInterface } from "node:readline";

const tool = {
  name: "echo",
  description: "Returns its text.",
  inputSchema: { type: "object", properties: { text: { type: "string" } }, required: ["text"] },
  annotations: { readOnlyHint: true },
};
const answers = {
  initialize: (params) => ({
    protocolVersion: params.protocolVersion,
    capabilities: { tools: {} },
    serverInfo: { name: "echo", version: "1" },
  }),
  ping: () => ({}),
  "tools/list": () => ({ tools: [tool] }),
  "tools/call": (params) => ({ content: [{ type: "text", text: params.arguments.text }] }),
};

createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return;
  const answer = answers[method]
    ? { jsonrpc: "2.0", id, result: answers[method](params ?? {}) }
    : { jsonrpc: "2.0", id, error: { code: -32601, message: "unknown method" } };
  process.stdout.write(JSON.stringify(answer) + "\n");
});
