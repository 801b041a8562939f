// Lists and calls every tool with the official TypeScript SDK, which throws on results that its validator rejects.
//
//   node sdk.mjs CALLS WORKSPACE COMMAND...
import { readFileSync } from 'node:fs';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';

const [calls, workspace, command, ...args] = process.argv.slice(2);
const plan = JSON.parse(readFileSync(calls, 'utf8').replaceAll('WORKSPACE', workspace));
const client = new Client({ name: 'sdk-check', version: '1' });
await client.connect(new StdioClientTransport({ command, args, env: process.env, stderr: 'ignore' }));

let count = 0;
let failed = 0;
// Calls a tool; `kinds` are those of the error it must fail with (`a|b`), nothing where it must succeed.
async function check(tool, args, kinds) {
    count += 1;
    try {
        const result = await client.callTool({ name: tool, arguments: args });
        if (Boolean(result.isError) !== Boolean(kinds)) throw new Error(JSON.stringify(result));
        const error = result.structuredContent?.error;
        if (kinds && !(kinds.split('|').includes(error?.kind) && error.hint && error.trace_id)) throw new Error(JSON.stringify(result));
    } catch (error) {
        failed += 1;
        console.error(`sdk: FAILED: TypeScript: ${tool} ${JSON.stringify(args)}: ${error}`);
    }
}

const { tools } = await client.listTools();
const spelled = new Map(tools.map((tool) => [tool._meta['dev.ringfence/name'] ?? tool.name, tool.name]));
for (const tool of tools) await check(tool.name, { no_such_argument: true }, 'invalid_arguments');
for (const call of plan) await check(spelled.get(call.tool), call.arguments, call.kind);
await client.close();
if (tools.length < 18) { console.error(`sdk: FAILED: TypeScript: only ${tools.length} tools`); failed += 1; }
console.log(`sdk: TypeScript: ${count - failed}/${count}`);
process.exit(failed ? 1 : 0);
