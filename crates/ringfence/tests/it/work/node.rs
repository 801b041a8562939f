//! Node and npm: children, pipes, unix sockets, and an installation without a network.

use super::{Work, work};

fn node(program: &'static str) -> Work {
    Work::script("node program.js").file("program.js", program).needs(&["node"])
}

const CHILDREN: &str = r#"
const { execSync, spawn, spawnSync, fork } = require("child_process");
if (process.argv[2] === "child") {
  process.on("message", (text) => { process.send(text.toUpperCase()); process.disconnect(); });
} else {
  console.log(execSync("echo from execSync; cat", { input: "and its input\n" }).toString());
  const failed = spawnSync("sh", ["-c", "echo broken >&2; exit 9"]);
  console.log(failed.status, failed.stderr.toString(), failed.error);
  const child = spawn("tr", ["a-z", "A-Z"], { stdio: ["pipe", "pipe", "inherit"] });
  child.stdout.on("data", (data) => console.log("spawn:", data.toString()));
  child.on("close", (code) => {
    console.log("closed", code);
    const forked = fork(__filename, ["child"]);
    forked.on("message", (text) => console.log("fork:", text));
    forked.send("by a channel");
  });
  child.stdin.end("through pipes");
}
"#;

const SOCKET: &str = r#"
const net = require("net"), os = require("os"), fs = require("fs"), path = require("path");
const folder = fs.mkdtempSync(path.join(os.tmpdir(), "socket-"));
const places = [path.join(folder, "s"), path.join(process.cwd(), "s")];
const ask = (place) => new Promise((done, failed) => {
  const server = net.createServer((peer) => peer.on("data", (data) => peer.end(`heard ${data}`)));
  server.on("error", failed);
  server.listen(place, () => {
    const client = net.connect(place, () => client.write("hello"));
    client.on("error", failed);
    client.on("data", (data) => console.log(data.toString()));
    client.on("close", () => server.close(done));
  });
});
(async () => { for (const place of places) await ask(place); fs.rmSync(folder, { recursive: true }); })();
"#;

const WORKERS: &str = r#"
const { Worker, isMainThread, parentPort } = require("worker_threads");
const fs = require("fs");
if (isMainThread) {
  const worker = new Worker(__filename);
  worker.on("message", (sum) => console.log("sum", sum));
  worker.on("exit", async (code) => {
    await fs.promises.writeFile("written", "asynchronously");
    console.log(code, await fs.promises.readFile("written", "utf8"), require("os").cpus().length > 0);
  });
} else {
  parentPort.postMessage([...Array(1000).keys()].reduce((sum, n) => sum + n));
}
"#;

work! {
    /// Their pipes are pairs of unix sockets.
    node_children_and_pipes: node(CHILDREN).says("from execSync").says("spawn: THROUGH PIPES")
        .says("fork: BY A CHANNEL");
    node_server_on_a_unix_socket: node(SOCKET).says("heard hello\nheard hello");
    node_workers_and_files: node(WORKERS).says("sum 499500").says("0 asynchronously true");

    npm_install_of_a_tarball: Work::script("
        # How long it took differs each time.
        npm install --offline --no-audit --no-fund ./greeting-1.2.3.tgz 2>&1 | sed -E 's/in [0-9]+m?s/in TIME/'
        npm ls; npm run -s greet; node -e 'console.log(require(\"greeting\"))'
    ").prepared("
        mkdir ../greeting; cd ../greeting
        echo '{\"name\":\"greeting\",\"version\":\"1.2.3\",\"bin\":{\"greet\":\"greet.js\"}}' >package.json
        echo 'module.exports = \"a greeting\"' >index.js
        printf '#!/usr/bin/env node\\nconsole.log(\"greetings from a bin\")\\n' >greet.js
        npm pack --silent --pack-destination ../ws
        cd ../ws; printf '%s' '{\"name\":\"ws\",\"private\":true,\"scripts\":{\"greet\":\"greet\"}}' >package.json
    ").needs(&["node", "npm"]).says("added 1 package in TIME").says("greetings from a bin").says("a greeting");
}
