// Chooses the package with the native binary. A platform has a package only if the profile `default` and the checks of
// execs work on it: a launcher that started something weaker would break the promise of the name.
"use strict";

const fs = require("node:fs");
const path = require("node:path");

/** Packages by platform and processor, with the loader of glibc, without which their binary cannot start. */
const PACKAGES = {
  "linux x64": { name: "@ringfence/linux-x64", loader: "/lib64/ld-linux-x86-64.so.2" },
};

const ELSEWHERE =
  "Run ringfence on a Linux machine or in a Linux virtual machine, with `ringfence serve --http`, " +
  "and connect to it by URL.";

/** Why a platform has no package, and what to do instead. */
function explainPlatform(platform, arch) {
  if (platform === "darwin") {
    return { message: "macOS has no sandbox yet, so there is no ringfence for it.", hint: ELSEWHERE };
  }
  if (platform === "win32") {
    return { message: "Windows has no sandbox yet, so there is no ringfence for it.", hint: ELSEWHERE };
  }
  if (platform === "linux") {
    return {
      message: `ringfence cannot check execs on ${arch} processors yet, so there is no package for them.`,
      hint: "Use a machine with an x86-64 processor.",
    };
  }
  return { message: `There is no ringfence for ${platform} on ${arch}.`, hint: ELSEWHERE };
}

/** The package for a host: `{ name }`, or `{ message, hint }` if there is none. */
function choosePackage({ platform, arch }, exists = fs.existsSync) {
  const choice = PACKAGES[`${platform} ${arch}`];
  if (!choice) return explainPlatform(platform, arch);
  if (!exists(choice.loader)) {
    return {
      message: `ringfence needs glibc, whose loader ${choice.loader} does not exist here.`,
      hint:
        "Use a distribution with glibc, such as Debian, Ubuntu or Fedora, also as the base of a container; " +
        "Alpine has musl instead.",
    };
  }
  return { name: choice.name };
}

/** The path of the binary for this host: `{ file }`, or `{ message, hint }`. */
function findBinary() {
  const choice = choosePackage(process);
  if (!choice.name) return choice;
  try {
    const manifest = require.resolve(`${choice.name}/package.json`);
    return { file: path.join(path.dirname(manifest), "bin", "ringfence") };
  } catch {
    return {
      message: `the package ${choice.name}, which holds the binary, is not installed.`,
      hint:
        "npm leaves it out with --omit=optional, or if the registry has no such package. " +
        "Install again without that option: npm install --include=optional ringfence",
    };
  }
}

module.exports = { choosePackage, findBinary };
