// Headless Chromium over its DevTools protocol, for the checks beside this file. Node 20 needs --experimental-websocket.
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

// What `met` comes to once it is something.
export const until = async (what, met) => {
  for (const begun = Date.now(); Date.now() - begun < 30_000;) {
    const value = await met();
    if (value) return value;
    await new Promise(done => setTimeout(done, 20));
  }
  throw new Error(`waited in vain until ${what}`);
};

// Runs `check` with a browser; exits with 0 and what it returns, or with 1 and why not. `before` runs at the end.
export async function withBrowser(chromium, check, { flags = [], before = () => {} } = {}) {
  const folder = mkdtempSync(join(tmpdir(), 'browser-'));
  const browser = spawn(chromium, ['--headless=new', '--no-sandbox', '--disable-gpu', '--remote-debugging-port=0',
    '--autoplay-policy=no-user-gesture-required', `--user-data-dir=${folder}`, ...flags, 'about:blank'], { stdio: 'ignore' });
  const end = (code, text) => {
    console.log(text);
    before();
    browser.on('exit', () => { rmSync(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 200 }); process.exit(code); });
    browser.kill(); // with its own processes, which write into the folder
    setTimeout(() => browser.kill('SIGKILL'), 10_000);
  };
  setTimeout(() => end(1, 'not done within 60 s'), 60_000);
  try {
    end(0, await check(await devtools(folder)));
  } catch (e) {
    end(1, `error: ${e.message}`);
  }
}

async function devtools(folder) {
  const file = join(folder, 'DevToolsActivePort');
  const lines = () => existsSync(file) ? readFileSync(file, 'utf8').trim().split('\n') : [];
  const [port, path] = await until('the browser runs', () => lines().length === 2 && lines());
  const socket = new WebSocket(`ws://127.0.0.1:${port}${path}`);
  const asked = new Map(), heard = new Map();
  socket.onmessage = ({ data }) => {
    const { id, result, error, method, params, sessionId } = JSON.parse(data);
    if (asked.has(id)) asked.get(id)(error ? Promise.reject(new Error(error.message)) : result);
    if (method) heard.get(sessionId)?.(method, params);
  };
  await new Promise((open, fail) => { socket.onopen = open; socket.onerror = () => fail(new Error('no DevTools')); });
  let next = 0;
  const send = (method, params = {}, sessionId) => new Promise(done => {
    asked.set(++next, done);
    socket.send(JSON.stringify({ id: next, method, params, sessionId }));
  });
  return { tab: onEvent => tab(send, heard, onEvent) };
}

async function tab(send, heard, onEvent = () => {}) {
  const { targetId } = await send('Target.createTarget', { url: 'about:blank' });
  const { sessionId } = await send('Target.attachToTarget', { targetId, flatten: true });
  heard.set(sessionId, onEvent);
  const here = (method, params) => send(method, params, sessionId);
  const run = async expression => {
    const { result, exceptionDetails } = await here('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(`${expression}: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`);
    return result.value;
  };
  const shows = text => until(`a tab shows ${text}`, () => run(`document.body?.innerText.includes(${JSON.stringify(text)})`));
  const picture = async () => Buffer.from((await here('Page.captureScreenshot')).data, 'base64');
  return { here, run, shows, picture };
}
