// Color on a terminal, unless NO_COLOR, FORCE_COLOR=0 or TERM=dumb turns it off.

import { styleText } from 'node:util';
import type { WriteStream } from 'node:tty';

type Color = Parameters<typeof styleText>[0];

/** The colors of statuses, and of a system that asks; all others are red. */
const STATUS_COLORS: Readonly<Record<string, Color>> = {
  active: 'green', pausing: 'yellow', paused: 'yellow', resuming: 'yellow', 'shutting down': 'yellow',
  asks: 'cyan',
};

/** Colors a text for a stream, if it is a terminal with colors. */
function paint(text: string, color: Color, stream: WriteStream = process.stdout): string {
  if (!stream.isTTY || !stream.hasColors()) return text;
  return styleText(color, text, { validateStream: false });
}

/** Colors a text by the status that it reports. */
export function paintStatus(text: string, status: string): string {
  return paint(text, STATUS_COLORS[status] ?? 'red');
}

/** Colors an error message for stderr. */
export function paintError(message: string): string {
  return paint(message, 'red', process.stderr);
}
