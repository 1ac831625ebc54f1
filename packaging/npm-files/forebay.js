#!/usr/bin/env node
// Runs the program of the package for this machine, and passes signals and the exit code on.
"use strict";
const { spawn } = require("node:child_process");
const os = require("node:os");

const name = `@forebay/${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/bin/forebay`);
} catch {
  console.error(`forebay: the package ${name} is not installed: there is none for this machine, or npm left optional dependencies out`);
  process.exit(1);
}
const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
for (const signal of ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGWINCH"]) {
  process.on(signal, () => child.kill(signal));
}
child.on("error", (error) => {
  console.error(`forebay: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(signal ? 128 + os.constants.signals[signal] : code));
