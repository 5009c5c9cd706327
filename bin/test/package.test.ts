// What `npm pack` makes: everything that a program, a shell or a reader needs, without the repository or a network.
// npm runs `postprepare` in a clone alone, also in the one that it makes for a git dependency, but no `prepack` there.

import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, it } from 'node:test';
import { VERSION } from '../../control.ts';
import { makeFolder, start } from './helpers.ts';
import { LIMIT } from './wait.ts';

describe('The package', LIMIT, () => {
  it('installs without a network, without scripts and without advice about them', async (t) => {
    const folder = makeFolder(t);
    const npm = (...args: string[]): Promise<string> => run('npm', ...args, '--cache', join(folder, 'cache'));
    const run = async (command: string, ...args: string[]): Promise<string> => {
      const { code, stdout, stderr } = await start(t, command, args).ended;
      assert.equal(code, 0, stderr);
      assert.doesNotMatch(stderr, /scripts/);
      return stdout.trim();
    };
    const name = await npm('pack', '--silent', '--ignore-scripts', '--pack-destination', folder);
    await npm('install', '--offline', '--global', '--prefix', folder, join(folder, name));

    const root = join(folder, 'lib/node_modules/runtime-control');
    const { bin, exports, scripts } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
    const atInstallation = ['preinstall', 'install', 'postinstall', 'prepare'].filter((event) => event in scripts);
    assert.deepEqual(atInstallation, [], 'npm 11 warns about them, npm 12 does not run them');
    for (const path of ['LICENSE', 'control.ts', ...Object.values<string>(exports['.'])]) {
      assert.ok(existsSync(join(root, path)), path);
    }
    assert.equal(Object.keys(bin).length, 7);
    for (const tool of Object.keys(bin)) assert.equal(await run(join(folder, 'bin', tool), '--version'), VERSION, tool);
    assert.ok(checkLinks(root) > 100);
  });
});

describe('control.ts', () => {
  const source = readFileSync('control.ts', 'utf8');
  const lines = source.split('\n');

  it('is small: at most 3,165 lines and 182,300 bytes', () => {
    assert.ok(lines.length - 1 <= 3165, `${lines.length - 1} lines`);
    assert.ok(Buffer.byteLength(source) <= 182_300, `${Buffer.byteLength(source)} bytes`);
  });

  it('has no line above 120 characters, and no function above 150 lines', () => {
    const long = lines.filter((line) => Array.from(line).length > 120);
    assert.deepEqual(long, []);
    const functions = lines.flatMap((line, first) => {
      const [, indent = '', name] = /^( *)(?:export )?(?:async )?(?:function )?([#\w]+)(?:<.*>)?\(.*\{$/.exec(line) ?? [];
      if (name === undefined || name === 'if' || name === 'for' || name === 'while') return [];
      const length = lines.slice(first).findIndex((other) => other.startsWith(`${indent}}`)) + 1;
      return [{ name, length }];
    });
    assert.ok(functions.length > 120, String(functions.length));
    assert.deepEqual(functions.filter(({ length }) => length > 150), []);
  });
});

/** The most lines that the sources of a room may have: bin/ROOM.ts and bin/ROOM/. */
const ROOMS: Readonly<Record<string, number>> = {
  shared: 5114, client: 2267, board: 2476, run: 2969, kbctl: 1610, mcp: 1200, console: 740, demo: 210,
};

describe('bin', () => {
  const sources = readdirSync('bin', { encoding: 'utf8', recursive: true })
    .map((path) => path.replaceAll('\\', '/'))
    .filter((path) => /\.(ts|html|py)$/.test(path) && !/^(dev|test)\//.test(path));
  const textOf = (path: string): string => readFileSync(join('bin', path), 'utf8');
  const linesOf = (paths: readonly string[]): number => {
    return paths.reduce((sum, path) => sum + textOf(path).split('\n').length - 1, 0);
  };

  it('is a house of rooms, none of which exceeds its budget of lines', () => {
    const roomOf = (path: string): string => path.replace(/(\.ts|\/.*)$/, '');
    for (const [room, most] of Object.entries(ROOMS)) {
      const count = linesOf(sources.filter((path) => roomOf(path) === room));
      assert.ok(count > 0 && count <= most, `${room}: ${count} lines, at most ${most}`);
    }
    assert.deepEqual(sources.map(roomOf).filter((room) => !(room in ROOMS)), [], 'a room without a budget');
    assert.ok(linesOf(sources) <= 16_570, `${linesOf(sources)} lines`);
  });

  it('says in the first lines of each file what it is for, and imports nothing in a circle', () => {
    const code = sources.filter((path) => path.endsWith('.ts'));
    for (const path of code) assert.ok(/^(#!.*\n)?\/\/ .{20}/.test(textOf(path)), path);
    const imports = new Map(code.map((path) => {
      const found = [...textOf(path).matchAll(/^(?:import|\}) [^;]*?from '(\.[^']+)';$/gms)];
      return [path, found.map(([, other = '']) => join(dirname(path), other).replaceAll('\\', '/'))];
    }));
    assert.ok([...imports.values()].flat().length > 200);
    const open = new Set<string>();
    const closed = new Set<string>();
    const visit = (path: string): void => {
      if (closed.has(path)) return;
      assert.ok(!open.has(path), `${[...open, path].join(' imports ')}`);
      open.add(path);
      for (const other of imports.get(path) ?? []) visit(other);
      open.delete(path);
      closed.add(path);
    };
    for (const path of code) visit(path);
  });
});

/** Checks that the pages and images that pages refer to are in the package. Returns how many they are. */
function checkLinks(root: string): number {
  const pages = readdirSync(root, { encoding: 'utf8', recursive: true }).filter((path) => path.endsWith('.md'));
  const links = pages.flatMap((page) => {
    const text = readFileSync(join(root, page), 'utf8');
    return [...text.matchAll(/\]\((?!\w+:)([^)#\s]+\.(?:md|png))/g)].map(([, path = '']) => [page, path] as const);
  });
  for (const [page, path] of links) assert.ok(existsSync(join(root, dirname(page), path)), `${page}: ${path}`);
  return links.length;
}
