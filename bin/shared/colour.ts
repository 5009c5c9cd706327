// Colour on a terminal, unless NO_COLOR, FORCE_COLOR=0 or TERM=dumb turns it off.

import { styleText } from 'node:util';
import type { WriteStream } from 'node:tty';

type Colour = Parameters<typeof styleText>[0];

/** The colours of statuses; all others are red. */
const STATUS_COLOURS: Readonly<Record<string, Colour>> = {
  active: 'green', pausing: 'yellow', paused: 'yellow', resuming: 'yellow', 'shutting down': 'yellow',
};

/** Colours a text for a stream, if it is a terminal with colours. */
function paint(text: string, colour: Colour, stream: WriteStream = process.stdout): string {
  if (!stream.isTTY || !stream.hasColors()) return text;
  return styleText(colour, text, { validateStream: false });
}

/** Colours a text by the status that it reports. */
export function paintStatus(text: string, status: string): string {
  return paint(text, STATUS_COLOURS[status] ?? 'red');
}

/** Colours an error message for stderr. */
export function paintError(message: string): string {
  return paint(message, 'red', process.stderr);
}
