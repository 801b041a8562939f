// Checks the OAuth client against a real authorization server: node check.mjs PROGRAM CERTIFICATE KEY [RINGFENCE]
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { startAuthority } from './authority.mjs';
import { agree } from './browser.mjs';

const [program, certificate, key, ringfence] = process.argv.slice(2);
const tls = { cert: fs.readFileSync(certificate), key: fs.readFileSync(key) };
const scratch = fs.mkdtempSync(path.join(os.tmpdir(), 'oauth-check-'));

/** Runs the program. `onOpen` gets the address that it wants to be opened. */
function run(command, target, onOpen) {
  return runProgram(program, [command, target.url, target.directory], target, onOpen);
}

function runProgram(file, args, target, onOpen = () => {}) {
  const env = { ...process.env, ...target.env };
  const child = spawn(file, args, { env, stdio: ['ignore', 'pipe', 'ignore'] });
  let output = '';
  let opened;
  child.stdout.on('data', (data) => {
    output += data;
    const url = output.match(/^(?:open|  (?=http))(.*)\n/m)?.[1].trim();
    if (url && !opened) opened = Promise.resolve(onOpen(url));
  });
  return new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code) => Promise.resolve(opened).then(() => resolve({ code, output }), reject));
  });
}

/** Logs in with a user who agrees. `change` may change the address that leads back. */
function logIn(target, change = (url) => url) {
  return run('login', target, async (url) => { await fetch(change(await agree(url))); });
}

function readRecord(target) {
  const name = fs.readdirSync(target.directory).find((file) => file.endsWith('.json'));
  return JSON.parse(fs.readFileSync(path.join(target.directory, name), 'utf8'));
}

function assertOutput(result, code, pattern) {
  assert.equal(result.code, code, result.output);
  assert.match(result.output, pattern);
}

const works = (result) => assertOutput(result, 0, /you are ann/);

// Waits until the clock shows that a token has ended: it is valid to the second.
const waitForEnd = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000 + 200));

const checks = {
  async 'without a login, a call fails and says what to do'(target) {
    assertOutput(await run('call', target), 1, /failed: Unauthenticated: .* wants a login Run `oauth_client login`/);
  },
  async 'a login is used by the next process'(target, { state }) {
    assertOutput(await logIn(target), 0, /logged in: .*can_refresh: true/);
    works(await run('call', target));
    assertOutput(await run('status', target), 0, /mcp:tools/);
    assert.equal(state.refreshes, 0);
    assert.equal(readRecord(target).grant.resource, target.url);
  },
  async 'an access token that ended is refreshed, and the refresh token rotates'(target, { state }) {
    state.lifetime = 2;
    await logIn(target);
    const before = readRecord(target).grant;
    await waitForEnd(2);
    state.lifetime = 3600;
    works(await run('call', target));
    const after = readRecord(target).grant;
    assert.equal(state.refreshes, 1);
    assert.notEqual(after.refresh_token, before.refresh_token);
    assert.notEqual(after.access_token, before.access_token);
    works(await run('call', target));
    assert.equal(state.refreshes, 1);
  },
  async 'of six processes, one refreshes'(target, { state }) {
    state.lifetime = 2;
    await logIn(target);
    await waitForEnd(2);
    state.lifetime = 3600;
    const results = await Promise.all(Array.from({ length: 6 }, () => run('call', target)));
    results.forEach(works);
    assert.equal(state.refreshes, 1);
  },
  async 'a token that the server refuses is refreshed once'(target, { state }) {
    await logIn(target);
    state.refusedBefore = Math.floor(Date.now() / 1000) * 1000 + 1000;
    await waitForEnd(1);
    works(await run('call', target));
    assert.equal(state.refreshes, 1);
    state.refusedBefore = Date.now() + 3600_000;
    assertOutput(await run('call', target), 1, /failed: Unauthenticated: .*Run `oauth_client login`/);
    assert.equal(state.refreshes, 2);
  },
  async 'a revoked login ends'(target, { state, provider }) {
    await logIn(target);
    const { jti, grantId } = await provider.RefreshToken.find(readRecord(target).grant.refresh_token);
    assert.ok(jti);
    await provider.RefreshToken.revokeByGrantId(grantId);
    state.refusedBefore = Date.now() + 3600_000;
    assertOutput(await run('call', target), 1, /failed: Unauthenticated: .*has ended or was revoked/);
    assert.equal(readRecord(target).grant, undefined);
    state.refusedBefore = 0;
    await logIn(target);
    works(await run('call', target));
    assert.equal(state.registrations, 1);
  },
  async 'tokens survive an authorization server that is down'(target, { state }) {
    state.lifetime = 2;
    await logIn(target);
    const before = readRecord(target).grant;
    state.isDown = true;
    await waitForEnd(2);
    assertOutput(await run('call', target), 1, /failed: Unavailable: .*cannot be refreshed/);
    assert.deepEqual(readRecord(target).grant, before);
    state.isDown = false;
    works(await run('call', target));
  },
  async 'an authorization server under another name is refused'(target, { state, base }) {
    state.authorizationServer = base.replace('127.0.0.1', 'localhost');
    assertOutput(await logIn(target), 1, /failed: BadResponse: .*calls itself/);
    assert.equal(state.registrations, 0);
  },
  async 'an answer from another issuer is refused'(target) {
    const change = (url) => {
      const changed = new URL(url);
      changed.searchParams.set('iss', 'https://evil.example.com');
      return changed.href;
    };
    assertOutput(await logIn(target, change), 1, /failed: Unauthenticated: the answer is from `https:\/\/evil.example.com`/);
    assertOutput(await run('status', target), 0, /None/);
  },
  async 'a user who refuses is believed'(target) {
    const change = (url) => {
      const changed = new URL(url);
      changed.searchParams.delete('code');
      changed.searchParams.set('error', 'access_denied');
      return changed.href;
    };
    assertOutput(await logIn(target, change), 1, /failed: Unauthenticated: .*access_denied/);
  },
  async 'a login works with TLS, for a certificate that is trusted'(target, { state, provider }) {
    assertOutput(await logIn(target), 1, /failed: Unavailable: .*certificate/);
    assert.equal(state.registrations, 0);
    const trusting = { ...target, env: { SSL_CERT_FILE: certificate } };
    assertOutput(await logIn(trusting), 0, /logged in/);
    works(await run('call', trusting));
    state.refusedBefore = Date.now() + 3600_000;
    assertOutput(await run('call', trusting), 1, /failed: Unauthenticated/);
    assert.equal(state.refreshes, 1);
    assertOutput(await run('logout', trusting), 0, /Revoked/);
    assert.ok(provider.issuer.startsWith('https://'));
  },
  async 'logging out revokes the refresh token'(target, { provider }) {
    await logIn(target);
    const { refresh_token: token } = readRecord(target).grant;
    assert.ok(await provider.RefreshToken.find(token));
    assertOutput(await run('logout', target), 0, /logged out: Revoked/);
    assert.equal(await provider.RefreshToken.find(token), undefined);
    assertOutput(await run('call', target), 1, /wants a login/);
  },
};

if (ringfence) {
  checks['`ringfence auth` logs in, serves connections and logs out'] = async (target, { state }) => {
    const inside = (name) => path.join(target.directory, name);
    for (const name of ['root', 'workspace']) fs.mkdirSync(inside(name), { recursive: true, mode: 0o700 });
    const transport = { type: 'http', url: target.url, authProviderId: 'oauth' };
    const file = { servers: { docs: { trust: 'trusted', transport } }, bundles: { docs: { serverId: 'docs', mode: 'direct' } } };
    fs.writeFileSync(inside('upstreams.json'), JSON.stringify(file));
    const places = ['--upstreams', inside('upstreams.json'), '--root', inside('root'), '--workspace', inside('workspace')];
    const call = (words, onOpen) => runProgram(ringfence, [...words, ...places], target, onOpen);
    const connect = async () => JSON.parse((await call(['upstream', 'list', '--connect', '--json'])).output).servers[0];
    assert.match((await connect()).error, /wants a login/);
    const login = await call(['auth', 'login', 'docs'], async (url) => { await fetch(await agree(url)); });
    assertOutput(login, 0, /Logged in to `docs` .*renewed without you.*\nIts 1 tools are offered/);
    assert.equal((await connect()).state.offered_tools, 1);
    state.refusedBefore = Math.floor(Date.now() / 1000) * 1000 + 1000;
    await waitForEnd(1);
    assert.equal((await connect()).state.offered_tools, 1);
    assert.deepEqual([state.refreshes, state.registrations], [1, 1]);
    assertOutput(await call(['auth', 'status']), 0, /logged in at .*mcp:tools/);
    assertOutput(await call(['auth', 'logout', 'docs']), 0, /its tokens are revoked/);
    assert.match((await connect()).error, /wants a login/);
  };
}

let failed = 0;
async function runCheck([name, check], index) {
  const authority = await startAuthority(name.includes('TLS') ? tls : undefined);
  const target = { url: authority.url, directory: path.join(scratch, String(index)) };
  try {
    await check(target, authority);
    console.log(`ok    ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL  ${name}\n${error.stack}`);
  } finally {
    authority.close();
  }
}
await Promise.all(Object.entries(checks).map(runCheck));
fs.rmSync(scratch, { recursive: true });
console.log(`${Object.keys(checks).length - failed} passed, ${failed} failed`);
process.exitCode = failed ? 1 : 0;
