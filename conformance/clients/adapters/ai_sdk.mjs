// Takes the steps with the MCP client of the AI SDK, as its agents call tools: node ai_sdk.mjs TARGET
import { ElicitationRequestSchema, createMCPClient } from '@ai-sdk/mcp';
import { Experimental_StdioMCPTransport as StdioTransport } from '@ai-sdk/mcp/mcp-stdio';
import { answerQuestion, describeResult, takeSteps, target } from './common.mjs';

const [command, ...args] = target.command;
const transport = target.transport === 'stdio'
    ? new StdioTransport({ command, args, env: process.env, stderr: 'ignore' })
    : { type: target.transport, url: target.url };
const client = await createMCPClient({ transport, capabilities: { elicitation: {} } });
client.onElicitationRequest(ElicitationRequestSchema, ({ params }) => answerQuestion(params));
let tools = {};
await takeSteps(
    async () => Object.keys((tools = await client.tools())),
    async (name, args, abortSignal) => describeResult(await tools[name].execute(args, { abortSignal, messages: [], toolCallId: '1' })),
);
await client.close();
process.exit(0);
