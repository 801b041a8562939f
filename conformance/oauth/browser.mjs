// A user with a browser: follows redirects, keeps cookies and fills in the development forms of oidc-provider.

/** Opens an address and returns the one that leads back to the program, without opening it. */
export async function agree(start) {
  const cookies = new Map();
  let url = start;
  let form;
  for (let step = 0; step < 12; step += 1) {
    const response = await fetch(url, {
      method: form ? 'POST' : 'GET',
      body: form,
      redirect: 'manual',
      headers: { cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join('; ') },
    });
    form = undefined;
    for (const cookie of response.headers.getSetCookie()) {
      const [, name, value] = cookie.match(/^([^=]+)=([^;]*)/);
      cookies.set(name, value);
    }
    const location = response.headers.get('location');
    if (location) {
      url = new URL(location, url).href;
      if (new URL(url).pathname === '/callback') return url;
      continue;
    }
    const page = await response.text();
    const action = page.match(/action="([^"]+)"/)?.[1];
    if (!action) throw new Error(`there is no form on ${url}: ${page.slice(0, 200)}`);
    const isLogin = page.includes('name="login"');
    form = new URLSearchParams(isLogin ? { prompt: 'login', login: 'ann', password: 'x' } : { prompt: 'consent' });
    url = new URL(action, url).href;
  }
  throw new Error('the authorization server asks for too many steps');
}
