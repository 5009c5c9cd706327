// The file descriptors of a program from 3 on: what control-run has inherited, as under `nice`, and free ones for its
// sockets. Node passes on only what it is told to.

import { existsSync, readdirSync, readlinkSync } from 'node:fs';
import { tryRead } from './processes.ts';

if (/--inspect/.test(process.env['NODE_OPTIONS'] ?? '')) { // it is for the program, and so is its port
  process.getBuiltinModule('node:inspector').close();
}
const inherited = listInherited(); // at the start: later, control-run opens others
const free = Array.from({ length: inherited.length + 8 }, (_, n) => n + 3).filter((fd) => !inherited.includes(fd));
/** Below 10, because shells such as dash know one digit only; NaN if all of these are taken. */
export const GATE_FD: number = free.filter((fd) => fd < 10).at(-1) ?? NaN;
export const CHANNEL_FD: number = free.find((fd) => fd !== GATE_FD) as number;

/** Returns the option `stdio` of `spawn()`. */
export function stdioOf(isPaused: boolean): (number | 'pipe' | 'ignore')[] {
  return Array.from({ length: Math.max(CHANNEL_FD, isPaused ? GATE_FD : 0, ...inherited) + 1 }, (_, fd) => {
    if (fd < 3 || inherited.includes(fd)) return fd;
    return fd === CHANNEL_FD || (isPaused && fd === GATE_FD) ? 'pipe' : 'ignore';
  });
}

/** Node opens an epoll first, at the lowest number that is free. Of its own pipes, it holds both ends. */
function listInherited(): number[] {
  const names = existsSync('/proc/self/fdinfo') ? readdirSync('/proc/self/fd') : [];
  const open = names.map(Number).filter((fd) => fd > 2).sort((a, b) => a - b).flatMap((fd) => {
    const mode = /^flags:.*(\d)$/m.exec(tryRead(`/proc/self/fdinfo/${fd}`))?.[1]; // 0 to read, 1 to write
    return mode === undefined ? [] : [{ fd, what: `${readlinkSync(`/proc/self/fd/${fd}`)} ${mode}` }]; // of readdir()
  });
  const others = open.slice(open.findIndex(({ what }) => what.startsWith('anon_inode:[eventpoll]')));
  const isOwn = (what: string): boolean => /^anon_inode:|^\/dev\/null /.test(what) || (what.startsWith('pipe:') &&
    ['0', '1'].every((mode) => others.some((one) => one.what === what.replace(/.$/, mode))));
  return open.filter((one) => !others.includes(one) || !isOwn(one.what)).map(({ fd }) => fd);
}
