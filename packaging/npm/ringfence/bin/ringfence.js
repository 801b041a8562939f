#!/usr/bin/env node
// Starts the native binary in place of this process, as far as Node can: the child has our standard streams, so nothing
// is copied or buffered; signals are passed on; we end as the child ends.
"use strict";

const { spawn } = require("node:child_process");
const { findBinary } = require("./native.js");

/** The exit code of ringfence itself for what is unavailable. */
const UNAVAILABLE = 69;

function fail(message, hint) {
  process.stderr.write(`error: ${message}\nhint: ${hint}\n`);
  process.exitCode = UNAVAILABLE;
}

function run(file) {
  // Without these handlers a signal would end the launcher and leave the server running.
  const signals = ["SIGTERM", "SIGINT", "SIGHUP"];
  const handlers = new Map(signals.map((signal) => [signal, () => child.kill(signal)]));
  const child = spawn(file, process.argv.slice(2), { stdio: "inherit" });
  for (const [signal, handler] of handlers) process.on(signal, handler);
  const stopListening = () => {
    for (const [signal, handler] of handlers) process.removeListener(signal, handler);
  };
  child.on("error", (error) => {
    stopListening();
    fail(`cannot start ${file}: ${error.message}`, "Install again: npm install --include=optional ringfence");
  });
  child.on("exit", (code, signal) => {
    stopListening();
    if (signal) process.kill(process.pid, signal);
    else process.exitCode = code;
  });
}

const found = findBinary();
if (found.file) run(found.file);
else fail(found.message, found.hint);
