// Runs cells for the server at the other end of the driver socket. A request is a line of sizes,
// as many parts and a NUL; a reply is a list of key-value fields and ends with a NUL. Standard
// input, output and error belong to the code.
const fs = require("fs");
const vm = require("vm");
const path = require("path");
const util = require("util");
const { Session } = require("inspector");
const { createRequire, isBuiltin } = require("module");
const { pathToFileURL } = require("url");

const inspector = new Session();
inspector.connect();
const print = process.stderr.write.bind(process.stderr);
const exit = process.exit.bind(process);
const writeSync = fs.writeSync.bind(fs);
// Global through which driver and cell exchange a function, for a moment.
const KEY = Symbol.for("ringfence");
const CALL = `globalThis[Symbol.for("ringfence")]()`;
let busy = null;

// Modules are resolved from the directory that the code starts in.
const local = createRequire(path.join(process.cwd(), "cell.js"));
const load = (name) => {
  const text = String(name);
  if (/^(node|data|file|https?):/.test(text)) return bring(text);
  return bring(/^(\.{1,2})?\//.test(text) ? pathToFileURL(path.resolve(text)).href : found(text));
};
for (const [name, value] of [["require", local], ["__import", load]]) {
  Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
}

// Imports what `require` would find, because the loader would search for the package next to this
// driver.
function found(name) {
  if (isBuiltin(name)) return name;
  try {
    return pathToFileURL(local.resolve(name)).href;
  } catch (error) {
    if (error.code !== "ERR_PACKAGE_PATH_NOT_EXPORTED") throw error;
    return name;
  }
}

// The inspector supports top-level await and lets a cell use or redeclare what an earlier cell
// declared.
function evaluate(code, name) {
  return new Promise((resolve, reject) => {
    const text = `${code}\n//# sourceURL=${name}`;
    const post = () => {
      delete globalThis[KEY];
      inspector.post("Runtime.evaluate", { expression: text, replMode: true, awaitPromise: true }, (fault, answer) => {
        if (fault) return reject(new Error(fault.message));
        if (answer.exceptionDetails) {
          const { exception, lineNumber, text } = answer.exceptionDetails;
          const thrown = exception ? take_out(exception) : new Error(text);
          return reject(new Thrown(thrown, lineNumber + 1));
        }
        resolve(take_out(answer.result));
      });
    };
    globalThis[KEY] = post;
    try {
      // Lets an interrupt end an endless loop, but only in code that the script calls itself.
      vm.runInThisContext(CALL, { breakOnSigint: true, filename: "<driver>" });
    } catch (error) {
      reject(error.code === "ERR_SCRIPT_EXECUTION_INTERRUPTED" ? new Thrown(interrupted(), null) : error);
    }
  });
}

class Thrown {
  constructor(error, line) {
    this.error = error;
    this.line = line;
  }
}

function interrupted() {
  const error = new Error("the code was interrupted");
  error.name = "Interrupted";
  error.stack = "Interrupted: the code was interrupted";
  return error;
}

// Returns the value itself if the inspector returned only a handle to it.
function take_out(remote) {
  if (remote.objectId) {
    let found;
    globalThis[KEY] = (value) => (found = value);
    const declaration = `function() { "use strict"; globalThis[Symbol.for("ringfence")](this) }`;
    inspector.post("Runtime.callFunctionOn", { objectId: remote.objectId, functionDeclaration: declaration });
    delete globalThis[KEY];
    inspector.post("Runtime.releaseObject", { objectId: remote.objectId });
    return found;
  }
  if (remote.unserializableValue !== undefined) {
    return remote.type === "bigint" ? BigInt(remote.unserializableValue.slice(0, -1)) : Number(remote.unserializableValue);
  }
  return remote.type === "undefined" ? undefined : remote.value;
}

// Evaluated code supports neither the `import` statement nor the `import` function. Both are
// replaced by equivalent code on the same lines; comments and strings are skipped.
const PASSED = String.raw`//.*|/\*[^]*?\*/|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|` + "`(?:\\\\.|[^`\\\\])*`";
const STATEMENT = String.raw`^[ \t]*import\s+(?:(?:([\w$]+)\s*,?\s*)?(?:\{([^}]*)\}|\*\s+as\s+([\w$]+))?\s*from\s*)?(['"][^'"\n]+['"])[ \t]*;?`;
const IMPORTS = new RegExp(String.raw`${STATEMENT}|${PASSED}|(?<![.\w$])(import)(\s*\()`, "gm");

function without_imports(code) {
  if (!code.includes("import")) return code;
  return code.replace(IMPORTS, (whole, one, some, all, from, call, bracket) => {
    if (call) return `__import${bracket}`;
    if (!from) return whole;
    const lines = "\n".repeat(whole.split("\n").length - 1);
    if (all) return `const ${all} = await __import(${from})${one ? `, ${one} = ${all}.default` : ""};${lines}`;
    const names = [one && `default: ${one}`, some && some.replace(/\s+/g, " ").replace(/ as /g, ": ")].filter(Boolean);
    return `${names.length ? `const { ${names.join(", ")} } = ` : ""}await __import(${from});${lines}`;
  });
}

async function cell(request) {
  const { name, file, args } = request;
  process.argv = [process.execPath, ...(file ? [file] : []), ...args];
  if (file && request.once) {
    return await require("module").runMain(file), undefined;
  }
  const code = file ? fs.readFileSync(file, "utf8") : request.code;
  return await evaluate(without_imports(code), file || name);
}

function explain(fault, request) {
  const here = request.file || request.name;
  const error = fault instanceof Thrown ? fault.error : fault;
  const real = util.types.isNativeError(error);
  const reply = [];
  reply.push(["name", real ? String(error.name) : "thrown"]);
  reply.push(["message", cut(real ? String(error.message) : show(error), 4096)]);
  let stack = real && typeof error.stack === "string" ? error.stack : "";
  const lines = stack.split("\n");
  const end = lines.findIndex((line) => /<driver>|node:inspector|node:internal\/(vm|modules\/run_main)/.test(line));
  if (end > 0) stack = lines.slice(0, end).join("\n");
  const at = stack.split("\n").find((line) => line.includes(here + ":"));
  const found = at && /:(\d+)(?::\d+)?\)?$/.exec(at.slice(at.indexOf(here)));
  const line = found ? Number(found[1]) : error instanceof SyntaxError && fault instanceof Thrown ? fault.line : null;
  if (line) reply.push(["line", String(line)]);
  if (stack) reply.push(["traceback", cut(stack, 8192)]);
  return reply;
}

function show(value) {
  return util.inspect(value, { depth: 4, maxArrayLength: 200, maxStringLength: 10000, breakLength: 100 });
}

function cut(text, limit) {
  return text.length <= limit ? text : `${text.slice(0, limit)}… [${text.length - limit} characters more]`;
}

async function perform(request) {
  let failed = false;
  const reply = [];
  const stop = new Promise((_, reject) => (busy = () => reject(new Thrown(interrupted(), null))));
  try {
    const value = await Promise.race([cell(request), stop]);
    if (value !== undefined) reply.push(["value", cut(show(value), request.limit)]);
  } catch (error) {
    failed = true;
    reply.push(...explain(error, request));
  }
  busy = null;
  send(reply);
  return failed;
}

function encode(pairs) {
  const field = ([key, value]) => `${key}\x1f${value.replace(/[\0\x1e\x1f]/g, "\ufffd")}`;
  return Buffer.from(`${pairs.map(field).join("\x1e")}\0`);
}

let send = (pairs) => {
  const data = encode(pairs);
  try {
    for (let at = 0; at < data.length; ) at += writeSync(line, data, at);
  } catch {
    // The code may have closed this descriptor. The end of the process still shows how it went.
  }
};

function understand(parts) {
  const [once, name, code, file, figures, limit, ...args] = parts.map((part) => part.toString());
  return { once: once === "once", name, code, file, figures, limit: Number(limit), args };
}

process.on("SIGINT", () => busy && busy());

const first = understand(sizes().split(" ").map((size) => take(Number(size))));
take(1);
if (first.once) {
  // Pending work continues, as in any script; a failure ends the process.
  process.removeAllListeners("SIGINT");
  process.once("SIGINT", () => (busy ? busy() : exit(130)));
  perform(first).then((failed) => failed && exit(1));
} else {
  process.on("uncaughtException", (error) => print(`Uncaught ${show(error)}\n`));
  const socket = new (require("net").Socket)({ fd: line, readable: true, writable: true });
  let queue = perform(first);
  let waiting = Buffer.alloc(0);
  let wanted = null;
  send = (pairs) => socket.write(encode(pairs));
  socket.on("data", (bytes) => {
    waiting = Buffer.concat([waiting, bytes]);
    for (;;) {
      if (!wanted) {
        const end = waiting.indexOf(10);
        if (end < 0) return;
        wanted = waiting.subarray(0, end).toString().split(" ").map(Number);
        waiting = waiting.subarray(end + 1);
      }
      if (waiting.length < wanted.reduce((sum, size) => sum + size, 1)) return;
      const parts = wanted.map((size) => {
        const part = waiting.subarray(0, size);
        waiting = waiting.subarray(size);
        return part;
      });
      waiting = waiting.subarray(1);
      wanted = null;
      queue = queue.then(() => perform(understand(parts)));
    }
  });
  socket.on("end", () => exit(0));
  socket.on("error", () => exit(0));
}
