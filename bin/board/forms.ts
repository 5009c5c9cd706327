// What the forms of a page need: own commands and questions, as far as they are valid. Any program may have sent them,
// so every field may have any type and text.

import { acceptedBy, describeValues, isAnswer, limitsOf, questionsIn, timesOf } from '../shared/declared.ts';
import { commandsOf, hasEnded } from '../shared/describe.ts';
import { type Body, excerptOf, isRecord, MAX_VALUE_LENGTH } from '../shared/text.ts';

const TYPES = ['boolean', 'integer', 'number', 'string'] as const;
const MAX_COMMANDS = 32;
const MAX_PARAMETERS = 32; // per command or question
const MAX_LENGTH = 16_384; // of all declarations as JSON: control.ts permits 8 KiB
const MAX_CURRENT = 32;

export type Scalar = boolean | number | string;

/** An own command, as a page shows it. */
export interface OwnCommand {
  name: string;
  description: string;
  parameters: Parameter[];
}

/** Values are exact, not safe to print: a page sends them back. A parameter without a default is required. */
interface Parameter {
  name: string;
  type: typeof TYPES[number];
  description: string;
  /** `from 1 to 1000 · required`. */
  hint: string;
  default: Scalar | undefined;
  minimum: number | undefined;
  maximum: number | undefined;
  maxLength: number | undefined;
  enum: Scalar[] | undefined;
}

/** Returns what is valid of the declarations in `/api/info`. */
export function ownCommandsOf(info: Body): OwnCommand[] {
  let length = 0;
  return [...acceptedBy(info)].slice(0, MAX_COMMANDS)
    .map(([name, { description, parameters }]): OwnCommand => {
      return { name, description, parameters: parametersOf(parameters) };
    })
    .filter((command) => (length += JSON.stringify(command).length) <= MAX_LENGTH);
}

/** The parameters that a form can have. */
function parametersOf(parameters: ReadonlyMap<string, Body>): Parameter[] {
  return [...parameters].slice(0, MAX_PARAMETERS).flatMap(tidyParameter);
}

function tidyParameter([name, fields]: [name: string, fields: Body]): Parameter[] {
  const type = TYPES.find((known) => known === fields['type']);
  if (type === undefined) return [];
  const { enum: choices, default: value } = fields;
  const [minimum, maximum, maxLength] = [fields['minimum'], fields['maximum'], fields['maxLength']].map(finite);
  const values = Array.isArray(choices) ? choices.filter((choice) => isOf(type, choice)) : [];
  const isList = values.length > 0;
  const initial = isOf(type, value) && (!isList || values.includes(value)) ? value : undefined;
  const limits = isList ? '' : limitsOf({ type, minimum, maximum, maxLength }); // a list shows them
  const isRequired = initial === undefined && (type !== 'boolean' || isList); // a checkbox has a value
  return [{
    name, type, description: excerptOf(fields['description']),
    hint: [limits, isRequired ? 'required' : ''].filter((part) => part !== '').join(' · '),
    default: initial, minimum, maximum, maxLength, enum: isList ? values : undefined,
  }];
}

/** The current values of parameters: the fields of the detail that have their names, if they are short scalars. */
export function currentValues(detail: unknown, ownCommands: readonly OwnCommand[]): [name: string, value: Scalar][] {
  const names = new Set(ownCommands.flatMap(({ parameters }) => parameters.map(({ name }) => name)));
  const entries = Object.entries(isRecord(detail) ? detail : {}) as [name: string, value: Scalar][];
  return entries.filter(([name, value]) => {
    const isShort = typeof value !== 'string' || value.length <= MAX_VALUE_LENGTH;
    return names.has(name) && isShort && TYPES.some((type) => isOf(type, value));
  }).slice(0, MAX_CURRENT);
}

/** Whether a value is of a type. */
function isOf(type: Parameter['type'], value: unknown): value is Scalar {
  if (typeof value !== 'number') return typeof value === type;
  return type === 'integer' ? Number.isInteger(value) : type === 'number' && finite(value) !== undefined;
}

/** Undefined for anything but a finite number: JSON permits 1e999. */
function finite(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isFinite(value) ? value : undefined;
}

// ───── Questions ─────────────────────────────────────────────────────────────────────────────────────────────────

const MAX_ASK_LENGTH = 16_384; // of a question as JSON: control.ts permits 4 KiB

/** An open question, with its times: `asked 3 min ago, expires in 12 min`. */
export interface Ask {
  id: string;
  message: string;
  times: string;
  parameters: Parameter[];
}

/** How a question has ended. */
export interface AskEnd {
  id: string;
  /** `Yes, by ana@phone (looked)`, `file=a, by ana@phone`, `expired`, `withdrawn`. */
  text: string;
  isAnswered: boolean;
}

/** The open questions, the oldest first. */
export function readAsks(info: Body): Ask[] {
  return questionsIn(info).map((question): Ask => {
    const { id, message, parameters } = question;
    return { id, message, times: timesOf(question), parameters: parametersOf(parameters) };
  }).filter((ask) => JSON.stringify(ask).length <= MAX_ASK_LENGTH);
}

/** The ends of the latest questions. */
export function readAskEnds(info: Body): AskEnd[] {
  return commandsOf(info).filter((entry) => isAnswer(entry) && hasEnded(entry)).map((entry) => {
    const { id, by, reason, error, arguments: given, state } = entry;
    const [isAnswered, why, values] = [state === 'done', excerptOf(reason), Object.values(Object(given) as object)];
    const word = values.length === 1 && typeof values[0] === 'boolean' ? (values[0] ? 'Yes' : 'No') : '';
    const answer = `${word || describeValues(given) || 'answered'}, by ${excerptOf(by) || 'somebody'}`;
    return { id: excerptOf(id), text: isAnswered ? answer + (why && ` (${why})`) : excerptOf(error), isAnswered };
  });
}
