// A real Chromium for browser tests: a client for WebDriver (https://www.w3.org/TR/webdriver2/).

import { execFileSync } from 'node:child_process';
import { mkdtempSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { start } from '../../helpers.ts';
import { until } from '../../wait.ts';
import { killAll } from '../run/helpers.ts';
import type { Running } from '../../helpers.ts';
import type { TestContext } from 'node:test';

/** chromedriver adds the options that disable the first run, background networking and sync. */
const ARGS: readonly string[] = [
  '--headless=new',
  '--remote-debugging-pipe', // the browser ends with chromedriver, even if the latter is killed
  '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1', // to this machine only
  '--no-proxy-server', // a proxy would resolve the names itself
  '--app=data:,', // without tabs and a toolbar, whose drawing costs more than that of the page
  '--disable-gpu', // it would be emulated
  '--disable-component-update', '--disable-domain-reliability', '--disable-extensions', '--disable-field-trial-config',
  '--disable-features=MediaRouter,NetworkTimeServiceQuerying,OptimizationGuideModelDownloading,OptimizationHints',
  '--disable-site-isolation-trials', // the logs omit frames in separate processes
  ...(process.getuid?.() === 0 ? ['--no-sandbox'] : []), // as root, Chromium does not start with its sandbox
];

const TIMEOUT_MS = 60_000;
const END_TIMEOUT_MS = 20_000;

/**
 * Starts a headless Chromium with a new profile. It ends with the test.
 *
 * @param args More options for Chromium. The last one of a name counts.
 */
export async function startBrowser(
  t: { after(end: () => void | Promise<void>): void },
  args: readonly string[] = [],
): Promise<Browser> {
  const folder = mkdtempSync(join(tmpdir(), 'control-'));
  let driver: Running | undefined;
  let session: { url: string; browserPid: number } | undefined;
  t.after(async () => { // runs before the hook of start(), which kills chromedriver
    if (session !== undefined) {
      const { url, browserPid } = session;
      const ended = send('DELETE', url, undefined, END_TIMEOUT_MS); // returns once all processes have ended
      await ended.catch(() => killAll([browserPid])); // its child processes end with it
    }
    driver?.child.kill('SIGKILL');
    await driver?.ended;
    await rm(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
  });
  const env = { HOME: folder, TMPDIR: folder }; // for the profile, caches and certificates
  const { shows, output } = driver = start(t as TestContext, 'chromedriver', ['--port=0'], env);
  const started = /started successfully on port (\d+)/;
  await shows(started);
  const sessions = `http://127.0.0.1:${started.exec(output())?.[1]}/session`;
  const binary = execFileSync('sh', ['-c', 'command -v chromium'], { encoding: 'utf8' }).trim();
  const { sessionId, capabilities } = await send<Session>('POST', sessions, {
    capabilities: {
      alwaysMatch: {
        timeouts: { pageLoad: TIMEOUT_MS, script: TIMEOUT_MS },
        'goog:loggingPrefs': { browser: 'SEVERE', performance: 'ALL' },
        'goog:chromeOptions': { binary, args: [...ARGS, ...args] },
      },
    },
  });
  session = { url: `${sessions}/${sessionId}`, browserPid: capabilities['goog:processID'] };
  return new Browser(session.url);
}

interface Session {
  sessionId: string;
  capabilities: { 'goog:processID': number };
}

/** Sends a WebDriver command and returns its value, or null if it has none. */
async function send<Value = null>(
  method: 'GET' | 'POST' | 'DELETE',
  url: string,
  body?: object,
  timeoutMs: number = 2 * TIMEOUT_MS, // chromedriver's own timeouts report more
): Promise<Value> {
  const init = { method, body: body === undefined ? null : JSON.stringify(body) };
  const response = await fetch(url, { ...init, signal: AbortSignal.timeout(timeoutMs) });
  const { value } = await response.json() as { value: Value & { message: string } };
  if (!response.ok) throw new Error(value.message);
  return value;
}

/** WebDriver's key for the id of an element. */
const ELEMENT_ID = 'element-6066-11e4-a52e-4f735466cecf';

/** An element of a page; `Browser.run()` accepts and returns it, too. */
export interface Element {
  readonly [ELEMENT_ID]: string;
}

/** Elements that may have a role implicitly. What Chromium reports to assistive technology decides. */
const CANDIDATES = { button: 'button, input, summary', dialog: 'dialog' } as const;

/** Puts the likely matches of a name first, because computing each name is slow. */
const SORT = `
  const [elements, name] = arguments;
  const isLikely = ({ ariaLabel, innerText }) => (ariaLabel ?? innerText).includes(name);
  return elements.sort((one, other) => isLikely(other) - isLikely(one));
`;

const KEYS: Readonly<Record<string, string>> = {
  Tab: '\ue004', Enter: '\ue006', Shift: '\ue008', Escape: '\ue00c', Backspace: '\ue003',
};

/** A browser. */
export class Browser {
  readonly #session: string;

  /** @param session The URL of a WebDriver session. */
  constructor(session: string) {
    this.#session = session;
  }

  /** Navigates, and waits for the load event. */
  async open(url: string): Promise<void> {
    await this.#send('POST', '/url', { url });
  }

  url(): Promise<string> {
    return this.#send('GET', '/url');
  }

  title(): Promise<string> {
    return this.#send('GET', '/title');
  }

  /** Runs the body of a function in the page. A promise that it returns is awaited. */
  run<Result>(script: string, ...args: unknown[]): Promise<Result> {
    return this.#send('POST', '/execute/sync', { script, args });
  }

  /** The elements that match a CSS selector at the moment. */
  findAll(selector: string): Promise<Element[]> {
    return this.#send('POST', '/elements', { using: 'css selector', value: selector });
  }

  /** Waits for an element that matches a CSS selector. */
  find(selector: string, index: number = 0): Promise<Element> {
    return awaitElement(`${selector} [${index}]`, async () => (await this.findAll(selector))[index]);
  }

  /** Waits for an element with this role and accessible name. */
  findByRole(role: keyof typeof CANDIDATES, name: string): Promise<Element> {
    const candidates = `${CANDIDATES[role]}, [role=${role}]`;
    return awaitElement(`${role} '${name}'`, async () => {
      const elements = await this.run<Element[]>(SORT, await this.findAll(candidates), name);
      for (const element of elements) {
        if (await this.name(element) === name && await this.role(element) === role) return element;
      }
      return undefined;
    });
  }

  /** The accessible name. */
  name(element: Element): Promise<string> {
    return this.#send('GET', `${pathOf(element)}/computedlabel`);
  }

  /** The accessible role. */
  role(element: Element): Promise<string> {
    return this.#send('GET', `${pathOf(element)}/computedrole`);
  }

  /** The text as it is displayed. */
  async text(target: Element | string, index: number = 0): Promise<string> {
    return this.run('return arguments[0].innerText', await this.#resolve(target, index));
  }

  /** Scrolls to the element and clicks it with the mouse. Fails if something covers it. */
  async click(target: Element | string, index: number = 0): Promise<void> {
    await this.#send('POST', `${pathOf(await this.#resolve(target, index))}/click`, {});
  }

  /** Clicks an element as assistive technology does: even if it is covered, and five times as fast as a mouse click. */
  async activate(target: Element | string, index: number = 0): Promise<void> {
    await this.run('arguments[0].click()', await this.#resolve(target, index));
  }

  /** Clicks an element twice, as fast as a double click. */
  async doubleClick(target: Element | string, index: number = 0): Promise<void> {
    const origin = await this.#resolve(target, index);
    await this.run('arguments[0].scrollIntoView({ block: "nearest" })', origin);
    const click = [{ type: 'pointerDown', button: 0 }, { type: 'pointerUp', button: 0 }];
    const actions = [{ type: 'pointerMove', origin, x: 0, y: 0 }, ...click, ...click];
    await this.#send('POST', '/actions', { actions: [{ type: 'pointer', id: 'mouse', actions }] });
  }

  /** Presses keys where the focus is: 'Tab', 'Shift+Tab', ' ', or a text character by character. */
  async press(...keys: string[]): Promise<void> {
    const actions = keys.flatMap(keyActions);
    await this.#send('POST', '/actions', { actions: [{ type: 'key', id: 'keyboard', actions }] });
  }

  /** Sets the size of the viewport, which can be smaller than a window. */
  async resize(width: number, height: number): Promise<void> {
    const metrics = { width, height, deviceScaleFactor: 1, mobile: false };
    await this.#callDevTools('Emulation.setDeviceMetricsOverride', metrics);
  }

  /** Sets the user's preferred color scheme. */
  async emulate({ dark = false }: { dark?: boolean }): Promise<void> {
    const features = [{ name: 'prefers-color-scheme', value: dark ? 'dark' : 'light' }];
    await this.#callDevTools('Emulation.setEmulatedMedia', { features });
  }

  /** A PNG of the viewport. */
  async screenshot(): Promise<Buffer> {
    return Buffer.from(await this.#send<string>('GET', '/screenshot'), 'base64');
  }

  /** The errors in the console since the last call. */
  async consoleErrors(): Promise<string[]> {
    return (await this.#readLog('browser')).filter(({ level }) => level === 'SEVERE').map(({ message }) => message);
  }

  /** The URLs of the network requests since the last call. */
  async requests(): Promise<string[]> {
    const events = (await this.#readLog('performance')).map(({ message }) => JSON.parse(message) as DevToolsEvent);
    return events.flatMap(({ message: { method, params } }) => {
      return method === 'Network.requestWillBeSent' ? params.request.url : [];
    }).filter((url) => url.startsWith('http'));
  }

  async #resolve(target: Element | string, index: number): Promise<Element> {
    return typeof target === 'string' ? this.find(target, index) : target;
  }

  #send<Value = null>(method: 'GET' | 'POST', path: string, body?: object): Promise<Value> {
    return send(method, this.#session + path, body);
  }

  #callDevTools(method: string, params: object): Promise<unknown> {
    return this.#send('POST', '/goog/cdp/execute', { cmd: method, params });
  }

  #readLog(type: 'browser' | 'performance'): Promise<{ level: string; message: string }[]> {
    return this.#send('POST', '/se/log', { type });
  }
}

interface DevToolsEvent {
  message: { method: string; params: { request: { url: string } } };
}

function pathOf(element: Element): string {
  return `/element/${element[ELEMENT_ID]}`;
}

async function awaitElement(what: string, search: () => Promise<Element | undefined>): Promise<Element> {
  let element: Element | undefined;
  await until(async () => (element = await search()) !== undefined, () => `the page has no ${what}`);
  return element as Element;
}

function keyActions(keys: string): object[] {
  const held = keys.split(/(?<=\bShift)\+/);
  const last = held.pop() ?? '';
  const modifiers = held.map((name) => KEYS[name] ?? name);
  const pressed = KEYS[last] ?? last;
  return [
    ...modifiers.map((value) => ({ type: 'keyDown', value })),
    ...[...pressed].flatMap((value) => [{ type: 'keyDown', value }, { type: 'keyUp', value }]),
    ...modifiers.reverse().map((value) => ({ type: 'keyUp', value })),
  ];
}
