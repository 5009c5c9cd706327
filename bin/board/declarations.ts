// The commands that a system declares, and the present values of their parameters. Any program may have sent them, so
// every field may have any type and text.

import { acceptedBy } from '../shared/accepts.ts';
import { excerptOf, MAX_VALUE_LENGTH } from '../shared/text.ts';

const TYPES = ['boolean', 'integer', 'number', 'string'] as const;
const MAX_COMMANDS = 32;
const MAX_PARAMETERS = 32; // of a command
const MAX_LENGTH = 16_384; // of all, as JSON: control.ts permits 8 KiB
const MAX_PRESENT = 32;

type Scalar = boolean | number | string;

/** A command that a system declares. */
export interface Declaration {
  name: string;
  description: string;
  parameters: Parameter[];
}

/** Values are exact, not made safe to print: a page sends them back. Without a default, it is required. */
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

/** The declarations in `/api/info`, without those that no server of this project sends. */
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

/** The fields of a detail that have the name of a parameter: short scalars, exact. */
export function presentValues(detail: unknown, declarations: readonly Declaration[]): [name: string, value: Scalar][] {
  if (typeof detail !== 'object' || detail === null) return [];
  const names = new Set(declarations.flatMap(({ parameters }) => parameters.map(({ name }) => name)));
  return [...names].filter((name) => Object.hasOwn(detail, name)).flatMap((name): [string, Scalar][] => {
    const value = (detail as Fields)[name];
    const isShort = typeof value !== 'string' || value.length <= MAX_VALUE_LENGTH;
    return isShort && TYPES.some((type) => isOf(type, value)) ? [[name, value as Scalar]] : [];
  }).slice(0, MAX_PRESENT);
}

type Fields = Readonly<Record<string, unknown>>;

/** Whether a value has a type. */
function isOf(type: Parameter['type'], value: unknown): value is Scalar {
  if (typeof value !== 'number') return typeof value === type;
  return type === 'integer' ? Number.isInteger(value) : type === 'number' && finite(value) !== undefined;
}

/** 1e999 is JSON, too, but no number. */
function finite(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isFinite(value) ? value : undefined;
}
