// A real authorization server (oidc-provider) and a protected MCP server, in one process on one port of the loopback.
import http from 'node:http';
import https from 'node:https';
import { Provider } from 'oidc-provider';

/** Starts both, with TLS if key and certificate are given. `state` changes how they behave, and counts what happens. */
export async function startAuthority(tls) {
  const state = {
    lifetime: 3600, // seconds of an access token
    isDown: false, // the token endpoint hangs up
    refusedBefore: 0, // the MCP server refuses tokens issued earlier (ms)
    refreshes: 0,
    registrations: 0,
    authorizationServer: undefined, // named by the MCP server, if not the right one
  };
  const server = tls ? https.createServer(tls) : http.createServer();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const base = `${tls ? 'https://localhost' : 'http://127.0.0.1'}:${server.address().port}`;
  const resource = `${base}/mcp`;
  const provider = new Provider(base, {
    pkce: { required: () => true },
    features: {
      registration: { enabled: true },
      revocation: { enabled: true },
      devInteractions: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => resource,
        useGrantedResource: () => true,
        getResourceServerInfo: (_, wanted) => {
          if (wanted !== resource) throw new Error(`unknown resource ${wanted}`);
          return { scope: 'mcp:tools', audience: resource, accessTokenFormat: 'jwt', accessTokenTTL: state.lifetime, jwt: { sign: { alg: 'RS256' } } };
        },
      },
    },
    scopes: ['openid', 'offline_access', 'mcp:tools'],
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    rotateRefreshToken: true,
  });
  provider.on('grant.success', (context) => {
    if (context.oidc.params.grant_type === 'refresh_token') state.refreshes += 1;
  });
  provider.on('registration_create.success', () => { state.registrations += 1; });
  const callback = provider.callback();

  server.on('request', async (request, response) => {
    const path = request.url.split('?')[0];
    if (path === '/token' && state.isDown) return request.socket.destroy();
    if (path === '/.well-known/oauth-protected-resource/mcp') {
      const authorizationServer = state.authorizationServer ?? base;
      return sendJson(response, 200, { resource, authorization_servers: [authorizationServer], scopes_supported: ['mcp:tools'] });
    }
    return path === '/mcp' ? answerMcp(request, response) : callback(request, response);
  });

  async function answerMcp(request, response) {
    const claims = readClaims(request.headers.authorization);
    const isValid = claims && claims.aud === resource && claims.exp * 1000 > Date.now() && claims.iat * 1000 >= state.refusedBefore;
    if (!isValid) {
      const challenge = `Bearer resource_metadata="${base}/.well-known/oauth-protected-resource/mcp", scope="mcp:tools"`;
      return sendJson(response, 401, { error: 'invalid_token' }, { 'www-authenticate': challenge });
    }
    let body = '';
    for await (const chunk of request) body += chunk;
    if (!body) return sendJson(response, 405, {});
    const message = JSON.parse(body);
    if (message.id === undefined) return response.writeHead(202).end();
    const results = {
      initialize: { protocolVersion: '2025-11-25', capabilities: { tools: {} }, serverInfo: { name: 'protected', version: '1' } },
      'tools/list': { tools: [{ name: 'who', inputSchema: { type: 'object' } }] },
      'tools/call': { content: [{ type: 'text', text: `you are ${claims.sub}` }] },
    };
    const result = results[message.method];
    const answer = result ? { result } : { error: { code: -32601, message: 'unknown method' } };
    return sendJson(response, 200, { jsonrpc: '2.0', id: message.id, ...answer });
  }

  return { state, provider, base, url: resource, close: () => { server.closeAllConnections(); server.close(); } };
}

function readClaims(authorization = '') {
  try {
    return JSON.parse(Buffer.from(authorization.replace(/^Bearer /, '').split('.')[1], 'base64url'));
  } catch {
    return undefined;
  }
}

function sendJson(response, status, body, headers = {}) {
  response.writeHead(status, { 'content-type': 'application/json', ...headers });
  response.end(JSON.stringify(body));
}
