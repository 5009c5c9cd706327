// The interface that all backends implement, and the order in which each platform tries them.

import { UsageError } from '../shared/line/options.ts';
import type { Action, Binding } from './keys.ts';

export interface ListenerEvents {
  onPress(action: Action): void;
  /** Reports a problem to the user; the backend continues. */
  onNotice(text: string): void;
  /** The backend has failed. Not called after close(). */
  onEnd(reason: string): void;
}

export interface Listener {
  /** What it listens to, for the user: `X11 display :0`. */
  readonly source: string;
  /** The bindings that work; onNotice() has reported the others. */
  readonly bindings: readonly Binding[];
  /** Releases everything. */
  close(): void;
}

/** Why a backend cannot listen, and how to fix it. It has released everything. */
export class BackendError extends Error {}

// ───── The choice ────────────────────────────────────────────────────────────────────────────────────────────────

const BACKENDS = ['x11', 'evdev', 'terminal', 'macos', 'windows'] as const;
export type Backend = (typeof BACKENDS)[number];

/** The backends to try, the best first, and the reason. */
export interface Choice {
  backends: readonly Backend[];
  reason: string;
}

/** @throws {UsageError} If there is no backend of that name. */
export function chooseBackends(
  forced: string | undefined,
  platform: NodeJS.Platform = process.platform,
  env: NodeJS.ProcessEnv = process.env,
): Choice {
  if (forced !== undefined) return { backends: [parseBackend(forced)], reason: 'set by --backend' };
  if (platform === 'darwin') return { backends: ['macos', 'terminal'], reason: 'this is macOS' };
  if (platform === 'win32') return { backends: ['windows', 'terminal'], reason: 'this is Windows' };
  if (isWayland(platform, env)) return { backends: ['evdev', 'x11', 'terminal'], reason: 'WAYLAND_DISPLAY is set' };
  if (env['DISPLAY']) return { backends: ['x11', 'evdev', 'terminal'], reason: 'DISPLAY is set' };
  return { backends: ['evdev', 'terminal'], reason: 'DISPLAY is not set' };
}

/** Under Wayland, X11 receives keys only while an X11 window has the focus. */
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
