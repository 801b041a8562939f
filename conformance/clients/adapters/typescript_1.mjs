// Takes the steps with the TypeScript SDK 1.x: node typescript_1.mjs TARGET
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { answerQuestion, describeResult, onProgress, takeSteps, target } from './common.mjs';

const [command, ...args] = target.command;
const transport = {
    stdio: () => new StdioClientTransport({ command, args, env: process.env, stderr: 'ignore' }),
    http: () => new StreamableHTTPClientTransport(new URL(target.url)),
    sse: () => new SSEClientTransport(new URL(target.url)),
}[target.transport]();
const client = new Client({ name: 'clients', version: '1' }, { capabilities: { elicitation: {} } });
client.setRequestHandler(ElicitRequestSchema, ({ params }) => answerQuestion(params));
await client.connect(transport);
await takeSteps(
    async () => (await client.listTools()).tools.map((tool) => tool.name),
    async (name, args, signal) => describeResult(await client.callTool({ name, arguments: args }, undefined, { onprogress: onProgress, signal })),
);
await client.close();
process.exit(0);
