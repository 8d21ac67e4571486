// A browser with `tidegate serve files`: a page with all that belongs to it, what it asks again, a video that is sought in, a listing:
//   node --experimental-websocket scenarios/files/browser.mjs [MODEL] [TIDEGATE] [tls] [CHROMIUM]
// Needs ffmpeg for the video and openssl for a certificate. Exits with 0 and what was seen, or with 1 and what was not.
import { execFileSync, spawn } from 'node:child_process';
import { createHash, X509Certificate } from 'node:crypto';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { brotliCompressSync, gzipSync } from 'node:zlib';
import { until, withBrowser } from '../browser.mjs';

const [model = 'epoll', tidegate = 'target/release/tidegate', tls = '', chromium = 'chromium'] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), 'page-'));
const www = join(folder, 'www');
const quietly = { stdio: ['ignore', 'ignore', 'inherit'] };
const SECONDS = 120;

function lay(name, content) {
  writeFileSync(join(www, name), content);
}

function fill() {
  mkdirSync(join(www, 'list'), { recursive: true });
  lay('index.html', `<!doctype html><html lang=en><title>page</title><link rel=stylesheet href=page.css>
    <script src=page.js defer></script><h1>a page</h1><img src=picture.png><video src=video.webm preload=metadata muted></video>`);
  const style = `h1 { color: rgb(1, 2, 3) }\n${'/* as long as styles are */\n'.repeat(2000)}`;
  lay('page.css', style);
  lay('page.css.br', brotliCompressSync(style));
  lay('page.css.gz', gzipSync(style));
  lay('page.js', 'document.documentElement.dataset.script = "ran";');
  lay('list/a & b <c>.txt', 'what a listing leads to');
  const ffmpeg = args => execFileSync('ffmpeg', ['-loglevel', 'error', ...args], quietly);
  ffmpeg(['-f', 'lavfi', '-i', 'testsrc2=size=64x48', '-frames:v', '1', join(www, 'picture.png')]);
  // Noise cannot be made small: the far end of the video is not with the browser when it is sought.
  ffmpeg(['-f', 'lavfi', '-i', `nullsrc=size=320x240:rate=10:duration=${SECONDS},geq=random(1)*255:128:128`, '-c:v', 'libvpx',
    '-b:v', '3M', '-deadline', 'realtime', '-cpu-used', '16', '-g', '20', join(www, 'video.webm')]);
}

async function serve() {
  const args = ['serve', 'files', www, '--listing', 'on', '--listen', '127.0.0.1:0', '--model', model];
  if (tls === 'tls') {
    const pair = ['-keyout', join(folder, 'key.pem'), '-out', join(folder, 'cert.pem')];
    execFileSync('openssl', ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-subj', '/CN=localhost', '-days', '2', ...pair],
      { stdio: 'ignore' });
    args.push('--tls-cert', join(folder, 'cert.pem'), '--tls-key', join(folder, 'key.pem'));
  }
  const server = spawn(tidegate, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  let said = '';
  server.stdout.on('data', data => { said += data; });
  const [, url] = await until('the server listens', () => said.match(/listening on (\S+)/));
  return { server, url };
}

function fingerprint() {
  const key = new X509Certificate(readFileSync(join(folder, 'cert.pem'))).publicKey;
  return createHash('sha256').update(key.export({ type: 'spki', format: 'der' })).digest('base64');
}

function must(holds, what) {
  if (!holds) throw new Error(what);
}

// All that the tab is answered, as it came from the server: status, fields, and what the request said.
function record() {
  const answers = new Map();
  const of = id => answers.get(id) ?? answers.set(id, {}).get(id);
  const lower = fields => Object.fromEntries(Object.entries(fields).map(([name, value]) => [name.toLowerCase(), value]));
  const hear = (method, { requestId, request, headers, statusCode, errorText }) => {
    if (method === 'Network.requestWillBeSent') of(requestId).url = request.url;
    if (method === 'Network.requestWillBeSentExtraInfo') of(requestId).asked = lower(headers);
    if (method === 'Network.responseReceivedExtraInfo') Object.assign(of(requestId), { status: statusCode, fields: lower(headers) });
    if (method === 'Network.loadingFailed') of(requestId).failed = errorText;
  };
  const list = name => [...answers.values()].filter(answer => answer.url?.endsWith(name) && answer.status);
  return { hear, list, forget: () => answers.clear() };
}

async function page({ tab, answers, url }) {
  await tab.here('Page.navigate', { url });
  await tab.shows('a page');
  const done = 'document.readyState === "complete" && document.documentElement.dataset.script === "ran"';
  await until('the page is there with its script', () => tab.run(done));
  must(await tab.run('getComputedStyle(document.querySelector("h1")).color') === 'rgb(1, 2, 3)', 'the style does not show');
  must(await tab.run('document.querySelector("img").naturalWidth') === 64, 'the picture does not show');
  for (const [name, kind] of [['/', 'text/html'], ['page.css', 'text/css'], ['page.js', 'javascript'], ['picture.png', 'image/png']]) {
    const [answer] = answers.list(name);
    must(answer?.status === 200 && answer.fields['content-type'].includes(kind), `${name}: ${JSON.stringify(answer)}`);
  }
  const [style] = answers.list('page.css');
  const best = style.asked['accept-encoding'].includes('br') ? 'br' : 'gzip';
  must(style.fields['content-encoding'] === best, `the style came as ${style.fields['content-encoding']}, not ${best}`);
  return `page, style (${best}), script and picture`;
}

async function again({ tab, answers }) {
  answers.forget();
  await tab.here('Page.reload');
  await until('the page was asked for again', () => answers.list('/').length);
  must(await tab.run('fetch("page.js", { cache: "no-cache" }).then(answer => answer.status)') === 200, 'the script is gone');
  await until('the script was asked for again', () => answers.list('page.js').some(answer => answer.asked['if-none-match']));
  for (const name of ['/', 'page.js']) {
    const answer = answers.list(name).at(-1);
    must(answer.status === 304 && answer.asked['if-none-match'], `${name} again: ${JSON.stringify(answer)}`);
  }
  return 'asked again: 304';
}

async function video({ tab, answers }) {
  await until('the video is known', () => tab.run('document.querySelector("video").readyState >= 1'));
  must(Math.abs(await tab.run('document.querySelector("video").duration') - SECONDS) < 1, 'the video has another length');
  const seek = to => tab.run(`new Promise((done, fail) => {
    const video = document.querySelector('video');
    video.onseeked = () => done(video.currentTime);
    video.onerror = () => fail(new Error(video.error.message));
    video.currentTime = ${to};
  })`);
  await until('the video was answered', () => answers.list('video.webm').length);
  const length = Number(answers.list('video.webm')[0].fields['content-range'].split('/')[1]);
  // A part that the browser has kept is only asked after: 304.
  const begun = () => answers.list('video.webm').filter(({ status, asked }) => status !== 304 || !asked['if-none-match'])
    .map(({ status, fields, asked }) => {
      const [, first] = fields['content-range']?.match(/^bytes (\d+)-/) ?? [];
      must(status === 206 && asked.range?.startsWith(`bytes=${first}-`), `the video: ${status}, ${asked.range}: ${fields['content-range']}`);
      return Number(first);
    });
  for (const to of [100, 50, 10]) must(Math.abs(await seek(to) - to) < 0.5, `the video is not at ${to} s`);
  await tab.run('document.querySelector("video").play()');
  await until('the video plays', () => tab.run('document.querySelector("video").currentTime > 10.3'));
  const places = begun();
  must(places.some(place => place > length / 2), `nothing was asked for from the second half: ${places} of ${length}`);
  return `a video of ${(length / 1e6).toFixed(1)} MB, sought at 100, 50 and 10 s: 206 from byte ${places.join(', ')}`;
}

async function listing({ tab, url }) {
  await tab.here('Page.navigate', { url: `${url}list/` });
  await tab.shows('a & b <c>.txt');
  await tab.run('[...document.links].find(link => link.innerText.includes("a & b")).click()');
  await tab.shows('what a listing leads to');
  return 'a listing and where it leads';
}

fill();
const { server, url } = await serve();
// What came with an error of the certificate is not kept by the browser, so it has to take this one for good.
const flags = tls === 'tls' ? [`--ignore-certificate-errors-spki-list=${fingerprint()}`] : [];
await withBrowser(chromium, async browser => {
  const answers = record();
  const tab = await browser.tab(answers.hear);
  await tab.here('Network.enable');
  await tab.here('Page.enable');
  const seen = [];
  for (const part of [page, video, again, listing]) seen.push(await part({ tab, answers, url }));
  return `${url} (${model}): ${seen.join('; ')}`;
}, { flags, before: () => { server.kill(); rmSync(folder, { recursive: true }); } });
