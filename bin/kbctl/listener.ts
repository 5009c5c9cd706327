// What a listener is: it takes bindings and reports presses, or says why it cannot. And which to try on which system.

import { UsageError } from '../shared/options.ts';
import type { Action, Binding } from './keys.ts';

/**
 * Starts to listen. Rejects with CannotListen, and then leaves nothing behind.
 *
 * @param leaving Aborted when the user does not want to wait for the start any more.
 */
export type Listen = (
  bindings: readonly Binding[],
  events: ListenerEvents,
  leaving: AbortSignal,
) => Promise<Listener>;

export interface ListenerEvents {
  onPress(action: Action): void;
  /** Something that the user should know; it listens on. */
  onNotice(text: string): void;
  /** It listens no more; not called after close(). */
  onEnd(reason: string): void;
}

export interface Listener {
  /** What it listens to, for the user: `X11 display :0`. */
  readonly source: string;
  /** Those that work; the user has been told about the others. */
  readonly bindings: readonly Binding[];
  /** Gives back all that it took. */
  close(): void;
}

/** Why a listener cannot listen, and what to do about it. */
export class CannotListen extends Error {}

// ───── The choice ────────────────────────────────────────────────────────────────────────────────────────────────

const BACKENDS = ['x11', 'evdev', 'terminal', 'macos', 'windows'] as const;
export type Backend = (typeof BACKENDS)[number];

/** The listeners to try, the best first, and why these. */
export interface Choice {
  backends: readonly Backend[];
  why: string;
}

/** @throws {UsageError} If there is no listener of that name. */
export function chooseBackends(
  forced: string | undefined,
  platform: NodeJS.Platform = process.platform,
  env: NodeJS.ProcessEnv = process.env,
): Choice {
  if (forced !== undefined) return { backends: [parseBackend(forced)], why: '--backend says so' };
  if (platform === 'darwin') return { backends: ['macos', 'terminal'], why: 'this is macOS' };
  if (platform === 'win32') return { backends: ['windows', 'terminal'], why: 'this is Windows' };
  if (isWayland(platform, env)) return { backends: ['evdev', 'x11', 'terminal'], why: 'WAYLAND_DISPLAY is set' };
  if (env['DISPLAY']) return { backends: ['x11', 'evdev', 'terminal'], why: 'DISPLAY is set' };
  return { backends: ['evdev', 'terminal'], why: 'there is no DISPLAY' };
}

/** Under Wayland, X11 hears of keys only while the window of an X11 program has the focus. */
export function isWayland(
  platform: NodeJS.Platform = process.platform,
  env: NodeJS.ProcessEnv = process.env,
): boolean {
  return platform === 'linux' && Boolean(env['WAYLAND_DISPLAY']);
}

function parseBackend(text: string): Backend {
  const backend = BACKENDS.find((one) => one === text);
  if (backend !== undefined) return backend;
  throw new UsageError(`--backend must be one of ${BACKENDS.join(', ')}, got '${text}'`);
}
