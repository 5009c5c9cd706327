// The own commands of a system, and the current values of their parameters. Any program may have sent them, so every
// field may have any type and text.

import { acceptedBy } from '../shared/words/accepts.ts';
import { excerptOf, MAX_VALUE_LENGTH } from '../shared/words/text.ts';

const TYPES = ['boolean', 'integer', 'number', 'string'] as const;
const MAX_COMMANDS = 32;
const MAX_PARAMETERS = 32; // per command
const MAX_LENGTH = 16_384; // of all declarations as JSON: control.ts permits 8 KiB
const MAX_CURRENT = 32;

type Scalar = boolean | number | string;

/** An own command. */
export interface Declaration {
  name: string;
  description: string;
  parameters: Parameter[];
}

/** Values are exact, not safe to print: a page sends them back. A parameter without a default is required. */
interface Parameter {
  name: string;
  type: typeof TYPES[number];
  description: string;
  default: Scalar | undefined;
  minimum: number | undefined;
  maximum: number | undefined;
  maxLength: number | undefined;
  enum: Scalar[] | undefined;
}

/** Returns the valid declarations in `/api/info`. */
export function declarationsOf(info: Fields): Declaration[] {
  let length = 0;
  return [...acceptedBy(info) ?? []].slice(0, MAX_COMMANDS)
    .map(([name, { description, parameters }]): Declaration => {
      return { name, description, parameters: [...parameters].slice(0, MAX_PARAMETERS).flatMap(tidyParameter) };
    })
    .filter((declaration) => (length += JSON.stringify(declaration).length) <= MAX_LENGTH);
}

function tidyParameter([name, fields]: [name: string, fields: Fields]): Parameter[] {
  const type = TYPES.find((known) => known === fields['type']);
  if (type === undefined) return [];
  const { enum: choices, default: value } = fields;
  const [minimum, maximum, maxLength] = [fields['minimum'], fields['maximum'], fields['maxLength']].map(finite);
  const values = Array.isArray(choices) ? choices.filter((choice) => isOf(type, choice)) : [];
  return [{
    name, type, description: excerptOf(fields['description']),
    default: isOf(type, value) && (values.length === 0 || values.includes(value)) ? value : undefined,
    minimum, maximum, maxLength, enum: values.length === 0 ? undefined : values,
  }];
}

/** The current values of parameters: the fields of the detail that have their names, if they are short scalars. */
export function currentValues(detail: unknown, declarations: readonly Declaration[]): [name: string, value: Scalar][] {
  if (typeof detail !== 'object' || detail === null) return [];
  const names = new Set(declarations.flatMap(({ parameters }) => parameters.map(({ name }) => name)));
  return [...names].filter((name) => Object.hasOwn(detail, name)).flatMap((name): [string, Scalar][] => {
    const value = (detail as Fields)[name];
    const isShort = typeof value !== 'string' || value.length <= MAX_VALUE_LENGTH;
    return isShort && TYPES.some((type) => isOf(type, value)) ? [[name, value as Scalar]] : [];
  }).slice(0, MAX_CURRENT);
}

type Fields = Readonly<Record<string, unknown>>;

/** Whether a value is of a type. */
function isOf(type: Parameter['type'], value: unknown): value is Scalar {
  if (typeof value !== 'number') return typeof value === type;
  return type === 'integer' ? Number.isInteger(value) : type === 'number' && finite(value) !== undefined;
}

/** Undefined for anything but a finite number: JSON permits 1e999. */
function finite(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isFinite(value) ? value : undefined;
}
