// What control-demo prints: lines and, on a terminal below them, its progress, redrawn in place.

import { printable } from '../shared/text.ts';

const REDRAW_MS = 100; // on a terminal
const PRINT_MS = 5000; // elsewhere

export class Progress {
  readonly #isTerminal: boolean = process.stdout.isTTY;
  #drawn = '';
  #dueAt = 0;

  get isDue(): boolean {
    return performance.now() >= this.#dueAt;
  }

  show(progress: string): void {
    this.#dueAt = performance.now() + (this.#isTerminal ? REDRAW_MS : PRINT_MS);
    if (!this.#isTerminal) return console.log(progress);
    this.#drawn = progress.slice(0, (process.stdout.columns || 80) - 1); // some terminals wrap at the last column
    process.stdout.write(`\r${this.#drawn}\x1b[K`);
  }

  /** Prints a line above the progress. */
  print(line: string, write: (line: string) => void = console.log): void {
    if (this.#drawn !== '') process.stdout.write('\r\x1b[K');
    write(printable(line)); // it may contain a path
    process.stdout.write(this.#drawn);
  }

  /** Prints the last line, below the progress. */
  end(line: string): void {
    if (this.#drawn !== '') console.log();
    this.#drawn = '';
    this.print(line);
  }
}
