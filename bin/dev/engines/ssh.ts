import type { Engine } from './engine.ts';

export const ssh: Engine = {
  name: 'ssh',
  packages: '',
  programs: [],
  start() {
    throw new Error('not written yet');
  },
};
