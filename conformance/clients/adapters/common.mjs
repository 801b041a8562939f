// What the adapters of JavaScript clients share: they take the steps and print one JSON line for each.
import { existsSync } from 'node:fs';
import { join } from 'node:path';

export const target = JSON.parse(process.argv[2]);
let current = {};
let questions = [];
let lines = [];

function printReport(report) {
    console.log(JSON.stringify(report));
}

// The answer of the current step to a question.
export function answerQuestion({ message, requestedSchema }) {
    const offered = requestedSchema?.properties?.choice?.enum ?? [];
    questions.push({ message, offered });
    const answer = current.answer ?? 'deny';
    if (answer === 'deny') return { action: 'decline' };
    return { action: 'accept', content: { choice: offered.includes(answer) ? answer : 'once' } };
}

export function onProgress({ message }) {
    lines.push(message);
}

export function describeResult({ content, structuredContent }) {
    const texts = content.filter((block) => block.type === 'text').map((block) => block.text);
    return { text: texts.join('\n'), image: content.find((block) => block.type === 'image')?.data, structured: structuredContent };
}

// A signal that cancels the call as soon as its command runs.
function cancelOnStart(call) {
    const controller = new AbortController();
    const watch = setInterval(() => existsSync(join(target.workspace, 'started')) && controller.abort(), 50);
    return call(controller.signal).finally(() => clearInterval(watch));
}

// Takes all steps. `call(tool, arguments, signal)` returns a description of the result, `listTools()` names.
export async function takeSteps(listTools, call) {
    printReport({ step: 'connect' });
    const tools = await listTools();
    printReport({ step: 'list', tools });
    const spelled = new Map(tools.map((name) => [name.replaceAll('.', '_'), name]));
    for (const step of target.steps) {
        [current, questions, lines] = [step, [], []];
        const begin = (signal) => call(spelled.get(step.tool.replaceAll('.', '_')), step.arguments, signal);
        let seen;
        try {
            seen = await (step.cancel ? cancelOnStart(begin) : begin());
        } catch (error) {
            seen = { text: String(error), error: error.name };
        }
        printReport({ step: step.step, questions, progress: lines, ...seen });
    }
}
