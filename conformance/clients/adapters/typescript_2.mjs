// Takes the steps with the TypeScript SDK 2.x: node typescript_2.mjs TARGET
import { Client, SSEClientTransport, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { answerQuestion, describeResult, onProgress, takeSteps, target } from './common.mjs';

const [command, ...args] = target.command;
const transport = {
    stdio: () => new StdioClientTransport({ command, args, env: process.env, stderr: 'ignore' }),
    http: () => new StreamableHTTPClientTransport(new URL(target.url)),
    sse: () => new SSEClientTransport(new URL(target.url)),
}[target.transport]();
const client = new Client(
    { name: 'clients', version: '2' },
    { capabilities: { elicitation: { form: {} } }, versionNegotiation: { mode: 'auto' } },
);
client.setRequestHandler('elicitation/create', ({ params }) => answerQuestion(params));
await client.connect(transport);

// On 2026-07-28 a session lasts as long as its handle is sent back.
const key = 'dev.ringfence/session';
let handle;
async function call(name, args, signal) {
    const request = { name, arguments: args, ...(handle && { _meta: { [key]: handle } }) };
    const result = await client.callTool(request, { onprogress: onProgress, signal });
    handle = result._meta?.[key] ?? handle;
    return describeResult(result);
}
await takeSteps(async () => (await client.listTools()).tools.map((tool) => tool.name), call);
await client.close();
process.exit(0);
