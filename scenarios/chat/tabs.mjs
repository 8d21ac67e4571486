// Two tabs of a browser talk over a running `tidegate serve chat`:
//   node --experimental-websocket scenarios/chat/tabs.mjs http://127.0.0.1:8080/ [chromium]
// Exits with 0 if each hears the other, in light and in dark, at the width of a phone; with 1 and the reason if not.
import { writeFileSync } from 'node:fs';
import { withBrowser } from '../browser.mjs';

const [page, chromium = 'chromium', pictures] = process.argv.slice(2);

async function open(browser, nick, colours) {
  const tab = await browser.tab();
  await tab.here('Emulation.setDeviceMetricsOverride', { width: 360, height: 640, deviceScaleFactor: 1, mobile: true });
  await tab.here('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: colours }] });
  await tab.here('Page.navigate', { url: `${page}?room=tabs&nick=${nick}` });
  const say = text => tab.run(`el('text').value = ${JSON.stringify(text)}; el('say').requestSubmit()`);
  return { ...tab, say };
}

await withBrowser(chromium, async browser => {
  const ann = await open(browser, 'ann', 'light');
  await ann.shows('in tabs');
  const bob = await open(browser, 'bob', 'dark');
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
  return 'each tab heard the other';
});
