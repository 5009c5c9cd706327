// The far end of a link to another machine: a program that the command of --via starts over there. Standard input and
// output carry frames, each a line of text, because some commands hold back what is not a complete line (srun):
//
//   STREAM TYPE DATA     the data in base64
//
//   0 LIST FOLDER        asks for the live sockets; answered with all their paths, and again when these change
//   0 PING               is answered with the same
//   7 OPEN ADDRESS       connects; answered with the same without the address or, if that fails, with CLOSE. At most
//                        2,048 at a time: a board needs two for each of up to 1,000 systems
//   7 DATA BYTES         either way
//   7 END                from the far end: there are no more bytes
//   7 CLOSE CODE TEXT    either way: the end, with the error if there is one; of stream 0, the end of the link

import { checkTrusted } from '../../../control.ts';

/** The line that precedes the frames of the far end. */
export const HELLO = 'control-dial 1';

/** A frame as a line. */
export const FRAME: RegExp = /^(\d{1,9}) ([A-Z]{3,5})(?: ([\w+/]*={0,2}))?$/;
export const MAX_FRAME_LENGTH: number = 2 ** 20;

/**
 * Speaks frames over standard input and output until the input ends. Runs as text, so it refers to nothing outside
 * itself: another machine needs only Node.
 */
export function dial(checkPath: typeof checkTrusted, hello: string, frame: RegExp, maxLength: number): void {
  const { lstatSync, readdirSync, realpathSync } = process.getBuiltinModule('node:fs');
  const { connect } = process.getBuiltinModule('node:net');
  const { resolve } = process.getBuiltinModule('node:path');
  const { env, stdin, stdout } = process;
  const uid = process.geteuid?.();
  const streams = new Map<string, ReturnType<typeof connect>>();
  const known = new Map<string, string>(); // live sockets: what tells one from its successor at the same path
  let folders = new Set<string>();
  let listed: string | undefined;
  let [rest, heardAt] = ['', performance.now()];

  function send(stream: string, type: string, data: string | Buffer = ''): boolean {
    return stdout.write(`${stream} ${type} ${Buffer.from(data).toString('base64')}\n`);
  }

  /** Input waits until everything has room for more. */
  function resume(): void {
    if (![stdout, ...streams.values()].some((output) => output.writableNeedDrain)) stdin.resume();
  }

  function textOf({ code = 'ERROR', message }: NodeJS.ErrnoException): string {
    return `${code} ${message}`;
  }

  function open(stream: string, address: string): void {
    if (streams.size >= 2048) return void send(stream, 'CLOSE', 'EMFILE too many connections');
    let socket: ReturnType<typeof connect>;
    let failure = '';
    const [, host = '', port] = /^([^/]*):(\d+)$/.exec(address) ?? [];
    try {
      if (port === undefined) checkPath(address);
      else if (!/^(localhost|127\.[\d.]+|::1)$/i.test(host)) throw new Error(`'${host}' is not localhost`);
      socket = port === undefined ? connect(address) : connect(Number(port), host);
    } catch (error) {
      return void send(stream, 'CLOSE', textOf(error as Error));
    }
    streams.set(stream, socket);
    const late = Object.assign(new Error('no connection within 4 s'), { code: 'ETIMEDOUT' });
    const limit = setTimeout(() => socket.destroy(late), 4000);
    socket.on('connect', () => {
      clearTimeout(limit);
      send(stream, 'OPEN');
    }).on('data', (chunk) => {
      if (send(stream, 'DATA', chunk)) return;
      socket.pause();
      stdout.once('drain', () => socket.resume());
    }).on('drain', resume).on('end', () => send(stream, 'END')).on('error', (error) => {
      failure = textOf(error);
      if (/^(ECONNREFUSED|ENOENT)$/.test((error as NodeJS.ErrnoException).code ?? '')) known.delete(address);
    }).on('close', () => {
      clearTimeout(limit);
      if (streams.delete(stream)) send(stream, 'CLOSE', failure);
      resume();
    });
  }

  function onFrame(stream: string, type: string, data: Buffer): void {
    const socket = streams.get(stream);
    if (type === 'PING') send(stream, type);
    if (type === 'LIST') list(String(data));
    if (type === 'OPEN' && socket === undefined) open(stream, String(data));
    if (type === 'DATA' && socket?.write(data) === false) stdin.pause();
    if (type === 'CLOSE' && streams.delete(stream)) socket?.destroy();
  }

  /** Without a folder: those that a session may have, because commands from elsewhere lack its environment. */
  function list(folder: string): void {
    const session = env['XDG_RUNTIME_DIR'];
    const usual = [...session ? [`${session}/control`] : [], `/run/user/${uid}/control`, `/tmp/control-${uid}`];
    const isScanning = folders.size > 0;
    if (folder !== '') {
      try {
        readdirSync(folder);
        checkPath(folder);
      } catch (error) {
        return void send('0', 'CLOSE', textOf(error as Error));
      }
    }
    folders = new Set((folder === '' ? usual : [folder]).map((path) => resolve(path)));
    if (!isScanning) void scan();
  }

  /** Lists the live sockets of this user and root, and again a second later, in the folders of then. */
  async function scan(): Promise<void> {
    const found = new Map<string, string>();
    for (const folder of folders) {
      try {
        checkPath(folder);
        const real = realpathSync(folder); // two may be the same
        for (const name of readdirSync(real).filter((entry) => entry.endsWith('.sock'))) {
          const stats = lstatSync(`${real}/${name}`);
          const isOurs = stats.uid === uid || stats.uid === 0;
          if (stats.isSocket() && isOurs) found.set(`${real}/${name}`, `${stats.ino} ${stats.mtimeMs}`);
        }
      } catch {} // it is missing, or not trusted
    }
    for (const path of known.keys()) if (known.get(path) !== found.get(path)) known.delete(path);
    const tries = [...found].slice(0, 1000).filter(([path]) => !known.has(path)).map(([path, id]) => {
      return new Promise<void>((done) => {
        const socket = connect(path, () => socket.destroy()).on('error', ({ code }: NodeJS.ErrnoException) => {
          if (/^(ECONNREFUSED|ENOENT)$/.test(code ?? '')) found.delete(path); // others may listen, but are busy
        }).on('close', () => {
          if (found.has(path)) known.set(path, id);
          done();
        });
      });
    });
    await Promise.all(tries);
    const paths = [...known.keys()].sort().join('\0');
    if (paths !== listed) send('0', 'LIST', paths);
    listed = paths;
    setTimeout(scan, 1000);
  }

  stdin.on('data', (chunk) => {
    if (stdout.writableLength > maxLength) stdin.pause();
    heardAt = performance.now();
    const lines = (rest + chunk.toString('latin1')).split('\n');
    rest = lines.pop() ?? '';
    if (rest.length > maxLength) process.exit(1);
    for (const line of lines) {
      const [, stream, type, data = ''] = frame.exec(line) ?? [];
      if (stream !== undefined && type !== undefined) onFrame(stream, type, Buffer.from(data, 'base64'));
    }
  }).on('end', () => process.exit()).on('error', () => process.exit(1));
  (stdout as any)._handle?.setBlocking?.(false); // a pipe that nobody reads must not stop the clock
  stdout.on('error', () => process.exit(1)).on('drain', resume).setMaxListeners(0);
  setInterval(() => performance.now() - heardAt > 60_000 && process.exit(1), 1000); // not every command hangs up
  stdout.write(`\n${hello}\n`);
}

/** Texts; and comments, and white space around punctuation, which it can do without. */
const TOKENS = /(['"`])(?:\\.|(?!\1).)*\1|\/\*.*?\*\/\s*|\/\/[^\n]*|\s*([=+?:;,(){}<>&|[\]])\s*|\s+/gs;

/** What follows the command: starts the far end, and means the same parsed by a shell never, once or twice. */
export function farCommand(): string[] {
  const functions = [dial, checkTrusted].map((one) => String(one).replaceAll(TOKENS, (text, quote, mark) => {
    return quote === undefined ? mark ?? ' ' : text;
  }));
  const program = `(${functions[0]})(${functions[1]},'${HELLO}',${FRAME},${MAX_FRAME_LENGTH})`;
  const encode = (character: string): string => `%${character.charCodeAt(0).toString(16)}`;
  const text = encodeURIComponent(program).replaceAll(/[!'()*]/g, encode);
  return ['node', '--import', `data:text/javascript,${text}`, '-e', '0'];
}
