// Two tabs of a browser talk over a running `tidegate serve chat`:
//   node --experimental-websocket scenarios/chat/tabs.mjs http://127.0.0.1:8080/ [chromium]
// Exits with 0 if each hears the other, in light and in dark, at the width of a phone; with 1 and the reason if not.
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const [page, chromium = 'chromium', pictures] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), 'tabs-'));
const browser = spawn(chromium, ['--headless=new', '--no-sandbox', '--disable-gpu', '--remote-debugging-port=0',
  `--user-data-dir=${folder}`, 'about:blank'], { stdio: 'ignore' });
const end = (code, text) => {
  console.log(text);
  browser.kill('SIGKILL');
  browser.on('exit', () => { rmSync(folder, { recursive: true, force: true, maxRetries: 10 }); process.exit(code); });
};
setTimeout(() => end(1, 'not done within 60 s'), 60_000);

const until = async (what, met) => {
  for (const begun = Date.now(); Date.now() - begun < 30_000;) {
    const value = await met();
    if (value) return value;
    await new Promise(done => setTimeout(done, 20));
  }
  throw new Error(`waited in vain until ${what}`);
};

async function devtools() {
  const file = join(folder, 'DevToolsActivePort');
  const lines = () => existsSync(file) ? readFileSync(file, 'utf8').trim().split('\n') : [];
  const [port, path] = await until('the browser runs', () => lines().length === 2 && lines());
  const socket = new WebSocket(`ws://127.0.0.1:${port}${path}`);
  const asked = new Map();
  socket.onmessage = ({ data }) => {
    const { id, result, error } = JSON.parse(data);
    if (asked.has(id)) asked.get(id)(error ? Promise.reject(new Error(error.message)) : result);
  };
  await new Promise((open, fail) => { socket.onopen = open; socket.onerror = () => fail(new Error('no DevTools')); });
  let next = 0;
  return (method, params = {}, sessionId) => new Promise(done => {
    asked.set(++next, done);
    socket.send(JSON.stringify({ id: next, method, params, sessionId }));
  });
}

async function open(send, nick, colours) {
  const { targetId } = await send('Target.createTarget', { url: 'about:blank' });
  const { sessionId } = await send('Target.attachToTarget', { targetId, flatten: true });
  const here = (method, params) => send(method, params, sessionId);
  await here('Emulation.setDeviceMetricsOverride', { width: 360, height: 640, deviceScaleFactor: 1, mobile: true });
  await here('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: colours }] });
  await here('Page.navigate', { url: `${page}?room=tabs&nick=${nick}` });
  const run = async expression => (await here('Runtime.evaluate', { expression })).result.value;
  const shows = text => until(`${nick} reads ${text}`, () => run(`document.body?.innerText.includes(${JSON.stringify(text)})`));
  const say = text => run(`el('text').value = ${JSON.stringify(text)}; el('say').requestSubmit()`);
  const picture = async () => Buffer.from((await here('Page.captureScreenshot')).data, 'base64');
  return { run, shows, say, picture };
}

try {
  const send = await devtools();
  const ann = await open(send, 'ann', 'light');
  await ann.shows('in tabs');
  const bob = await open(send, 'bob', 'dark');
  await bob.shows('in tabs');
  await ann.shows('bob has come');
  await ann.say('hello from <b>ann</b>');
  await bob.shows('ann: hello from <b>ann</b>');
  await bob.say('hello from bob');
  await ann.shows('bob: hello from bob');
  for (const tab of [ann, bob]) {
    const wide = await tab.run('document.documentElement.scrollWidth > innerWidth');
    if (wide) throw new Error('the page is wider than a phone');
  }
  const background = tab => tab.run('getComputedStyle(document.documentElement).colorScheme + matchMedia("(prefers-color-scheme: dark)").matches');
  if (await background(ann) === await background(bob)) throw new Error('light is dark');
  if (pictures) for (const [name, tab] of [['light', ann], ['dark', bob]]) writeFileSync(`${pictures}-${name}.png`, await tab.picture());
  end(0, 'each tab heard the other');
} catch (e) {
  end(1, `error: ${e.message}`);
}
