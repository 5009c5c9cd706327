// Did you mean: the words nearest to a mistyped one.

const MAX_MISTAKES = 2;
const LETTERS_PER_MISTAKE = 3; // with fewer, any short word resembles any other
const MAX_WORDS = 3;

/**
 * Returns ` (did you mean pause?)`, for the end of a message; empty if no words are near, or too many.
 *
 * @param words May come from anywhere: the result is not safe to print.
 * @param prefix Precedes each of them, such as `--`.
 */
export function suggest(word: string, words: Iterable<string>, prefix: string = ''): string {
  const typed = word.toLowerCase();
  const all = [...new Set(words)];
  const most = Math.min(MAX_MISTAKES, Math.floor(typed.length / LETTERS_PER_MISTAKE));
  let near: string[] = [];
  for (let mistakes = 0; near.length === 0 && mistakes <= most; mistakes += 1) {
    near = all.filter((other) => differsBy(mistakes, typed, other.toLowerCase()));
  }
  if (near.length === 0 && typed !== '') near = all.filter((other) => other.toLowerCase().startsWith(typed));
  if (near.length === 0 || near.length > MAX_WORDS) return '';
  return ` (did you mean ${near.map((one) => prefix + one).join(' or ')}?)`;
}

/** Whether no more than `mistakes` characters are missing, added, wrong, or swapped with the next one. */
function differsBy(mistakes: number, one: string, other: string): boolean {
  if (one === other) return true;
  if (mistakes === 0 || Math.abs(one.length - other.length) > mistakes) return false;
  let start = 0;
  while (one[start] === other[start]) start += 1;
  const isRest = (skipped: number, skippedOther: number): boolean => {
    return differsBy(mistakes - 1, one.slice(start + skipped), other.slice(start + skippedOther));
  };
  const isSwapped = one[start] === other[start + 1] && one[start + 1] === other[start];
  return isRest(1, 0) || isRest(0, 1) || isRest(1, 1) || (isSwapped && isRest(2, 2));
}
